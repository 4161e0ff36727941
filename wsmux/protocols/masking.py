"""Mask and unmask WebSocket payloads (RFC 6455 section 5.3).

``mask`` is the C routine of the ``websockets`` package if that is installed (extra ``fast``) and
agrees with ours in a test; otherwise the fastest pure Python, as measured on 64 KiB: an XOR of two
long integers below 512 bytes, above that a table look-up for every fourth byte. ``native_masker``
tells which is in use; the environment variable WSMUX_PURE_PYTHON_MASK forces ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

__all__ = ["mask", "native_masker", "python_mask", "rotate"]

Buffer = bytes | bytearray | memoryview

# Integers are faster below this size, four slices above it.
_SMALL = 512


@lru_cache(maxsize=256)
def _table(key: int) -> bytes:
    return bytes(value ^ key for value in range(256))


def python_mask(data: Buffer, key: bytes) -> bytes:
    """Return ``data`` XORed with the repeated four bytes of ``key``, in pure Python."""
    size = len(data)
    if size < _SMALL:
        repeated = (key * (size // 4 + 1))[:size]
        mixed = int.from_bytes(data, "little") ^ int.from_bytes(repeated, "little")
        return mixed.to_bytes(size, "little")
    result = bytearray(data)
    for position in range(4):
        result[position::4] = result[position::4].translate(_table(key[position]))
    return bytes(result)


def _agrees(candidate: Callable[[Buffer, bytes], bytes]) -> bool:
    """Test a masker on sizes around its word sizes, on views and with odd keys."""
    key = bytes((0xA5, 0, 0xFF, 0x3C))
    sample = bytes(range(256)) * 5
    return all(
        candidate(memoryview(sample)[start : start + size], key)
        == python_mask(sample[start : start + size], key)
        for start in (0, 1, 3)
        for size in (*range(40), 127, 512, 1027)
    )


def _choose() -> tuple[Callable[[Buffer, bytes], bytes], bool]:
    if os.environ.get("WSMUX_PURE_PYTHON_MASK"):
        return python_mask, False
    try:
        from websockets.speedups import apply_mask
    except ImportError:
        return python_mask, False
    return (apply_mask, True) if _agrees(apply_mask) else (python_mask, False)


mask, native_masker = _choose()


def rotate(key: bytes, offset: int) -> bytes:
    """Return the key that applies from byte ``offset`` of the payload on."""
    offset %= 4
    return key[offset:] + key[:offset]
