"""Let one thread sleep until another rings.

A ``threading.Lock`` is released with the GIL held, so the thread it wakes runs straight into the
GIL and sleeps once more. A write to an eventfd lets the GIL go first: on one core, that is worth a
fifth of the bulk throughput and of the small messages of ten streams. Where there is none, or
where gevent has replaced the threads, a lock does the same work.

A bell may ring after its sleeper has left, when the one who rings was slow: whoever sleeps next
with it wakes for nothing, so every sleeper looks again whether it has to go on sleeping.
"""

from __future__ import annotations

import os
import resource
import select
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from .deadlines import Deadline

__all__ = ["Bell", "borrow", "drop_idle", "give_back"]

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
        self._lock = threading.Lock()
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
        self._poll: select.poll | None = None
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
                self._poll = select.poll()
                self._poll.register(self._fd, select.POLLIN)
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
    if hasattr(os, "eventfd") and type(threading.Lock()).__module__ == "_thread":
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
