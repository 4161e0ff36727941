"""Queue received chunks and hand them out in reads of any size."""

from __future__ import annotations

from collections import deque

__all__ = ["ByteQueue"]

# Each chunk costs about 45 bytes beside its own. So from this many on, small ones are joined into
# pieces: what a queue costs is at most a quarter more than what it holds, and 2 KiB.
FEW = 16
SMALL = 512
PIECE = 4096


class ByteQueue:
    """Hold chunks of bytes in order; ``take`` copies only where a read cuts a chunk.

    Where many small chunks wait, they are joined, so that they cost little more than their bytes.

    Not locked: the owner's mutex guards it.

    Attributes:
        size: the bytes it holds; for the owner to read only.
    """

    __slots__ = ("_first", "_more", "_offset", "size")

    def __init__(self) -> None:
        self._first: bytes | bytearray = b""  # those that are joined are bytearrays
        # The chunks after it: most streams never have any, and an empty deque is 760 bytes.
        self._more: deque[bytes | bytearray] | None = None
        self._offset = 0  # bytes of the first chunk already taken
        self.size = 0

    def append(self, chunk: bytes) -> None:
        """Add a chunk at the end; an empty one changes nothing."""
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
        """Add a small chunk to the last piece. That is never the first, of which views may live."""
        last = more[-1]
        if type(last) is bytearray and len(last) + len(chunk) <= PIECE:
            last += chunk
        elif chunk:
            more.append(bytearray(chunk))

    def take(self, limit: int) -> bytes:
        """Remove and return up to ``limit`` bytes from the first chunk; ``b""`` if none are left.

        A read never joins chunks, so that a chunk that fits is returned without a copy.
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
        # No call from here on, after which a signal handler could raise and leave half of it done.
        self._offset, self.size = 0, left
        if more:
            self._first = more[0]
            del more[0]
        else:
            self._first, self._more = b"", None
        return chunk

    def take_into(self, target: memoryview) -> int:
        """Move bytes into ``target`` until it is full or the queue is empty; return how many."""
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
        """Drop everything; return how many bytes were dropped."""
        dropped = self.size
        self._first, self._more = b"", None
        self._offset = self.size = 0
        return dropped
