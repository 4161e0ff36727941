"""Route envelopes between twins: those connected here, those that are away, those of other relays.

Threads. Each connection has one, its link's I/O thread, which reads, routes what it read and hands
it over, and drains its own session's queue. Look-ups of twins and the queues of Redis have threads
of their own, and so has the federation; they deliver as connections do.

Locks, each taken only while those before it may be held: the table of sessions; one session (how
envelopes are handed to it, in order); the session's queue; the channel's mutex. Nobody holds two
sessions. The limiter has a lock of its own, with nothing taken inside. No lock is held while a
socket, a directory, Redis or another relay is waited for.

Who waits for whom. The thread of a connection waits for the directory (``LOOK_UP_TIME``) and for a
queue (``PUT_TIME``), both bounded; meanwhile its connection is not read, which holds back that
sender alone, and others still hand envelopes to it. It never waits for another connection: what a
slow one has no room for goes into its queue, from which its own thread hands on when there is room.
Without any room for ``STUCK_LIMIT`` it is ended with 1013.

A twin that vanishes. The read fails, or TCP's keepalive does after some minutes; the thread leaves
its loop whatever the cause, the session leaves the table if it is still the one there, and what the
socket did not take goes back into the queue. Delivery is at least once.

Takeover. A later connection of an address takes its place in the table and its queue in one step;
the earlier one is ended with 4001. Its thread finds a newer session in the table and leaves it.

Shutdown. No new connections; each link is closed with 1001 and its thread ends; then the federation
and the queues. Fork. The child's copies are dead: links raise ``ForkedError``, the table is empty.
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
# each further one up to the most. Reading as fast as it floods takes the processor from others.
PENALTY, MOST_PENALTY = 0.002, 0.032

_log = logger("wsmux.bus")


class Federating(Protocol):
    """What takes envelopes for the relays of other domains."""

    def submit(self, envelope: Envelope, data: bytes, domains: Sequence[str]) -> None:
        """Send an envelope to one of these; see ``Federation``."""

    def close(self, timeout: float | None = None) -> None:
        """Stop."""


class Relay:
    """Route envelopes; see the module for the threads. ``serve_relay`` gives it a port.

    Args:
        domains: those under which twins name this relay; without one, every twin is another's.
        twins: the directory of twins; the relay closes it.
        queues: where envelopes wait, in memory by default; the relay's then.
        federate: makes what sends to other relays, of the relay; without it, requesters are told
            that nothing goes there.
        limiter: what each twin may send.
        stuck_limit: seconds without room after which a connection is ended.
        pause: waits for seconds, in the thread of a connection above its twin's limit.

    Attributes:
        domains: as given, in lower case.
        metrics: the relay's numbers.
        sessions: the connections.

    Raises:
        ValueError: a domain is none. TypeError: they are no collection of strings.
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
        """See ``runtime.fork``."""
        self._limits = threading.Lock()
        self._closing = True
        self.sessions.forked()

    # Any thread

    def admit(self, token: str | None) -> Address:
        """Return the session that a token is for; blocks as the directory does.

        Raises:
            TokenRefused: with the HTTP status and the reason to answer.
        """
        claims = check_token(token, int(time.time()), self.find)
        return Address(claims.twin, claims.session)

    def find(self, twin: int) -> Twin | None:
        """Return a twin's record, ``None`` if there is none.

        Raises:
            TwinsUnavailable: the directory could not be asked.
        """
        return self._twins.get(twin, Deadline(LOOK_UP_TIME))

    def deliver(self, address: Address, data: bytes, expires_at: int) -> None:
        """Hand an envelope to a session, or queue it; blocks only as the queue does.

        Raises:
            QueueUnavailable: it went neither way.
        """
        session = self.sessions.get(address)
        if session is not None:
            session.deliver(data, expires_at)
        else:
            self._queues.put(address, data, expires_at, Deadline(PUT_TIME))

    def deliver_own(self, address: Address, envelope: Envelope) -> None:
        """Deliver an error or a pong, which relays make, as ``deliver`` does.

        Raises:
            QueueUnavailable: it went neither way.
        """
        data = envelope.SerializeToString()
        if len(data) > MAX_ENVELOPE:  # a pong is longer than its ping
            raise QueueUnavailable(f"an envelope has at most {MAX_ENVELOPE} bytes, not {len(data)}")
        self.deliver(address, data, envelope.timestamp + envelope.expiration)

    def health(self) -> dict[str, Any]:
        """Return what ``/healthz`` tells; ``trouble`` is ``None`` when all is well."""
        return {
            "domains": sorted(self.domains),
            "sessions": len(self.sessions),
            "trouble": "the relay shuts down" if self._closing else self._queues.trouble(),
        }

    def hang_up(self) -> None:
        """Begin to end every connection, and take no further one; returns at once."""
        self._closing = True
        for session in self.sessions.all():
            session.link.hang_up(CloseCode.GOING_AWAY, "the relay shuts down; connect again")

    def close(self, deadline: Deadline) -> None:
        """End the federation, the queues and the directory, once the connections have ended."""
        if self._federation is not None:
            self._federation.close(deadline.remaining())
        self._queues.close(deadline)
        self._twins.close()

    # A connection's thread

    def serve(self, link: Link, address: Address) -> None:
        """Serve one connection until it has ended; the calling thread is its I/O thread."""
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
            _log.exception("the thread of %s failed; the connection ends", address.shown())
        finally:
            batches.close()
            link.discard()
            self.sessions.remove(session)
            _log.info("%s left %s: %s", address.shown(), link.name, one_line(str(link.error)))

    def _receive(self, session: Session, data: bytes) -> None:
        """Route one message; a bad one ends the connection."""
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
        """Pass an envelope on; return what is left to do where it goes no further."""
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
        """Answer a sender, if at all, why its envelope went no further, or that it is alive."""
        if isinstance(decision, Drop):
            self._count_refused(decision.reason)
            _log.info("a message of %s is dropped: %s", address.shown(), decision.reason)
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
