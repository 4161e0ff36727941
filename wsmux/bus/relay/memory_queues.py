"""Keep the queues of sessions in memory; they are lost with the process.

One lock guards everything. It is held only for operations on dictionaries and deques, none of which
looks at all queues; sessions are woken after its release. When all queues together exceed their
bound, the largest loses its older half, so flooding a queue affects that queue alone. Queues are
ordered by levels, an eighth apart, so of two with nearly the same size either is the largest.

Those of names lose nothing: they refuse what is beyond their bounds, and take half of all bytes at
most. Of these a twin has a quarter of what the others leave, or one request. So however many names
it calls, and however much it sends, there is room for others.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...config import MIB
from ...runtime import fork
from ...runtime.deadline import Deadline
from ..wire.address import Address
from ..wire.names import is_reserved
from .queues import (
    LIFE,
    MAX_QUEUED,
    Mailbox,
    NameBounds,
    QueuedEnvelope,
    QueueFull,
    QueueUnavailable,
    SessionQueues,
    SharedMailbox,
)

__all__ = ["MemoryQueues"]

# Bytes of all queues together.
MAX_BYTES = 256 * MIB

# Bytes that an entry costs beside its data, and that the queue of a session costs beside its
# entries and the session's name. Senders choose the names.
OVERHEAD = 400
QUEUE_OVERHEAD = 1024

# Bytes of a character of a session's name.
CHARACTER = 4

# The part of what all others leave of the bytes of names that one twin may have.
TWIN_PART = 4

# Seconds between searches for expired entries, and the queues that one message searches.
SWEEP = 60.0
SWEPT = 100


@dataclass(slots=True)
class _Kept:
    """Hold one envelope.

    Attributes:
        entry: the envelope and its id.
        until: when it is discarded, in Unix seconds.
        size: the bytes that it counts for.
        source: whose it is, in the queue of a name.
        place: the round in which it is served, and a number that grows with each envelope.
    """

    entry: QueuedEnvelope
    until: float
    size: int
    source: int
    place: tuple[int, int]


@dataclass(slots=True)
class _Share:
    """Count what a queue has of one source; ``round`` is that of its last entry."""

    count: int = 0
    size: int = 0
    round: int = 0


class _Queue:
    """Hold the entries of a session or name, in rounds of one entry of each source.

    Those of a session have one source, so their order is that of their arrival.

    Attributes:
        taken: by their ids, what mailboxes have and have not acknowledged.
        size: the bytes of all entries, and of the queue itself unless it is empty.
        mailbox: who may take.
        shares: what there is of each source.
        level: the level of its size, 0 while it is empty; see ``_level``.

    Args:
        cost: the bytes of the queue itself.
        held: where the bytes of each source are counted, over all queues of names.
    """

    __slots__ = (
        "_cost",
        "_held",
        "_served",
        "_waiting",
        "level",
        "mailbox",
        "shares",
        "size",
        "taken",
    )

    def __init__(self, cost: int, held: Counter[int] | None) -> None:
        self._cost = cost
        self._held = held
        self.level = 0
        self.taken: dict[str, _Kept] = {}
        self.size = 0
        self.mailbox: _MemoryMailbox | None = None
        self.shares: dict[int, _Share] = {}
        self._waiting: list[tuple[tuple[int, int], _Kept]] = []  # a heap
        self._served = 0  # the last round of which an entry was taken

    def __len__(self) -> int:
        return len(self._waiting) + len(self.taken)

    def waiting(self) -> int:
        """Return how many entries no mailbox has."""
        return len(self._waiting)

    def add(self, serial: int, data: bytes, until: float, size: int, source: int) -> None:
        """Add an envelope, as the last one of its source."""
        if not self.shares:
            self.size = self._cost
        share = self.shares.setdefault(source, _Share())
        if self._held is not None:
            self._held[source] += size
        share.count += 1
        share.size += size
        share.round = max(share.round, self._served) + 1
        self.size += size
        kept = _Kept(QueuedEnvelope(str(serial), data), until, size, source, (share.round, serial))
        self._wait(kept)

    def take(self, limit: int) -> list[QueuedEnvelope]:
        """Return the next entries, and remember them as taken."""
        taken = [self._pop() for _ in range(min(limit, len(self._waiting)))]
        self.taken |= {each.entry.id: each for each in taken}
        return [each.entry for each in taken]

    def give_back(self, ids: Iterable[str]) -> None:
        """Let what was taken wait again, where it was."""
        for each in ids:
            kept = self.taken.pop(each, None)
            if kept is not None:
                self._wait(kept)

    def ack(self, ids: Iterable[str]) -> None:
        """Remove what was taken and is delivered."""
        for each in ids:
            kept = self.taken.pop(each, None)
            if kept is not None:
                self._forget(kept)

    def discard(self, now: float) -> None:
        """Remove what waits and has run out."""
        over = [kept for _, kept in self._waiting if kept.until <= now]
        if over:
            self._waiting = [each for each in self._waiting if each[1].until > now]
            heapq.heapify(self._waiting)
        for kept in over:
            self._forget(kept)

    def drop_oldest(self) -> None:
        """Remove the oldest entry."""
        oldest = next(iter(self.taken), None)
        self._forget(self._pop() if oldest is None else self.taken.pop(oldest))

    def _wait(self, kept: _Kept) -> None:
        heapq.heappush(self._waiting, (kept.place, kept))

    def _pop(self) -> _Kept:
        _, kept = heapq.heappop(self._waiting)
        self._served = max(self._served, kept.place[0])
        return kept

    def _forget(self, kept: _Kept) -> None:
        share = self.shares[kept.source]
        share.count -= 1
        share.size -= kept.size
        if self._held is not None:
            self._held[kept.source] -= kept.size
            if not self._held[kept.source]:
                del self._held[kept.source]
        if not share.count:
            del self.shares[kept.source]
        self.size = self.size - kept.size if self.shares else 0


class MemoryQueues(SessionQueues):
    """Keep the queues in memory; see the module for the bounds.

    Args:
        max_bytes: bytes of all queues together.
        max_queued: entries of one session.
        name_bounds: those of a name.
        life: the maximum number of seconds that an entry is kept.
        clock: returns Unix seconds.

    Attributes:
        dropped: the number of entries dropped for one of the bounds.
    """

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        max_queued: int = MAX_QUEUED,
        name_bounds: NameBounds | None = None,
        life: float = LIFE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.dropped = 0
        self._max_bytes, self._max_queued = max_bytes, max_queued
        self._name_bounds = name_bounds or NameBounds()
        self._life = life
        self._clock = clock
        self._lock = threading.Lock()
        self._queues: OrderedDict[Address, _Queue] = OrderedDict()
        self._bytes = 0
        self._name_bytes = 0  # of these, those of names
        self._held: Counter[int] = Counter()  # of those, what each twin has
        self._levels: dict[int, OrderedDict[Address, None]] = {}  # of sessions
        self._swept = -math.inf
        self._to_sweep = 0  # the first ones of all queues
        self._serial = itertools.count(1)
        self._closed = False
        fork.register(self)

    def __repr__(self) -> str:
        return f"<MemoryQueues sessions={len(self._queues)} bytes={self._bytes}>"

    def forked(self) -> None:
        """Empty the copy in a forked child; see ``runtime.fork``."""
        self._lock = threading.Lock()
        self._queues.clear()
        self._closed = True

    def open(self, address: Address, wake: Callable[[], None]) -> Mailbox:
        return self._opened(address, wake)

    def open_shared(self, address: Address, wake: Callable[[], None]) -> SharedMailbox:
        return self._opened(address, wake)

    def _opened(self, address: Address, wake: Callable[[], None]) -> _MemoryMailbox:
        mailbox = _MemoryMailbox(self, address, wake)
        with self._lock:
            queue = self._queue_locked(address)
            queue.mailbox = mailbox
            queue.give_back(list(queue.taken))
        wake()
        return mailbox

    def put(
        self, address: Address, data: bytes, expires_at: int, deadline: Deadline, source: int = 0
    ) -> None:
        now = self._clock()
        size = len(data) + OVERHEAD
        if size + _cost(address) > self._max_bytes:
            raise QueueUnavailable(
                f"an envelope of {len(data)} bytes is above the limit of all queues"
            )
        of_name = is_reserved(address.session)
        with self._lock:
            if self._closed:
                raise QueueUnavailable("the queues are closed")
            self._sweep_locked(now)
            if of_name:
                self._check_room_locked(address, source, size, now)
            queue = self._queue_locked(address)
            with self._counted_locked(address, queue):
                until = min(expires_at, now + self._life)
                queue.add(next(self._serial), data, until, size, source if of_name else 0)
            if not of_name and len(queue) > self._max_queued:
                self._drop_locked(address, queue)
            if not of_name:
                self._make_room_locked()
            mailbox = queue.mailbox
        if mailbox is not None:
            mailbox.wake()

    def trouble(self) -> str | None:
        return None

    def close(self, deadline: Deadline) -> None:
        with self._lock:
            self._closed = True
            self._queues.clear()
            self._levels.clear()
            self._held.clear()
            self._bytes = self._name_bytes = 0

    def _queue_locked(self, address: Address) -> _Queue:
        queue = self._queues.get(address)
        if queue is None:
            held = self._held if is_reserved(address.session) else None
            queue = self._queues[address] = _Queue(_cost(address), held)
        return queue

    @contextmanager
    def _counted_locked(self, address: Address, queue: _Queue) -> Iterator[None]:
        """Count by how much a queue grows or shrinks meanwhile."""
        before = queue.size
        try:
            yield
        finally:
            grown = queue.size - before
            self._bytes += grown
            if is_reserved(address.session):
                self._name_bytes += grown
            else:
                self._level_locked(address, queue)

    def _level_locked(self, address: Address, queue: _Queue) -> None:
        """Move a queue of a session to the level of its size."""
        level = _level(queue.size)
        if level == queue.level:
            return
        if queue.level:
            known = self._levels[queue.level]
            del known[address]
            if not known:
                del self._levels[queue.level]
        queue.level = level
        if level:
            self._levels.setdefault(level, OrderedDict())[address] = None

    def _check_room_locked(self, address: Address, source: int, size: int, now: float) -> None:
        """Refuse what is beyond a bound of a name even without what has run out."""
        queue = self._queues.get(address)
        if self._full_locked(address, queue, source, size) is not None and queue is not None:
            with self._counted_locked(address, queue):
                queue.discard(now)
        refusal = self._full_locked(address, queue, source, size)
        if refusal is not None:
            raise refusal

    def _full_locked(
        self, address: Address, queue: _Queue | None, source: int, size: int
    ) -> QueueFull | None:
        bounds = self._name_bounds
        share = _Share() if queue is None else queue.shares.get(source, _Share())
        if share.count >= bounds.of_twin or (share.size and share.size + size > bounds.twin_bytes):
            return bounds.twin_full(address, source)
        count, held = (0, 0) if queue is None else (len(queue), queue.size)
        if count >= bounds.in_all or (held and held + size > bounds.all_bytes):
            return bounds.all_full(address)
        most = self._max_bytes // 2
        if self._name_bytes + size > most:
            return QueueFull(f"the queues of all names have {most} bytes, as many as they may")
        held = self._held.get(source, 0)
        left = most - (self._name_bytes - held)
        if held and held + size > left // TWIN_PART:
            return QueueFull(
                f"twin {source} has {held} bytes of requests in the queues of all names, where one "
                f"twin may have a quarter of the {left} that others leave: wait for their answers"
            )
        return None

    def _drop_locked(self, address: Address, queue: _Queue) -> None:
        with self._counted_locked(address, queue):
            queue.drop_oldest()
        self.dropped += 1

    def _make_room_locked(self) -> None:
        """Halve the largest queue of a session until the total is within its bound."""
        while self._bytes > self._max_bytes:
            address = next(iter(self._levels[max(self._levels)]))
            largest = self._queues[address]
            for _ in range(max(1, len(largest) // 2)):
                self._drop_locked(address, largest)
            self._forget_locked(address, largest)

    def _sweep_locked(self, now: float) -> None:
        """Discard expired entries of some disconnected sessions."""
        if now >= self._swept + SWEEP and not self._to_sweep:
            self._swept = now
            self._to_sweep = len(self._queues)
        count = min(SWEPT, self._to_sweep)
        self._to_sweep -= count
        for _ in range(min(count, len(self._queues))):
            address, queue = next(iter(self._queues.items()))
            self._queues.move_to_end(address)
            if queue.mailbox is None:
                with self._counted_locked(address, queue):
                    queue.discard(now)
                self._forget_locked(address, queue)

    def _forget_locked(self, address: Address, queue: _Queue) -> None:
        if queue.mailbox is None and not queue.waiting():
            self._queues.pop(address, None)

    # Called by mailboxes

    def _taken(self, mailbox: _MemoryMailbox, limit: int) -> list[QueuedEnvelope]:
        with self._lock:
            queue = self._queues.get(mailbox.address)
            if queue is None or queue.mailbox is not mailbox:
                return []
            return queue.take(limit)

    def _waiting(self, mailbox: _MemoryMailbox) -> bool:
        with self._lock:
            queue = self._queues.get(mailbox.address)
            return queue is not None and queue.mailbox is mailbox and queue.waiting() > 0

    def _ack(self, mailbox: _MemoryMailbox, ids: Iterable[str]) -> None:
        with self._lock:
            queue = self._queues.get(mailbox.address)
            if queue is not None:
                with self._counted_locked(mailbox.address, queue):
                    queue.ack(ids)

    def _give_back(self, mailbox: _MemoryMailbox, ids: Iterable[str]) -> None:
        with self._lock:
            queue = self._queues.get(mailbox.address)
            if queue is not None and queue.mailbox is mailbox:
                queue.give_back(ids)

    def _closed_by(self, mailbox: _MemoryMailbox) -> None:
        with self._lock:
            queue = self._queues.get(mailbox.address)
            if queue is not None and queue.mailbox is mailbox:
                queue.mailbox = None
                queue.give_back(list(queue.taken))
                self._forget_locked(mailbox.address, queue)


def _cost(address: Address) -> int:
    """Return the bytes of an empty queue; names are few, and their queues cost nothing."""
    if is_reserved(address.session):
        return 0
    return QUEUE_OVERHEAD + CHARACTER * len(address.session or "")


def _level(size: int) -> int:
    """Return a number that grows with a size, by the four first bits of it."""
    bits = max(0, size.bit_length() - 4)
    return bits * 8 + (size >> bits)


class _MemoryMailbox(SharedMailbox):
    """Give a connection access to its session's queue."""

    def __init__(self, queues: MemoryQueues, address: Address, wake: Callable[[], None]) -> None:
        self.address = address
        self.wake = wake
        self._queues = queues

    def take(self, limit: int) -> list[QueuedEnvelope]:
        return self._queues._taken(self, limit)

    def waiting(self) -> bool:
        return self._queues._waiting(self)

    def ack(self, ids: Iterable[str]) -> None:
        self._queues._ack(self, ids)

    def give_back(self, ids: Iterable[str]) -> None:
        self._queues._give_back(self, ids)

    def close(self) -> None:
        self._queues._closed_by(self)
