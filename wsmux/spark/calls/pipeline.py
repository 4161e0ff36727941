"""Keep many calls in flight from one thread, and yield their outcomes.

A generator takes work from an iterator, keeps at most ``max_in_flight`` calls between what it took
and what it yielded, and yields outcomes in the order of the work, or as they come. This module is
independent of rows, sockets and Spark; timeouts are those of the calls.

Calls are started in groups where possible, with one lock and one send for many. Only the oldest
call is waited for: when it is answered, most of those after it are too.

A call that fails with a transient error is repeated after a pause, together with others that
failed. When the generator is closed, or anything raises, calls in flight are cancelled.

The window is bounded by ``max_in_flight`` and ``max_bytes``. The memory of a call, for request and
answer, is estimated from earlier calls. There is always room for one call.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

from ..retries import retry_delay

__all__ = ["Outcome", "Pipeline", "Plan", "Started", "Starter", "pipeline"]

# Calls of the first window, before any answer shows their size.
PROBE = 32

# A window is refilled when this fraction (1/n) was yielded, so that it does not run empty.
REFILL = 8

# How slowly the estimated cost of a call decreases (1/n per call); it increases at once.
CALM = 16


class Started(Protocol):
    """Describe a call that was started, such as ``rpc.PendingCall``; see there."""

    sent: int
    size: int

    def done(self) -> bool: ...
    def result(self) -> Any: ...
    def remaining(self) -> float | None: ...
    def expire(self) -> bool: ...
    def cancel(self, message: str) -> bool: ...


class Ended(Protocol):
    """Describe a source of ended calls, such as ``rpc.Completions``; see there."""

    def take(self, timeout: float | None = None) -> Sequence[Started]: ...


class Starter(ABC):
    """Start calls, and classify their errors."""

    @abstractmethod
    def start(self, inits: list[Any], ended: Any) -> Sequence[Started]:
        """Start a call for each init; if given, ``ended`` collects calls that end."""

    @abstractmethod
    def ended(self) -> Ended:
        """Return a collector of ended calls."""

    @abstractmethod
    def passes(self, error: Exception) -> bool:
        """Return whether an error is transient."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold how calls are made; see the module."""

    max_in_flight: int = 256
    max_bytes: int = 64 * 1024 * 1024
    retries: int = 3
    backoff: float = 0.2
    ordered: bool = True

    def __post_init__(self) -> None:
        if self.max_in_flight < 1 or self.max_bytes < 1:
            raise ValueError("max_in_flight and max_bytes must be at least 1")
        if self.retries < 0 or self.backoff < 0:
            raise ValueError("retries and backoff must not be negative")


class Outcome(NamedTuple):
    """Hold the value of one item of work, or the error of its last attempt."""

    tag: Any
    value: Any
    error: Exception | None


class _Slot:
    __slots__ = ("call", "init", "tag", "tries")

    def __init__(self, tag: Any, init: Any, call: Started) -> None:
        self.tag = tag
        self.init = init
        self.call = call
        self.tries = 0


def pipeline(
    starter: Starter, plan: Plan, pause: Callable[[float], object] = time.sleep
) -> Pipeline:
    """Return a pipeline that makes calls as planned; ``pause`` sleeps before repetitions."""
    return (_InOrder if plan.ordered else _AsTheyCome)(starter, plan, pause)


class Pipeline(ABC):
    """Run one sequence of calls; made by ``pipeline``."""

    def __init__(self, starter: Starter, plan: Plan, pause: Callable[[float], object]) -> None:
        self._starter = starter
        self._plan = plan
        self._pause = pause
        self._ended: Ended | None = None
        self._cost = 0.0  # estimated bytes per call; 0 before the first answer

    def run(self, work: Iterable[tuple[Any, Any]]) -> Generator[Outcome]:
        """Yield an outcome for each pair of a tag and an init.

        Blocks for outcomes. Errors of calls are part of the outcome; only errors of ``work`` and
        the starter are raised.
        """
        source = iter(work)
        try:
            while self._fill(source):
                yield from self._drain()
        finally:
            for slot in self._open():
                if not slot.call.done():
                    slot.call.cancel("no longer needed")

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """The number of calls that were started and whose outcome was not yielded."""

    @abstractmethod
    def _open(self) -> Iterable[_Slot]:
        """Return the slots of these calls, oldest first."""

    @abstractmethod
    def _add(self, slot: _Slot) -> None:
        """Add a slot whose call was started."""

    @abstractmethod
    def _drain(self) -> Iterator[Outcome]:
        """Wait for an outcome, and yield some or all that are available."""

    def _fill(self, source: Iterator[tuple[Any, Any]]) -> bool:
        """Start as many calls as there is room for; ``False`` when all work is done."""
        room = self._window() - self.in_flight
        taken = list(islice(source, room)) if room > 0 else []
        if taken:
            calls = self._starter.start([init for _, init in taken], self._ended)
            for (tag, init), call in zip(taken, calls, strict=True):
                self._add(_Slot(tag, init, call))
        return self.in_flight > 0

    def _window(self) -> int:
        most = self._plan.max_in_flight
        if not self._cost:
            return min(PROBE, most)
        return max(1, min(most, int(self._plan.max_bytes / self._cost)))

    def _outcome(self, slot: _Slot) -> Outcome | None:
        """Return the outcome of a slot whose call is done; ``None`` if it is to be repeated."""
        call = slot.call
        try:
            value = call.result()
        except Exception as error:
            if slot.tries < self._plan.retries and self._starter.passes(error):
                return None
            return Outcome(slot.tag, None, error)
        cost = call.sent + call.size
        self._cost = cost if cost > self._cost else self._cost + (cost - self._cost) / CALM
        return Outcome(slot.tag, value, None)

    def _repeat(self, slots: list[_Slot]) -> None:
        """Repeat calls, after a pause that grows with their attempts."""
        self._pause(retry_delay(self._plan.backoff, 1 + max(slot.tries for slot in slots)))
        calls = self._starter.start([slot.init for slot in slots], self._ended)
        for slot, call in zip(slots, calls, strict=True):
            slot.call = call
            slot.tries += 1


class _InOrder(Pipeline):
    """Yield outcomes in the order of the work."""

    def __init__(self, starter: Starter, plan: Plan, pause: Callable[[float], object]) -> None:
        super().__init__(starter, plan, pause)
        self._slots: deque[_Slot] = deque()

    @property
    def in_flight(self) -> int:
        return len(self._slots)

    def _open(self) -> Iterable[_Slot]:
        return self._slots

    def _add(self, slot: _Slot) -> None:
        self._slots.append(slot)

    def _drain(self) -> Iterator[Outcome]:
        slots = self._slots
        for _ in range(max(1, self._window() // REFILL)):
            outcome = self._outcome(slots[0])  # blocks, the first time
            if outcome is None:
                done = (slot for slot in slots if slot.call.done())
                self._repeat([slot for slot in done if self._outcome(slot) is None])
                return
            slots.popleft()
            yield outcome
            if not slots or not slots[0].call.done():
                return


class _AsTheyCome(Pipeline):
    """Yield outcomes as they come."""

    def __init__(self, starter: Starter, plan: Plan, pause: Callable[[float], object]) -> None:
        super().__init__(starter, plan, pause)
        self._slots: dict[Started, _Slot] = {}
        self._ends = self._ended = starter.ended()

    @property
    def in_flight(self) -> int:
        return len(self._slots)

    def _open(self) -> Iterable[_Slot]:
        return list(self._slots.values())

    def _add(self, slot: _Slot) -> None:
        self._slots[slot.call] = slot

    def _drain(self) -> Iterator[Outcome]:
        failed = []
        for call in self._take():
            slot = self._slots.pop(call)
            outcome = self._outcome(slot)
            if outcome is None:
                failed.append(slot)
            else:
                yield outcome
        if failed:
            self._repeat(failed)
            for slot in failed:
                self._add(slot)

    def _take(self) -> Sequence[Started]:
        """Wait until calls have ended, expiring the oldest when their time is up."""
        while True:
            oldest = next(iter(self._slots))
            left = oldest.remaining()
            if left == 0:
                for slot in self._open():
                    if not slot.call.expire():
                        break
            try:
                return self._ends.take(left)
            except TimeoutError:
                continue
