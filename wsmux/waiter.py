"""Park threads on a mutex, and wake them after it has been released.

``threading.Condition.notify`` must hold the mutex, so a woken thread runs straight into it. Here
the waker takes note of the parked lock while it holds the mutex and releases it afterwards, which
is worth a third of the throughput with 10 streams.

A waiter re-checks its condition after ``wait`` returns, whatever the reason: a wake, the end of its
time, a wake that was meant for an earlier wait, or an exception such as Ctrl-C, which leaves the
mutex held and nothing parked. It stays known here until it runs again, so that ``rouse`` finds
those whom an interrupted thread had collected and never woke.
"""

from __future__ import annotations

import threading
from _thread import LockType
from collections import deque

from .deadline import Deadline

__all__ = ["WaitList", "Waiter", "wake"]


class Waiter:
    """Let at most one thread wait; costs little until somebody does."""

    __slots__ = ("_collected", "_lock", "_parked")

    def __init__(self) -> None:
        self._parked = False
        self._collected = False
        self._lock: LockType | None = None  # held by nobody in particular; released to wake

    def wait(self, mutex: threading.Lock, deadline: Deadline) -> None:
        """Release the held mutex, park until woken or out of time, and hold the mutex again."""
        lock = self._lock
        if lock is None:
            lock = _held_lock()
            self._lock = lock
        self._collected = False
        self._parked = True
        try:
            _park(lock, mutex, deadline)
        finally:
            self._parked = False

    def collect(self, wakes: list[LockType]) -> None:
        """Add the lock of a parked thread to ``wakes``, once; to be released after the mutex."""
        if self._parked and not self._collected and self._lock is not None:
            self._collected = True
            wakes.append(self._lock)

    def rouse(self, wakes: list[LockType]) -> None:
        """Collect a parked thread, even one that was collected before."""
        self._collected = False
        self.collect(wakes)

    def occupied(self) -> bool:
        """Tell whether a thread is parked here and nobody is about to wake it."""
        return self._parked and not self._collected


class WaitList:
    """Let any number of threads wait, woken in the order they came.

    Attributes:
        parked: who waits and was not collected; for a glance whether there are any.
    """

    __slots__ = ("_collected", "parked")

    def __init__(self) -> None:
        self.parked: deque[LockType] = deque()
        self._collected: set[LockType] = set()

    def wait(self, mutex: threading.Lock, deadline: Deadline) -> None:
        """Wait as ``Waiter.wait`` does; a thread that is interrupted passes its turn on."""
        lock = _held_lock()
        interrupted = True
        self.parked += (lock,)  # not a call, behind which a signal could be looked for
        try:
            _park(lock, mutex, deadline)
            interrupted = False
        finally:
            if lock not in self._collected:
                self.parked.remove(lock)
            else:
                self._collected.discard(lock)
                if interrupted:
                    wakes: list[LockType] = []
                    self.collect(wakes, 1)
                    wake(wakes)

    def collect(self, wakes: list[LockType], count: int | None = None) -> None:
        """Add the first ``count`` parked locks, or all, to ``wakes``."""
        while self.parked and (count is None or count > 0):
            lock = self.parked.popleft()
            self._collected.add(lock)
            wakes.append(lock)
            if count is not None:
                count -= 1

    def rouse(self, wakes: list[LockType]) -> None:
        """Collect everybody, even who was collected before."""
        self.collect(wakes)
        wakes.extend(self._collected)


def _held_lock() -> LockType:
    lock = threading.Lock()
    lock.acquire()
    return lock


def wake(wakes: list[LockType]) -> None:
    """Release collected locks; the mutex must not be held."""
    for lock in wakes:
        try:
            lock.release()
        except RuntimeError:  # somebody who roused everybody was faster
            continue
    wakes.clear()


def _park(lock: LockType, mutex: threading.Lock, deadline: Deadline) -> None:
    """Release the mutex, wait for the lock, and hold the mutex again, whatever raises."""
    seconds = deadline.park_seconds()
    interrupt: BaseException | None = None
    try:
        mutex.release()
        lock.acquire(True, seconds)
    finally:
        # CPython looks for signals behind a call and where a function starts, so a plain acquire
        # may have succeeded when the exception comes. A loop over an iterator is not a call: when
        # it raises, the mutex is not held. The mutex is held for microseconds; a second signal
        # would have to come within them.
        try:
            for _ in iter(mutex.acquire, None):
                break
        except BaseException as error:
            interrupt = error
            for _ in iter(mutex.acquire, None):
                break
    if interrupt is not None:
        raise interrupt
