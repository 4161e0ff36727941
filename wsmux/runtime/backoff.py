"""Compute retry delays: exponential backoff with jitter and a cap."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["Backoff", "delay_after"]

# Failures beyond this many are not counted: any first delay doubled so often exceeds any cap.
MOST = 32


def delay_after(
    failures: int,
    first: float,
    longest: float,
    least: float = 0.0,
    chance: Callable[[], float] | None = None,
) -> float:
    """Return the seconds to wait after a number of consecutive failures.

    Args:
        failures: how many, from 1.
        first, longest: the delay after the first failure, and the cap, in seconds; it doubles.
        least: the fraction of the delay that is not subject to jitter. With 0, full jitter, clients
            that were disconnected together do not reconnect together. Where the number of attempts
            is limited, 0.5 keeps a series of short delays from using them up.
        chance: returns a number from 0 up to 1; ``random.random`` by default.
    """
    delay = min(first * 2.0 ** (min(failures, MOST) - 1), longest)
    return delay * (least + (1.0 - least) * (chance or random.random)())


class Backoff:
    """Count consecutive failures; see ``delay_after`` for the arguments."""

    def __init__(self, first: float, longest: float, least: float = 0.0) -> None:
        self._first, self._longest, self._least = first, longest, least
        self._failures = 0

    def next(self) -> float:
        """Return the seconds to wait after another failure."""
        self._failures = min(self._failures + 1, MOST)
        return delay_after(self._failures, self._first, self._longest, self._least)

    def reset(self) -> None:
        """Forget the failures, after a success."""
        self._failures = 0
