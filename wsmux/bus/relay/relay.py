"""Route envelopes between twins: to sessions here, to queues, and to other relays.

Threads. Each connection has one thread, the I/O thread of its link. It reads, routes each message
it read and sends it to its destination, and drains the queue of its own session. The Redis queues
and the federation have threads of their own, which deliver in the same way.

Locks, in the order in which they may be nested: the table of sessions; one session (order of
delivery to it); the session's queue; the mutex of the transport. No thread holds two sessions. The
limiter has a lock of its own, under which no other is taken. No lock is held while waiting for a
socket, a directory, Redis or another relay.

Blocking. The thread of a connection waits for the directory (``LOOK_UP_TIME``) and for a queue
(``PUT_TIME``), both bounded. Meanwhile its connection is not read, which applies back-pressure to
that sender alone, and others can still send to it. It never waits for another connection: an
envelope for which a slow connection has no room is queued, and sent by that connection's own thread
once there is room. A connection without room for ``STUCK_LIMIT`` is closed with 1013.

Lost connections. When a twin disappears, reading fails, or TCP's keepalive does after some minutes.
The thread then ends, the session leaves the table unless it was replaced, and envelopes that the
socket did not take go back into the queue. Delivery is at least once.

Takeover. A later connection of the same address replaces the session in the table and takes over
its queue in one step; the earlier connection is closed with 4001. Its thread finds the newer
session in the table and leaves it there.

Shutdown. New connections are refused; each link is closed with 1001 and its thread ends; then the
federation and the queues are closed. After a fork, the copies in the child are disabled: links
raise ``ForkedError`` and the table is empty.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from ...exceptions import CloseCode
from ...runtime import fork
from ...runtime.arguments import strings
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ..errors import BadMessage, TwinsUnavailable, one_line
from ..session.link import Link
from ..twins.records import Twin, TwinDirectory, parse_domain
from ..twins.sources import CachedTwins
from ..wire.address import Address, address_of
from ..wire.envelope import MAX_ENVELOPE, Kind, kind_of, parse
from ..wire.messages import Envelope
from ..wire.tokens import check_token
from .memory_queues import MemoryQueues
from .metrics import RelayMetrics
from .queues import QueueUnavailable, SessionQueues
from .rate_limiter import Limiter, NoLimit
from .router import (
    EXPIRED,
    LIMITED,
    REASONS,
    Decision,
    Drop,
    Federate,
    Forward,
    Queue,
    Reply,
    check,
    failure,
    onward,
)
from .sessions import PUT_TIME, STUCK_LIMIT, Session, Sessions

__all__ = ["Federating", "Relay"]

# Seconds for one look-up of a twin.
LOOK_UP_TIME = 10.0

# Seconds for which a connection is not read after a message above its twin's limit, doubled after
# each further one up to the maximum. Without the pause a flooding twin would take CPU time from the
# others.
PENALTY, MOST_PENALTY = 0.002, 0.032

_log = logger("wsmux.bus")


class Federating(Protocol):
    """Accept envelopes for the relays of other domains."""

    def submit(self, envelope: Envelope, data: bytes, domains: Sequence[str]) -> None:
        """Send an envelope to one of these domains; see ``Federation``."""

    def close(self, timeout: float | None = None) -> None:
        """Stop, and wait at most ``timeout`` seconds."""


class Relay:
    """Route envelopes; see the module for the threads. ``serve_relay`` makes it listen on a port.

    Args:
        domains: the domains under which twins list this relay; with none, every twin belongs to
            another relay.
        twins: the directory of twins; closed by the relay.
        queues: where envelopes wait, in memory by default; owned by the relay.
        federate: makes the federation, given the relay; without it, requests for other relays are
            answered with an error.
        limiter: limits what each twin may send.
        stuck_limit: seconds without room after which a connection is closed.
        pause: sleeps for so many seconds, in the thread of a connection above its twin's limit.

    Attributes:
        domains: the domains, in lower case.
        metrics: the metrics of the relay.
        sessions: the table of connected sessions.

    Raises:
        ValueError: a domain is invalid.
        TypeError: ``domains`` is not a collection of strings.
    """

    def __init__(
        self,
        domains: Iterable[str],
        twins: TwinDirectory,
        *,
        queues: SessionQueues | None = None,
        federate: Callable[[Relay], Federating] | None = None,
        limiter: Limiter | None = None,
        stuck_limit: float = STUCK_LIMIT,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.domains: frozenset[str] = frozenset(
            parse_domain(domain) for domain in strings("domains", domains, "relay.test")
        )
        self.metrics: RelayMetrics = RelayMetrics()
        if isinstance(twins, CachedTwins):
            self.metrics.watch_cache(lambda: twins.misses, lambda: twins.entries)
        self._twins = twins
        self._queues = queues or MemoryQueues()
        self.sessions: Sessions = Sessions(self._queues, self.metrics, stuck_limit)
        self._limiter = limiter or NoLimit()
        self._pause = pause
        self._limits = threading.Lock()
        self._closing = False
        self._federation = None if federate is None else federate(self)
        fork.register(self)

    def __repr__(self) -> str:
        return f"<Relay {', '.join(sorted(self.domains))} sessions={len(self.sessions)}>"

    def forked(self) -> None:
        """Disable the copy in a forked child; see ``runtime.fork``."""
        self._limits = threading.Lock()
        self._closing = True
        self.sessions.forked()

    # Called from any thread

    def admit(self, token: str | None) -> Address:
        """Return the session that a token is for; blocks for the directory.

        Raises:
            TokenRefused: the token is invalid; has the HTTP status and the reason to answer.
        """
        claims = check_token(token, int(time.time()), self.find)
        return Address(claims.twin, claims.session)

    def find(self, twin: int) -> Twin | None:
        """Return a twin's record, or ``None``; blocks for the directory.

        Raises:
            TwinsUnavailable: the directory could not be asked.
        """
        return self._twins.get(twin, Deadline(LOOK_UP_TIME))

    def deliver(self, address: Address, data: bytes, expires_at: int) -> None:
        """Send an envelope to a session, or queue it; blocks only for the queue.

        Args:
            address: the address of the session.
            data: the envelope.
            expires_at: when it expires, in Unix seconds.

        Raises:
            QueueUnavailable: it could neither be sent nor queued.
        """
        session = self.sessions.get(address)
        if session is not None:
            session.deliver(data, expires_at)
        else:
            self._queues.put(address, data, expires_at, Deadline(PUT_TIME))

    def deliver_own(self, address: Address, envelope: Envelope) -> None:
        """Deliver an error or a pong that this relay made, as ``deliver`` does.

        Raises:
            QueueUnavailable: it could neither be sent nor queued.
        """
        data = envelope.SerializeToString()
        if len(data) > MAX_ENVELOPE:  # a pong is longer than its ping
            raise QueueUnavailable(f"an envelope has at most {MAX_ENVELOPE} bytes, not {len(data)}")
        self.deliver(address, data, envelope.timestamp + envelope.expiration)

    def health(self) -> dict[str, Any]:
        """Return the content of ``/healthz``; ``trouble`` is ``None`` if all is well."""
        return {
            "domains": sorted(self.domains),
            "sessions": len(self.sessions),
            "trouble": "the relay is shutting down" if self._closing else self._queues.trouble(),
        }

    def hang_up(self) -> None:
        """Start to close every connection, and refuse new ones; returns at once."""
        self._closing = True
        for session in self.sessions.all():
            session.link.hang_up(CloseCode.GOING_AWAY, "the relay is shutting down; connect again")

    def close(self, deadline: Deadline) -> None:
        """Close the federation, the queues and the directory, after the connections have ended."""
        if self._federation is not None:
            self._federation.close(deadline.remaining())
        self._queues.close(deadline)
        self._twins.close()

    # Threads of the connections

    def serve(self, link: Link, address: Address) -> None:
        """Serve one connection until it ends; the calling thread is its I/O thread."""
        try:
            session = self.sessions.add(address, link)
        except BaseException:
            link.discard()
            raise
        _log.info("%s connected over %s", address.shown(), link.name)
        batches = link.batches()
        try:
            if self._closing:
                self.hang_up()
            for batch in batches:
                for data in batch:
                    if link.error is not None:
                        break
                    self._receive(session, data)
                if link.error is None:
                    for envelope in session.drain(link.now):
                        self._expired(envelope)
        except Exception:
            _log.exception("the thread of %s failed; its connection ends", address.shown())
        finally:
            batches.close()
            link.discard()
            self.sessions.remove(session)
            _log.info("%s left %s: %s", address.shown(), link.name, one_line(str(link.error)))

    def _receive(self, session: Session, data: bytes) -> None:
        """Route one message; an invalid one ends the connection."""
        session.tally.rx += 1
        session.tally.rx_bytes += len(data)
        try:
            envelope = parse(data)
        except BadMessage as error:
            session.link.fail(CloseCode.INVALID_DATA, error.message)
            return
        now = time.time()
        if self._allowed(session.address.twin, len(data), now):
            session.penalty = 0.0
            decision = self._decide(session, envelope, data, int(now))
        else:
            decision = failure(envelope, session.address, LIMITED, int(now))
            session.penalty = min(2 * session.penalty or PENALTY, MOST_PENALTY)
            self._pause(session.penalty)
        if decision is not None:
            self._answer(session.address, decision)

    def _allowed(self, twin: int, size: int, now: float) -> bool:
        with self._limits:
            allowed = self._limiter.allows(twin, size, now)
        if not allowed:
            _log.warning("twin %d exceeds its rate limit; its messages are dropped", twin)
        return allowed

    def _decide(
        self, session: Session, envelope: Envelope, data: bytes, now: int
    ) -> Reply | Drop | None:
        """Pass an envelope on; return the decision if it is not passed on."""
        sender, expires_at = session.address, envelope.timestamp + envelope.expiration
        decision: Decision = check(envelope, sender, now)
        try:
            if isinstance(decision, Forward):
                target = self.sessions.get(decision.address)
                if target is not None:
                    target.deliver(data, expires_at)
                    return None
                twin = self.find(decision.address.twin)
                decision = onward(envelope, sender, twin, self.domains, now)
            if isinstance(decision, Queue):
                self.deliver(decision.address, data, expires_at)
                return None
        except (TwinsUnavailable, QueueUnavailable) as error:
            return failure(envelope, sender, error.message, now)
        if isinstance(decision, Federate):
            return self._federate(envelope, data, decision.domains, sender, now)
        return decision

    def _federate(
        self, envelope: Envelope, data: bytes, domains: tuple[str, ...], sender: Address, now: int
    ) -> Reply | Drop | None:
        if self._federation is None:
            return failure(envelope, sender, "this relay does not forward to other relays", now)
        self._federation.submit(envelope, data, domains)
        return None

    def _answer(self, address: Address, decision: Reply | Drop) -> None:
        """Send a reply to a sender, or log why its message was dropped."""
        if isinstance(decision, Drop):
            self._count_refused(decision.reason)
            _log.info("a message from %s is dropped: %s", address.shown(), decision.reason)
            return
        made = decision.envelope
        if kind_of(made) is Kind.ERROR:
            self._count_refused(made.error.message)
        try:
            self.deliver_own(address, made)
        except QueueUnavailable as error:
            _log.warning("%s was not answered: %s", address.shown(), error)

    def _count_refused(self, reason: str) -> None:
        self.metrics.refused(reason if reason in REASONS else "unavailable")

    def _expired(self, envelope: Envelope) -> None:
        """Answer the requester of an envelope that expired in a queue."""
        source = address_of(envelope.source)
        if source is not None:
            self._answer(source, failure(envelope, source, EXPIRED, int(time.time())))
