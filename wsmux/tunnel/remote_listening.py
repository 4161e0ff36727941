"""Ask the server to listen, anew on each connection, and retry refusals.

After a reconnect a server may refuse what it granted before: it has not yet noticed that the
previous connection is lost and still listens for that, or its allow list has changed. Other tunnels
must not suffer from that, so only the first connection depends on listening. Later, refusals are
reported and retried with full jitter: after up to half a second at first, doubled each time, up to
30 seconds, for the lifetime of the connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ..exceptions import StreamReset, WsmuxError
from ..mux.connection import Connection
from ..mux.stream import Stream
from ..runtime.backoff import Backoff
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.threads import daemon_thread
from .errors import TunnelError
from .exchange import HEAD_TIMEOUT, ask
from .places import Forward, Place, parse_place
from .request_head import Request
from .supervisor import guarded

__all__ = ["RemoteListening"]

# Maximum seconds before the first retry, and before any.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0

_log = logger("wsmux.tunnel")


class RemoteListening:
    """Ask the server to listen, and track where it does.

    Args:
        wanted: where to listen there, and where connections go; the server refers to each by its
            number.
        tell: called from any thread with a sentence for each refusal, and when it is resolved.
    """

    def __init__(self, wanted: Iterable[Forward], tell: Callable[[str], None]) -> None:
        self._wanted = tuple(wanted)
        self._tell = guarded(tell)
        self._lock = threading.Lock()  # guards all attributes below
        self._connection: Connection | None = None
        # By number. The server listens as long as the stream is open.
        self._granted: dict[int, tuple[Stream, Place]] = {}
        self._thread: threading.Thread | None = None

    @property
    def forwards(self) -> list[Forward]:
        """Where the server currently listens, and where connections from there go."""
        with self._lock:
            granted = sorted((number, place) for number, (_, place) in self._granted.items())
        return [Forward(place, self._wanted[number].to) for number, place in granted]

    def begin(self, connection: Connection) -> None:
        """Request everything on a new connection.

        Blocks for at most ``HEAD_TIMEOUT`` seconds in total. Refusals on later connections than the
        first are retried in a thread.

        Raises:
            TunnelError: a request is refused on the first connection.
            WsmuxError: the connection failed.
        """
        deadline = Deadline(HEAD_TIMEOUT)
        granted: dict[int, tuple[Stream, Place]] = {}
        refused: dict[int, str] = {}
        for number in range(len(self._wanted)):
            try:
                granted[number] = self._ask(connection, number, deadline)
            except TunnelError as error:
                if self._connection is None:
                    raise
                refused[number] = str(error)
        with self._lock:
            self._connection, self._granted = connection, granted
        for number, words in refused.items():
            self._tell_refused(number, words)
        if refused:
            self._thread = daemon_thread(
                target=self._ask_again, args=(connection, refused), name="wsmux-tunnel-listening"
            )
            self._thread.start()

    def close(self) -> None:
        """Wait for the thread to end, after the connection has been closed."""
        if self._thread is not None:
            self._thread.join(HEAD_TIMEOUT)

    def _ask(self, connection: Connection, number: int, deadline: Deadline) -> tuple[Stream, Place]:
        stream = connection.open_stream(deadline.remaining())
        try:
            request = Request("LISTEN", str(self._wanted[number].listen), (str(number),))
            return stream, _listened(ask(stream, request, deadline))
        except StreamReset as error:  # its text names the stream, and would differ each time
            raise TunnelError(502, "the server reset the request") from error
        except BaseException:
            stream.reset()
            raise

    def _ask_again(self, connection: Connection, refused: dict[int, str]) -> None:
        """Retry refused requests until they are granted, or the connection has ended."""
        pause = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while refused and not connection.wait_closed(pause.next()):
            for number, before in list(refused.items()):
                try:
                    granted = self._ask(connection, number, Deadline(HEAD_TIMEOUT))
                except TunnelError as error:
                    refused[number] = str(error)
                    if refused[number] != before:
                        self._tell_refused(number, refused[number])
                except WsmuxError as error:
                    _log.info("listening will be requested again on the next connection: %s", error)
                    return
                else:
                    del refused[number]
                    self._grant(connection, number, granted)

    def _grant(self, connection: Connection, number: int, granted: tuple[Stream, Place]) -> None:
        with self._lock:
            if self._connection is not connection:
                return
            self._granted[number] = granted
        self._tell(f"the server listens at {granted[1]} again")

    def _tell_refused(self, number: int, words: str) -> None:
        place = self._wanted[number].listen
        self._tell(f"the server does not listen at {place}: {words}; asking again")


def _listened(words: str) -> Place:
    try:
        return parse_place(words)
    except ValueError as error:
        raise TunnelError(502, f"the server did not report where it listens: {error}") from error
