"""Run a handler that is a generator; while it waits, it holds no worker.

A worker calls ``advance``, which sends what the generator yields until the generator ends, or has
to wait: for room in the session's send buffer, or in ``Context.wait``. Then the run is suspended,
``advance`` returns ``WAITS``, and the worker is free. What the generator waits for unparks the run
as it would a thread, and so do its time and the end of its call; then a worker goes on with
``advance``.

Middleware is a stack of calls around a handler, which no other thread can go on with. A generator
within one keeps its thread: its run is made with a ``ThreadSuspender``, which waits.

A generator runs in a context of its own, a copy of its first thread's: what it sets of context
variables, as ``wsmux.deadline`` and spans do, it finds again in the next thread, and leaves in
none. A ``deadline`` block around a ``yield`` that waits too long gets a ``TimeoutError`` there.

Threads and locks: one thread at a time is in ``advance``, and touches nothing of the run once it
is suspended, for another one may be in it by then. ``unpark`` may come from any thread at any time,
without the mutex. What comes while the generator runs makes it look again instead of waiting.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextvars import copy_context
from typing import Any
from weakref import WeakKeyDictionary

from ...runtime.deadline import Deadline, block_end
from ...runtime.parking import Parker, Waiter, wake
from .server_calls import Replies, ServerCall
from .signals import Pause, Signal
from .timers import Timer

__all__ = ["WAITS", "GeneratorRun", "Suspender", "ThreadSuspender"]

# What ``advance`` returns when the generator waits without a worker.
WAITS: Any = object()


class Suspender(ABC):
    """Decide how a run waits; the mutex is not held."""

    @abstractmethod
    def suspend(self, run: GeneratorRun, due: float | None) -> bool:
        """Let a run wait until it is unparked, its call is over, or ``due``.

        True if it does so without this thread, which must not touch it any more. False if it is to
        look again now.
        """

    @abstractmethod
    def unpark(self, run: GeneratorRun) -> None:
        """Make a run look again."""


class GeneratorRun(Parker):
    """One generator of one call.

    Attributes:
        call: whose it is.
        suspended: it waits without a thread. The mutex guards this and the next two.
        unparked: it is to look again.
        timer: makes it look again in any case, if there is a time for that; its suspender's own.
    """

    def __init__(
        self,
        suspender: Suspender,
        replies: Replies,
        call: ServerCall,
        generator: Generator[Any, Any, Any],
    ) -> None:
        self.call = call
        self.suspended = False
        self.unparked = False
        self.timer: Timer[GeneratorRun] | None = None
        self._suspender = suspender
        self._replies = replies
        self._generator = generator
        self._context = copy_context()
        self._packed: bytes | None = None  # a response that is still to be sent
        self._pause: Pause | None = None  # what the generator waits for
        self._seen: WeakKeyDictionary[Signal, int] = WeakKeyDictionary()

    def park(self, deadline: Deadline) -> None:
        raise AssertionError("a run is suspended; no thread parks on it")

    def unpark(self) -> None:
        self._suspender.unpark(self)

    def advance(self) -> Any:
        """Go on until the generator has ended, or waits without this thread: ``WAITS``.

        Raises what the generator raises, or what has ended its call.
        """
        try:
            goes_on = True
            while goes_on:
                value: bool | None = None
                waits = False
                if self._packed is not None:
                    waits = not self._replies.offer(self.call, self._packed, self)
                elif self._pause is not None:
                    value = self._woken(self._pause)
                    waits = value is None
                if not waits:
                    goes_on = self._step(self._generator.send, value)
                elif self._out_of_time():
                    goes_on = self._step(self._generator.throw, TimeoutError("no time was left"))
                elif self._suspender.suspend(self, self._due()):
                    return WAITS
        except BaseException:
            self._disarm()
            self._context.run(self._generator.close)
            raise
        return None

    def _due(self) -> float | None:
        """Return when to look again in any case, for the pause or the block of a ``deadline``."""
        times = (None if self._pause is None else self._pause.due, self._context.run(block_end))
        return min((due for due in times if due is not None), default=None)

    def _out_of_time(self) -> bool:
        """Return whether the generator waits in a ``deadline`` block whose time is up."""
        ends = self._context.run(block_end)
        if ends is None or time.monotonic() < ends:
            return False
        self._disarm()
        return True

    def _disarm(self) -> None:
        """Wait for nothing any more: who is waited for would keep this run until it comes."""
        if self._packed is not None:
            self._replies.withdraw(self.call, self)
        elif self._pause is not None and self._pause.signal is not None:
            self._pause.signal.disarm(self)

    def _step(self, resume: Callable[[Any], Any], value: Any) -> bool:
        """Run the generator to its next response or pause; false if it has ended."""
        self._packed = self._pause = None
        try:
            item = self._context.run(resume, value)
        except StopIteration:
            return False
        if isinstance(item, Pause):
            self._pause = item
        else:
            self._packed = self._replies.pack_response(self.call, item)
        return True

    def _woken(self, pause: Pause) -> bool | None:
        """Return whether the signal has changed, or that the time is up; ``None`` if neither."""
        self.call.check_open()
        if pause.signal is not None:
            seen = self._seen.get(pause.signal, 0)
            self._seen[pause.signal] = changes = pause.signal.arm(self, seen)
            if changes != seen:
                return True
        if pause.due is None or time.monotonic() < pause.due:
            return None
        self._disarm()
        return False


class ThreadSuspender(Suspender):
    """Let the one run of a thread wait in that thread."""

    def __init__(self, mutex: threading.Lock) -> None:
        self._mutex = mutex
        self._waiter = Waiter()

    def suspend(self, run: GeneratorRun, due: float | None) -> bool:
        deadline = Deadline(None if due is None else due - time.monotonic())
        with self._mutex:
            run.call.parked = run
            while not (run.unparked or run.call.over or deadline.expired()):
                self._waiter.wait(self._mutex, deadline)
            run.unparked, run.call.parked = False, None
        return False

    def unpark(self, run: GeneratorRun) -> None:
        wakes: list[Parker] = []
        with self._mutex:
            run.unparked = True
            self._waiter.notify(wakes)
        wake(wakes)
