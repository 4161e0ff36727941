"""Send over one of several relays, and receive from all of them.

A message goes to the relay that took the last one if it takes this one within half a second, else
to the others in turn. Without a connection, the sender waits until its message expires. As the
reference gateway, without its pauses of a second.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from functools import partial

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition
from ..errors import BadMessage, CallTimeout, Replayed
from ..wire.envelope import parse
from ..wire.messages import Envelope
from .relay_connection import LinkState, RelayConnection, RelayStatus

__all__ = ["MAX_RELAYS", "RelayPool"]

# As the reference gateway, which writes at most four relays to a record.
MAX_RELAYS = 4

# Seconds that a relay has to take a message before the next one is tried.
ACCEPT = 0.5

_log = logger("wsmux.bus")


class RelayPool:
    """Keep a connection to each relay.

    Args:
        urls: the addresses of the relays, the preferred one first.
        make_token: makes a token for one connection.
        receive: called with each envelope, its size in bytes and the connection that it came
            from, in the thread of that. Invalid messages are dropped.
        ssl_context: the TLS settings.
        urgent: returns whether anybody waits for a relay, so that attempts to reach one must not
            be far apart; must not block.
        lost: called when a connection was lost; must not block.
        changed: called when a connection was made or lost; must not block.
        settle: called after the messages of each batch, in the thread of the connection, before it
            answers pings that came behind them.

    Raises:
        ValueError: there are no relays, too many, or an invalid address.
    """

    def __init__(
        self,
        urls: Sequence[str],
        make_token: Callable[[], str],
        receive: Callable[[Envelope, int, RelayConnection], None],
        ssl_context: ssl.SSLContext | None = None,
        urgent: Callable[[], bool] = lambda: False,
        lost: Callable[[], None] = lambda: None,
        settle: Callable[[], None] = lambda: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        distinct = list(dict.fromkeys(urls))
        if not 0 < len(distinct) <= MAX_RELAYS:
            raise ValueError(f"expected 1 to {MAX_RELAYS} relays, got {len(distinct)}")
        self._condition = Condition()
        self._receive = receive
        self._changed = changed
        self._changes = 0
        self._started = False
        self._closed = False
        shared = (self._note_change, ssl_context, urgent, lost, settle)
        self._links = [
            RelayConnection(url, make_token, partial(self._received, number), *shared)
            for number, url in enumerate(distinct)
        ]
        self._preferred = self._links[0]

    def start(self) -> None:
        """Start to connect, once; returns at once.

        Raises:
            NoThreadError: the system has no thread left for a connection; the next call tries
                again.
        """
        with self._condition:
            if self._started or self._closed:
                return
            for link in self._links:
                link.start()
            self._started = True

    def send(
        self,
        data: bytes,
        deadline: Deadline,
        twin: int | None = None,
        first: RelayConnection | None = None,
    ) -> None:
        """Send a message over one relay, waiting for a connection until the deadline.

        Args:
            data: the envelope.
            deadline: when it expires.
            twin: the destination, for the text of errors.
            first: the connection to try before the others.

        Raises:
            CallTimeout: no relay took it in time; it was not sent.
            ValueError: the pool is closed.
        """
        while True:
            with self._condition:
                self._check_open_locked()
                changes = self._changes
            if self._try_each(data, deadline, first):
                return
            for link in self._links:
                link.hurry()
            with self._condition:
                while not self._closed and self._changes == changes and not self._any_connected():
                    if deadline.expired():
                        break
                    self._condition.wait(deadline.remaining())
            if deadline.expired():
                reasons = "; ".join(
                    f"{each.url}: {each.reason or each.state}" for each in self.status()
                )
                text = f"no relay took the message in time ({reasons})"
                raise CallTimeout(text, twin, retry_safe=True)

    def answer(
        self, data: bytes, deadline: Deadline, twin: int, first: RelayConnection | None = None
    ) -> None:
        """Send an answer as ``send`` does; if no relay takes it, only log that.

        That ``first`` takes it does not make it the relay over which other messages are sent.
        """
        if not twin:
            return  # no twin has the number 0
        try:
            if first is None or not first.send(data, _soon(deadline)):
                self.send(data, deadline, twin)
        except CallTimeout as error:
            _log.warning("an answer could not be sent: %s", error)
        except ValueError as error:
            _log.info("an answer could not be sent: %s", error)

    def answer_again(
        self, signed: bytes | None, error: Replayed, first: RelayConnection | None = None
    ) -> None:
        """Resend the answer to a repeated request without blocking, ``None`` if it is unknown."""
        _log.info("%s; %s", error, "its answer is sent again" if signed else "it is dropped")
        if signed is not None:
            self.offer(signed, first)

    def offer(self, data: bytes, first: RelayConnection | None = None) -> bool:
        """Send a message without blocking; ``False`` if no relay takes it."""
        return any(link.offer(data) for link in self._order(first))

    def wait_connected(self, deadline: Deadline) -> None:
        """Wait until at least one relay is connected.

        Raises:
            CallTimeout: no relay was connected in time; attempts continue.
            ValueError: the pool is closed.
        """
        with self._condition:
            while not self._any_connected():
                self._check_open_locked()
                if deadline.expired():
                    reasons = "; ".join(f"{each.url}: {each.reason}" for each in self.status())
                    raise CallTimeout(f"no relay is connected ({reasons})", retry_safe=True)
                self._condition.wait(deadline.remaining())

    def connected(self, deadline: Deadline) -> RelayConnection:
        """Return a connection that stands, waiting for one until the deadline.

        Raises:
            CallTimeout: no relay was connected in time; attempts continue.
            ValueError: the pool is closed.
        """
        while True:
            self.wait_connected(deadline)
            for link in self._order():
                if link.serial:
                    return link

    def connections(self) -> list[RelayConnection]:
        """Return what keeps the connection to each relay, the preferred one first."""
        return self._order()

    def status(self) -> list[RelayStatus]:
        """Return the state of each connection."""
        return [link.status() for link in self._links]

    def hold(self, reason: str) -> None:
        """Leave every relay, and stay away until ``release``; returns at once."""
        for link in self._links:
            link.hold(reason)

    def release(self) -> None:
        """Connect again after ``hold``; returns at once."""
        for link in self._links:
            link.release()

    def close(self, deadline: Deadline) -> None:
        """Close every connection, waiting at most until the deadline; may be called twice."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        for link in self._links:
            link.close(deadline)

    def _check_open_locked(self) -> None:
        if self._closed:
            raise ValueError("this bus client is closed")

    def _any_connected(self) -> bool:
        return any(link.status().state is LinkState.CONNECTED for link in self._links)

    def _order(self, first: RelayConnection | None = None) -> list[RelayConnection]:
        first = first or self._preferred
        return [first, *(link for link in self._links if link is not first)]

    def _try_each(
        self, data: bytes, deadline: Deadline, first: RelayConnection | None = None
    ) -> bool:
        for link in self._order(first):
            if link.send(data, _soon(deadline)):
                self._preferred = link
                return True
        return False

    def _received(self, number: int, data: bytes) -> None:
        try:
            envelope = parse(data)
        except BadMessage as error:
            _log.warning("a message from a relay is dropped: %s", error)
            return
        try:
            self._receive(envelope, len(data), self._links[number])
        except Exception:
            # A relay delivers again what this side did not read, so one message must not end the
            # connection each time.
            _log.exception("a message from a relay is dropped")

    def _note_change(self) -> None:
        with self._condition:
            self._changes += 1
            self._condition.notify_all()
        self._changed()


def _soon(deadline: Deadline) -> Deadline:
    """Return until when one relay has to take a message."""
    left = deadline.remaining()
    return Deadline(ACCEPT if left is None else min(left, ACCEPT))
