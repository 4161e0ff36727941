"""Use the standard library's HTTP client over streams of a connection.

``http.client`` needs little of a socket: sending, a file for reading, and closing once both are
done with it. This module provides that for a stream.
"""

from __future__ import annotations

import http.client
import io
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..exceptions import WsmuxError
from ..mux.connection import Connection
from ..mux.stream import Stream, drop

__all__ = ["StreamHTTPConnection", "http_connection"]


def http_connection(
    carrier: Connection | Stream, host: str = "localhost", timeout: float | None = None
) -> StreamHTTPConnection:
    """Return an ``http.client.HTTPConnection`` over a connection's streams, or over one stream.

    Args:
        carrier: a connection, on which a stream is opened whenever a request needs one; or a
            stream, which is used as long as the other end keeps it open, and which the result then
            owns.
        host: the value of the ``Host`` header.
        timeout: seconds that each wait for the stream may take; ``None`` for no limit.

    Like any ``HTTPConnection`` it is for one thread at a time, and raises ``TimeoutError``,
    ``http.client.HTTPException`` and ``OSError``; errors of the stream that are none of these are
    raised as ``ConnectionAbortedError``, with their cause.
    """
    return StreamHTTPConnection(carrier, host, timeout)


class StreamHTTPConnection(http.client.HTTPConnection):
    """An ``http.client.HTTPConnection`` over streams; made by ``http_connection``."""

    def __init__(self, carrier: Connection | Stream, host: str, timeout: float | None) -> None:
        super().__init__(host)
        # Set after the constructor, for which ``None`` is the socket module's default.
        self.timeout = timeout
        self._carrier = carrier

    def connect(self) -> None:
        """Open a stream, or use the given one; called by the first request.

        Raises:
            TimeoutError: no stream could be opened in time.
            ConnectionError: the connection has ended, its peer accepts no more streams, or the
                given stream is used up.
        """
        with _os_errors():
            if isinstance(self._carrier, Connection):
                stream = self._carrier.open_stream(self.timeout)
            elif self._carrier.closed:
                raise ConnectionAbortedError("the one stream of this HTTP connection is closed")
            else:
                stream = self._carrier
        self.sock: socket.socket | Any = _StreamSocket(stream, self.timeout)


@contextmanager
def _os_errors() -> Iterator[None]:
    """Convert errors into those that callers of a socket expect."""
    try:
        yield
    except WsmuxError as error:
        if isinstance(error, OSError):
            raise
        raise ConnectionAbortedError(str(error)) from error


class _StreamSocket:
    """The part of a socket that ``http.client`` uses.

    As with sockets, the stream is closed once the socket and its files are. Like a TCP socket
    closed with unread bytes, it is then reset if there are any, since the peer is still sending.
    """

    def __init__(self, stream: Stream, timeout: float | None) -> None:
        self._stream = stream
        # One entry each; finalizers take theirs, in any thread, so no lock guards a number.
        self._users: deque[None] = deque([None])
        self._closed = False
        stream.timeout = timeout

    def settimeout(self, timeout: float | None) -> None:
        """Set how many seconds each later call may block."""
        self._stream.timeout = timeout

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of ``data``."""
        with _os_errors():
            self._stream.write(data)

    def makefile(self, mode: str = "rb", *_: object, **__: object) -> io.BufferedReader:
        """Return a buffered file to read from."""
        if mode != "rb":
            raise ValueError(f"a stream's socket makes files to read bytes only, not {mode!r}")
        self._users.append(None)
        return io.BufferedReader(_Reader(self, self._stream))

    def close(self) -> None:
        """Close the stream once the last file is closed."""
        if not self._closed:
            self._closed = True
            self.release()

    def release(self) -> None:
        """Release one user's reference; takes no lock, since finalizers call it."""
        self._users.pop()
        if not self._users:
            drop(self._stream, whole=True)


class _Reader(io.RawIOBase):
    """The raw file of a response."""

    def __init__(self, sock: _StreamSocket, stream: Stream) -> None:
        super().__init__()
        self._sock = sock
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any, /) -> int:
        with _os_errors():
            return self._stream.readinto(target)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._sock.release()
