"""Read the messages of ``protocol.INGEST`` from a stream, many by one call of it."""

from __future__ import annotations

from ..mux.stream import Stream
from .protocol import INGEST_HEAD

__all__ = ["Messages"]

# Bytes that are read at once, if so many are there.
BUFFER = 64 * 1024


class Messages:
    """Read messages: a head, then its body. A ``TimeoutError`` within a head loses nothing."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._data = b""
        self._at = 0

    def head(self) -> tuple[int, int, int] | None:
        """Return kind, number and length of the next message, ``None`` at the end.

        Raises:
            ConnectionError: the stream ended within it. WsmuxError, OSError: it failed.
        """
        while not self.has(INGEST_HEAD.size):
            more = self._stream.read(BUFFER)
            self._data, self._at = self._data[self._at :] + more, 0
            if not more and self._data:
                raise ConnectionError("the stream ended within a message")
            if not more:
                return None
        kind, number, size = INGEST_HEAD.unpack_from(self._data, self._at)
        self._at += INGEST_HEAD.size
        return kind, number, size

    def has(self, size: int) -> bool:
        """Return whether so many bytes were read, and are to be taken."""
        return len(self._data) - self._at >= size

    def body(self, size: int) -> bytes | bytearray:
        """Return the body of the message whose head was read last.

        Raises: as ``head``.
        """
        there = self._data[self._at : self._at + size]
        self._at += len(there)
        if len(there) == size:
            return there
        whole = bytearray(size)
        whole[: len(there)] = there
        with memoryview(whole) as view, view[len(there) :] as rest:
            if self._stream.fill(rest) < len(rest):
                raise ConnectionError("the stream ended within a message")
        return whole

    def skip(self, size: int) -> None:
        """Pass over a body, with little memory."""
        while size:
            part = min(size, BUFFER)
            self.body(part)
            size -= part
