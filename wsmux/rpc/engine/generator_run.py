"""Run a handler that is a generator; while it waits, it holds no worker.

A worker calls ``advance``, which sends what the generator yields until the generator ends, or has
to wait: for room in the session's send buffer, or in ``Context.wait``. Then the run is suspended,
``advance`` returns ``WAITS``, and the worker is free. What the generator waits for unparks the run
as it would a thread, and so do its time and the end of its call; then a worker goes on with
``advance``.

Middleware is a stack of calls around a handler, which no other thread can go on with. A generator
within one keeps its thread: its run is made with a ``ThreadSuspender``, which waits.

Threads and locks: one thread at a time is in ``advance``, and touches nothing of the run once it
is suspended, for another one may be in it by then. ``unpark`` may come from any thread at any time,
without the mutex. What comes while the generator runs makes it look again instead of waiting.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any

from ...runtime.deadline import Deadline
from ...runtime.parking import Parker, Waiter, wake
from .server_calls import Replies, ServerCall
from .signals import Pause, Signal

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
        due: when it looks again in any case, by the monotonic clock, or ``None``.
        timer: when its suspender looks at it next, or ``None``; the suspender's own.
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
        self.due: float | None = None
        self.timer: float | None = None
        self._suspender = suspender
        self._replies = replies
        self._generator = generator
        self._packed: bytes | None = None  # a response that is still to be sent
        self._pause: Pause | None = None  # what the generator waits for
        self._seen: dict[Signal, int] = {}

    def park(self, deadline: Deadline) -> None:
        raise AssertionError("a run is suspended; no thread parks on it")

    def unpark(self) -> None:
        self._suspender.unpark(self)

    def advance(self) -> Any:
        """Go on until the generator has ended, or waits without this thread: ``WAITS``.

        Raises what the generator raises, or what has ended its call.
        """
        try:
            while True:
                value: bool | None = None
                if self._packed is not None:
                    if not self._replies.offer(self.call, self._packed, self):
                        if self._suspender.suspend(self, None):
                            return WAITS
                        continue
                elif self._pause is not None:
                    value = self._woken(self._pause)
                    if value is None:
                        if self._suspender.suspend(self, self._pause.due):
                            return WAITS
                        continue
                if not self._step(value):
                    return None
        except BaseException:
            self._generator.close()
            raise

    def _step(self, value: bool | None) -> bool:
        """Run the generator to its next response or pause; false if it has ended."""
        self._packed = self._pause = None
        try:
            item = self._generator.send(value)
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
        if pause.signal is not None:
            pause.signal.disarm(self)
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
