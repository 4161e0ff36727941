"""Park threads on a mutex, and wake them after it has been released.

``threading.Condition.notify`` must hold the mutex, so a woken thread runs straight into it. Here
the waker takes note of the bell while it holds the mutex and rings it afterwards, which is worth a
third of the throughput with 10 streams.

A waiter re-checks its condition after ``wait`` returns, whatever the reason: a wake, the end of its
time, a bell that was rung for an earlier wait, or an exception such as Ctrl-C, which leaves the
mutex held and nothing parked. It stays known here until it runs again, so that ``rouse`` finds
those whom an interrupted thread had collected and never woke.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from .bell import Bell, borrow, give_back
from .deadlines import Deadline

__all__ = ["Bell", "Flag", "WaitList", "Waiter", "wake"]


class Waiter:
    """Let at most one thread wait.

    Attributes:
        since, thread: when the last wait began, by the monotonic clock, and whose it is.
        parks: what waits is a thread; else somebody else, such as a bridge, is told.
    """

    parks = True

    __slots__ = ("_bell", "_collected", "since", "thread")

    def __init__(self) -> None:
        self._bell: Bell | None = None
        self._collected = False
        self.since = 0.0
        self.thread = 0

    def wait(self, mutex: threading.Lock, deadline: Deadline) -> None:
        """Release the held mutex, park until woken or out of time, and hold the mutex again."""
        bell = borrow()
        self._collected = False
        self.since, self.thread = time.monotonic(), threading.get_ident()
        self._bell = bell
        try:
            _sleep(bell, mutex, deadline)
        finally:
            self._bell = None
            give_back(bell)

    def collect(self, wakes: list[Bell]) -> None:
        """Add the bell of a parked thread to ``wakes``, once; to be rung after the mutex."""
        if self._bell is not None and not self._collected:
            self._collected = True
            wakes.append(self._bell)

    def rouse(self, wakes: list[Bell]) -> None:
        """Collect a parked thread, even one that was collected before."""
        self._collected = False
        self.collect(wakes)

    def occupied(self) -> bool:
        """Tell whether a thread is parked here and nobody is about to wake it."""
        return self._bell is not None and not self._collected


class WaitList:
    """Let any number of threads wait, woken in the order they came.

    Attributes:
        parked: who waits and was not collected; for a glance whether there are any.
    """

    __slots__ = ("_began", "_collected", "parked")

    def __init__(self) -> None:
        self.parked: deque[Bell] = deque()
        self._collected: set[Bell] = set()
        self._began: dict[Bell, tuple[float, int]] = {}

    def wait(self, mutex: threading.Lock, deadline: Deadline) -> None:
        """Wait as ``Waiter.wait`` does; a thread that is interrupted passes its turn on."""
        bell = borrow()
        interrupted = True
        self._began[bell] = time.monotonic(), threading.get_ident()
        self.parked += (bell,)  # not a call, behind which a signal could be looked for
        try:
            _sleep(bell, mutex, deadline)
            interrupted = False
        finally:
            turn = bell in self._collected
            self._collected.discard(bell)
            if bell in self.parked:
                self.parked.remove(bell)
            self._began.pop(bell, None)
            if interrupted and turn:
                wakes: list[Bell] = []
                self.collect(wakes, 1)
                wake(wakes)
            give_back(bell)

    def waits(self) -> list[tuple[float, int]]:
        """Tell when each parked thread began to wait, by the monotonic clock, and who it is."""
        return [self._began[bell] for bell in self.parked]

    def collect(self, wakes: list[Bell], count: int | None = None) -> None:
        """Add the first ``count`` parked bells, or all, to ``wakes``."""
        while self.parked and (count is None or count > 0):
            bell = self.parked[0]
            self._collected.add(bell)  # first: an interrupt must find it in one place at least
            wakes.append(bell)
            self.parked.popleft()
            if count is not None:
                count -= 1

    def rouse(self, wakes: list[Bell]) -> None:
        """Collect everybody, even who was collected before."""
        self.collect(wakes)
        wakes.extend(self._collected)


class Flag:
    """Be set once, and let any number of threads wait for it.

    ``threading.Event`` may raise a ``RuntimeError`` of its own where a signal ends its wait.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting = WaitList()
        self._set = False

    def set(self) -> None:
        """Wake everybody who waits, and all who come later."""
        wakes: list[Bell] = []
        with self._mutex:
            self._set = True
            self._waiting.collect(wakes)
        wake(wakes)

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set, for at most so many seconds; tell whether it is."""
        deadline = Deadline(timeout)
        with self._mutex:
            while not self._set:
                if deadline.expired():
                    return False
                self._waiting.wait(self._mutex, deadline)
        return True


def wake(wakes: list[Bell]) -> None:
    """Ring collected bells; the mutex must not be held."""
    for bell in wakes:
        bell.ring()
    wakes.clear()


def _sleep(bell: Bell, mutex: threading.Lock, deadline: Deadline) -> None:
    """Release the mutex, wait for the bell, and hold the mutex again, whatever raises."""
    interrupt: BaseException | None = None
    try:
        mutex.release()
        bell.sleep(deadline)
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
