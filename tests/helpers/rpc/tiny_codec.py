"""A codec of plain JSON, just enough for the tests of what lies below the calls."""

from __future__ import annotations

import json
from typing import Any

from wsmux.rpc.wire.codec import Codec, EncodeError
from wsmux.rpc.wire.envelope import Envelope, EnvelopeError


class TinyCodec(Codec):
    """Carry what JSON can; ``broken`` makes every encoding fail."""

    name = "tiny"
    broken = False

    def pack(self, payload: Any) -> bytes:
        try:
            return json.dumps(payload).encode()
        except TypeError as error:
            raise EncodeError(str(error)) from error

    def encode(self, envelope: Envelope, packed: bytes) -> bytes:
        if self.broken:
            raise EncodeError("out of memory")
        return json.dumps(envelope.head()).encode()[:-1] + b', "payload": ' + packed + b"}"

    def decode(self, data: bytes | bytearray | memoryview) -> Envelope:
        try:
            fields = json.loads(bytes(data))
        except ValueError as error:
            raise EnvelopeError(str(error)) from error
        return Envelope.from_fields(fields)


def frame(payload: Any = None, **changed: Any) -> bytes:
    """Return a message from ``client`` to ``SERVER``, with its fields as they travel."""
    fields = {
        "id": "id",
        "from": "client",
        "to": "SERVER",
        "seq": 0,
        "ack": 0,
        "streamId": "stream",
        "controlFlags": 0,
        "payload": payload,
    }
    return json.dumps({**fields, **changed}).encode()


def fields(data: bytes) -> dict[str, Any]:
    """Return what a message says."""
    return json.loads(data)  # type: ignore[no-any-return]
