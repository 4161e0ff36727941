"""Carry one time budget across several waits."""

from __future__ import annotations

import time

__all__ = ["Deadline", "deadline_in"]


class Deadline:
    """Count down ``timeout`` seconds from now, by the monotonic clock; ``None`` never runs out."""

    __slots__ = ("_at",)

    def __init__(self, timeout: float | None) -> None:
        self._at = None if timeout is None else time.monotonic() + timeout

    def remaining(self) -> float | None:
        """Return the seconds left, never below 0; ``None`` when there is no limit."""
        if self._at is None:
            return None
        return max(0.0, self._at - time.monotonic())

    def expired(self) -> bool:
        """Tell whether the time is up."""
        return self._at is not None and time.monotonic() >= self._at

    def park_seconds(self) -> float:
        """Return what ``Lock.acquire(timeout=)`` takes: the seconds left, -1 for no limit."""
        if self._at is None:
            return -1
        return min(max(0.0, self._at - time.monotonic()), _LONGEST_PARK)


# threading.TIMEOUT_MAX is about 292 years on Linux and 49 days on Windows; waits loop anyway.
_LONGEST_PARK = 86_400.0

_NEVER = Deadline(None)


def deadline_in(timeout: float | None) -> Deadline:
    """Return a deadline; the one that never comes is made once."""
    return _NEVER if timeout is None else Deadline(timeout)
