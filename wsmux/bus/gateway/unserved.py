"""Answer requests that no service has taken by the time that their callers still wait.

Redis does not tell which lists somebody waits on, and a service may be about to start or still busy
with earlier requests. So a request is left in the list of its command for half of its life, or
until 10 s before its end if that is later. If it is still there it is removed, and its caller gets
an error with code 102, which tells that the command has not run. Either the service or the gateway
has the request, since Redis removes it once.

So what waits in lists is watched, and bounded: beyond the limits, the oldest request of the twin
that has the most watched is withdrawn at once, and its caller gets an error with code 429 if no
service had taken it. A flood of one twin so costs the others nothing.

Requests that arrived before a restart are not watched, nor those whose removal failed for
``WITHDRAW`` seconds: they leave Redis with their list, an hour after its last request at the
latest. The reference gateway answers none, and leaves all.

Threads and locks: one thread waits for the next request that is due; the lock guards what is
watched. Whoever adds a request beyond the limits removes another one from Redis itself, which holds
up no more than its own relay connection.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...config import MIB
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition
from ..errors import EXPIRED, TOO_MANY, BusError
from ..wire.messages import Envelope
from .redis_store import RedisStore

__all__ = ["Unserved"]

# Requests that are watched, and their bytes. Fewer than a list may have, which drops the oldest
# beyond that without an answer.
MAX_WATCHED = 8_000
MAX_BYTES = 64 * MIB

# Seconds before its end at which a request with a long life is withdrawn.
LEAD = 10.0

# Seconds to remove a request while Redis is down.
WITHDRAW = 5.0

_log = logger("wsmux.bus")


class _Watched(NamedTuple):
    due: float
    order: int
    queue: str
    message: bytes
    envelope: Envelope

    def size(self) -> int:
        return len(self.message) + self.envelope.ByteSize()


@dataclass(slots=True)
class _Share:
    """Hold what is watched of one twin, the oldest first."""

    requests: dict[int, _Watched] = field(default_factory=dict)
    bytes: int = 0


class Unserved:
    """Watch the requests of one gateway. Any thread may call ``watch``.

    Args:
        store: the lists.
        tell: answers a request with an error; may block.
    """

    def __init__(self, store: RedisStore, tell: Callable[[Envelope, BusError], None]) -> None:
        self._store = store
        self._tell = tell
        self._condition = Condition()
        self._due: list[tuple[float, int, int]] = []  # a heap; with the number of the twin
        self._shares: dict[int, _Share] = {}
        self._order = itertools.count()
        self._count = self._bytes = 0
        self._closed = False

    def watch(self, queue: str, message: bytes, asked: Envelope, deadline: Deadline) -> None:
        """Watch a request that was pushed to a list; blocks for Redis if one must go for it.

        Args:
            queue: the list of its command.
            message: what was pushed.
            asked: the request.
            deadline: when it expires.
        """
        left = deadline.remaining() or 0.0
        due = time.monotonic() + max(left / 2, left - LEAD)
        envelope = Envelope()
        envelope.CopyFrom(asked)
        envelope.ClearField("plain")
        envelope.ClearField("cipher")
        with self._condition:
            self._add_locked(_Watched(due, next(self._order), queue, message, envelope))
            surplus = self._surplus_locked()
        for watched in surplus:
            text = (
                f"twin {watched.envelope.source.twin} has more requests than any other at a "
                f"gateway where {MAX_WATCHED} or {MAX_BYTES} bytes wait for services: try later"
            )
            self._withdraw(watched, BusError(TOO_MANY, text))

    def run(self) -> None:
        """Withdraw what nobody takes, until ``close``."""
        while (watched := self._next()) is not None:
            command = watched.envelope.request.command
            text = f"no service of the gateway took {command[:80]!r} in time"
            self._withdraw(watched, BusError(EXPIRED, text))

    def close(self) -> None:
        """End ``run``."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def _withdraw(self, watched: _Watched, error: BusError) -> None:
        """Remove a request from its list; answer it with an error if it was still there."""
        try:
            if self._store.withdraw(watched.queue, watched.message, Deadline(WITHDRAW)):
                self._tell(watched.envelope, error)
        except BusError as failure:
            _log.warning("a request in %s is not answered: %s", watched.queue, failure)

    def _add_locked(self, watched: _Watched) -> None:
        twin, size = watched.envelope.source.twin, watched.size()
        share = self._shares.setdefault(twin, _Share())
        share.requests[watched.order] = watched
        share.bytes += size
        self._count += 1
        self._bytes += size
        entry = (watched.due, watched.order, twin)
        heapq.heappush(self._due, entry)
        if self._due[0] is entry:
            self._condition.notify()

    def _surplus_locked(self) -> list[_Watched]:
        """Remove and return what is beyond the limits: the oldest of whoever has the most."""
        surplus: list[_Watched] = []
        while self._count > MAX_WATCHED or self._bytes > MAX_BYTES:
            many = self._count > MAX_WATCHED
            twin = max(
                self._shares,
                key=lambda each: (
                    len(self._shares[each].requests) if many else self._shares[each].bytes
                ),
            )
            surplus.append(self._remove_locked(twin, next(iter(self._shares[twin].requests))))
        if surplus and len(self._due) > 2 * self._count:
            self._due = [each for each in self._due if self._is_watched_locked(each)]
            heapq.heapify(self._due)
        return surplus

    def _is_watched_locked(self, entry: tuple[float, int, int]) -> bool:
        _, order, twin = entry
        share = self._shares.get(twin)
        return share is not None and order in share.requests

    def _remove_locked(self, twin: int, order: int) -> _Watched:
        share = self._shares[twin]
        watched = share.requests.pop(order)
        size = watched.size()
        share.bytes -= size
        self._count -= 1
        self._bytes -= size
        if not share.requests:
            del self._shares[twin]
        return watched

    def _next(self) -> _Watched | None:
        """Wait for the next request that is due; ``None`` once closed."""
        with self._condition:
            while not self._closed:
                if not self._due:
                    self._condition.wait()
                    continue
                due, order, twin = self._due[0]
                left = due - time.monotonic()
                if not self._is_watched_locked(self._due[0]):
                    heapq.heappop(self._due)
                elif left <= 0:
                    heapq.heappop(self._due)
                    return self._remove_locked(twin, order)
                else:
                    self._condition.wait(left)
            return None
