"""Make many calls while what carries them is killed or stopped, and count how each one ended."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest

from wsmux.bus.errors import BusError

from ..timeouts import WAIT
from ..waiting import wait_for

__all__ = ["CALLERS", "COUNTS", "HOLD", "Calls", "Tally", "do_harm", "times"]

CALLERS = 8

# Seconds for which something is stopped: as long as a reply of Redis may take.
HOLD = 3.0

COUNTS = pytest.mark.parametrize(
    "count", [200, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.hang_bound(300)])]
)


@dataclass
class Tally:
    """Count how calls ended.

    Attributes:
        sent: the number of calls.
        answered: those with the answer that they should have.
        errors: the errors of the bus that others ended with.
        runs: how often the service ran each.
    """

    sent: int
    answered: int = 0
    errors: list[object] = field(default_factory=list)
    runs: Counter[int] = field(default_factory=Counter)

    def check(self) -> None:
        """Write the sum to stdout, and fail if a call had no end, or ran twice."""
        silent = self.sent - self.answered - len(self.errors)
        twice = sum(times > 1 for times in self.runs.values())
        sys.stdout.write(
            f"{self.sent} sent, {self.answered} answered, {len(self.errors)} typed errors,"
            f" {silent} silent, {twice} twice\n"
        )
        assert (silent, twice) == (0, 0)


def times(count: int) -> int:
    """Return how often something fails under so many calls."""
    return 3 if count >= 1000 else 1


def do_harm(faults: Sequence[Callable[[], None]], runs: Callable[[], int], count: int) -> None:
    """Do so much harm to so many calls, at even distances of those that were run."""
    for part, fault in enumerate(faults, 1):
        reached = part * count // (len(faults) + 1)
        wait_for(lambda reached=reached: runs() >= reached)  # type: ignore[misc]
        fault()


class _Caller(Protocol):
    def call(self, twin: Any, command: str, payload: Any, *, timeout: float) -> Any: ...


class _Service(Protocol):
    def serve(self, functions: Mapping[str, Callable[[Any], Any]], workers: int) -> None: ...


class Calls:
    """Make so many calls of ``to``, of several callers at once, which a service answers.

    Args:
        caller, service: clients of relays or of gateways.
        count: the number of calls.
        to: the twin or name.
        recovered: waits until calls are possible again, after one has failed.
    """

    def __init__(
        self,
        caller: _Caller,
        service: _Service,
        count: int,
        to: int | str = 2,
        recovered: Callable[[], None] = lambda: None,
    ) -> None:
        self.tally = Tally(count)
        self._caller = caller
        self._to = to
        self._recovered = recovered
        self._lock = threading.Lock()
        self._numbers = iter(range(count))
        self._threads = [threading.Thread(target=self._run) for _ in range(CALLERS)]
        service.serve({"work": self._work}, workers=CALLERS)

    def check(self, faults: Sequence[Callable[[], None]]) -> Tally:
        """Make the calls, and do harm at even distances; each call must have ended at the end."""
        for thread in self._threads:
            thread.start()
        do_harm(faults, lambda: len(self.tally.runs), self.tally.sent)
        for thread in self._threads:
            thread.join(3 * WAIT)
        self.tally.check()
        assert not any(thread.is_alive() for thread in self._threads)
        return self.tally

    def _work(self, number: int) -> int:
        with self._lock:
            self.tally.runs[number] += 1
        return number

    def _run(self) -> None:
        while True:
            with self._lock:
                number = next(self._numbers, None)
            if number is None:
                return
            try:
                assert self._caller.call(self._to, "work", number, timeout=WAIT) == number
            except BusError as error:
                with self._lock:
                    self.tally.errors.append(error)
                self._recovered()
            else:
                with self._lock:
                    self.tally.answered += 1
