"""Park threads on a mutex, and wake them after it has been released.

``threading.Condition.notify`` must hold the mutex, so a woken thread runs straight into it. Here
the waker takes the parked lock out while it holds the mutex and releases it afterwards, which is
worth a third of the throughput with 10 streams. A waiter re-checks its condition after ``wait``
returns, whatever the reason: a wake, the end of its time, or an exception such as Ctrl-C, which
leaves the mutex held and nothing parked.
"""

from __future__ import annotations

import threading
from _thread import LockType
from collections import deque

from .deadline import Deadline

__all__ = ["WaitList", "Waiter", "wake"]


class Waiter:
    """Let at most one thread wait; costs one slot until somebody does."""

    __slots__ = ("_parked",)

    def __init__(self) -> None:
        self._parked: LockType | None = None

    def wait(self, mutex: threading.Lock, deadline: Deadline) -> None:
        """Release the held mutex, park until woken or out of time, and hold the mutex again."""
        lock = threading.Lock()
        lock.acquire()
        self._parked = lock
        try:
            mutex.release()
            lock.acquire(timeout=deadline.park_seconds())
        finally:
            mutex.acquire()
            if self._parked is lock:
                self._parked = None

    def collect(self, wakes: list[LockType]) -> None:
        """Move the parked lock to ``wakes``, to be released after the mutex."""
        if self._parked is not None:
            wakes.append(self._parked)
            self._parked = None

    def occupied(self) -> bool:
        """Tell whether a thread is parked here."""
        return self._parked is not None


class WaitList:
    """Let any number of threads wait, woken in the order they came."""

    __slots__ = ("_parked",)

    def __init__(self) -> None:
        self._parked: deque[LockType] = deque()

    def __len__(self) -> int:
        return len(self._parked)

    def wait(self, mutex: threading.Lock, deadline: Deadline) -> None:
        """Wait as ``Waiter.wait`` does; a thread that is interrupted passes its turn on."""
        lock = threading.Lock()
        lock.acquire()
        self._parked.append(lock)
        interrupted = True
        try:
            mutex.release()
            lock.acquire(timeout=deadline.park_seconds())
            interrupted = False
        finally:
            mutex.acquire()
            if lock in self._parked:
                self._parked.remove(lock)
            elif interrupted and self._parked:
                self._parked.popleft().release()

    def collect(self, wakes: list[LockType], count: int | None = None) -> None:
        """Move the first ``count`` parked locks, or all, to ``wakes``."""
        while self._parked and (count is None or count > 0):
            wakes.append(self._parked.popleft())
            if count is not None:
                count -= 1


def wake(wakes: list[LockType]) -> None:
    """Release collected locks; the mutex must not be held."""
    for lock in wakes:
        lock.release()
    wakes.clear()
