"""Share the queues of names among relays that use one Redis; see ``redis_rounds``.

An entry that a relay has taken is with that relay, until it is acknowledged and removed, or given
back. A relay renews what it has every ``RENEWAL`` seconds. What was not renewed for ``LEASE``, as
after the end of its relay, any other may take. So every entry is with one relay, or free, and
leaves Redis only when it is acknowledged, or an hour after the queue of its name was last used.

A relay takes what its workers have room for in the step in which it adds something, and whenever
something may wait. Relays tell each other of what was added and not taken by a stream, the *bell*;
what no bell has told of is found within ``LOOK``.

Threads and locks: one thread, started with the first mailbox, takes what mailboxes want, renews and
gives back. Another one waits for the bell. They share the lock of the queues; under it there is no
I/O. The writer of ``redis_io`` removes what is acknowledged.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...runtime import clock
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition, OneShotEvent
from ...runtime.threads import daemon_thread, start_thread
from ...storage.redis_client import FAILURES, is_wrong_type, run_together
from ..wire.address import Address
from .queues import NameBounds, Put, QueuedEnvelope, SharedMailbox
from .redis_io import COUNT, Report, RetryPause, Writer
from .redis_rounds import BELL, NAME, RINGER, add, give_back, renew, rounds_key, take

if TYPE_CHECKING:
    import redis

__all__ = ["SharedMailboxes"]

# Seconds after which what a relay has not renewed is free, and between two renewals.
LEASE, RENEWAL = 10.0, 3.0

# Seconds between looks for entries that no bell has told of, or that are free again.
LOOK = 1.0

# Milliseconds that the wait for the bell takes at most; less than the reply timeout.
BLOCK = 500

# Entries renewed by one command, and bells read at once.
MANY = 100

_log = logger("wsmux.bus")


class _RoundsMailbox(SharedMailbox):
    """Buffer what this relay has taken of one queue; uses the lock of the queues.

    Attributes:
        key: what the keys of the name begin with.
        wake: called when there is more to take.
        wanted: entries that would be taken from the buffer at once.
        asked: entries asked of Redis that have not come.
        behind: whether Redis may have entries that no relay has.
        lent: whether it has entries that are free again if nobody renews them: those of other
            relays, and those that it took for this one in an answer that was lost.
        pending: the ids of what this relay has.
    """

    def __init__(self, owner: SharedMailboxes, address: Address, wake: Callable[[], None]) -> None:
        self.key = rounds_key(address)
        self.wake = wake
        self.wanted = 0
        self.asked = 0
        self.behind = True
        self.lent = False
        self.pending: set[bytes] = set()
        self.closed = False
        self.buffer: deque[QueuedEnvelope] = deque()
        self._owner = owner

    def take(self, limit: int) -> list[QueuedEnvelope]:
        return self._owner.take(self, limit)

    def waiting(self) -> bool:
        return self._owner.waiting(self)

    def ack(self, ids: Iterable[str]) -> None:
        self._owner.ack(self, [each.encode() for each in ids])

    def give_back(self, ids: Iterable[str]) -> None:
        self._owner.give_back(self, [each.encode() for each in ids])

    def close(self) -> None:
        self._owner.give_up(self)

    # Called with the lock held

    def ask_locked(self) -> int:
        """Return how many entries to ask for now; ``answered_locked`` is to be called then."""
        count = 0 if self.closed else max(0, min(self.wanted - self.asked, COUNT))
        self.asked += count
        return count

    def answered_locked(self, count: int) -> None:
        """Note that entries that were asked for have come, or will not."""
        self.asked -= count


@dataclass(slots=True)
class _Work:
    """Hold what the thread is to do in its next round."""

    take: list[tuple[_RoundsMailbox, int]] = field(default_factory=list)
    renew: list[tuple[_RoundsMailbox, list[bytes]]] = field(default_factory=list)
    free: list[tuple[bytes, list[bytes]]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.take or self.renew or self.free)


class _ToName:
    """Add to the queue of a name, and take what its mailbox wants; made with the lock held."""

    def __init__(self, owner: SharedMailboxes, address: Address, puts: list[Put]) -> None:
        self.puts = puts
        self._owner = owner
        self._address = address
        self._key = rounds_key(address)
        self._mailbox = owner.find_locked(self._key)
        self._count = 0 if self._mailbox is None else self._mailbox.ask_locked()

    def command(self) -> tuple[Any, ...]:
        owner = self._owner
        return add(self._key, owner.consumer, self._count, LEASE, owner.bounds, self.puts)

    def added_locked(self, result: Any) -> Callable[[], None] | None:
        told, left, found = result
        for put, why in zip(self.puts, told, strict=True):
            if why == b"twin":
                put.error = self._owner.bounds.twin_full(self._address, put.source)
            elif why == b"all":
                put.error = self._owner.bounds.all_full(self._address)
        if left:
            self._owner.behind_locked(self._key)  # it may have been opened meanwhile
        mailbox = self._mailbox
        if mailbox is None:
            return None
        mailbox.answered_locked(self._count)
        entries = [
            (bytes(each), self.puts[data - 1].data if isinstance(data, int) else bytes(data))
            for each, data in zip(found[::2], found[1::2], strict=True)
        ]
        return mailbox.wake if self._owner.fill_locked(mailbox, entries) else None

    def failed_locked(self) -> None:
        """Note that nothing comes; what Redis may have taken is free after ``LEASE``."""
        if self._mailbox is not None:
            self._mailbox.answered_locked(self._count)


class SharedMailboxes:
    """Keep the mailboxes of names at one relay; see the module.

    Args:
        client: made by ``redis_client``.
        lock: the lock of the queues.
        writer: removes what is acknowledged.
        report: told of failures and successes.
        bounds: bound the queue of each name.

    Attributes:
        bounds: as given.
        consumer: what this relay is called in Redis.
    """

    def __init__(
        self,
        client: redis.Redis,
        lock: threading.Lock,
        writer: Writer,
        report: Report,
        bounds: NameBounds,
    ) -> None:
        self._client = client
        self._lock = lock
        self._some = Condition(lock)
        self._writer = writer
        self._report = report
        self.bounds = bounds
        self.consumer: str = uuid.uuid4().hex
        self._mailboxes: dict[bytes, _RoundsMailbox] = {}
        self._freed: deque[tuple[bytes, list[bytes]]] = deque()
        self._next_look = self._next_renewal = 0.0
        self._threads: list[threading.Thread] = []
        self._stop = OneShotEvent()

    def open(self, address: Address, wake: Callable[[], None]) -> SharedMailbox:
        """Return a mailbox; an earlier one of the same name at this relay returns no more."""
        mailbox = _RoundsMailbox(self, address, wake)
        with self._lock:
            if self._stop.is_set():  # all have been given up
                mailbox.closed = True
                return mailbox
            for run in (self._run, self._listen)[len(self._threads) :]:
                thread = daemon_thread(target=run, name=f"wsmux-redis-names{run.__name__}")
                start_thread(thread)
                self._threads.append(thread)
            before = self._mailboxes.get(mailbox.key)
            if before is not None:
                self._give_up_locked(before)
            self._mailboxes[mailbox.key] = mailbox
            self._some.notify_all()
        return mailbox

    def adding_locked(self, address: Address, puts: list[Put]) -> _ToName:
        """Return what adds puts to the queue of a name."""
        return _ToName(self, address, puts)

    def find_locked(self, key: bytes) -> _RoundsMailbox | None:
        """Return the mailbox of a name, if one is open here."""
        return self._mailboxes.get(key)

    def close(self, deadline: Deadline) -> None:
        """Give back what was not acknowledged, and stop the threads."""
        with self._lock:
            for mailbox in list(self._mailboxes.values()):
                self._give_up_locked(mailbox)
            self._stop.set()
            self._some.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join(deadline.remaining())

    # Called by mailboxes

    def take(self, mailbox: _RoundsMailbox, limit: int) -> list[QueuedEnvelope]:
        """Return buffered entries, and read more if those are too few."""
        with self._lock:
            buffer = mailbox.buffer
            taken = [buffer.popleft() for _ in range(min(limit, len(buffer)))]
            mailbox.wanted = limit - len(taken)
            if not limit and buffer:  # another relay may have what this one does not want any more
                ids = [each.id.encode() for each in buffer]
                buffer.clear()
                self._give_back_locked(mailbox, ids)
            if mailbox.wanted and mailbox.behind:
                self._some.notify_all()
        return taken

    def waiting(self, mailbox: _RoundsMailbox) -> bool:
        """Return whether there may be entries to take: until Redis says that it has none."""
        with self._lock:
            return not mailbox.closed and bool(
                mailbox.buffer or mailbox.asked or mailbox.behind or mailbox.lent
            )

    def ack(self, mailbox: _RoundsMailbox, ids: list[bytes]) -> None:
        """Acknowledge and delete entries."""
        with self._lock:
            mailbox.pending.difference_update(ids)
            self._writer.delete_locked(mailbox.key, ids)

    def give_back(self, mailbox: _RoundsMailbox, ids: list[bytes]) -> None:
        """Let entries wait again, unless another relay has them."""
        with self._lock:
            self._give_back_locked(mailbox, ids)

    def give_up(self, mailbox: _RoundsMailbox) -> None:
        """Give back what was not acknowledged."""
        with self._lock:
            self._give_up_locked(mailbox)

    def _give_up_locked(self, mailbox: _RoundsMailbox) -> None:
        if mailbox.closed:
            return
        mailbox.closed = True
        mailbox.buffer.clear()
        if self._mailboxes.get(mailbox.key) is mailbox:
            del self._mailboxes[mailbox.key]
        self._give_back_locked(mailbox, list(mailbox.pending))

    def _give_back_locked(self, mailbox: _RoundsMailbox, ids: list[bytes]) -> None:
        if ids:
            mailbox.pending.difference_update(ids)
            self.behind_locked(mailbox.key)  # the thread gives back before it takes
            self._freed.append((mailbox.key, ids))
            self._some.notify_all()

    def behind_locked(self, key: bytes) -> None:
        """Note that Redis may have entries of a name that no relay has."""
        mailbox = self._mailboxes.get(key)
        if mailbox is not None:
            mailbox.behind = True
            if mailbox.wanted:
                self._some.notify_all()

    def fill_locked(self, mailbox: _RoundsMailbox, entries: list[tuple[bytes, bytes]]) -> bool:
        """Put what was taken into a mailbox; return whether there is anything for it."""
        if mailbox.closed:
            self._give_back_locked(mailbox, [entry for entry, _ in entries])
            return False
        mailbox.pending.update(entry for entry, _ in entries)
        mailbox.buffer.extend(QueuedEnvelope(entry.decode(), data) for entry, data in entries)
        mailbox.wanted = max(0, mailbox.wanted - len(entries))
        return bool(entries)

    # The thread that reads

    def _run(self) -> None:
        pause = RetryPause()
        while (work := self._work()) is not None:
            wakes: list[Callable[[], None]] = []
            try:
                self._do(work, wakes)
            except FAILURES as error:
                self._report(error)
                with self._lock:
                    self._freed.extendleft(reversed(work.free))
                    for mailbox, count in work.take:
                        mailbox.answered_locked(count)
                        mailbox.behind = True
                if self._stop.is_set():
                    _log.warning("requests to names stay with this relay: Redis failed at shutdown")
                    return
                self._stop.wait(pause.next())
            except Exception:
                _log.exception("the queues of names were not read; they are read again")
                self._stop.wait(pause.next())
            else:
                self._report(None)
                pause.reset()
            for wake in wakes:
                try:
                    wake()
                except Exception:  # the other names go on
                    _log.exception("requests to a name were not handed on")

    def _work(self) -> _Work | None:
        """Wait for something to do; ``None`` at the end."""
        with self._lock:
            while True:
                now = clock.monotonic()
                work = self._work_locked(now)
                if work:
                    return work
                if self._stop.is_set():
                    return None
                due = min(self._next_look, self._next_renewal)
                self._some.wait(max(0.0, due - now) if self._mailboxes else None)

    def _work_locked(self, now: float) -> _Work:
        work = _Work(free=list(self._freed))
        self._freed.clear()
        if now >= self._next_look:
            self._next_look = now + LOOK
            for mailbox in self._mailboxes.values():
                mailbox.behind = True
        if now >= self._next_renewal:
            self._next_renewal = now + RENEWAL
            for mailbox in self._mailboxes.values():
                ids = list(mailbox.pending)
                work.renew += [
                    (mailbox, ids[start : start + MANY]) for start in range(0, len(ids), MANY)
                ]
        for mailbox in self._mailboxes.values():
            if mailbox.behind and (count := mailbox.ask_locked()):
                mailbox.behind = False
                work.take.append((mailbox, count))
        return work

    def _do(self, work: _Work, wakes: list[Callable[[], None]]) -> None:
        """Do it in one round trip, and tell whom to wake."""
        own = self.consumer
        commands = [give_back(key, own, ids) for key, ids in work.free]
        commands += [renew(mailbox.key, own, LEASE, ids) for mailbox, ids in work.renew]
        commands += [take(mailbox.key, own, count, LEASE) for mailbox, count in work.take]
        results = run_together(self._client, commands)
        work.free.clear()  # done
        taken, work.take = work.take, []
        first = len(results) - len(taken)
        failures = [each for each in results[:first] if _failed(each)]
        with self._lock:
            for (mailbox, count), result in zip(taken, results[first:], strict=True):
                mailbox.answered_locked(count)
                if is_wrong_type(result):
                    _log.warning("%r is not the queue of a name: delete it", mailbox.key)
                elif isinstance(result, Exception):
                    mailbox.behind = True
                    failures.append(result)
                else:
                    left, found, had = result
                    mailbox.lent = had > len(mailbox.pending)
                    entries = zip(found[::2], found[1::2], strict=True)
                    fresh = [(bytes(each), bytes(data)) for each, data in entries]
                    if self.fill_locked(mailbox, fresh):
                        wakes.append(mailbox.wake)
                    if left:
                        self.behind_locked(mailbox.key)
        if failures:
            raise failures[0]

    # The thread that listens

    def _listen(self) -> None:
        pause = RetryPause()
        last: Any = None
        while not self._stop.is_set():
            try:
                if last is None:  # a "$" would leave out what is rung between two reads
                    newest: Any = self._client.xrevrange(BELL, count=1)
                    last = newest[0][0] if newest else "0-0"
                    with self._lock:  # it may have been rung already
                        for mailbox in self._mailboxes.values():
                            self.behind_locked(mailbox.key)
                reply: Any = self._client.xread({BELL: last}, MANY, BLOCK)
            except FAILURES as error:
                self._report(error)
                self._stop.wait(pause.next())
                continue
            self._report(None)
            pause.reset()
            rung = reply[0][1] if reply else []
            if rung:
                last = rung[-1][0]
                with self._lock:
                    for _, fields in rung:
                        if fields.get(RINGER) != self.consumer.encode():
                            self.behind_locked(fields.get(NAME, b""))


def _failed(result: object) -> bool:
    """Return whether a command failed, other than for a key that is no queue."""
    return isinstance(result, Exception) and not is_wrong_type(result)
