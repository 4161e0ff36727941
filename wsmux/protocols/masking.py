"""Mask and unmask WebSocket payloads (RFC 6455 section 5.3).

``mask`` is the C routine of the ``websockets`` package if that is installed (extra ``fast``) and
agrees with ours in a test; otherwise the fastest pure Python, as measured on 64 KiB: an XOR of two
long integers below 512 bytes, above that a table look-up for every fourth byte. ``native_masker``
tells which is in use; the environment variable WSMUX_PURE_PYTHON_MASK forces ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

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
        routine = _routine()
    except (ImportError, AttributeError):
        return python_mask, False
    return (routine, True) if _agrees(routine) else (python_mask, False)


def _routine() -> Callable[[Buffer, bytes], bytes]:
    """Return the C routine, from its file alone.

    The package around it looks up its own version as it is imported, which takes a sixth of the
    time in which a program that connects starts.
    """
    name = "websockets.speedups"
    if name in sys.modules:
        module = import_module(name)
    else:
        package = find_spec("websockets")
        places = package.submodule_search_locations if package is not None else None
        spec = PathFinder.find_spec(name, places or [])
        if spec is None or spec.loader is None:
            raise ImportError(f"there is no {name}")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    routine: Callable[[Buffer, bytes], bytes] = module.apply_mask
    return routine


mask, native_masker = _choose()


def rotate(key: bytes, offset: int) -> bytes:
    """Return the key that applies from byte ``offset`` of the payload on."""
    offset %= 4
    return key[offset:] + key[:offset]
