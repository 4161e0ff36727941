"""Say how long to wait after a failure."""

from __future__ import annotations

import random

__all__ = ["Backoff"]


class Backoff:
    """Grow from ``first`` to ``longest`` seconds, doubled each time, less some at random.

    Args:
        first, longest: seconds.
        least: the part of them that is waited at least; 0 is full jitter, with which clients that
            were cut off together do not come back together.
    """

    def __init__(self, first: float, longest: float, least: float = 0.0) -> None:
        self._first, self._longest, self._least = first, longest, least
        self._seconds = first

    def next(self) -> float:
        """Return the seconds to wait after one more failure."""
        seconds = self._seconds
        self._seconds = min(2 * seconds, self._longest)
        return seconds * random.uniform(self._least, 1.0)

    def reset(self) -> None:
        """Begin anew after a success."""
        self._seconds = self._first
