"""Bound what is in hand, in number and bytes."""

from __future__ import annotations

import threading

from .deadline import Deadline

__all__ = ["CapacityLimiter"]


class CapacityLimiter:
    """Count what is in hand; what comes beyond the bounds waits, or is turned away.

    One thing alone has room whatever its size.

    Args:
        count: how many things.
        size: how many bytes.
    """

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size
        self._condition = threading.Condition()
        self._things = 0
        self._bytes = 0
        self._closed = False

    def enter(self, size: int, deadline: Deadline) -> bool:
        """Take room for a thing, waiting for it; false when there is none in time."""
        with self._condition:
            while not self._has_room_locked(size):
                if self._closed or deadline.expired():
                    return False
                self._condition.wait(deadline.remaining())
            self._things += 1
            self._bytes += size
            return True

    def leave(self, size: int) -> None:
        """Give the room of a thing back."""
        with self._condition:
            self._things -= 1
            self._bytes -= size
            self._condition.notify_all()

    def close(self) -> None:
        """Let nobody wait any more: what finds no room is turned away."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _has_room_locked(self, size: int) -> bool:
        if not self._things:
            return True
        return self._things < self._count and self._bytes + size <= self._size
