"""Keep the queues of sessions in memory; they are lost with the process.

One lock guards everything. It is held only for operations on dictionaries and deques; sessions are
woken after its release. When all queues together exceed their bound, the largest loses its older
half, so flooding a queue affects that queue alone.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...config import MIB
from ...runtime import fork
from ...runtime.deadline import Deadline
from ..wire.address import Address
from .queues import LIFE, MAX_QUEUED, Mailbox, QueuedEnvelope, QueueUnavailable, SessionQueues

__all__ = ["MemoryQueues"]

# Bytes of all queues together.
MAX_BYTES = 256 * MIB

# Bytes that an entry costs beside its data.
OVERHEAD = 256

# Seconds between searches for expired entries.
SWEEP = 60.0


@dataclass(slots=True)
class _Kept:
    """Hold one envelope; ``until`` is when it is discarded, in Unix seconds."""

    entry: QueuedEnvelope
    until: float
    size: int


@dataclass(slots=True)
class _Queue:
    """Hold the entries of one session; those in ``taken`` precede those in ``waiting``."""

    waiting: deque[_Kept] = field(default_factory=deque)
    taken: dict[str, _Kept] = field(default_factory=dict)
    size: int = 0
    mailbox: _MemoryMailbox | None = None

    def drop_oldest(self) -> int:
        """Drop the oldest entry; return its size."""
        oldest = next(iter(self.taken), None)
        kept = self.waiting.popleft() if oldest is None else self.taken.pop(oldest)
        self.size -= kept.size
        return kept.size


class MemoryQueues(SessionQueues):
    """Keep the queues in memory; see the module for the bounds.

    Args:
        max_bytes: bytes of all queues together.
        max_queued: entries of one session.
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
        life: float = LIFE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.dropped = 0
        self._max_bytes, self._max_queued = max_bytes, max_queued
        self._life = life
        self._clock = clock
        self._lock = threading.Lock()
        self._queues: dict[Address, _Queue] = {}
        self._bytes = 0
        self._swept = -math.inf
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
        mailbox = _MemoryMailbox(self, address, wake)
        with self._lock:
            queue = self._queues.setdefault(address, _Queue())
            queue.mailbox = mailbox
            queue.waiting.extendleft(reversed(queue.taken.values()))
            queue.taken.clear()
        wake()
        return mailbox

    def put(self, address: Address, data: bytes, expires_at: int, deadline: Deadline) -> None:
        now = self._clock()
        size = len(data) + OVERHEAD
        if size > self._max_bytes:
            raise QueueUnavailable(
                f"an envelope of {len(data)} bytes is above the limit of all queues"
            )
        with self._lock:
            if self._closed:
                raise QueueUnavailable("the queues are closed")
            self._sweep_locked(now)
            queue = self._queues.setdefault(address, _Queue())
            entry = QueuedEnvelope(str(next(self._serial)), data)
            queue.waiting.append(_Kept(entry, min(expires_at, now + self._life), size))
            queue.size += size
            self._bytes += size
            if len(queue.waiting) + len(queue.taken) > self._max_queued:
                self._drop_locked(queue)
            if self._bytes > self._max_bytes:
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
            self._bytes = 0

    def _drop_locked(self, queue: _Queue) -> None:
        self._bytes -= queue.drop_oldest()
        self.dropped += 1

    def _make_room_locked(self) -> None:
        """Halve the largest queue until the total is within its bound."""
        while self._bytes > self._max_bytes:
            largest = max(self._queues.values(), key=lambda queue: queue.size)
            for _ in range(max(1, (len(largest.waiting) + len(largest.taken)) // 2)):
                self._drop_locked(largest)

    def _sweep_locked(self, now: float) -> None:
        """Discard expired entries of disconnected sessions."""
        if now < self._swept + SWEEP:
            return
        self._swept = now
        for address, queue in list(self._queues.items()):
            if queue.mailbox is None:
                kept = deque(each for each in queue.waiting if each.until > now)
                self._bytes -= queue.size
                queue.waiting, queue.size = kept, sum(each.size for each in kept)
                self._bytes += queue.size
                self._forget_locked(address, queue)

    def _forget_locked(self, address: Address, queue: _Queue) -> None:
        if queue.mailbox is None and not queue.waiting:
            self._queues.pop(address, None)

    # Called by mailboxes

    def _taken(self, mailbox: _MemoryMailbox, limit: int) -> list[QueuedEnvelope]:
        with self._lock:
            queue = self._queues.get(mailbox.address)
            if queue is None or queue.mailbox is not mailbox:
                return []
            kept = [queue.waiting.popleft() for _ in range(min(limit, len(queue.waiting)))]
            queue.taken |= {each.entry.id: each for each in kept}
            return [each.entry for each in kept]

    def _waiting(self, mailbox: _MemoryMailbox) -> bool:
        with self._lock:
            queue = self._queues.get(mailbox.address)
            return queue is not None and queue.mailbox is mailbox and bool(queue.waiting)

    def _ack(self, mailbox: _MemoryMailbox, ids: Iterable[str]) -> None:
        with self._lock:
            queue = self._queues.get(mailbox.address)
            if queue is None:
                return
            delivered = [queue.taken.pop(each) for each in ids if each in queue.taken]
            size = sum(each.size for each in delivered)
            queue.size -= size
            self._bytes -= size

    def _closed_by(self, mailbox: _MemoryMailbox) -> None:
        with self._lock:
            queue = self._queues.get(mailbox.address)
            if queue is not None and queue.mailbox is mailbox:
                queue.mailbox = None
                queue.waiting.extendleft(reversed(queue.taken.values()))
                queue.taken.clear()
                self._forget_locked(mailbox.address, queue)


class _MemoryMailbox(Mailbox):
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

    def close(self) -> None:
        self._queues._closed_by(self)
