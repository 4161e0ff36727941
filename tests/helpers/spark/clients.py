"""Speak with a data server by plain calls and streams."""

from __future__ import annotations

import json
from typing import Any

import wsmux
from wsmux.spark.protocol import encode_line

from ..timeouts import WAIT


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def open_named(connection: wsmux.Connection, name: str, **fields: Any) -> wsmux.Stream:
    """Open a stream and send its header."""
    return open_with(connection, encode_line({"stream": name, **fields}))


def open_with(connection: wsmux.Connection, data: bytes) -> wsmux.Stream:
    """Open a stream and send some bytes."""
    stream = connection.open_stream(timeout=WAIT)
    stream.timeout = WAIT
    stream.write(data)
    return stream


def read_line(stream: wsmux.Stream) -> Any:
    """Return what the next line holds, and leave what follows."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = stream.read(1)
        if not byte:
            raise EOFError(f"the stream ended within a line: {bytes(line)!r}")
        line += byte
    return json.loads(line)


def refusal_of(stream: wsmux.Stream) -> str:
    """Return the code of a refusal, after which the stream ends."""
    answer = read_line(stream)
    assert answer.keys() == {"ok", "code", "message"}
    assert answer["ok"] is False
    assert "\n" not in answer["message"]
    assert stream.read(1) == b""
    return str(answer["code"])
