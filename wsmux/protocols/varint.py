"""Encode and decode QUIC variable-length integers (RFC 9000 section 16).

The two top bits of the first byte give the length, 1, 2, 4 or 8 bytes, which leaves 62 bits.
"""

from __future__ import annotations

import struct

__all__ = ["MAX_VARINT", "decode_varint", "encode_varint"]

MAX_VARINT = 2**62 - 1

_TWO = struct.Struct(">H")
_FOUR = struct.Struct(">I")
_EIGHT = struct.Struct(">Q")
_ONE_BYTE = tuple(bytes((value,)) for value in range(64))


def encode_varint(value: int) -> bytes:
    """Return the shortest encoding of ``value``.

    Raises:
        ValueError: ``value`` is negative or needs more than 62 bits.
    """
    if 0 <= value < 1 << 6:
        return _ONE_BYTE[value]
    if 0 <= value < 1 << 14:
        return _TWO.pack(value | 1 << 14)
    if 0 <= value < 1 << 30:
        return _FOUR.pack(value | 1 << 31)
    if 0 <= value <= MAX_VARINT:
        return _EIGHT.pack(value | 3 << 62)
    raise ValueError(f"{value} does not fit a 62-bit variable-length integer")


def decode_varint(data: bytes | bytearray | memoryview, offset: int = 0) -> tuple[int, int] | None:
    """Return the integer at ``offset`` and the offset after it; longer encodings are accepted.

    Returns ``None`` if ``data`` is incomplete.
    """
    if offset >= len(data):
        return None
    first = data[offset]
    if first < 64:
        return first, offset + 1
    end = offset + (1 << (first >> 6))
    if end > len(data):
        return None
    return int.from_bytes(data[offset:end], "big") & (1 << (8 * (end - offset) - 2)) - 1, end
