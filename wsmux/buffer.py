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

    __slots__ = ("_chunks", "_offset", "size")

    def __init__(self) -> None:
        self._chunks: deque[bytes | bytearray] = deque()  # those that are joined are bytearrays
        self._offset = 0  # bytes of the first chunk already taken
        self.size = 0

    def append(self, chunk: bytes) -> None:
        """Add a chunk at the end; an empty one changes nothing."""
        size = len(chunk)
        if size < SMALL and len(self._chunks) >= FEW:
            self._join(chunk)
        elif size:
            self._chunks.append(chunk)
        self.size += size

    def _join(self, chunk: bytes) -> None:
        """Add a small chunk to the last piece. That is never the first, of which views may live."""
        last = self._chunks[-1]
        if type(last) is bytearray and len(last) + len(chunk) <= PIECE:
            last += chunk
        elif chunk:
            self._chunks.append(bytearray(chunk))

    def take(self, limit: int) -> bytes:
        """Remove and return up to ``limit`` bytes from the first chunk; ``b""`` if none are left.

        A read never joins chunks, so that a chunk that fits is returned without a copy.
        """
        if not self.size or limit <= 0:
            return b""
        chunk = self._chunks[0]
        if type(chunk) is not bytes:
            chunk = self._chunks[0] = bytes(chunk)
        start = self._offset
        if len(chunk) - start > limit:
            self._offset = start + limit
            self.size -= limit
            return chunk[start : start + limit]
        if start:
            chunk = chunk[start:]
        left = self.size - len(chunk)
        # No call from here on, behind which a signal handler could raise and leave half of it done.
        self._offset, self.size = 0, left
        del self._chunks[0]
        return chunk

    def take_into(self, target: memoryview) -> int:
        """Move bytes into ``target`` until it is full or the queue is empty; return how many."""
        filled = 0
        while filled < len(target) and self.size:
            chunk = self._chunks[0]
            part = memoryview(chunk)[self._offset : self._offset + len(target) - filled]
            target[filled : filled + len(part)] = part
            filled += len(part)
            self.size -= len(part)
            self._offset += len(part)
            if self._offset == len(chunk):
                self._chunks.popleft()
                self._offset = 0
        return filled

    def clear(self) -> int:
        """Drop everything; return how many bytes were dropped."""
        dropped = self.size
        self._chunks.clear()
        self._offset = self.size = 0
        return dropped
