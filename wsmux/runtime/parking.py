"""Park threads on a mutex, and wake them after it has been released.

``threading.Condition.notify`` must hold the mutex, so a woken thread runs straight into it. Here
the waker takes note of the bell while it holds the mutex and rings it afterwards, which is worth a
third of the throughput with 10 streams.

A waiter re-checks its condition after ``wait`` returns, whatever the reason: a wake, the end of its
time, a bell that was rung for an earlier wait, or an exception such as Ctrl-C, which leaves the
mutex held and nothing parked. It stays known here until it runs again, so that ``rouse`` finds
those whom an interrupted thread had collected and never woke.

What a thread parks on is a ``Bell``, an eventfd. A ``threading.Lock`` is released with the GIL
held, so the thread it wakes runs straight into the GIL and sleeps once more. A write to an eventfd
lets the GIL go first: on one core, that is worth a fifth of the bulk throughput and of the small
messages of ten streams. Where there is none, or where gevent has replaced the threads, a lock does
the same work.

A bell may ring after its sleeper has left, when the one who rings was slow: whoever sleeps next
with it wakes for nothing, so every sleeper looks again whether it has to go on sleeping.
"""

from __future__ import annotations

import _thread
import os
import resource
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from select import POLLIN, poll

from .deadline import Deadline

__all__ = ["Bell", "Flag", "WaitList", "Waiter", "borrow", "drop_idle", "give_back", "wake"]

# Bells kept for the next sleepers; each holds a descriptor.
KEPT = 64

_ONE = (1).to_bytes(8, "little")


class Bell(ABC):
    """Be the base of both kinds."""

    __slots__ = ()

    @abstractmethod
    def ring(self) -> None:
        """Wake the sleeper, or the next one; further times change nothing."""

    @abstractmethod
    def sleep(self, deadline: Deadline) -> None:
        """Sleep until it rings, or time is up."""


class _LockBell(Bell):
    """Be a bell made of a lock that is held while it has not rung."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        # Not of ``threading``, whose locks the lock checker watches: this one guards nothing.
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def ring(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            return  # it has rung already

    def sleep(self, deadline: Deadline) -> None:
        self._lock.acquire(True, deadline.park_seconds())


class _EventBell(Bell):
    """Be a bell made of an eventfd, closed when nobody can ring it any more."""

    __slots__ = ("__weakref__", "_fd", "_poll")

    def __init__(self) -> None:
        self._fd = -1
        self._poll: poll | None = None
        self._fd = os.eventfd(0, os.EFD_CLOEXEC)
        _events.add(self)

    def cheap(self) -> bool:
        """Tell whether descriptors are plenty: the upper half of them is left to sockets."""
        return self._fd < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2

    def ring(self) -> None:
        if self._fd >= 0:
            os.write(self._fd, _ONE)

    def sleep(self, deadline: Deadline) -> None:
        seconds = deadline.park_seconds()
        if seconds >= 0:
            if self._poll is None:
                self._poll = poll()
                self._poll.register(self._fd, POLLIN)
            if not self._poll.poll(seconds * 1000):
                return
        os.read(self._fd, 8)

    # The function is bound here: bells die with the interpreter too, when the names are gone.
    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close the descriptor, which makes the bell a mute one."""
        try:
            fd, self._fd = self._fd, -1
        except AttributeError:
            return  # an interrupt came before there was one
        if fd >= 0:
            close(fd)

    __del__ = close


_events: weakref.WeakSet[_EventBell] = weakref.WeakSet()
_idle: deque[Bell] = deque(maxlen=KEPT)


def borrow() -> Bell:
    """Return a bell for one sleep."""
    try:
        return _idle.pop()
    except IndexError:
        return _new_bell()


# These need no lock, in any thread and in signal handlers: a deque's own calls are atomic.
give_back = _idle.append
drop_idle = _idle.clear


def _new_bell() -> Bell:
    # Under gevent a thread is a greenlet, and sleeping in the kernel would stop all of them.
    if hasattr(os, "eventfd") and type(_thread.allocate_lock()).__module__ == "_thread":
        try:
            bell = _EventBell()
        except OSError:  # no descriptor left
            return _LockBell()
        if bell.cheap():
            return bell
    return _LockBell()


def _after_fork_in_child() -> None:
    # The child must not ring the parent's threads, nor hold the descriptors of those asleep.
    drop_idle()
    for bell in list(_events):
        bell.close()


os.register_at_fork(after_in_child=_after_fork_in_child)


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
