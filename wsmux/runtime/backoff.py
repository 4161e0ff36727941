"""Compute how long to wait before trying again: exponential backoff with jitter and a cap."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["Backoff", "delay_after"]

# Failures beyond it are not counted: doubled so often, any first delay is above any longest.
MOST = 32


def delay_after(
    failures: int,
    first: float,
    longest: float,
    least: float = 0.0,
    chance: Callable[[], float] | None = None,
) -> float:
    """Return the seconds to wait after a number of failures in a row.

    Args:
        failures: how many, from 1.
        first, longest: the delay after the first failure, and the cap, in seconds; it doubles.
        least: the part of the delay that is always waited. With 0, full jitter, clients that were
            cut off together do not come back together. Where the number of attempts is bounded,
            0.5 keeps a row of short delays from using them all up.
        chance: returns a number from 0 up to 1; ``random.random`` by default.
    """
    delay = min(first * 2.0 ** (min(failures, MOST) - 1), longest)
    return delay * (least + (1.0 - least) * (chance or random.random)())


class Backoff:
    """Count failures in a row; see ``delay_after`` for the arguments."""

    def __init__(self, first: float, longest: float, least: float = 0.0) -> None:
        self._first, self._longest, self._least = first, longest, least
        self._failures = 0

    def next(self) -> float:
        """Return the seconds to wait after one more failure."""
        self._failures = min(self._failures + 1, MOST)
        return delay_after(self._failures, self._first, self._longest, self._least)

    def reset(self) -> None:
        """Forget the failures, after a success."""
        self._failures = 0
