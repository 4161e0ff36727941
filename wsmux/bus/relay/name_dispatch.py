"""Share the requests to one name among its workers. Pure: times are arguments.

What an entry can be:

- *waiting*: no worker has it;
- *in flight*: one worker has it, and counts it against its bound;
- gone: it was answered, or it has expired, or it was a copy of one that is here, or it was
  *withdrawn*, since no worker had room for it: others may have it then.

What a worker can be:

- *joined*: it is given entries while it has fewer than its bound in flight, in turn with the
  others;
- *blocked*: its connection had no room, so it gets none until it is ``ready``;
- *leaving*: it gets none any more, and keeps what it has until that is answered;
- gone: its connection has ended, and what it had waits again, before all that is younger.

So nothing is handed to a worker that has left, nothing is lost while it lives, and the oldest entry
is always handed first. A worker that let an entry expire gets one at a time until it answers.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..wire.address import Address
from ..wire.envelope import request_mark

__all__ = ["Dispatcher", "Entry", "Handing", "Key"]

# Who answered what, to give a copy of a request to whoever can answer it again without running it;
# as many that were handed before they were withdrawn. They are kept by their marks, 32 bytes each.
REMEMBERED = 1024

# The requester and the uid of a request, which its answer repeats.
Key = tuple[Address, str]


@dataclass(slots=True, eq=False)
class Entry:
    """Hold one request.

    Attributes:
        id: what its queue calls it.
        key: tells which answer is for it.
        data: the envelope.
        expires_at: when it expires, in Unix seconds.
        handed: how often it was given to a worker.
    """

    id: str
    key: Key
    data: bytes
    expires_at: float
    handed: int = 0
    serial: int = 0
    mark: bytes = b""
    worker: _Worker | None = None


@dataclass(slots=True, eq=False)
class _Worker:
    name: Hashable
    bound: int
    in_flight: dict[Key, Entry] = field(default_factory=dict)
    blocked: bool = False
    leaving: bool = False
    late: bool = False
    readies: int = 0

    def room(self) -> int:
        """Return how many entries it may be given."""
        if self.blocked or self.leaving:
            return 0
        return max(0, (1 if self.late else self.bound) - len(self.in_flight))


class Handing(NamedTuple):
    """Describe an entry that is to be sent to a worker; ``seen`` is for ``Dispatcher.refused``."""

    worker: Hashable
    entry: Entry
    seen: int


class Dispatcher:
    """Share the requests to one name among its workers; not thread-safe.

    Attributes:
        bytes: the length of all entries together.
        redelivered: how many entries were taken from workers whose connection ended.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.redelivered = 0
        self._workers: OrderedDict[Hashable, _Worker] = OrderedDict()  # the next one first
        self._waiting: deque[Entry] = deque()
        self._entries: dict[Key, Entry] = {}
        self._answered: OrderedDict[bytes, Hashable] = OrderedDict()
        self._handed: OrderedDict[bytes, None] = OrderedDict()  # and withdrawn
        self._serial = itertools.count(1)

    def __len__(self) -> int:
        return len(self._entries)

    def join(self, worker: Hashable, bound: int) -> None:
        """Give entries to a worker, at most ``bound`` at once; also sets the bound anew."""
        known = self._workers.get(worker)
        if known is None:
            self._workers[worker] = _Worker(worker, bound)
        else:
            known.bound, known.leaving = bound, False

    def leave(self, worker: Hashable) -> None:
        """Give a worker no more; it is gone once it has answered what it has."""
        known = self._workers.get(worker)
        if known is not None:
            known.leaving = True
            self._forget_if_done(known)

    def gone(self, worker: Hashable) -> int:
        """Take back what a worker had; return how much that was."""
        known = self._workers.pop(worker, None)
        if known is None:
            return 0
        back = sorted(known.in_flight.values(), key=lambda each: each.serial)
        for entry in back:
            entry.worker = None
        self.redelivered += len(back)
        self._put_back(back)
        return len(back)

    def has(self, worker: Hashable) -> bool:
        """Return whether a worker is joined or leaving."""
        return worker in self._workers

    def workers(self) -> list[Hashable]:
        """Return those that are joined and not leaving."""
        return [name for name, worker in self._workers.items() if not worker.leaving]

    def any_worker(self) -> bool:
        """Return whether there is a worker, be it one that is leaving."""
        return bool(self._workers)

    def wants(self) -> int:
        """Return how many more entries could be handed at once."""
        return max(0, sum(each.room() for each in self._workers.values()) - len(self._waiting))

    def add(self, entry: Entry) -> bool:
        """Add an entry; ``False`` if it is a copy of one that is here."""
        if entry.key in self._entries:
            return False
        entry.serial = next(self._serial)
        entry.mark = _mark(entry.key)
        if entry.mark in self._handed:
            entry.handed = 1
        self._entries[entry.key] = entry
        self._waiting.append(entry)
        self.bytes += len(entry.data)
        return True

    def hand(self) -> Handing | None:
        """Give the oldest entry that waits to the next worker; ``None`` if there are not both."""
        if not self._waiting:
            return None
        entry = self._waiting[0]
        worker = self._choose(entry)
        if worker is None:
            return None
        self._waiting.popleft()
        entry.worker = worker
        entry.handed += 1
        worker.in_flight[entry.key] = entry
        self._workers.move_to_end(worker.name)
        return Handing(worker.name, entry, worker.readies)

    def refused(self, handing: Handing) -> None:
        """Take back an entry that could not be sent; its worker is blocked until it is ready.

        Not if it became ready after the entry was handed: then it may be tried again.
        """
        entry, worker = handing.entry, self._workers.get(handing.worker)
        if worker is None or entry.worker is not worker:
            return  # it was taken back already, or even answered
        if worker.readies == handing.seen:
            worker.blocked = True
        del worker.in_flight[entry.key]
        entry.worker = None
        entry.handed -= 1
        self._put_back([entry])
        self._forget_if_done(worker)

    def ready(self, worker: Hashable) -> bool:
        """Note that a worker's connection may have room; return whether that was awaited."""
        known = self._workers.get(worker)
        if known is None:
            return False
        known.readies += 1
        blocked, known.blocked = known.blocked, False
        return blocked

    def settle(self, key: Key, by: Hashable) -> Entry | None:
        """Remove an entry that was answered; whoever has it, the first answer counts."""
        answerer = self._workers.get(by)
        if answerer is not None:
            answerer.late = False
        entry = self._remove(key)
        mark = _mark(key) if entry is None else entry.mark
        if entry is not None or mark in self._handed:
            _remember(self._answered, mark, by)
        return entry

    def expire(self, now: float) -> list[Entry]:
        """Remove and return what has expired by ``now``, in Unix seconds."""
        over = [each for each in self._entries.values() if each.expires_at <= now]
        for entry in over:
            if entry.worker is not None:
                entry.worker.late = True
            self._remove(entry.key)
        return over

    def withdraw(self) -> list[Entry]:
        """Remove and return what waits, unless a worker has room."""
        if any(each.room() for each in self._workers.values()):
            return []
        back = list(self._waiting)
        for entry in back:
            self._remove(entry.key)
            if entry.handed:
                _remember(self._handed, entry.mark, None)
        return back

    def _choose(self, entry: Entry) -> _Worker | None:
        before = self._workers.get(self._answered.get(entry.mark))
        if before is not None and before.room():
            return before
        return next((each for each in self._workers.values() if each.room()), None)

    def _remove(self, key: Key) -> Entry | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.bytes -= len(entry.data)
        worker, entry.worker = entry.worker, None
        if worker is None:
            self._waiting.remove(entry)
        else:
            del worker.in_flight[key]
            self._forget_if_done(worker)
        return entry

    def _put_back(self, entries: list[Entry]) -> None:
        """Let entries wait again, each before all that are younger."""
        if self._waiting and entries and self._waiting[0].serial < entries[-1].serial:
            self._waiting = deque(sorted((*entries, *self._waiting), key=lambda each: each.serial))
        else:
            self._waiting.extendleft(reversed(entries))

    def _forget_if_done(self, worker: _Worker) -> None:
        if worker.leaving and not worker.in_flight:
            self._workers.pop(worker.name, None)


def _mark(key: Key) -> bytes:
    requester, uid = key
    return request_mark(uid, requester)


def _remember(known: OrderedDict[bytes, Any], mark: bytes, value: object) -> None:
    known[mark] = value
    if len(known) > REMEMBERED:
        known.popitem(last=False)
