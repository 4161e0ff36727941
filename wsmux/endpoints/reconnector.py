"""Find the next carrier of a client's resumable connection: connect again until the grace is over.

A thread exists only while there is no carrier. It holds nothing while it connects or waits, and
ends with the transport. Whoever ends or hurries the search cuts the socket on which an attempt
waits.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from ..exceptions import HandshakeError, NoThreadError, WsmuxError
from ..handshake.greeting import receive_greeting, send_greeting
from ..handshake.tcp import Watch
from ..protocols.base import Role
from ..protocols.resumption import Refusal, Session, Welcome, parse_answer
from ..runtime import clock
from ..runtime.backoff import delay_after
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.parking import Condition
from ..runtime.threads import daemon_thread, start_thread
from ..transport.resumable_transport import Carrier, ResumableTransport

__all__ = ["Dial", "Reconnector", "begin"]

# Returns a socket whose other end expects a HELLO.
Dial = Callable[[Deadline, Watch], socket.socket]

# Seconds between attempts. The first follows at once, since most cuts leave the server where it is;
# unless several carriers in a row were of no use, which then count like attempts that failed.
FIRST_DELAY, LONGEST_DELAY = 0.05, 2.0

# Seconds until a thread is asked for again if the system has none.
THREAD_DELAY = 1.0

_log = logger("wsmux")


def introduce(sock: socket.socket, session: Session, deadline: Deadline) -> Welcome | Refusal:
    """Send HELLO over a new carrier, and return the answer. Blocks until it has arrived.

    Raises:
        HandshakeError: the peer sent something else.
        TimeoutError: it did not answer in time.
        OSError: the carrier was lost.
    """
    hello = session.hello()
    send_greeting(
        sock, Role.CLIENT, hello.encode(session.key if hello.resuming else None), deadline
    )
    message = receive_greeting(sock, Role.CLIENT, deadline)
    try:
        return parse_answer(message)
    except WsmuxError as error:
        raise HandshakeError(f"the server does not resume connections: {error}") from error


def begin(sock: socket.socket, session: Session, deadline: Deadline) -> None:
    """Begin a session over its first carrier. Blocks until the server has answered.

    Raises:
        HandshakeError: the server refused; the socket is closed.
        TimeoutError, OSError: as above.
    """
    try:
        answer = introduce(sock, session, deadline)
        if isinstance(answer, Refusal):
            raise HandshakeError(f"the server refused a resumable connection: {answer.reason}")
    except BaseException:
        sock.close()
        raise
    session.epoch, session.key = answer.epoch, answer.key
    session.grace = min(session.grace, answer.grace)  # longer would be of no use
    session.met(answer.buffer)


def pause_after(failures: int, asked: float, left: float) -> float:
    """Return the seconds until the next attempt, so that the grace allows for some more.

    What the server asks of all its clients is spread by up to a quarter, as they come together; so
    is half of what is left of the grace, where that is less: they were cut together, too.

    Args:
        failures: attempts that failed, from 1.
        asked: seconds for which the server wants to be left alone.
        left: seconds until the grace is over.
    """
    spread = asked / 4
    delay = delay_after(failures, max(FIRST_DELAY, spread), max(LONGEST_DELAY, spread), 0.5)
    most = max(left / 2, FIRST_DELAY)
    return asked + delay if asked + delay <= most else delay_after(1, most, most, 0.75)


class Reconnector:
    """Bring carriers to one transport; the methods of ``Carriers`` describe when.

    Args:
        dial: connects once.
        attempt_timeout: seconds that one attempt may take.
    """

    def __init__(self, dial: Dial, attempt_timeout: float) -> None:
        self._dial = dial
        self._attempt_timeout = attempt_timeout
        self._changed = Condition()
        self._runs = False  # there is a thread
        self._wanted = False  # it has a carrier to find
        self._hurry = False  # without waiting for the next attempt
        self._next: float | None = None
        self._cuts = threading.Lock()
        self._ended = False
        self._awaited: socket.socket | None = None  # the one on which an attempt waits

    def started(self, transport: ResumableTransport) -> None:
        """Do nothing: a carrier is wanted only after one was lost."""

    def lost(self, transport: ResumableTransport) -> float | None:
        with self._changed:
            self._wanted = True
            if self._runs:
                return None
            self._runs = True
        self._next = None
        try:
            start_thread(
                daemon_thread(self._run, name=f"{transport.name}-reconnect", args=(transport,))
            )
        except NoThreadError as error:
            if not transport.attempt:  # once for each outage
                _log.warning("%s tries to connect again later: %s", transport.name, error)
            transport.attempt = str(error)
            self._next = clock.monotonic() + THREAD_DELAY
            with self._changed:
                self._runs = False
            return self._next
        return None

    def found(self, transport: ResumableTransport) -> None:
        """Do nothing: the thread has ended its search."""

    def ended(self, transport: ResumableTransport) -> None:
        with self._cuts:
            self._ended = True
        self.hurry()

    def hurry(self) -> None:
        """Make the next attempt at once, also instead of one that waits. Never blocks."""
        with self._cuts:
            if self._awaited is not None:
                with suppress(OSError):  # it is not connected yet, or no longer
                    socket.socket.shutdown(self._awaited, socket.SHUT_RDWR)  # with TLS or without
        with self._changed:
            self._hurry = True
            self._changed.notify_all()

    def next_attempt(self) -> float | None:
        return self._next

    # Its own thread

    def _run(self, transport: ResumableTransport) -> None:
        while True:
            with self._changed:
                if not self._wanted:
                    self._runs = False
                    return
                self._wanted = False
            self._search(transport)
            self._next = None

    def _search(self, transport: ResumableTransport) -> None:
        """Connect again and again, until there is a carrier or the transport has ended."""
        failures = max(transport.fruitless - 1, 0)
        self._pause(pause_after(failures, 0.0, transport.grace_left()) if failures else 0.0)
        while (left := transport.grace_left()) > 0:
            asked = 0.0
            deadline = Deadline(min(self._attempt_timeout, left))
            try:
                if self._attempt(transport, deadline):
                    return
            except (OSError, WsmuxError) as error:
                _log.debug("%s: an attempt to reconnect failed: %s", transport.name, error)
                if transport.grace_left() or not transport.attempt:
                    transport.attempt = str(error)  # not of one that the end of the grace has cut
                if isinstance(error, HandshakeError):
                    asked = error.retry_after or 0.0
            except BaseException as error:
                # Of the application's function that returns the headers: even SystemExit, or a
                # timeout of gevent, ends nothing but this attempt.
                _log.warning("%s cannot connect again", transport.name, exc_info=error)
                transport.attempt = f"{type(error).__name__}: {error}"
            failures += 1
            self._pause(pause_after(failures, asked, transport.grace_left()))

    def _attempt(self, transport: ResumableTransport, deadline: Deadline) -> bool:
        """Connect once; return whether the search is over."""
        session = transport.session
        try:
            sock = self._dial(deadline, self._watch)
            try:
                self._watch(sock)
                answer = introduce(sock, session, deadline)
            except BaseException:
                sock.close()
                raise
        finally:
            with self._cuts:
                self._awaited = None
        if isinstance(answer, Refusal) or answer.epoch != session.epoch:
            sock.close()
            transport.note(False, answer.encode())
            told = answer.reason if isinstance(answer, Refusal) else "another server answered"
            transport.lose(told)
            return True
        if not transport.offer(Carrier(sock, answer.received)):
            sock.close()
        return True

    def _watch(self, sock: socket.socket) -> None:
        with self._cuts:
            if self._ended:
                raise ConnectionAbortedError("the connection has ended meanwhile")
            self._awaited = sock

    def _pause(self, seconds: float) -> None:
        due = clock.monotonic() + seconds
        with self._changed:
            self._next = due
            while not self._hurry and (left := due - clock.monotonic()) > 0:
                self._changed.wait(left)
            self._hurry = False
            self._next = None
