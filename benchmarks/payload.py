"""Make the bytes that are measured with, and tell whether those that come are the same.

Bulk is a block of random bytes, over and over. What is checked of each piece is its first and last
byte, which tell its place but for one in 256: comparing all of it would take as long as some
variants take to carry it.
"""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

__all__ = ["CHUNK", "check_piece", "memory", "pieces"]

CHUNK = 64 * 1024  # a message of the raw pair, a write of a stream

_BLOCK = random.Random(6455).randbytes(CHUNK)


def pieces(size: int) -> list[bytes]:
    """Return ``size`` bytes of bulk in chunks, which are all the same object."""
    rest = size % CHUNK
    return [_BLOCK] * (size // CHUNK) + ([_BLOCK[:rest]] if rest else [])


def check_piece(piece: bytes, place: int) -> int:
    """Return the place in the bulk behind ``piece``, which begins at ``place``.

    Raises:
        RuntimeError: it is not what belongs there.
    """
    end = place + len(piece)
    if piece[0] != _BLOCK[place % CHUNK] or piece[-1] != _BLOCK[(end - 1) % CHUNK]:
        raise RuntimeError(f"the bytes from {place} to {end} are not those that were sent")
    return end


def memory() -> int:
    """Return the bytes of this process that are in memory, without garbage."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
