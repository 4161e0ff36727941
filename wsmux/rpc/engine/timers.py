"""Hold work until it is due, and drop it when it is cancelled.

A heap cannot remove an entry from its middle. A cancelled timer stays in it without its work, and
is swept out when cancelled timers are the majority: so memory is bounded by the pending work,
however distant the times are.

There are no threads, clocks or locks here. The server's mutex guards all of it.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, TypeVar

__all__ = ["Timer", "Timers"]

Work = TypeVar("Work")

# Number of cancelled timers not worth a sweep.
FEW = 64


class Timer(Generic[Work]):
    """Hold one piece of work, until it is due or cancelled."""

    __slots__ = ("work",)

    def __init__(self, work: Work) -> None:
        self.work: Work | None = work


class Timers(Generic[Work]):
    """Hold timers, the earliest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer[Work]]] = []
        self._order = count()
        self._cancelled = 0  # of those in the heap

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due: float, work: Work) -> Timer[Work]:
        """Schedule work for a time."""
        timer = Timer(work)
        heapq.heappush(self._heap, (due, next(self._order), timer))
        return timer

    def cancel(self, timer: Timer[Work]) -> None:
        """Drop the work of a timer, unless it was already due."""
        if timer.work is None:
            return
        timer.work = None
        self._cancelled += 1
        if self._cancelled > FEW + len(self._heap) // 2:
            self._heap = [each for each in self._heap if each[2].work is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next_due(self) -> float | None:
        """Return the earliest time, or ``None``."""
        while self._heap and self._heap[0][2].work is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> list[Work]:
        """Remove and return the work that is due, in order."""
        taken: list[Work] = []
        while (due := self.next_due()) is not None and due <= now:
            timer = heapq.heappop(self._heap)[2]
            assert timer.work is not None
            taken.append(timer.work)
            timer.work = None
        return taken
