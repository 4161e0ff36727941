"""Route envelopes between twins: to sessions here, to queues, and to other relays.

Threads. Each connection has one thread, the I/O thread of its link. It reads, routes each message
it read and sends it to its destination, and drains the queue of its own session. With durable
queues it queues what it read in one step, and what is queued is sent by the thread that did.
``sessions`` describes the two ways. The Redis queues and the federation have threads of their own,
which deliver in the same way.

Locks, in the order in which they may be nested: the order of one session (see below); the table of
sessions; one session (its state); the session's queue; the mutex of the transport. No thread holds
the state of two sessions. The limiter has a lock of its own, under which no other is taken. Only
the first of them is held while waiting, for Redis; none is while waiting for a socket, a directory
or another relay.

The order of a session is held while what was sent to it directly is put into its queue, for in the
fast way nobody may put anything before that. A sender waits for it ``PUT_TIME`` at most. Putting
wakes sessions and names to which other threads put something at the same time, so what wakes them
must not put anything itself.

Blocking. The thread of a connection waits for the directory (``LOOK_UP_TIME``) and for a queue
(``PUT_TIME``, and one reply of Redis), both bounded. Meanwhile its connection is not read, which
applies back-pressure to that sender alone, and others can still send to it. It never waits for
another connection: an envelope for which a slow connection has no room is queued, and sent by that
connection's own thread once there is room. A connection without room for ``STUCK_LIMIT`` is closed
with 1013.

Lost connections. When a twin disappears, reading fails, or TCP's keepalive does after some minutes.
The thread then ends, the session leaves the table unless it was replaced, and envelopes that were
not delivered stay in the queue or go back into it. Delivery is at least once. A pong of this relay
says that what came before the ping is queued, or was refused.

Takeover. A later connection of the same address closes the earlier one with 4001, waits in the fast
way until that has put into the queue what it did not send, replaces it in the table and takes over
its queue. The earlier thread finds the newer session in the table and leaves it there.

Shutdown. New connections are refused; each link is closed with 1001 and its thread ends; then the
federation and the queues are closed. After a fork, the copies in the child are disabled: links
raise ``ForkedError`` and the table is empty.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ...exceptions import CloseCode
from ...runtime import fork
from ...runtime.arguments import strings
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ..errors import (
    FROM_RELAY,
    NOBODY_JOINED,
    TOO_MANY,
    WORKERS_GONE,
    BadMessage,
    TokenRefused,
    TwinsUnavailable,
    one_line,
)
from ..session.link import Link
from ..twins.records import Twin, TwinDirectory, parse_domain
from ..twins.sources import CachedTwins
from ..wire.address import Address, address_of
from ..wire.envelope import MAX_ENVELOPE, Kind, is_fail_fast, kind_of, parse
from ..wire.messages import Envelope
from ..wire.names import is_reserved, name_of
from ..wire.tokens import check_token
from .control import Control
from .memory_queues import MemoryQueues
from .metrics import RelayMetrics
from .name_store import NameStore
from .names import Names, nobody
from .queues import DurableQueues, QueueFull, QueueUnavailable, SessionQueues
from .rate_limiter import Limiter, NoLimit
from .router import (
    EXPIRED,
    FULL,
    LIMITED,
    NOBODY,
    REASONS,
    Ask,
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
from .topic_store import MemoryTopics, TopicStore
from .topics import Topics

__all__ = ["Federating", "Relay"]

# Seconds for one look-up of a twin.
LOOK_UP_TIME = 10.0

# Seconds for which a connection is not read after a message above its twin's limit, doubled after
# each further one up to the maximum. Without the pause a flooding twin would take CPU time from the
# others.
PENALTY, MOST_PENALTY = 0.002, 0.032

# Kinds of message that answer a request.
ANSWERS = frozenset({Kind.RESPONSE, Kind.ERROR})

# How the metrics count errors whose text names what they are about, by their code.
REASON_OF = {NOBODY_JOINED: NOBODY, WORKERS_GONE: NOBODY, TOO_MANY: FULL}

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
        topics: where topics are kept, in memory by default; owned by the relay.
        publishers: the twins that may publish to some topics; anybody may to others.
        stuck_limit: seconds without room after which a connection is closed.
        pause: sleeps for so many seconds, in the thread of a connection above its twin's limit.
        fast: with durable queues, still send directly; see ``sessions``.
        names: the twins that own names, which no other twin may claim.
        name_store: keeps the claims of names, in memory by default.

    Attributes:
        domains: the domains, in lower case.
        metrics: the metrics of the relay.
        control: answers requests to the relay itself.
        names: hands the requests to names to workers.
        sessions: the table of connected sessions.
        topics: what twins publish.

    Raises:
        ValueError: a domain, a name or a topic is invalid.
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
        topics: TopicStore | None = None,
        publishers: Mapping[str, Collection[int]] | None = None,
        stuck_limit: float = STUCK_LIMIT,
        pause: Callable[[float], object] = time.sleep,
        fast: bool = False,
        names: Mapping[str, int] | None = None,
        name_store: NameStore | None = None,
    ) -> None:
        self.domains: frozenset[str] = frozenset(
            parse_domain(domain) for domain in strings("domains", domains, "relay.test")
        )
        self.metrics: RelayMetrics = RelayMetrics()
        if isinstance(twins, CachedTwins):
            self.metrics.watch_cache(lambda: twins.misses, lambda: twins.entries)
        self.control: Control = Control()
        self._twins = twins
        self._queues = queues or MemoryQueues()
        made = self._queues
        self._durable = made if isinstance(made, DurableQueues) and not fast else None
        self.sessions: Sessions = Sessions(
            made, self.metrics, stuck_limit, durable=self._durable is not None
        )
        self.names: Names = Names(
            made,
            name_store,
            pins=names,
            metrics=self.metrics,
            expired=self._expired,
            failed=self._failed,
        )
        self.names.commands(self.control)
        self._limiter = limiter or NoLimit()
        self._pause = pause
        self._limits = threading.Lock()
        self._closing = False
        self.topics: Topics = Topics(
            topics or MemoryTopics(), self.find, self.send_answer, self.metrics, publishers or {}
        )
        self.topics.serve(self.control)
        self._federation = None if federate is None else federate(self)
        fork.register(self)

    def __repr__(self) -> str:
        return f"<Relay {', '.join(sorted(self.domains))} sessions={len(self.sessions)}>"

    def forked(self) -> None:
        """Disable the copy in a forked child; see ``runtime.fork``."""
        self._limits = threading.Lock()
        self._closing = True
        self.sessions.forked()
        self.names.forked()

    # Called from any thread

    def admit(self, token: str | None) -> Address:
        """Return the session that a token is for; blocks for the directory.

        Raises:
            TokenRefused: the token is invalid; has the HTTP status and the reason to answer.
        """
        claims = check_token(token, int(time.time()), self.find)
        if is_reserved(claims.session):
            raise TokenRefused(401, "a session whose name begins with '@' is that of a name")
        return Address(claims.twin, claims.session)

    def find(self, twin: int) -> Twin | None:
        """Return a twin's record, or ``None``; blocks for the directory.

        Raises:
            TwinsUnavailable: the directory could not be asked.
        """
        return self._twins.get(twin, Deadline(LOOK_UP_TIME))

    def deliver(self, address: Address, data: bytes, expires_at: int, source: int = 0) -> None:
        """Send an envelope to a session, or queue it; blocks only for the queue.

        Args:
            address: the address of the session, or of a name.
            data: the envelope.
            expires_at: when it expires, in Unix seconds.
            source: the twin that has sent it.

        Raises:
            QueueFull: its queue is that of a name, and has a bound reached.
            QueueUnavailable: it could neither be sent nor queued.
        """
        session = None if self._durable else self.sessions.get(address)
        if session is not None:
            session.deliver(data, expires_at)
        else:
            self._queues.put(address, data, expires_at, Deadline(PUT_TIME), source)

    def deliver_own(self, address: Address, envelope: Envelope) -> None:
        """Deliver an error or a pong that this relay made; blocks only for the queue.

        An error goes to a connected session at once: it needs no place in the order, and may be
        about the queue itself. A pong has its place, unless the queue fails.

        Raises:
            QueueUnavailable: it could neither be sent nor queued.
        """
        data = envelope.SerializeToString()
        if len(data) > MAX_ENVELOPE:  # a pong is longer than its ping
            raise QueueUnavailable(f"an envelope has at most {MAX_ENVELOPE} bytes, not {len(data)}")
        expires_at = envelope.timestamp + envelope.expiration
        if kind_of(envelope) is Kind.ERROR and self._send_own(address, data, expires_at):
            return
        try:
            self.deliver(address, data, expires_at)
        except QueueUnavailable:
            if not self._send_own(address, data, expires_at):
                raise

    def _send_own(self, address: Address, data: bytes, expires_at: int) -> bool:
        session = self.sessions.get(address)
        return session is not None and session.send_own(data, expires_at)

    def send_answer(self, session: Session, made: Envelope, *, keep: bool = True) -> bool:
        """Send the answer to a request to this relay itself; blocks only for the queue.

        Args:
            session: the session that asked.
            made: the answer.
            keep: queue it if the connection has no room; it must be small then.

        Returns:
            Whether it was sent, or ``keep`` was given.
        """
        data = made.SerializeToString()
        if session.send_unstored(data):
            return True
        if not keep:
            return False
        try:
            self.deliver(session.address, data, made.timestamp + made.expiration)
        except QueueUnavailable as error:
            _log.warning("%s was not answered: %s", session.address.shown(), error)
        return True

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
            session.ask_all()
            session.link.hang_up(CloseCode.GOING_AWAY, "the relay is shutting down; connect again")

    def close(self, deadline: Deadline) -> None:
        """Close federation, topics, queues and directory, after the connections have ended."""
        if self._federation is not None:
            self._federation.close(deadline.remaining())
        self.topics.close(deadline)
        self.names.close(deadline)
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
                self._finish(session)
                self.names.ready(session)
                if link.error is None:
                    for envelope in session.drain(link.now):
                        self._expired(envelope)
        except Exception:
            _log.exception("the thread of %s failed; its connection ends", address.shown())
        finally:
            batches.close()
            link.discard()
            self.sessions.remove(session)
            self.control.left(session)
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
        if isinstance(decision, Reply) and kind_of(decision.envelope) is Kind.PONG:
            self._finish(session)
        if decision is not None:
            self._answer(session.address, decision)
            if isinstance(decision, Drop):
                self._passed(session, envelope)

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
        sender = session.address
        decision: Decision = check(envelope, sender, now)
        if isinstance(decision, Ask):
            answer = self.control.answer(session, envelope, now)
            if answer is not None:
                self.send_answer(session, answer)
            return None
        try:
            if isinstance(decision, Forward):
                target = self.sessions.get(decision.address)
                if target is not None or self._is_shared(decision.address, envelope):
                    self._pass_on(session, decision.address, envelope, data)
                    return None
                twin = self.find(decision.address.twin)
                name = name_of(decision.address)
                decision = onward(envelope, sender, twin, self.domains, now)
                if name is not None and not isinstance(decision, Federate):
                    return failure(envelope, sender, nobody(name), now, NOBODY_JOINED)
            if isinstance(decision, Queue):
                self._pass_on(session, decision.address, envelope, data)
                return None
        except QueueUnavailable as error:
            return _not_queued(envelope, sender, error, now)
        except TwinsUnavailable as error:
            return failure(envelope, sender, error.message, now)
        if isinstance(decision, Federate):
            return self._federate(session, envelope, data, decision.domains, now)
        return decision

    def _is_shared(self, address: Address, envelope: Envelope) -> bool:
        """Return whether an address is that of a name, and the envelope is queued for it.

        Raises:
            QueueUnavailable: that is not known while Redis is away.
        """
        return self.names.takes(address, at_once=is_fail_fast(envelope.tags))

    def _pass_on(self, session: Session, address: Address, envelope: Envelope, data: bytes) -> None:
        """Deliver an envelope of a session, or begin to; ``_finish`` does the rest.

        Raises:
            QueueUnavailable: it could neither be sent nor queued.
        """
        expires_at = envelope.timestamp + envelope.expiration
        if self._durable is None:
            self.deliver(address, data, expires_at, session.address.twin)
            self._passed(session, envelope)
        else:
            put = self._durable.begin(address, data, expires_at, session.address.twin)
            session.puts.append((put, envelope))

    def _finish(self, session: Session) -> None:
        """Queue what a batch of a connection has brought; only then are pings answered."""
        if self._durable is None or not session.puts:
            return
        puts, session.puts = session.puts, []
        self._durable.finish([put for put, _ in puts], Deadline(PUT_TIME))
        for put, envelope in puts:
            if put.error is None:
                self._passed(session, envelope)
            else:
                sender, now = session.address, int(time.time())
                self._answer(sender, _not_queued(envelope, sender, put.error, now))
                self._passed(session, envelope)

    def _passed(self, session: Session, envelope: Envelope) -> None:
        """Note what has become of an envelope of a session: it is on its way, or was dropped.

        An answer ends what its session had to answer, even if it was dropped: it comes no more.
        """
        if kind_of(envelope) in ANSWERS:
            self.names.answered(session, envelope)

    def _federate(
        self, session: Session, envelope: Envelope, data: bytes, domains: tuple[str, ...], now: int
    ) -> Reply | Drop | None:
        if self._federation is None:
            text = "this relay does not forward to other relays"
            return failure(envelope, session.address, text, now)
        self._federation.submit(envelope, data, domains)
        self._passed(session, envelope)
        return None

    def _answer(self, address: Address, decision: Reply | Drop) -> None:
        """Send a reply to a sender, or log why its message was dropped."""
        if isinstance(decision, Drop):
            self._count_refused(decision.reason)
            _log.info("a message from %s is dropped: %s", address.shown(), decision.reason)
            return
        made = decision.envelope
        if kind_of(made) is Kind.ERROR:
            self._count_refused(REASON_OF.get(made.error.code, made.error.message))
        try:
            self.deliver_own(address, made)
        except QueueUnavailable as error:
            _log.warning("%s was not answered: %s", address.shown(), error)

    def _count_refused(self, reason: str) -> None:
        self.metrics.refused(reason if reason in REASONS else "unavailable")

    def _expired(self, envelope: Envelope) -> None:
        """Answer the requester of an envelope that expired in a queue."""
        self._failed(envelope, FROM_RELAY, EXPIRED)

    def _failed(self, envelope: Envelope, code: int, text: str) -> None:
        """Answer the requester of an envelope that left a queue undelivered."""
        source = address_of(envelope.source)
        if source is not None:
            self._answer(source, failure(envelope, source, text, int(time.time()), code))


def _not_queued(
    envelope: Envelope, sender: Address, error: QueueUnavailable, now: int
) -> Reply | Drop:
    """Decide on an envelope that could not be queued."""
    code = error.code if isinstance(error, QueueFull) else FROM_RELAY
    return failure(envelope, sender, error.message, now, code)
