"""Send envelopes to connected twins, at the pace of each. Threads and locks: see ``relay``.

There are two ways. With durable queues, each envelope is queued first, whether its twin is
connected or not. It is then

- *stored*: in the queue, and in no connection;
- *in flight*, once the connection has it: still in the queue, and in a bounded window (see
  ``in_flight``);
- *acknowledged*, when the pong of a ping behind it has come: it is removed from the queue.

If the connection ends, what is in flight is stored again, and sent first, in order, on the next
connection of the session, here or at another relay. The same is true if this process dies.

In the fast way, which queues in memory imply, an envelope is sent directly if its connection has
room and none waits, and counts as delivered once the socket has taken it. What sockets and this
process hold is lost with them.

Even then the order stays. Before the first envelope is queued, those that were sent directly and
that the socket has not taken are queued, too: these copies are removed once the socket has taken
the originals, and otherwise come first on the next connection. A connection that ends, or is taken
over, first puts what is left into the queue; until then nobody else puts there, nor does a later
connection send.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from ...exceptions import CloseCode, ConnectionClosed, ForkedError
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ..errors import BadMessage
from ..session.link import Link
from ..wire.address import Address
from ..wire.envelope import Kind, kind_of, parse, time_left
from ..wire.messages import Envelope
from .in_flight import InFlight
from .metrics import RelayMetrics, Tally
from .queues import Mailbox, Put, QueuedEnvelope, QueueUnavailable, SessionQueues

__all__ = ["PUT_TIME", "Session", "Sessions"]

# Seconds without room after which a connection is closed; as the reference relay.
STUCK_LIMIT = 60.0

# Seconds to queue an envelope before its sender gets an error.
PUT_TIME = 5.0

# Seconds between checks of what the socket has taken, while entries are unacknowledged.
ACK_PAUSE = 0.02

# Entries taken from a queue at once, and sent before the connection is read again.
TAKEN, TURN = 64, 256

# The metrics' name for the end of a connection, by its close code.
_REASONS: dict[int, str] = {
    CloseCode.TRY_AGAIN_LATER: "back_pressure_timeout",
    CloseCode.TAKEN_OVER: "cancelled",
}

_serials = itertools.count(1)

_log = logger("wsmux.bus")


@dataclass(slots=True, eq=False)
class _Handed:
    """Hold an envelope that the socket may not have taken.

    ``entry`` is that of the queue, "" if it was sent directly and no copy was taken from there.
    """

    ticket: int
    data: bytes
    expires_at: int
    entry: str


class Session:
    """Send envelopes to one connection of a twin.

    Args:
        address: the address of the twin and session.
        link: its connection; the relay iterates its batches.
        queues: where envelopes wait.
        tally: counts the envelopes sent.
        stuck_limit: seconds without room after which the connection is closed.
        durable: acknowledge only what the twin has read; ``deliver`` is not used.

    Attributes:
        address, link, tally: as given.
        penalty: seconds of the last pause for exceeding the rate limit; for the connection's
            thread.
        serial: tells it from others of the same address in this process.
        puts: envelopes of this twin on their way into queues; for the connection's thread.
    """

    def __init__(
        self,
        address: Address,
        link: Link,
        queues: SessionQueues,
        tally: Tally,
        stuck_limit: float,
        *,
        durable: bool,
    ) -> None:
        self.address = address
        self.link = link
        self._queues = queues
        self.tally = tally
        self.serial = next(_serials)
        self.penalty = 0.0
        self.puts: list[tuple[Put, Envelope]] = []
        self._stuck_limit = stuck_limit
        self._lock = threading.Lock()
        self._order = threading.Lock()  # taken before the other, to queue what was sent directly
        self._putting = 0  # threads that are adding to the queue
        self._taken: deque[QueuedEnvelope] = deque()  # from the mailbox, not sent yet
        self._unsent: deque[_Handed] = deque()
        self._direct: deque[_Handed] = deque()  # of these, those that are not in the queue
        self._copies: dict[bytes, _Handed] = {}  # those that are, until they are taken from there
        self._stuck_since: float | None = None
        self._over = False
        self._flight = InFlight(link, stuck_limit) if durable else None
        self._timer: float | None = None  # of the link
        with self._lock:  # nothing is sent before the mailbox is known
            self._mailbox: Mailbox = queues.open(address, self._woken if durable else link.wake)

    def __repr__(self) -> str:
        return f"<Session {self.address} over {self.link.name}>"

    # Called from any thread

    def deliver(self, data: bytes, expires_at: int) -> None:
        """Send an envelope, or queue it if others wait; blocks only for the queue, ``PUT_TIME``.

        Raises:
            QueueUnavailable: it could neither be sent nor queued.
        """
        with self._lock:
            direct = not (self._over or self._putting or self._waiting_locked())
            if direct:
                self._copies.clear()  # those that are left were dropped from the queue
                if self._hand_locked(data, expires_at, ""):
                    return
            self._putting += 1
        deadline = Deadline(PUT_TIME)
        try:
            if not self._order.acquire(timeout=deadline.park_seconds()):
                raise self._too_slow()
            try:
                self._queue_direct(deadline)
            finally:
                self._order.release()
            self._queues.put(self.address, data, expires_at, deadline)
        finally:
            with self._lock:
                self._putting -= 1

    def _too_slow(self) -> QueueUnavailable:
        shown = self.address.shown()
        return QueueUnavailable(f"what {shown} has not read could not be queued in {PUT_TIME:g} s")

    def _queue_direct(self, deadline: Deadline) -> None:
        """Queue what was sent directly and is not taken by the socket, before what comes behind."""
        with self._lock:
            self._settle_direct_locked()
            direct = list(self._direct)
            self._direct.clear()
            self._copies |= {each.data: each for each in direct}
        for number, each in enumerate(direct):
            try:
                if deadline.expired():
                    raise self._too_slow()
                self._queues.put(self.address, each.data, each.expires_at, deadline)
            except QueueUnavailable:
                with self._lock:
                    for left in reversed(direct[number:]):
                        self._copies.pop(left.data, None)
                        if left.ticket > self.link.sent:
                            self._direct.appendleft(left)
                raise

    def send_own(self, data: bytes, expires_at: int) -> bool:
        """Send an answer of the relay before all that waits; ``False`` if there is no room.

        In the durable way, it is lost with the connection.
        """
        if self._flight is not None:
            return self.send_unstored(data)
        with self._lock:
            sent = not self._over and self._hand_locked(data, expires_at, "")
        return sent

    def send_unstored(self, data: bytes) -> bool:
        """Send what is lost with the connection; ``False`` if there is no room, or it has ended."""
        with self._lock:
            sent = not self._over and self._send_locked(data) > 0
        return sent

    def ask_all(self) -> None:
        """Ask the twin, before the link is closed, what it has read of all that was sent."""
        with self._lock:
            self._mark_locked(time.monotonic(), all_of_it=True)

    def _woken(self) -> None:
        """Send what has come into the mailbox, in the thread that brought it."""
        with self._lock:
            self._hand_waiting_locked(None)
            self._mark_locked(time.monotonic())
            due = self._due_locked()
            early = due is not None and (self._timer is None or due < self._timer)
        if early:
            self.link.wake()  # to set the timer

    # Thread of the connection

    def drain(self, now: float) -> list[Envelope]:
        """Send queued entries, acknowledge those sent, and set the timer for the rest.

        Args:
            now: the time of the monotonic clock.

        Returns:
            Envelopes that expired in the queue, whose requesters are to get an error. Pongs, which
            keep the time of their ping, are sent even so: a twin's clock may be wrong.
        """
        expired: list[Envelope] = []
        with self._lock:
            done = self._settle_locked()
            done += self._hand_waiting_locked(expired)
            if self._flight is None:
                done += self._settle_locked()
            self._mark_locked(now)
            if not self._waiting_locked():
                self._stuck_since = None  # the entries that did not fit went elsewhere
            full = self._stuck_since is not None and now >= self._stuck_since + self._stuck_limit
            mute = self._flight is not None and self._flight.is_stuck(now)
            due = self._next_timer_locked(now)
        if done:
            self._mailbox.ack(done)
        if full or mute:
            what = "accepted no message" if full else "answered no ping"
            self.link.fail(
                CloseCode.TRY_AGAIN_LATER,
                f"the connection {what} for {self._stuck_limit:.0f} s; read faster",
            )
        self.link.set_timer(due)
        return expired

    def end(self) -> None:
        """Leave or put in the queue what was not delivered, after the link has ended.

        May be called twice; the second call waits for the first.
        """
        with self._order:
            with self._lock:
                if self._over:
                    return
                self._over = True
                done = self._settle_locked()
                done += self._take_copies_locked([*self._taken])
                if self._copies:
                    done += self._take_copies_locked(self._mailbox.take(len(self._copies)))
                left = self._direct.copy()
                for each in (self._unsent, self._direct, self._copies, self._taken):
                    each.clear()
            self._mailbox.ack(done)
            self._mailbox.close()
            try:
                while left:
                    data, expires_at = left[0].data, left[0].expires_at
                    self._queues.put(self.address, data, expires_at, Deadline(PUT_TIME))
                    left.popleft()
            except QueueUnavailable as error:  # a later connection may wait for this
                shown = self.address.shown()
                _log.warning("%d envelopes for %s are lost: %s", len(left), shown, str(error))

    def give_way(self) -> None:
        """End the link, since another connection takes over the session."""
        text = f"another connection took over the session {self.address}"
        self.link.fail(CloseCode.TAKEN_OVER, text)
        if self._flight is None:  # else pongs may still come, and the queue has its order
            self.end()

    # Called with the lock held

    def _waiting_locked(self) -> bool:
        return bool(self._taken) or self._mailbox.waiting()

    def _hand_locked(self, data: bytes, expires_at: int, entry: str) -> bool:
        """Queue an envelope for the socket; ``False`` if there is no room, or no connection."""
        if self._flight is not None and not self._flight.has_room():
            return False  # the next pong makes room
        ticket = self._send_locked(data)
        if not ticket:
            return False
        if self._flight is not None:
            self._flight.add(entry, len(data))
        elif entry or self.link.sent < ticket:
            handed = _Handed(ticket, data, expires_at, entry)
            self._unsent.append(handed)
            if not entry:
                self._direct.append(handed)
                if len(self._unsent) > TURN:
                    self._settle_direct_locked()
        return True

    def _send_locked(self, data: bytes) -> int:
        """Queue an envelope for the socket; return its ticket, 0 if that is not possible."""
        try:
            ticket = self.link.send_nowait(data)
        except (ConnectionClosed, ForkedError):
            return 0
        if ticket:
            self._stuck_since = None
            self.tally.tx += 1
            self.tally.tx_bytes += len(data)
        else:
            if self._stuck_since is None:
                self._stuck_since = time.monotonic()
            self.link.ask_room()
        return ticket

    def _hand_waiting_locked(self, expired: list[Envelope] | None) -> list[str]:
        """Send queued entries; return the ids of those to discard.

        Without ``expired``, leave an entry that is not to be sent to the connection's thread.
        """
        dropped: list[str] = []
        now = int(time.time())
        for _ in range(TURN):
            if not self._taken:
                self._taken.extend(self._mailbox.take(TAKEN))
            if not self._taken:
                break
            entry = self._taken[0]
            if entry.data in self._copies:
                dropped += self._take_copies_locked([entry])
                self._taken.popleft()
                continue
            try:
                envelope = parse(entry.data)
            except BadMessage as error:
                if expired is None:
                    self.link.wake()
                    break
                _log.warning(
                    "an entry in the queue of %s is dropped: %s", self.address.shown(), error
                )
                dropped.append(entry.id)
            else:
                if time_left(envelope, now) <= 0 and kind_of(envelope) is not Kind.PONG:
                    if expired is None:
                        self.link.wake()
                        break
                    expired.append(envelope)
                    dropped.append(entry.id)
                elif not self._hand_locked(entry.data, 0, entry.id):
                    break
            self._taken.popleft()
        else:
            self.link.wake()  # more may be waiting; the connection is read in between
        return dropped

    def _settle_locked(self) -> list[str]:
        """Remove what was delivered; return the ids to acknowledge."""
        if self._flight is not None:
            return self._flight.settle()
        sent, done = self.link.sent, list[str]()
        while self._unsent and self._unsent[0].ticket <= sent:
            entry = self._pop_unsent_locked().entry
            if entry:
                done.append(entry)
        return done

    def _take_copies_locked(self, entries: Iterable[QueuedEnvelope]) -> list[str]:
        """Note the entries that were sent directly; return the ids of those to acknowledge now."""
        sent, done = self.link.sent, list[str]()
        for entry in entries:
            handed = self._copies.pop(entry.data, None)
            if handed is None:
                continue
            if handed.ticket <= sent:
                done.append(entry.id)
            else:
                handed.entry = entry.id
        return done

    def _pop_unsent_locked(self) -> _Handed:
        handed = self._unsent.popleft()
        while self._direct and self._direct[0].ticket <= handed.ticket:
            self._direct.popleft()
        return handed

    def _settle_direct_locked(self) -> None:
        """Remove direct envelopes that the socket has taken, up to the first queued entry."""
        sent = self.link.sent
        while self._unsent and self._unsent[0].ticket <= sent and not self._unsent[0].entry:
            self._pop_unsent_locked()

    def _mark_locked(self, now: float, *, all_of_it: bool = False) -> None:
        """Ask for an acknowledgement if it is time; only in the durable way."""
        if self._flight is not None:
            with suppress(ConnectionClosed, ForkedError):  # the connection's thread learns that
                self._flight.mark(now, all_of_it=all_of_it)

    def _next_timer_locked(self, now: float) -> float | None:
        """Return when the thread of the connection must look again.

        An earlier timer is left as it is: the next envelope then need not wake the thread.
        """
        due = self._due_locked()
        before = self._timer
        if before is None or before <= now or (due is not None and due < before):
            self._timer = due
        return self._timer

    def _due_locked(self) -> float | None:
        """Return the monotonic time of the next check, or ``None``."""
        if self._stuck_since is not None:
            return self._stuck_since + self._stuck_limit
        if self._flight is not None:
            return self._flight.due()
        if any(each.entry for each in self._unsent):
            return time.monotonic() + ACK_PAUSE
        return None


class Sessions:
    """Keep the table of connected sessions; a later connection of an address replaces the earlier.

    Args:
        queues: where envelopes wait.
        metrics: counts envelopes and connections.
        stuck_limit: seconds without room after which a connection is closed.
        durable: acknowledge only what twins have read.
    """

    def __init__(
        self,
        queues: SessionQueues,
        metrics: RelayMetrics,
        stuck_limit: float = STUCK_LIMIT,
        *,
        durable: bool = False,
    ) -> None:
        self._queues = queues
        self._metrics = metrics
        self._stuck_limit = stuck_limit
        self._durable = durable
        self._lock = threading.Lock()
        self._sessions: dict[Address, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def forked(self) -> None:
        """Clear the copy in a forked child."""
        self._lock = threading.Lock()
        self._sessions.clear()

    def get(self, address: Address) -> Session | None:
        """Return the session connected under an address, or ``None``."""
        return self._sessions.get(address)

    def all(self) -> list[Session]:
        """Return every session."""
        with self._lock:
            return list(self._sessions.values())

    def add(self, address: Address, link: Link) -> Session:
        """Add and return the session of a connection; an earlier one is closed with 4001.

        Blocks while the earlier one gives back what it did not send.
        """
        tally = Tally()
        while True:
            before = self._sessions.get(address)
            if before is not None:
                before.give_way()
            with self._lock:  # the later mailbox and the later session must be the same
                if self._sessions.get(address) is not before:
                    continue  # another one was faster, or the earlier one has ended
                session = Session(
                    address, link, self._queues, tally, self._stuck_limit, durable=self._durable
                )
                self._sessions[address] = session
            break
        self._metrics.connected(tally)
        return session

    def remove(self, session: Session) -> None:
        """Remove a session whose link has ended; one that replaced it stays."""
        session.end()  # first: until then, what comes for it must wait
        with self._lock:
            if self._sessions.get(session.address) is session:
                del self._sessions[session.address]
        error = session.link.error
        code = error.code if isinstance(error, ConnectionClosed) else 0
        self._metrics.ended(session.tally, _REASONS.get(code, "closed"))
