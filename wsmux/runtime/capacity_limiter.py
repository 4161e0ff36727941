"""Limit the items in progress, by number and by bytes."""

from __future__ import annotations

from .deadline import Deadline
from .parking import Condition

__all__ = ["CapacityLimiter"]


class CapacityLimiter:
    """Count items in progress; items beyond the limits wait or are rejected.

    A single item is always admitted, whatever its size.

    Args:
        count: the maximum number of items.
        size: the maximum number of bytes.
    """

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size
        self._condition = Condition()
        self._things = 0
        self._bytes = 0
        self._closed = False

    def enter(self, size: int, deadline: Deadline) -> bool:
        """Reserve capacity for an item, waiting for it; return false if the time runs out."""
        with self._condition:
            while not self._has_room_locked(size):
                if self._closed or deadline.expired():
                    return False
                self._condition.wait(deadline.remaining())
            self._things += 1
            self._bytes += size
            return True

    def leave(self, size: int) -> None:
        """Release the capacity of an item."""
        with self._condition:
            self._things -= 1
            self._bytes -= size
            self._condition.notify_all()

    def close(self) -> None:
        """Reject items that do not fit from now on, instead of letting them wait."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _has_room_locked(self, size: int) -> bool:
        if not self._things:
            return True
        return self._things < self._count and self._bytes + size <= self._size
