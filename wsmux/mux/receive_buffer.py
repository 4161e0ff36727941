"""Queue received chunks and return them in reads of any size."""

from __future__ import annotations

from collections import deque

__all__ = ["ByteQueue"]

# Each chunk has an overhead of about 45 bytes. So beyond FEW chunks, small ones are joined into
# pieces: the overhead of a queue is at most a quarter of its content, and 2 KiB.
FEW = 16
SMALL = 512
PIECE = 4096


class ByteQueue:
    """Hold chunks of bytes in order; ``take`` copies only if a read splits a chunk.

    Many small chunks are joined, so that they cost little more than their bytes. Not locked: the
    owner's mutex guards it.

    Attributes:
        size: the number of bytes; read-only for the owner.
    """

    __slots__ = ("_first", "_more", "_offset", "size")

    def __init__(self) -> None:
        self._first: bytes | bytearray = b""  # joined chunks are bytearrays
        # The chunks after it. Most streams never have any, and an empty deque is 760 bytes.
        self._more: deque[bytes | bytearray] | None = None
        self._offset = 0  # bytes of the first chunk already taken
        self.size = 0

    def append(self, chunk: bytes) -> None:
        """Append a chunk; an empty one changes nothing."""
        size = len(chunk)
        if not self.size:
            self._first = chunk
        elif self._more is None:
            if size:
                self._more = deque((chunk,))
        elif size < SMALL and len(self._more) >= FEW - 1:
            self._join(self._more, chunk)
        elif size:
            self._more.append(chunk)
        self.size += size

    def _join(self, more: deque[bytes | bytearray], chunk: bytes) -> None:
        """Add a small chunk to the last piece; never to the first, to which views may exist."""
        last = more[-1]
        if type(last) is bytearray and len(last) + len(chunk) <= PIECE:
            last += chunk
        elif chunk:
            more.append(bytearray(chunk))

    def take(self, limit: int) -> bytes:
        """Remove and return up to ``limit`` bytes of the first chunk; ``b""`` if none are left.

        Chunks are never joined by a read, so that a chunk that fits is returned without a copy.
        """
        if not self.size or limit <= 0:
            return b""
        chunk = self._first
        if type(chunk) is not bytes:
            chunk = self._first = bytes(chunk)
        start = self._offset
        if len(chunk) - start > limit:
            self._offset = start + limit
            self.size -= limit
            return chunk[start : start + limit]
        if start:
            chunk = chunk[start:]
        left, more = self.size - len(chunk), self._more
        # No calls from here on: a signal handler run after one could raise, leaving this half done.
        self._offset, self.size = 0, left
        if more:
            self._first = more[0]
            del more[0]
        else:
            self._first, self._more = b"", None
        return chunk

    def take_into(self, target: memoryview) -> int:
        """Move bytes into ``target`` until it is full or the queue empty; return their number."""
        filled = 0
        while filled < len(target) and self.size:
            chunk, more = self._first, self._more
            part = memoryview(chunk)[self._offset : self._offset + len(target) - filled]
            target[filled : filled + len(part)] = part
            filled += len(part)
            self.size -= len(part)
            self._offset += len(part)
            if self._offset == len(chunk):
                self._offset = 0
                if more:
                    self._first = more[0]
                    del more[0]
                else:
                    self._first, self._more = b"", None
        return filled

    def clear(self) -> int:
        """Drop everything; return the number of bytes dropped."""
        dropped = self.size
        self._first, self._more = b"", None
        self._offset = self.size = 0
        return dropped
