"""Shut down connections gracefully: send GO_AWAY, let streams end, close with 1001.

``Server`` does this with its own connections. Under a WSGI server each connection is served within
a request, so an extension keeps them in a ``ConnectionRegistry``, which a signal may shut down.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ..exceptions import CloseCode, HandshakeError, WsmuxError
from ..mux.connection import Connection
from ..runtime import fork
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from .resumable_sessions import ResumableSessions

__all__ = ["REASON", "ConnectionRegistry", "end_connections", "let_drain"]

REASON = "server shutdown"

_log = logger("wsmux")


def end_connections(
    connections: Collection[Connection], deadline: Deadline, close_timeout: float
) -> Deadline:
    """Let the streams of every connection end, then close it; return the deadline for closing.

    Blocks until ``deadline`` while streams are open, then for at most ``close_timeout`` seconds.
    """
    let_drain(connections, deadline)
    for connection in connections:
        connection.begin_close(code=CloseCode.GOING_AWAY, reason=REASON)
    closing = Deadline(close_timeout)
    for connection in connections:
        connection.close(closing.remaining(), code=CloseCode.GOING_AWAY)
    return closing


def let_drain(connections: Collection[Connection], deadline: Deadline) -> None:
    """Send GO_AWAY over every connection, and let its streams end. Blocks until ``deadline``."""
    for connection in connections:
        try:
            connection.go_away()
        except WsmuxError as error:
            _log.debug("%s ended before GO_AWAY could be sent: %s", connection.name, error)
    for connection in connections:
        connection.wait_drained(deadline.remaining())


class ConnectionRegistry:
    """Track the connections served in threads of a WSGI server, and end them together."""

    def __init__(self, close_timeout: float, sessions: ResumableSessions | None = None) -> None:
        self._close_timeout = close_timeout
        self._sessions = sessions
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Start over: a forked child serves no connections."""
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """Whether no more connections are accepted."""
        return self._stopping

    @property
    def connections(self) -> list[Connection]:
        """The connections currently being served."""
        return list(self._connections.copy())  # without a lock, which a signal handler may want

    def check(self) -> None:
        """Raise a ``HandshakeError`` with status 503 for a request after the shutdown began."""
        if self._stopping:
            raise HandshakeError("the server shuts down", status=503)

    @contextmanager
    def serving(self, connection: Connection) -> Iterator[None]:
        """Register a connection for the shutdown while the block lasts."""
        with self._lock:
            self._connections.add(connection)
            late = self._stopping
        try:
            if late:
                connection.close(code=CloseCode.GOING_AWAY, reason=REASON)
            yield
        finally:
            with self._lock:
                self._connections.discard(connection)

    def shutdown(self, timeout: float | None, closing: float | None = None) -> None:
        """Accept no more connections, and end the existing ones; see ``end_connections``.

        Args:
            closing: the seconds that the closing handshakes have at most, if they are fewer than
                those of the configuration.
        """
        with self._lock:
            self._stopping = True
            connections = list(self._connections)
        if self._sessions is not None:
            self._sessions.stop()
        close_timeout = (
            self._close_timeout if closing is None else min(closing, self._close_timeout)
        )
        end_connections(connections, Deadline(timeout), close_timeout)
