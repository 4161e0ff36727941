"""Play a client without sockets, threads or clocks: a test says what is answered, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wsmux.spark.calls.pipeline import Starter

__all__ = ["FakeCall", "FakeStarter", "Lost"]


class Lost(Exception):
    """A fault that may pass."""


class FakeCall:
    """A call; waiting for its result has the server answer everything up to it."""

    def __init__(self, init: Any, starter: FakeStarter) -> None:
        self.init = init
        self.sent = starter.cost
        self.size = 0
        self.outcome: list[Any] = []
        self.cancelled = False
        self.late = False
        self._starter = starter

    def done(self) -> bool:
        return bool(self.outcome)

    def settle(self, outcome: Any) -> None:
        """Give it an outcome; an exception is raised by ``result``."""
        if not self.outcome:
            self.outcome.append(outcome)
            self._starter.done.append(self)

    def result(self) -> Any:
        if not self.outcome:
            self._starter.wait_for(self)
        if isinstance(self.outcome[0], Exception):
            raise self.outcome[0]
        return self.outcome[0]

    def remaining(self) -> float | None:
        return 0 if self.late else 1.0

    def expire(self) -> bool:
        if self.late:
            self.settle(TimeoutError("late"))
        return self.late

    def cancel(self, message: str) -> bool:
        self.cancelled = True
        return True


class FakeStarter(Starter):
    """Start fake calls.

    Attributes:
        serve: makes the outcome of an init; it may return an exception.
        ready: which of the open calls are answered when somebody waits, all by default.
        cost: bytes that each call says it has sent.
        calls: all that were started, in order.
        starts: the sizes of the sets in which they were.
        most: the most that were open at once.
    """

    def __init__(self, serve: Callable[[Any], Any] = lambda init: init) -> None:
        self.serve = serve
        self.ready: Callable[[list[FakeCall]], list[FakeCall]] = lambda calls: calls
        self.cost = 1
        self.calls: list[FakeCall] = []
        self.starts: list[int] = []
        self.most = 0
        self.done: list[FakeCall] = []

    def open(self) -> list[FakeCall]:
        return [call for call in self.calls if not call.done()]

    def start(self, inits: list[Any], ended: Any) -> Sequence[FakeCall]:
        started = [FakeCall(init, self) for init in inits]
        self.calls += started
        self.starts.append(len(started))
        self.most = max(self.most, len(self.open()))
        return started

    def ended(self) -> FakeStarter:
        return self

    def passes(self, error: Exception) -> bool:
        return isinstance(error, Lost | TimeoutError)

    def wait_for(self, call: FakeCall) -> None:
        while not call.done():
            self._answer()

    def take(self, timeout: float | None = None) -> list[FakeCall]:
        if not self.done:
            self._answer()
        done, self.done = self.done, []
        if not done:
            raise TimeoutError("nothing ended")
        return done

    def _answer(self) -> None:
        for call in self.ready(self.open()):
            call.settle(self.serve(call.init))
