"""Carry one time budget across several waits."""

from __future__ import annotations

import time

__all__ = ["LONGEST_WAIT", "Deadline", "deadline_in"]

# Seconds of one wait; whoever waits looks again. Locks take 49 days on Windows, as poll does, which
# counts 2^31 milliseconds.
LONGEST_WAIT = 86_400.0


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
        remaining = self.remaining()
        return -1 if remaining is None else min(remaining, LONGEST_WAIT)


_NEVER = Deadline(None)


def deadline_in(timeout: float | None) -> Deadline:
    """Return a deadline; the one that never comes is made once."""
    return _NEVER if timeout is None else Deadline(timeout)
