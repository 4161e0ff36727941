"""Do the rounds of many connections in one thread.

A thread a connection costs no more than one for all as long as there are few. With hundreds, each
that is woken waits behind the others for the interpreter's lock, and so does everything else in the
process. So connections above ``OWN`` share a thread: their ``steps`` are the same; only who waits
for them differs. It waits with an epoll of its own for those of the connections, which say what
each waits for, and for the earliest of their times. Each that may have something to do gets one
step a turn.

No step may block. The thread ends when it has no connection left, and begins anew with the next.
"""

from __future__ import annotations

import heapq
import itertools
import select
import threading
from collections import deque
from typing import Protocol

from ..exceptions import NoThreadError
from ..runtime import clock, fork
from ..runtime.parking import real_threads
from ..runtime.threads import daemon_thread, start_thread
from .message_transport import NEVER
from .socket_io import Wakeup

__all__ = ["OWN", "SharedIo", "Steps", "shared_io"]

# Connections of a process that have a thread of their own.
OWN = 64


class Steps(Protocol):
    """What the thread does for a connection.

    Attributes:
        wait_fd: readable when there is something to do.
        idle_until: when there is, at the latest.
    """

    @property
    def wait_fd(self) -> int: ...

    @property
    def idle_until(self) -> float: ...

    def step(self) -> bool:
        """Do what there is to do, without blocking; return whether there may be more later."""


class SharedIo:
    """The connections of a process, and the thread that those have in common that share one."""

    def __init__(self) -> None:
        self._begin()
        fork.register(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._own = 0
        self._new: deque[Steps] = deque()
        self._loop: _Loop | None = None

    def forked(self) -> None:
        """Forget the parent's connections in a forked child, which has no such thread."""
        loop = self._loop
        self._begin()
        if loop is not None:
            loop.close()

    def take_own(self) -> bool:
        """Return whether a connection is to have a thread of its own; if so, count it."""
        with self._lock:
            own = self._own < OWN or clock.replaced is not None or not _can_share()
            self._own += own
            return own

    def leave_own(self) -> None:
        """Count a connection no longer that had a thread of its own."""
        with self._lock:
            self._own -= 1

    def add(self, each: Steps) -> int:
        """Begin to do the steps of a connection; return the identity of the thread.

        Raises:
            NoThreadError: there is no thread for them, or no descriptor.
        """
        with self._lock:
            loop = self._loop
            if loop is None:
                try:
                    loop = _Loop(self)
                except OSError as error:
                    raise NoThreadError(f"the shared I/O thread cannot be made: {error}") from error
                try:
                    start_thread(loop.thread)
                except BaseException:
                    loop.close()
                    raise
                self._loop = loop
            self._new.append(each)
            loop.wakeup.set()
            assert loop.thread.ident is not None
            return loop.thread.ident

    def take_new(self) -> list[Steps]:
        """Return the connections that were added; for the thread."""
        new = []
        while self._new:
            new.append(self._new.popleft())
        return new

    def end(self, loop: _Loop) -> bool:
        """Return whether a thread without connections may end."""
        with self._lock:
            if self._new and self._loop is loop:
                return False
            if self._loop is loop:
                self._loop = None
            return True


class _Loop:
    """One life of the thread."""

    def __init__(self, owner: SharedIo) -> None:
        self._owner = owner
        self.wakeup = Wakeup()
        try:
            self._epoll = select.epoll()
        except OSError:
            self.wakeup.close()
            raise
        self._epoll.register(self.wakeup.fd, select.EPOLLIN)
        self._entries: dict[int, Steps] = {}
        # When each is to be stepped at the latest; of the same in the heap, the last counts.
        self._dues: dict[int, float] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._serial = itertools.count()
        self.thread = daemon_thread(self._run, name="wsmux-shared-io")

    def close(self) -> None:
        """Release the descriptors."""
        self._epoll.close()
        self.wakeup.close()

    def _run(self) -> None:
        try:
            while self._entries or not self._owner.end(self):
                self._turn()
        finally:
            self.close()

    def _turn(self) -> None:
        found = self._epoll.poll(self._left())
        for fd, _ in found:
            if fd == self.wakeup.fd:
                self.wakeup.clear()
                for each in self._owner.take_new():
                    self._entries[each.wait_fd] = each
                    self._epoll.register(each.wait_fd, select.EPOLLIN)
                    self._step(each.wait_fd)
            elif fd in self._entries:
                self._step(fd)
        for fd in self._due():
            if fd in self._entries:
                self._step(fd)

    def _left(self) -> float | None:
        """Return for how long to wait, in seconds."""
        while self._heap and self._dues.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(self._heap[0][0] - clock.monotonic(), 0.0) if self._heap else None

    def _due(self) -> list[int]:
        """Return those whose time has come; each has one step before any has another."""
        now, due = clock.monotonic(), []
        while self._heap and self._heap[0][0] <= now:
            at, _, fd = heapq.heappop(self._heap)
            if self._dues.get(fd) == at:
                del self._dues[fd]
                due.append(fd)
        return due

    def _step(self, fd: int) -> None:
        each = self._entries[fd]
        if not each.step():  # its descriptor is closed, and may already be of another one
            del self._entries[fd]
            self._dues.pop(fd, None)
            return
        due = each.idle_until
        if self._dues.get(fd) != due:
            self._dues[fd] = due
            if due < NEVER:
                heapq.heappush(self._heap, (due, next(self._serial), fd))


def _can_share() -> bool:
    return real_threads() and hasattr(select, "epoll")


shared_io = SharedIo()
