"""Keep a connection open by reconnecting, and let callers wait while there is none.

Threads and locks: one thread waits for the end of each connection and makes the next one. The
condition guards the current connection; connecting, opening streams and callbacks happen outside
it.

Attempts continue indefinitely, after delays with full jitter: up to half a second at first, doubled
each time, up to 30 seconds. The delays start over once a connection has lasted ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from ..exceptions import ConnectionClosed, StreamRefused, WsmuxError
from ..mux.connection import Connection
from ..mux.stream import Stream
from ..runtime.backoff import Backoff
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.parking import Condition, OneShotEvent
from ..runtime.threads import daemon_thread
from .errors import TunnelError
from .exchange import HEAD_TIMEOUT, ask
from .request_head import Request

__all__ = ["PATIENCE", "Supervisor", "guarded"]

# Maximum seconds of the first delay and of any delay; seconds for a connection to count as stable.
FIRST_PAUSE, LONGEST_PAUSE, STEADY = 0.5, 30.0, 10.0

# Seconds that callers wait for the connection to be restored, and for an answer.
PATIENCE = 30.0

_log = logger("wsmux.tunnel")


def guarded(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that logs what ``tell`` raises, as for a pipe that nobody reads any more.

    The threads that call it keep connections; these must not end with such a pipe.
    """

    def told(sentence: str) -> None:
        try:
            tell(sentence)
        except Exception:
            _log.exception("a change of the tunnels could not be told")

    return told


class Supervisor:
    """Stay connected, as far as possible.

    Args:
        connect: makes a connection, or raises as ``wsmux.connect`` does. It is called for every
            attempt, so it may fetch a fresh token.
        prepare: called with each connection before others can use it; an exception fails the
            attempt.
        tell: called with a sentence for each change; what it raises is logged.

    Raises:
        WsmuxError, OSError: the first attempt failed. Later ones are retried instead.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        prepare: Callable[[Connection], None] = lambda connection: None,
        tell: Callable[[str], None] = _log.warning,
    ) -> None:
        self._connect = connect
        self._prepare = prepare
        self._tell = guarded(tell)
        self._changed = Condition()
        self._stopping = OneShotEvent()
        self._pause = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._connection: Connection | None = self._attempt()
        self._thread = daemon_thread(target=self._run, name="wsmux-tunnel")
        self._thread.start()

    def open(self, request: Request, timeout: float = PATIENCE) -> Stream:
        """Return a stream whose request was granted, waiting for a connection if there is none.

        If a connection is lost before the answer, it waits for the next, within the same time.

        Raises:
            TunnelError: the request was refused; or there was no connection, or no answer, in time.
        """
        deadline = Deadline(timeout)
        while True:
            connection = self._wait(deadline)
            try:
                stream = connection.open_stream(deadline.remaining())
                try:
                    ask(stream, request, deadline)
                except BaseException:
                    stream.reset()
                    raise
            except (ConnectionClosed, StreamRefused) as error:
                if deadline.expired():
                    raise TunnelError(504, str(error)) from error
                _log.info("requesting %s %s again: %s", request.method, request.target, error)
                self._lost(connection, deadline)
            except TimeoutError as error:
                raise TunnelError(504, str(error)) from error
            else:
                return stream

    def close(self) -> None:
        """Close the connection and stop; waits for both, at most ``HEAD_TIMEOUT`` seconds."""
        self._stopping.set()
        with self._changed:
            connection = self._connection
            self._changed.notify_all()
        if connection is not None:
            connection.close()
        self._thread.join(HEAD_TIMEOUT)

    def _wait(self, deadline: Deadline) -> Connection:
        with self._changed:
            while self._connection is None and not self._stopping.is_set():
                if deadline.expired():
                    raise TunnelError(504, "there is no connection to the server")
                self._changed.wait(deadline.remaining())
            if self._connection is None or self._stopping.is_set():
                raise TunnelError(503, "the tunnels are being closed")
            return self._connection

    def _lost(self, connection: Connection, deadline: Deadline) -> None:
        """Wait until the thread, too, has noticed that a connection accepts no more streams."""
        connection.wait_closed(deadline.remaining())
        with self._changed:
            while self._connection is connection and not deadline.expired():
                self._changed.wait(deadline.remaining())

    # The thread

    def _run(self) -> None:
        connection = self._connection
        while connection is not None:
            steady = Deadline(STEADY)
            connection.wait_closed()
            with self._changed:
                self._connection = None
                self._changed.notify_all()
            if self._stopping.is_set():
                return
            self._tell(f"{connection.error or 'the connection ended'}; connecting again")
            if steady.expired():
                self._pause.reset()
            connection = self._again()
            if connection is None:
                return
            with self._changed:
                stopping = self._stopping.is_set()
                if not stopping:
                    self._connection = connection
                    self._changed.notify_all()
            if stopping:  # by who has found no connection to close
                connection.close()
                return
            self._tell("connected again")

    def _again(self) -> Connection | None:
        """Make the next connection, however long it takes; return ``None`` once closed."""
        while not self._stopping.wait(self._pause.next()):
            try:
                connection = self._attempt()
            except (WsmuxError, OSError) as error:
                self._tell(f"no connection: {error}")
            except Exception:
                _log.exception("connecting failed unexpectedly and will be retried")
            else:
                return connection
        return None

    def _attempt(self) -> Connection:
        connection = self._connect()
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection
