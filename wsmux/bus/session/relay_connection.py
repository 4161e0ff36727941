"""Keep one connection to a relay, reconnecting when it is lost.

Threads and locks: one thread per relay connects, reads and waits between attempts. The lock here
guards the link and the status; nothing is sent, received or called back under it.

A failed attempt, or a connection that does not last, doubles the pause before the next attempt,
from half a second up to 30 seconds. While somebody waits for the connection, the pause is at most
two seconds, as that of the reference peers, unless the relay refuses this side or the connections
do not last: so two gateways with the same identity, which replace each other, do so less and less
often. Each pause is drawn at random from zero up to its length, so that peers that lost the same
relay do not all return at the same time.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit

from ...config import Config
from ...exceptions import CloseCode, ConnectionClosed, HandshakeError, WsmuxError
from ...runtime.backoff import delay_after
from ...runtime.deadline import Deadline
from ...runtime.hints import check_characters
from ...runtime.logs import logger
from ...runtime.parking import Condition
from ...runtime.threads import daemon_thread, start_thread
from ..errors import one_line
from .link import Link, dial

__all__ = ["LinkState", "RelayConnection", "RelayStatus", "host_of"]

# Seconds before the second of several attempts, and at most.
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0

# Seconds at most while calls wait for a relay that cannot be reached.
URGENT_WAIT = 2.0

# Seconds that a connection must last before earlier failures are forgotten.
STEADY = 10.0

_log = logger("wsmux.bus")


class LinkState(StrEnum):
    """Name the state of a connection."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    WAITING = "waiting"
    CLOSED = "closed"


class RelayStatus(NamedTuple):
    """Describe the connection to one relay.

    Attributes:
        url: the address of the relay.
        state: the state of the connection.
        reason: why there is no connection, or why the last one ended; empty at first.
        failures: consecutive attempts that failed, or whose connection did not last.
    """

    url: str
    state: LinkState
    reason: str
    failures: int


class RelayConnection:
    """Keep a connection to a relay, reconnecting when it is lost.

    Args:
        url: ``ws://`` or ``wss://``, without a query, which is for the token.
        make_token: makes a token for one attempt.
        receive: called with each message in the connection's thread, which does not read meanwhile.
        changed: called in the connection's thread when a connection was made or lost.
        ssl_context: the TLS settings.
        urgent: returns whether somebody waits for the connection; must not block.
        ended: called once for each connection that was lost; must not block.
        settle: called in the connection's thread after the messages of each batch, before pings
            that came behind them are answered.

    Raises:
        ValueError: the URL is invalid.
    """

    def __init__(
        self,
        url: str,
        make_token: Callable[[], str],
        receive: Callable[[bytes], None],
        changed: Callable[[], None],
        ssl_context: ssl.SSLContext | None = None,
        urgent: Callable[[], bool] = lambda: False,
        ended: Callable[[], None] = lambda: None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = f"wsmux-bus-{host_of(url)}"
        self.url = url
        self._make_token = make_token
        self._receive = receive
        self._changed = changed
        self._ended = ended
        self._settle = settle
        self._ssl_context = ssl_context
        self._urgent = urgent
        self._condition = Condition()
        self._link: Link | None = None
        self._serial = 0
        self._held: str | None = None  # why this side stays away from the relay
        self._status = RelayStatus(url, LinkState.CONNECTING, "", 0)
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<RelayConnection {self.url} {self._status.state}>"

    def start(self) -> None:
        """Start to connect, once; returns at once.

        Raises:
            NoThreadError: the system has no thread left; the next call tries again.
        """
        with self._condition:
            if self._thread is None:
                thread = daemon_thread(target=self._run, name=self._name)
                start_thread(thread)
                self._thread = thread

    def status(self) -> RelayStatus:
        """Return the current state."""
        return self._status

    @property
    def serial(self) -> int:
        """The number of the current connection, from 1 up; 0 while there is none."""
        return self._serial if self._link is not None else 0

    def send(self, data: bytes, deadline: Deadline) -> bool:
        """Send a message; ``False`` without a connection, or if it has no room before the deadline.

        An accepted message may still be lost with the connection: RMB has no acknowledgements.
        """
        link = self._link
        if link is None:
            return False
        try:
            link.send(data, deadline)
        except TimeoutError:
            return False
        except ConnectionClosed as error:
            self._lost(link, str(error))
            return False
        return True

    def offer(self, data: bytes) -> bool:
        """Send a message without blocking; ``False`` if it was not accepted."""
        link = self._link
        if link is None:
            return False
        try:
            return link.send_nowait(data) > 0
        except ConnectionClosed as error:
            self._lost(link, str(error))
            return False

    def hurry(self) -> None:
        """Shorten the wait for the next attempt if it became urgent; returns at once."""
        with self._condition:
            self._condition.notify_all()

    def hold(self, reason: str) -> None:
        """Leave the relay, and stay away until ``release``; returns at once."""
        with self._condition:
            self._held = reason
            link = self._link
        if link is not None:
            self._lost(link, reason)
            # What the relay sends until it knows is not lost.
            link.hang_up(CloseCode.GOING_AWAY, "the client stays away for now", drain=True)

    def release(self) -> None:
        """Connect again after ``hold``; returns at once."""
        with self._condition:
            if self._held is not None:
                self._held = None
                self._condition.notify_all()

    def close(self, deadline: Deadline) -> None:
        """Close the connection and stop the thread, waiting at most until the deadline."""
        with self._condition:
            self._set_locked(LinkState.CLOSED, "closed by this side")
            self._condition.notify_all()
            link, thread = self._link, self._thread
        if link is not None:
            link.hang_up(CloseCode.GOING_AWAY, "the client is closing")
        if thread is not None and thread is not threading.current_thread():
            thread.join(deadline.remaining())

    # Connection thread

    def _run(self) -> None:
        missed = dropped = 0
        while self._wait_released():
            try:
                lasted = self._attempt()
            except Exception as error:
                _log.exception("an attempt to use %s failed; it will be retried", self.url)
                self._set(LinkState.WAITING, f"{type(error).__name__}: {error}")
                lasted = None
            if lasted is None:
                missed += 1
            elif self._held is None:
                missed, dropped = 0, 0 if lasted >= STEADY else dropped + 1
            if not self._rest(missed or dropped, may_hurry=not dropped or missed > 0):
                return

    def _attempt(self) -> float | None:
        """Connect and read until the connection ends.

        Returns:
            The seconds that it lasted, 0 if the relay refused this side; ``None`` if it could not
            be reached.
        """
        if not self._set(LinkState.CONNECTING):
            return 0.0
        try:
            deadline = Deadline(Config().handshake_timeout)
            link = dial(self.url, self._make_token, deadline, ssl_context=self._ssl_context)
        except (OSError, WsmuxError) as error:
            self._set(LinkState.WAITING, str(error))
            status = error.status if isinstance(error, HandshakeError) else None
            return 0.0 if status is not None and 400 <= status < 500 else None
        began = time.monotonic()
        try:
            self._converse(link)
        except Exception:
            _log.exception("reading from %s failed; reconnecting", self.url)
            link.abort()
        return time.monotonic() - began

    def _converse(self, link: Link) -> None:
        with self._condition:
            wanted = self._status.state is not LinkState.CLOSED and self._held is None
            if wanted:
                self._serial += 1
                self._link = link
                self._set_locked(LinkState.CONNECTED, "")
        if not wanted:
            held = self._held is not None
            link.hang_up(CloseCode.GOING_AWAY, "this side is closing or stays away", drain=held)
        else:
            _log.info("connected to %s", self.url)
            self._changed()
        try:
            with closing(link.batches()) as batches:
                for batch in batches:
                    for data in batch:
                        if not link.drops:
                            self._receive(data)
                    self._settle()
        finally:
            self._lost(link, str(link.error or "the connection ended"))

    def _lost(self, link: Link, reason: str) -> None:
        """Record, once, the end of a connection."""
        with self._condition:
            if self._link is not link:
                return
            self._link = None
        self._set(LinkState.WAITING, reason)
        self._changed()
        self._ended()

    def _wait_released(self) -> bool:
        """Wait while held; ``False`` once closed."""
        with self._condition:
            while self._held is not None and self._status.state is not LinkState.CLOSED:
                self._set_locked(LinkState.WAITING, self._held)
                self._condition.wait()
            return self._status.state is not LinkState.CLOSED

    def _rest(self, failures: int, *, may_hurry: bool = False) -> bool:
        """Wait before the next attempt; ``False`` once closed.

        Args:
            failures: consecutive failures.
            may_hurry: wait for ``URGENT_WAIT`` at most while it is urgent.
        """
        deadline = Deadline(delay_after(failures + 1, FIRST_WAIT, LONGEST_WAIT))
        with self._condition:
            self._status = self._status._replace(failures=failures)
            while self._status.state is not LinkState.CLOSED and not deadline.expired():
                if may_hurry and self._urgent():
                    may_hurry = False
                    soon = Deadline(delay_after(failures + 1, FIRST_WAIT, URGENT_WAIT))
                    deadline = min(deadline, soon, key=_left)
                    continue
                self._condition.wait(deadline.remaining())
            return self._status.state is not LinkState.CLOSED

    def _set(self, state: LinkState, reason: str | None = None) -> bool:
        """Set the state and return true, unless it is closed."""
        with self._condition:
            before = self._status
            if before.state is LinkState.CLOSED:
                return False
            self._set_locked(state, before.reason if reason is None else reason)
        if reason is not None and reason != before.reason:
            _log.warning("no connection to %s: %s", self.url, one_line(reason))
        return True

    def _set_locked(self, state: LinkState, reason: str) -> None:
        self._status = self._status._replace(state=state, reason=reason)


def _left(deadline: Deadline) -> float:
    return deadline.park_seconds()


def host_of(url: str) -> str:
    """Return the host of a relay's address.

    Raises:
        ValueError: it is not a ``ws://`` or ``wss://`` URL without query and fragment.
    """
    parts = urlsplit(url)
    try:
        check_characters(url)
        _ = parts.port
        wrong = parts.scheme not in ("ws", "wss") or parts.query or parts.fragment
    except ValueError:
        wrong = True
    if wrong or not parts.hostname:
        raise ValueError(
            f"expected the address of a relay, ws:// or wss:// without a query, got {url!r}"
        )
    return parts.hostname
