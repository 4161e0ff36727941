"""Run handlers that are generators, which hold no worker while they wait.

A worker calls ``advance``, which sends the values that the generator yields until the generator
ends or has to wait: for room in the session's send buffer, or in ``Context.wait``. Then the run is
suspended, ``advance`` returns ``WAITS``, and the worker is free. The run is unparked like a thread
when the wait is over, its time is up, or its call has ended; a worker then calls ``advance`` again.

Middleware is a stack of calls around a handler, which cannot move to another thread. So a generator
inside middleware keeps its thread: its run has a ``ThreadSuspender``, which blocks.

A generator runs in a context of its own, a copy of its first thread's. Context variables that it
sets, as ``wsmux.deadline`` and spans do, are kept from one thread to the next and never change
those of the thread. If a ``yield`` in a ``deadline`` block waits too long, it raises
``TimeoutError``. So does any ``yield``, once, when the time of the caller is up.

Threads and locks: one thread at a time is in ``advance``. It must not touch the run after it was
suspended, since another thread may be running it by then. ``unpark`` may be called from any thread
at any time, without the mutex; while the generator runs, it prevents the next wait.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextvars import copy_context
from typing import Any
from weakref import WeakKeyDictionary

from ...runtime import clock
from ...runtime.deadline import Deadline, block_end, within
from ...runtime.parking import Parker, Waiter, wake
from .server_calls import Replies, ServerCall
from .signals import Pause, Signal
from .timers import Timer

__all__ = ["WAITS", "GeneratorRun", "Suspender", "ThreadSuspender"]

# Returned by ``advance`` when the generator waits without a worker.
WAITS: Any = object()


class Suspender(ABC):
    """Define how a run waits. Called without the mutex."""

    @abstractmethod
    def suspend(self, run: GeneratorRun, due: float | None) -> bool:
        """Let a run wait until it is unparked, its call is over, or ``due``.

        Returns ``True`` if it waits without this thread, which must not touch it any more, and
        ``False`` if it should check again now.
        """

    @abstractmethod
    def unpark(self, run: GeneratorRun) -> None:
        """Make a run check again."""


class GeneratorRun(Parker):
    """One generator of one call.

    Attributes:
        call: the call that it answers.
        suspended: whether it waits without a thread. The mutex guards this and the next two.
        unparked: whether it must check again instead of waiting.
        timer: unparks it at a given time, if there is one; belongs to the suspender.
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
        if call.deadline.at is not None:
            # One of its own, which lasts as long as the context: that of the worker ends when the
            # generator waits without it.
            self._context.run(within(call.deadline).__enter__)
        self._packed: bytes | None = None  # a response not yet sent
        self._pause: Pause | None = None  # what the generator waits for
        self._seen: WeakKeyDictionary[Signal, int] = WeakKeyDictionary()

    def park(self, deadline: Deadline) -> None:
        raise AssertionError("a run is suspended instead of parked")

    def unpark(self) -> None:
        self._suspender.unpark(self)

    def advance(self) -> Any:
        """Run until the generator has ended, or waits without this thread: then return ``WAITS``.

        Raises the exception of the generator, or the error that has ended its call.
        """
        try:
            goes_on = True
            while goes_on:
                value: bool | None = None
                waits = False
                try:
                    if self._packed is not None:
                        waits = not self._replies.offer(self.call, self._packed, self)
                    elif self._pause is not None:
                        value = self._woken(self._pause)
                        waits = value is None
                except TimeoutError as error:  # the call has ended with it
                    self._disarm()
                    goes_on = self._step(self._generator.throw, error)
                    continue
                if not waits:
                    goes_on = self._step(self._generator.send, value)
                elif self.call.deadline.expired():
                    self._replies.expire(self.call)  # noticed at the next check
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
        """Return when to check again: at the end of the pause, or of a ``deadline`` block."""
        times = (None if self._pause is None else self._pause.due, self._context.run(block_end))
        return min((due for due in times if due is not None), default=None)

    def _out_of_time(self) -> bool:
        """Return whether the generator waits in a ``deadline`` block whose time is up."""
        ends = self._context.run(block_end)
        if ends is None or clock.monotonic() < ends:
            return False
        self._disarm()
        return True

    def _disarm(self) -> None:
        """Stop waiting; otherwise the signal or the room would keep a reference to this run."""
        if self._packed is not None:
            self._replies.withdraw(self.call, self)
        elif self._pause is not None and self._pause.signal is not None:
            self._pause.signal.disarm(self)

    def _step(self, resume: Callable[[Any], Any], value: Any) -> bool:
        """Run the generator to its next response or pause; return ``False`` if it has ended."""
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
        """Return ``True`` if the signal has changed, ``False`` if the time is up, else ``None``."""
        self.call.check_open()
        if pause.signal is not None:
            seen = self._seen.get(pause.signal, 0)
            self._seen[pause.signal] = changes = pause.signal.arm(self, seen)
            if changes != seen:
                return True
        if pause.due is None or clock.monotonic() < pause.due:
            return None
        self._disarm()
        return False


class ThreadSuspender(Suspender):
    """Let a run wait in its own thread."""

    def __init__(self, mutex: threading.Lock) -> None:
        self._mutex = mutex
        self._waiter = Waiter()

    def suspend(self, run: GeneratorRun, due: float | None) -> bool:
        deadline = Deadline(None if due is None else due - clock.monotonic())
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
