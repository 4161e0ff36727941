"""Answer requests that no service has taken by the time that their callers still wait.

Redis does not tell which lists somebody waits on, and a service may be about to start or still busy
with earlier requests. So a request is left in the list of its command for half of its life, or
until 10 s before its end if that is later. If it is still there it is removed, and its caller gets
an error with code 102, which tells that the command has not run. Either the service or the gateway
has the request, since Redis removes it once.

Requests that arrived before a restart, or beyond the limits, are not answered; the reference
gateway answers none.

Threads and locks: one thread waits for the next request that is due; the lock guards the heap.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition
from ..errors import EXPIRED, BusError
from ..wire.messages import Envelope
from .redis_store import RedisStore

__all__ = ["Unserved"]

# Requests that are watched, and the bytes of their messages.
MAX_WATCHED = 10_000
MAX_BYTES = 64 * 1024 * 1024

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
        self._watched: list[_Watched] = []
        self._order = itertools.count()
        self._bytes = 0
        self._closed = False

    def watch(self, queue: str, message: bytes, asked: Envelope, deadline: Deadline) -> None:
        """Watch a request that was pushed to a list, if there is room.

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
            if len(self._watched) >= MAX_WATCHED or self._bytes + len(message) > MAX_BYTES:
                return
            self._bytes += len(message)
            watched = _Watched(due, next(self._order), queue, message, envelope)
            heapq.heappush(self._watched, watched)
            if self._watched[0] is watched:
                self._condition.notify()

    def run(self) -> None:
        """Withdraw what nobody takes, until ``close``."""
        while (watched := self._next()) is not None:
            try:
                taken = not self._store.withdraw(watched.queue, watched.message, Deadline(WITHDRAW))
                if not taken:
                    command = watched.envelope.request.command
                    text = f"no service of the gateway took {command[:80]!r} in time"
                    self._tell(watched.envelope, BusError(EXPIRED, text))
            except BusError as error:
                _log.warning("a request in %s is not answered: %s", watched.queue, error)

    def close(self) -> None:
        """End ``run``."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def _next(self) -> _Watched | None:
        """Wait for the next request that is due; ``None`` once closed."""
        with self._condition:
            while not self._closed:
                if not self._watched:
                    self._condition.wait()
                    continue
                left = self._watched[0].due - time.monotonic()
                if left <= 0:
                    watched = heapq.heappop(self._watched)
                    self._bytes -= len(watched.message)
                    return watched
                self._condition.wait(left)
            return None
