"""Keep one connection to a relay alive.

Threads and locks: one thread per relay dials, reads and waits between attempts. The lock here
guards ``state`` and what stands with it; nobody sends, receives or calls back under it.

An attempt that fails, or a connection that does not hold, doubles the wait before the next one,
from half a second up to 30 seconds; the original waits two seconds each time. So two gateways with
one identity, who drive each other out, do so less and less often. Each wait is drawn from nothing
up to that, or all that lost one relay would come back to it together.
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
from ...exceptions import CloseCode, ConnectionClosed, WsmuxError
from ...runtime.backoff import delay_after
from ...runtime.deadline import Deadline
from ...runtime.hints import check_characters
from ...runtime.logs import logger
from ...runtime.threads import daemon_thread
from ..errors import one_line
from .link import Link, dial

__all__ = ["LinkState", "RelayConnection", "RelayStatus", "host_of"]

# Seconds before the second attempt of a row, and at most.
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0

# Seconds that a connection must have held for the failures before it to be forgotten.
STEADY = 10.0

_log = logger("wsmux.bus")


class LinkState(StrEnum):
    """Name what a link is doing."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    WAITING = "waiting"
    CLOSED = "closed"


class RelayStatus(NamedTuple):
    """The state of a client's connection to one relay.

    Attributes:
        url: that of the relay.
        state: what is being done about it.
        reason: why there is no connection, or why the last one ended; empty if it never did.
        failures: attempts in a row that failed or did not hold.
    """

    url: str
    state: LinkState
    reason: str
    failures: int


class RelayConnection:
    """Keep connected to a relay, as far as that is possible.

    Args:
        url: ``ws://`` or ``wss://``, without a query: the token is the query.
        make_token: makes a token for one attempt.
        receive: given each message, in the link's thread, which reads no further meanwhile.
        changed: called, in the link's thread, when a connection was made or lost.
        ssl_context: how to do TLS.

    Raises:
        ValueError: the address is none of these.
    """

    def __init__(
        self,
        url: str,
        make_token: Callable[[], str],
        receive: Callable[[bytes], None],
        changed: Callable[[], None],
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        host = host_of(url)
        self.url = url
        self._make_token = make_token
        self._receive = receive
        self._changed = changed
        self._ssl_context = ssl_context
        self._condition = threading.Condition()
        self._link: Link | None = None
        self._status = RelayStatus(url, LinkState.CONNECTING, "", 0)
        self._thread = daemon_thread(target=self._run, name=f"wsmux-bus-{host}")

    def __repr__(self) -> str:
        return f"<RelayConnection {self.url} {self._status.state}>"

    def start(self) -> None:
        """Begin to connect; this does not wait for it."""
        self._thread.start()

    def status(self) -> RelayStatus:
        """Return how it stands."""
        return self._status

    def send(self, data: bytes, deadline: Deadline) -> bool:
        """Hand a message to the connection; false if there is none, or none that takes it in time.

        What was taken may still be lost with the connection: RMB has no receipts.
        """
        link = self._link
        if link is None:
            return False
        try:
            link.send(data, deadline)
        except TimeoutError:
            return False
        except ConnectionClosed as error:
            self._lost(link, error)
            return False
        return True

    def offer(self, data: bytes) -> bool:
        """Hand over a message without waiting; false if it was not taken."""
        link = self._link
        if link is None:
            return False
        try:
            return link.send_nowait(data) > 0
        except ConnectionClosed as error:
            self._lost(link, error)
            return False

    def close(self, deadline: Deadline) -> None:
        """End the connection and the thread, if there are any, until the deadline at most."""
        with self._condition:
            self._set_locked(LinkState.CLOSED, "closed by this side")
            self._condition.notify_all()
            link = self._link
        if link is not None:
            link.hang_up(CloseCode.GOING_AWAY, "the client is closing")
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(deadline.remaining())

    # The thread

    def _run(self) -> None:
        failures = 0
        while True:
            try:
                held = self._attempt()
            except Exception as error:
                _log.exception("an attempt to use %s failed; it will be retried", self.url)
                self._set(LinkState.WAITING, f"{type(error).__name__}: {error}")
                held = 0.0
            failures = 0 if held >= STEADY else failures + 1
            if not self._rest(failures):
                return

    def _attempt(self) -> float:
        """Connect and stay connected; return for how many seconds."""
        if not self._set(LinkState.CONNECTING):
            return 0.0
        try:
            deadline = Deadline(Config().handshake_timeout)
            link = dial(self.url, self._make_token, deadline, ssl_context=self._ssl_context)
        except (OSError, WsmuxError) as error:
            self._set(LinkState.WAITING, str(error))
            return 0.0
        began = time.monotonic()
        try:
            self._converse(link)
        except Exception:
            _log.exception("reading from %s failed; reconnecting", self.url)
            link.abort()
        return time.monotonic() - began

    def _converse(self, link: Link) -> None:
        with self._condition:
            closed = self._status.state is LinkState.CLOSED
            if not closed:
                self._link = link
                self._set_locked(LinkState.CONNECTED, "")
        if closed:
            link.hang_up(CloseCode.GOING_AWAY, "the client is closing")
        else:
            _log.info("connected to %s", self.url)
            self._changed()
        try:
            with closing(link.messages()) as messages:
                for data in messages:
                    self._receive(data)
        finally:
            self._lost(link, link.error)

    def _lost(self, link: Link, error: WsmuxError | None) -> None:
        """Note, once, that a connection takes and brings no more."""
        with self._condition:
            if self._link is not link:
                return
            self._link = None
        self._set(LinkState.WAITING, str(error or "the connection ended"))
        self._changed()

    def _rest(self, failures: int) -> bool:
        """Wait before the next attempt; false when there is to be none."""
        deadline = Deadline(delay_after(failures + 1, FIRST_WAIT, LONGEST_WAIT))
        with self._condition:
            self._status = self._status._replace(failures=failures)
            while self._status.state is not LinkState.CLOSED and not deadline.expired():
                self._condition.wait(deadline.remaining())
            return self._status.state is not LinkState.CLOSED

    def _set(self, state: LinkState, reason: str | None = None) -> bool:
        """Note a state, unless it is closed; tell whether it is not."""
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


def host_of(url: str) -> str:
    """Return the host of a relay.

    Raises:
        ValueError: the address is no ``ws://`` or ``wss://`` URL without query and fragment.
    """
    parts = urlsplit(url)
    try:
        check_characters(url)
        _ = parts.port
        wrong = parts.scheme not in ("ws", "wss") or parts.query or parts.fragment
    except ValueError:
        wrong = True
    if wrong or not parts.hostname:
        raise ValueError(f"{url!r} is not a ws:// or wss:// address of a relay, without a query")
    return parts.hostname
