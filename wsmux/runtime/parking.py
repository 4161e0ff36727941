"""Park threads on a mutex, and wake them after it has been released.

``threading.Condition.notify`` must be called with the mutex held, so a woken thread blocks on it at
once. Here ``notify``, under the mutex, only collects the parker of a waiting thread; ``wake``
unparks the collected ones after the mutex has been released. That is worth a third of the
throughput with 10 streams.

A waiter checks its condition again after ``wait`` returns, for whatever reason: it was woken, it
timed out, its parker was unparked for an earlier wait, or an exception such as Ctrl-C was raised
(which leaves the mutex held and nothing parked). A waiter stays registered until it runs again, so
that ``notify_forced`` finds threads that were collected by an interrupted thread and never woken.

A thread parks on a ``Parker``, made of an eventfd. A ``threading.Lock`` is released with the GIL
held, so the thread it wakes blocks on the GIL and sleeps once more. A write to an eventfd releases
the GIL first: on one core, that is worth a fifth of the bulk throughput, and of the small messages
of ten streams. Without eventfd, or where gevent has replaced threads, a lock does the same work.

A slow waker may unpark a parker after its thread has left: the next thread that parks on it is
woken spuriously, so every thread checks again whether it has to go on waiting.
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
from contextlib import suppress
from select import POLLIN, poll
from typing import Any

from . import clock
from .deadline import Deadline, RealDeadline

__all__ = [
    "Condition",
    "EventParker",
    "OneShotEvent",
    "Park",
    "Parker",
    "WaitQueue",
    "Waiter",
    "borrow",
    "drop_idle",
    "give_back",
    "real_threads",
    "wake",
]

# Parkers kept for reuse; each holds a descriptor.
KEPT = 64

_ONE = (1).to_bytes(8, "little")

_AT_ONCE = Deadline(0.0, outlives=True)


class Parker(ABC):
    """An object on which one thread parks and which another unparks."""

    __slots__ = ()

    @abstractmethod
    def unpark(self) -> None:
        """Wake the parked thread, or the next one that parks; repeated calls have no effect."""

    @abstractmethod
    def park(self, deadline: Deadline) -> None:
        """Wait until unparked, or until the deadline."""

    def unparked_already(self) -> bool:
        """Return whether ``park`` would return at once; for a test's clock."""
        raise NotImplementedError(f"no thread parks on a {type(self).__name__}")

    def await_unpark(self) -> None:
        """Wait until ``park`` returns at once; for a test's clock."""
        raise NotImplementedError(f"no thread parks on a {type(self).__name__}")


class _LockParker(Parker):
    """A parker made of a lock, held until it is unparked."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        # Not from ``threading``, whose locks the lock checker watches: this one guards nothing.
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def unpark(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            return  # it was unparked already

    def park(self, deadline: Deadline) -> None:
        self._lock.acquire(True, deadline.park_seconds())

    def unparked_already(self) -> bool:
        return not self._lock.locked()

    def await_unpark(self) -> None:
        self._lock.acquire()
        self._lock.release()


class EventParker(Parker):
    """A parker made of an eventfd, which is closed once nothing can unpark it any more.

    Its thread may wait for another descriptor beside it, and do something useful when that is
    readable. What it does then may unpark it, without a system call.

    Attributes:
        unparked_itself: the thread has, since ``begin_beside``.
    """

    __slots__ = ("__weakref__", "_beside", "_both", "_fd", "_poll", "_reader", "unparked_itself")

    def __init__(self) -> None:
        self._fd = self._beside = -1
        self._reader = 0  # the thread that reads beside, see ``park_beside``
        self.unparked_itself = False
        self._poll: poll | None = None  # finds ``_fd``
        self._both: poll  # finds that and ``_beside``; made with it
        self._fd = os.eventfd(0, os.EFD_CLOEXEC)
        _events.add(self)

    def cheap(self) -> bool:
        """Return whether descriptors are plentiful; the upper half of them is left to sockets."""
        return self._fd < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2

    def unpark(self) -> None:
        if self._reader and self._reader == threading.get_ident():
            self.unparked_itself = True
        elif self._fd >= 0:
            os.write(self._fd, _ONE)

    def interrupt(self) -> None:
        """End the wait of a thread that parks, from a signal handler in that thread."""
        if self._fd >= 0:
            os.write(self._fd, _ONE)

    def park(self, deadline: Deadline) -> None:
        seconds = deadline.park_seconds()
        if seconds >= 0:
            if self._poll is None:
                self._poll = self._poll_of(self._fd)
            if not self._poll.poll(seconds * 1000):
                return
        os.read(self._fd, 8)

    @staticmethod
    def _poll_of(*fds: int) -> poll:
        made = poll()
        for fd in fds:
            made.register(fd, POLLIN)
        return made

    def begin_beside(self, fd: int) -> None:
        """Let the calling thread wait for a descriptor, too, until ``end_beside``."""
        if fd != self._beside:  # mostly it is that of the last time
            self._beside = -1
            self._both = self._poll_of(self._fd, fd)
            self._beside = fd
        self.unparked_itself = False
        self._reader = threading.get_ident()

    def park_beside(self, deadline: Deadline) -> bool:
        """Park as ``park`` does, or until the descriptor is readable; return whether it is that."""
        found = self._both.poll(None if deadline.at is None else deadline.park_seconds() * 1000)
        if len(found) == 1 and found[0][0] == self._beside:
            return True
        if found:
            os.read(self._fd, 8)
        return False

    def end_beside(self) -> bool:
        """Wait for the descriptor no more; return whether the thread has unparked itself."""
        self._reader = 0
        itself, self.unparked_itself = self.unparked_itself, False
        return itself

    def unparked_already(self) -> bool:
        return bool(self._polled(0))

    def await_unpark(self) -> None:
        self._polled(None)

    def _polled(self, timeout: int | None) -> list[tuple[int, int]]:
        # Not ``self._poll``, which one thread at a time may use.
        return self._poll_of(*([self._fd] if self._fd >= 0 else [])).poll(timeout)

    # ``close`` is bound here: at interpreter exit a parker may be freed after the globals are gone.
    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close the descriptor; from then on ``unpark`` does nothing."""
        try:
            fd, self._fd = self._fd, -1
        except AttributeError:
            return  # interrupted before it was set
        if fd >= 0:
            close(fd)

    __del__ = close


_events: weakref.WeakSet[EventParker] = weakref.WeakSet()
_idle: deque[Parker] = deque(maxlen=KEPT)


def borrow() -> Parker:
    """Return a parker for a single wait."""
    try:
        return _idle.pop()
    except IndexError:
        return _new_parker()


# Without a lock, in any thread and in signal handlers: a deque's own calls are atomic.
give_back = _idle.append
drop_idle = _idle.clear


def real_threads() -> bool:
    """Return whether a thread is one of the system's.

    Under gevent it is a greenlet, and sleeping in the kernel would stop all of them.
    """
    return type(_thread.allocate_lock()).__module__ == "_thread"


def _new_parker() -> Parker:
    if hasattr(os, "eventfd") and real_threads():
        try:
            parker = EventParker()
        except OSError:  # out of descriptors
            return _LockParker()
        if parker.cheap():
            return parker
    return _LockParker()


def _after_fork_in_child() -> None:
    # The child must not wake the parent's threads, nor keep the descriptors of parked ones.
    drop_idle()
    for parker in list(_events):
        parker.close()


os.register_at_fork(after_in_child=_after_fork_in_child)


Park = Callable[[Parker, Deadline], None]


class Waiter:
    """A place where one thread at a time waits.

    Attributes:
        since, thread: when the last wait began, by the monotonic clock, and the thread's ident.
        parks: a thread parks here; false where a callback is called instead, as for a bridge.
    """

    parks = True

    __slots__ = ("_parker", "_notified", "since", "thread")

    def __init__(self) -> None:
        self._parker: Parker | None = None
        self._notified = False
        self.since = 0.0
        self.thread = 0

    def wait(self, mutex: threading.Lock, deadline: Deadline, park: Park | None = None) -> None:
        """Release the held mutex, park until woken or timed out, and acquire the mutex again.

        Args:
            park: called instead of the parker's ``park``; it may do something useful meanwhile.
        """
        parker = borrow()
        self._notified = False
        self.since, self.thread = time.monotonic(), threading.get_ident()
        self._parker = parker
        try:
            _sleep(parker, mutex, deadline, park)
        finally:
            self._parker = None
            give_back(parker)

    def notify(self, wakes: list[Parker]) -> None:
        """Add the parker of a waiting thread to ``wakes``, once; see ``wake``."""
        if self._parker is not None and not self._notified:
            self._notified = True
            wakes.append(self._parker)

    def notify_forced(self, wakes: list[Parker]) -> None:
        """Notify a waiting thread, even one that was notified before and perhaps not woken."""
        self._notified = False
        self.notify(wakes)

    def occupied(self) -> bool:
        """Return whether a thread waits here that has not been notified."""
        return self._parker is not None and not self._notified


class WaitQueue:
    """A queue of waiting threads, woken in order of arrival.

    Attributes:
        parked: the waiting threads not yet notified; without the mutex, only whether it is empty
            may be read.
    """

    __slots__ = ("_began", "_notified", "parked")

    def __init__(self) -> None:
        self.parked: deque[Parker] = deque()
        self._notified: set[Parker] = set()
        self._began: dict[Parker, tuple[float, int]] = {}

    def wait(self, mutex: threading.Lock, deadline: Deadline, park: Park | None = None) -> None:
        """Wait as ``Waiter.wait`` does; an interrupted thread passes on its notification."""
        parker = borrow()
        interrupted = True
        self._began[parker] = time.monotonic(), threading.get_ident()
        self.parked += (parker,)  # not a call, after which signals are handled
        try:
            _sleep(parker, mutex, deadline, park)
            interrupted = False
        finally:
            turn = parker in self._notified
            self._notified.discard(parker)
            if parker in self.parked:
                self.parked.remove(parker)
            self._began.pop(parker, None)
            if interrupted and turn:
                wakes: list[Parker] = []
                self.notify(wakes, 1)
                wake(wakes)
            give_back(parker)

    def waits(self) -> list[tuple[float, int]]:
        """Return when each waiting thread began to wait, by the monotonic clock, and its ident."""
        return [self._began[parker] for parker in self.parked]

    def notify(self, wakes: list[Parker], count: int | None = None) -> None:
        """Add the parkers of the first ``count`` waiting threads, or of all, to ``wakes``."""
        while self.parked and (count is None or count > 0):
            parker = self.parked[0]
            self._notified.add(parker)  # first: an interrupt must find it in one place at least
            wakes.append(parker)
            self.parked.popleft()
            if count is not None:
                count -= 1

    def notify_forced(self, wakes: list[Parker]) -> None:
        """Notify all threads, even those that were notified before and perhaps not woken."""
        self.notify(wakes)
        wakes.extend(self._notified)


class Condition(threading.Condition):
    """A condition variable whose lock is free again whenever a signal handler raises.

    ``threading.Condition`` acquires its lock within a Python function, so Ctrl-C may raise between
    that and the start of the ``with`` block. Then nobody releases the lock, and whoever needs it
    next, such as the shutdown after Ctrl-C, waits forever. Here a ``with`` statement calls the
    methods of the lock itself, around which no signal is handled.
    """

    def __init__(self, lock: threading.Lock | None = None) -> None:
        self._mutex: Any = threading.RLock() if lock is None else lock
        super().__init__(self._mutex)

    @property
    def __enter__(self) -> Any:
        return self._mutex.__enter__

    @property
    def __exit__(self) -> Any:
        return self._mutex.__exit__


class OneShotEvent:
    """An event that is set once and never cleared.

    A ``threading.Event`` may stay locked for ever if a signal interrupts its wait, as a
    ``threading.Condition`` may, or raise a ``RuntimeError`` of its own. This one has no lock, so a
    signal handler may set it, or wait for it, at any step of a wait of its thread: whoever waits is
    listed before it looks whether the event is set, and whoever sets it looks at the list behind
    that.
    """

    def __init__(self) -> None:
        self._parked: deque[Parker] = deque()
        self._set = False

    def set(self) -> None:
        """Set the event and wake all waiting threads."""
        self._set = True
        for parker in self._parked.copy():
            parker.unpark()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds until it is set; return whether it is."""
        deadline = Deadline(timeout)
        while not self._set:
            if deadline.expired():
                return False
            parker = borrow()
            try:
                self._parked.append(parker)
                if not self._set:
                    _park(parker, deadline)
            finally:
                with suppress(ValueError):  # interrupted before it was listed
                    self._parked.remove(parker)
                give_back(parker)
        return True


def wake(wakes: list[Parker]) -> None:
    """Unpark the collected threads and clear the list; the mutex must not be held."""
    for parker in wakes:
        parker.unpark()
    wakes.clear()


def _park(parker: Parker, deadline: Deadline, park: Park | None = None) -> None:
    fake = clock.replaced  # read once: a test may put the real one back meanwhile
    if fake is None or isinstance(deadline, RealDeadline):
        if park is None:
            parker.park(deadline)
        else:
            park(parker, deadline)
    else:
        fake.park(parker, deadline.at)
        parker.park(_AT_ONCE)  # takes what has unparked it, which the clock was to see


def _sleep(
    parker: Parker, mutex: threading.Lock, deadline: Deadline, park: Park | None = None
) -> None:
    """Release the mutex, park, and acquire the mutex again, whatever is raised."""
    interrupt: BaseException | None = None
    try:
        mutex.release()
        _park(parker, deadline, park)
    finally:
        # CPython handles signals after a call and at the start of a function, so a plain acquire
        # may have succeeded when the exception is raised. A loop over an iterator is not a call: if
        # it raises, the mutex is not held. The mutex is only ever held for microseconds, within
        # which a second signal would have to arrive.
        try:
            for _ in iter(mutex.acquire, None):
                break
        except BaseException as error:
            interrupt = error
            for _ in iter(mutex.acquire, None):
                break
    if interrupt is not None:
        try:
            raise interrupt
        finally:
            del interrupt  # whose traceback holds this frame, and so the parker
