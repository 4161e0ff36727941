"""Read the messages captured from the published implementations."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from wsmux.rpc.wire.codec import Codec
from wsmux.rpc.wire.envelope import Envelope
from wsmux.rpc.wire.json_codec import codec_of

from .captured import CODECS, VECTORS

__all__ = ["Captured", "captured"]

# They write the fields in our order only where they make the message in one step.
SAME_ORDER = {"HANDSHAKE_REQ", "HANDSHAKE_RESP"}


class Captured(NamedTuple):
    name: str
    codec: Codec
    data: bytes
    fields: dict[str, Any]

    @property
    def envelope(self) -> Envelope:
        # The vectors write payloads as JSON does, and the malformed tests hold that codec to it.
        return codec_of("json").decode(json.dumps(self.fields).encode())

    @property
    def of_a_handshake(self) -> bool:
        return self.fields["payload"].get("type") in SAME_ORDER


def captured(valid: bool) -> list[Captured]:
    return [
        Captured(
            f"{codec}-{scenario}-{number}",
            codec_of(CODECS[codec]),
            bytes.fromhex(frame["hex"]),
            frame.get("msg", {}),
        )
        for codec, scenarios in VECTORS.items()
        for scenario, told in scenarios.items()
        for number, frame in enumerate(told["frames"])
        if frame["opcode"] == "binary"
        and ("undecodable" not in frame and "to" in frame["msg"]) is valid
    ]
