"""Build RFC 6455 frames without the code under test."""

from __future__ import annotations

import struct

from wsmux.protocols.base import Role

__all__ = ["CONTINUATION", "KEY", "frame", "head", "unmasked"]

KEY = bytes.fromhex("37fa213d")  # of the examples in RFC 6455 section 5.7
CONTINUATION = 0


def unmasked(data: bytes, key: bytes) -> bytes:
    return bytes(byte ^ key[index % 4] for index, byte in enumerate(data))


def head(
    role: Role,
    opcode: int,
    size: int,
    *,
    fin: bool = True,
    reserved: int = 0,
    width: int | None = None,
    masked: bool | None = None,
) -> bytes:
    """Return the head of a frame as ``role`` receives it, without the key.

    ``width`` is how many bytes the length takes; by default the shortest.
    """
    if masked is None:
        masked = role is Role.SERVER
    if width is None:
        width = 1 if size < 126 else 3 if size < 65536 else 9
    first = fin << 7 | reserved | opcode
    length = {1: size, 3: 126, 9: 127}[width]
    extended = {1: b"", 3: struct.pack(">H", size & 0xFFFF), 9: struct.pack(">Q", size)}[width]
    return bytes((first, masked << 7 | length)) + extended


def frame(
    role: Role,
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    reserved: int = 0,
    width: int | None = None,
    masked: bool | None = None,
) -> bytes:
    """Return a whole frame as ``role`` receives it."""
    start = head(role, opcode, len(payload), fin=fin, reserved=reserved, width=width, masked=masked)
    if start[1] & 0x80:
        return start + KEY + unmasked(payload, KEY)
    return start + payload
