"""Move time by hand: the clock of tests; see ``wsmux.rpc.testing``.

While it is in place, every thread of the library waits through it, see ``runtime.clock``. So it
knows what each waits for, and wakes those whose time has come, one after another, in the order of
their times. Before it moves on, it lets everything come to rest: each thread that the library has
started since is back in a wait with nothing to wake for. What a thread sends or wakes shows in the
wait of another thread before it waits itself, so nothing is under way that no wait shows.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from ..runtime import clock

__all__ = ["Clock"]

# Seconds of real time between two looks at the threads.
LOOK = 0.0002

# Seconds of real time after which a thread that does nothing waits for something else than this
# clock, and those in which everything comes to rest.
HELD, PATIENCE = 0.5, 20.0

# How many of them count at most between two looks: on a busy machine all threads are late, and if
# the one that looks is, too, the others had no more time than it had.
LONGEST_LOOK = 0.05


class _Wait:
    """Hold the wait of one thread.

    Attributes:
        due: when it ends by itself, if it does.
        order: waits are woken in this order if their times are the same.
        woken: returns whether it has something to wake for.
        rouse: wakes it.
        roused: its time has come, and it has not gone on yet.
    """

    __slots__ = ("due", "order", "rouse", "roused", "woken")

    def __init__(
        self,
        due: float | None,
        order: int,
        woken: Callable[[], bool],
        rouse: Callable[[], None],
    ) -> None:
        self.due = due
        self.order = order
        self.woken = woken
        self.rouse = rouse
        self.roused = False


class _Outside:
    """Count for how long a thread that does not wait for the clock has done nothing."""

    __slots__ = ("_looked", "_ran", "_thread", "asleep")

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self._looked, self._ran = time.monotonic(), b""
        self.asleep = 0.0

    def look(self) -> None:
        """Add the time since the last look, unless the thread has run or waits for a processor."""
        now, (runs, ran) = time.monotonic(), _work(self._thread)
        if not runs and ran == self._ran:
            self.asleep += min(now - self._looked, LONGEST_LOOK)
        self._looked, self._ran = now, ran


def _work(thread: threading.Thread) -> tuple[bool, bytes]:
    """Return whether a thread runs or waits for a processor, and what changes when it has run.

    Only Linux tells that; elsewhere, a thread is taken for one that does nothing.
    """
    task = Path("/proc/self/task", str(thread.native_id))
    try:
        state = (task / "stat").read_bytes().rpartition(b") ")[2][:1]
        return state == b"R", (task / "schedstat").read_bytes()
    except OSError:  # the thread has ended, too
        return False, b""


class Clock:
    """A clock that stands still but for ``advance``, for ``linked``.

    All of wsmux in the process follows it while the ``linked`` block lasts: the timeouts of calls,
    reads and writes, ``wsmux.deadline`` blocks, ``Context.wait``, heartbeats, grace periods and the
    waits between attempts to connect. So only one can be in use at a time. The thread that advances
    cannot wait for a timeout itself: use ``submit``, or another thread.

    It does not move what else a handler waits for, such as a ``threading.Event``, ``ctx.ended``
    included, or ``time.sleep``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = time.monotonic()
        self._waits: dict[int, _Wait] = {}  # by the ident of the thread
        self._order = count()
        self._moves = 0  # waits begun and ended
        self._outside: dict[threading.Thread, _Outside] = {}
        self._others: set[threading.Thread] = set()

    def monotonic(self) -> float:
        """Return the time in seconds, which means nothing but in comparison."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass, and return when everything that was due has been done.

        That includes what follows: messages have arrived, their handlers have run until they wait
        or end. Only callbacks of ``connect`` and ``serve`` may still be on their way. A handler
        that waits for something else has half a second of real time, and is not waited for from
        then on until it waits for this clock again. Where the system tells, on Linux, one that
        computes is waited for.

        Each heartbeat on the way takes some real milliseconds: to let hours pass, give both ends
        ``Options`` with a long ``heartbeat_interval``.

        Raises:
            ValueError: the seconds are negative.
            RuntimeError: the clock is not in use, or the library did not come to rest.
        """
        if not seconds >= 0:
            raise ValueError(f"time passes by at least 0 seconds, not {seconds!r}")
        if clock.replaced is not self:
            raise RuntimeError("the clock is not in use: pass it to linked(clock=...)")
        end = self._now + seconds
        while True:
            self._rest()
            with self._lock:
                waits = [(wait.due, wait.order, wait) for wait in self._waits.values()]
            due, _, wait = min(
                ((at, order, wait) for at, order, wait in waits if at is not None and at <= end),
                default=(end, 0, None),
            )
            self._now = max(self._now, due)
            if wait is None:
                return
            wait.roused = True
            wait.rouse()

    # The place of the real clock

    def start(self) -> None:
        """Take the place of the real clock.

        Raises:
            RuntimeError: another one has.
        """
        clock.replace(self)
        self._others = set(threading.enumerate())

    def stop(self) -> None:
        """Give the place back; whoever waits goes on by the real clock."""
        if clock.replaced is self:
            clock.replace(None)
        with self._lock:
            waits = list(self._waits.values())
        for wait in waits:
            wait.rouse()

    # The threads that wait

    def park(self, parker: clock.Parked, due: float | None) -> None:
        """See ``runtime.clock``."""
        with self._waiting(due, parker.unparked_already, parker.unpark) as late:
            if not late:
                parker.await_unpark()

    def poll(
        self, poller: select.poll, fds: dict[int, int], due: float, rouse: Callable[[], None]
    ) -> list[tuple[int, int]]:
        """See ``runtime.clock``."""
        look = select.poll()
        for fd, events in fds.items():
            look.register(fd, events)
        with self._waiting(due, lambda: bool(look.poll(0)), rouse) as late:
            return poller.poll(0 if late else None)

    @contextmanager
    def _waiting(
        self, due: float | None, woken: Callable[[], bool], rouse: Callable[[], None]
    ) -> Iterator[bool]:
        """Let the calling thread wait; yields whether its time has come already."""
        ident = threading.get_ident()
        with self._lock:
            self._waits[ident] = _Wait(due, next(self._order), woken, rouse)
            self._outside.pop(threading.current_thread(), None)
            self._moves += 1
        try:
            replaced = clock.replaced is not self
            yield replaced or (due is not None and due <= self._now)
        finally:
            with self._lock:
                del self._waits[ident]
                self._moves += 1

    # Rest

    def _rest(self) -> None:
        """Wait until no thread of the library has anything to do."""
        waited, looked = 0.0, time.monotonic()
        while (busy := self._busy()) is not None:
            if waited > PATIENCE:
                raise RuntimeError(f"the thread {busy} did not come to rest in {PATIENCE:g} s")
            time.sleep(LOOK)
            before, looked = looked, time.monotonic()
            waited += min(looked - before, LONGEST_LOOK)

    def _busy(self) -> str | None:
        """Return the name of a thread that has something to do, if there is one.

        Nothing has moved meanwhile, so what was seen one after another was so at once.
        """
        with self._lock:
            moves, waits = self._moves, dict(self._waits)
        if any(wait.roused for wait in waits.values()):
            return "that was woken"
        busy: str | None = None
        for thread in filter(self._counts, threading.enumerate()):
            wait = waits.get(thread.ident or 0)
            if wait.woken() if wait is not None else not self._is_held(thread):
                busy = thread.name  # look at the others, too: the time of each outside runs
        if busy is not None:
            return busy
        with self._lock:
            return None if moves == self._moves else "that moved"

    def _counts(self, thread: threading.Thread) -> bool:
        ours = thread.name.startswith("wsmux") and not thread.name.endswith("-callbacks")
        return ours and thread not in self._others and thread is not threading.current_thread()

    def _is_held(self, thread: threading.Thread) -> bool:
        with self._lock:
            outside = self._outside.setdefault(thread, _Outside(thread))
        outside.look()
        return outside.asleep > HELD
