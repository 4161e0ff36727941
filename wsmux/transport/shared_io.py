"""Do the rounds of many connections in one thread.

A thread a connection costs no more than one for all as long as there are few. With hundreds, each
that is woken waits behind the others for the interpreter's lock, and so does everything else in the
process. So the connections of a process above ``OWN`` share a thread (one a core, where the
interpreter has no such lock). Their steps are the same as in threads of their own; only who waits
for them differs.

- A thread waits with an epoll for those of its connections, each of which says itself what it waits
  for, and for the earliest of their times. Nobody else touches what it has; a new connection is
  handed over in ``_Loop.new``.
- Each connection that may have something to do gets one step a turn. A step must not block.
- A step that fails ends its own connection. If the loop itself fails, all of its connections end.
- The thread ends when it has no connection left. That is decided under the lock under which one is
  added: the next one begins another thread.
- A forked child has none of these threads, so it forgets them.
- Where threads are greenlets, and where there is no epoll, no thread is shared.

``Dues`` is the list of the times.
"""

from __future__ import annotations

import heapq
import math
import os
import select
import sys
import threading
from collections import deque
from typing import Protocol

from ..exceptions import NoThreadError
from ..runtime import clock, fork
from ..runtime.deadline import LONGEST_WAIT
from ..runtime.logs import log_failure, logger
from ..runtime.parking import real_threads
from ..runtime.threads import daemon_thread, start_thread
from .socket_io import Wakeup

__all__ = ["Dues", "SharedIo", "Steps", "shared_io"]

# Connections of a process that have a thread of their own; tests change it.
OWN = 16

# With a lock for the whole interpreter, a second thread would only wait for the first.
THREADS = 1 if getattr(sys, "_is_gil_enabled", lambda: True)() else os.cpu_count() or 1

# Times that are no longer meant go when there are more than so many for each that is.
STALE = 3

_log = logger("wsmux")


class Steps(Protocol):
    """What is done for one connection.

    Attributes:
        alone: it must have a thread of its own, as it may block.
        wait_fd: readable when there is something to do.
        idle_until: when there is, at the latest; as of the last step.
    """

    @property
    def alone(self) -> bool: ...

    @property
    def wait_fd(self) -> int: ...

    @property
    def idle_until(self) -> float: ...

    def step(self) -> bool:
        """Do what there is to do, without blocking; return false if that was the end."""

    def give_up(self, reason: str) -> None:
        """End: nobody will do further steps."""


class Dues:
    """For each key when it is due, and which is due first."""

    def __init__(self) -> None:
        self._dues: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []  # with times that are no longer meant

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, key: int, at: float) -> None:
        """Let a key be due then, and at no other time."""
        if self._dues.get(key) == at:
            return
        self._dues[key] = at
        heapq.heappush(self._heap, (at, key))
        if len(self._heap) > (1 + STALE) * len(self._dues):
            self._heap = [(due, each) for each, due in self._dues.items()]
            heapq.heapify(self._heap)

    def drop(self, key: int) -> None:
        """Let a key not be due at all."""
        self._dues.pop(key, None)

    def first(self) -> float:
        """Return when one is due; never if there is none."""
        while self._heap and self._dues.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def take(self, now: float) -> list[int]:
        """Return the keys whose time has come, each once; they are due no longer."""
        taken = []
        while self.first() <= now:
            taken.append(heapq.heappop(self._heap)[1])
            self.drop(taken[-1])
        return taken


class SharedIo:
    """What the connections of a process have in common: who has a thread, and the shared ones."""

    def __init__(self) -> None:
        self._begin()
        fork.register(self)

    def _begin(self) -> None:
        # A signal handler that connects may interrupt whoever holds it.
        self._lock = threading.RLock()
        self._own: set[Steps] = set()
        self._loops: list[_Loop] = []

    def forked(self) -> None:
        """See ``runtime.fork``."""
        loops = self._loops
        self._begin()
        for loop in loops:
            loop.forked()

    def take_own(self, each: Steps) -> bool:
        """Return whether a connection is to have a thread of its own; if so, count it."""
        shares = clock.replaced is None and real_threads() and hasattr(select, "epoll")
        with self._lock:
            if shares and not each.alone and len(self._own) >= OWN:
                return False
            self._own.add(each)
            return True

    def leave_own(self, each: Steps) -> None:
        """Count a connection no longer; idempotent.

        Without the lock: a signal may have interrupted who holds it, and its handler may close this
        connection, and wait for the thread that calls this.
        """
        self._own.discard(each)

    def add(self, each: Steps) -> int:
        """Begin to do the steps of a connection; return the ident of the thread that does them.

        Raises:
            NoThreadError: there is no thread for them, or no descriptor.
        """
        with self._lock:
            if len(self._loops) < THREADS:
                self._loops.append(self._new_loop())
            loop = min(self._loops, key=_Loop.load)
            loop.add(each)
            assert loop.thread.ident is not None
            return loop.thread.ident

    def _new_loop(self) -> _Loop:
        try:
            loop = _Loop(self)
        except OSError as error:
            raise NoThreadError(f"the shared I/O thread cannot be made: {error}") from error
        try:
            start_thread(loop.thread)
        except BaseException:
            loop.close()
            raise
        return loop

    def end(self, loop: _Loop, failed: bool = False) -> bool:
        """Return whether a thread may end that has nothing to do; then it is given nothing more."""
        with self._lock:
            if loop.new and not failed:
                return False
            if loop in self._loops:
                self._loops.remove(loop)
            return True


class _Loop:
    """One of the threads.

    Attributes:
        new: connections that were added, and are not known to the thread.
    """

    def __init__(self, owner: SharedIo) -> None:
        self.new: deque[Steps] = deque()
        self._owner = owner
        self._entries: dict[int, Steps] = {}
        self._dues = Dues()
        self._forked = False
        self.thread = daemon_thread(self._run, name="wsmux-shared-io")
        self._wakeup = Wakeup()
        try:
            self._epoll = select.epoll()
        except OSError:
            self._wakeup.close()
            raise
        self._epoll.register(self._wakeup.fd, select.EPOLLIN)

    def load(self) -> int:
        """Return how many connections there are, about."""
        return len(self._entries) + len(self.new)

    def add(self, each: Steps) -> None:
        """Begin to do the steps of a connection; for any thread, under the owner's lock."""
        try:
            self.new.append(each)
            self._wakeup.set()
        except BaseException:  # interrupted by a signal handler
            self._wakeup.set()
            raise

    def close(self) -> None:
        """Release the descriptors."""
        self._epoll.close()
        self._wakeup.close()

    def forked(self) -> None:
        """Release the copies of a forked child, which this thread may itself have made."""
        self._forked = True
        self._epoll.close()
        self._wakeup.forked()

    def _run(self) -> None:
        try:
            while self._entries or not self._owner.end(self):
                self._turn()
        except BaseException:
            if self._forked:  # by a step of this thread: what it had belongs to the parent
                return
            log_failure(_log, "the shared I/O thread failed; %d connections end", self.load())
            self._owner.end(self, failed=True)
            for each in (*self._entries.values(), *self.new):
                try:
                    each.give_up("internal error")
                except BaseException:  # so that the others end
                    log_failure(_log, "a connection of the shared I/O thread cannot end")
        finally:
            self.close()

    def _turn(self) -> None:
        for fd, _ in self._poll():
            if fd == self._wakeup.fd:
                self._wakeup.clear()
                while self.new:
                    self._take(self.new.popleft())
            elif fd in self._entries:
                self._step(fd)
        for fd in self._dues.take(clock.monotonic()):
            self._step(fd)

    def _poll(self) -> list[tuple[int, int]]:
        left = self._dues.first() - clock.monotonic()
        return self._epoll.poll(min(max(left, 0.0), LONGEST_WAIT))

    def _take(self, each: Steps) -> None:
        fd = each.wait_fd
        self._entries[fd] = each
        try:
            self._epoll.register(fd, select.EPOLLIN)
        except OSError as error:
            del self._entries[fd]
            each.give_up(f"it cannot be waited for: {error}")
        else:
            self._step(fd)

    def _step(self, fd: int) -> None:
        if self._forked:  # by the step before this one
            return
        each = self._entries[fd]
        if each.step():
            self._dues.set(fd, each.idle_until)
        else:  # its descriptor is closed, and may already be of another one
            del self._entries[fd]
            self._dues.drop(fd)


shared_io = SharedIo()
