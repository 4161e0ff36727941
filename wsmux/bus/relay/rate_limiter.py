"""Limit what each twin may send per minute. Pure: times are arguments.

All sessions of a twin count together. The reference relay marks a twin as recently used only when
it connects, so the connections of many others evict the count of a busy twin; here each message
marks it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict

__all__ = ["WINDOW", "FixedWindow", "Limiter", "NoLimit"]

# Seconds of one window, aligned to the clock.
WINDOW = 60

# Twins counted at once; beyond it, the count of the least recently active one starts again.
CAPACITY = 100_000


class Limiter(ABC):
    """Decide whether a message is within its sender's limit. Not thread-safe: callers lock."""

    @abstractmethod
    def allows(self, twin: int, size: int, now: float) -> bool:
        """Count a message of ``size`` bytes at ``now``, Unix seconds; return if it may pass."""


class NoLimit(Limiter):
    """Let everything pass."""

    def allows(self, twin: int, size: int, now: float) -> bool:
        return True


class FixedWindow(Limiter):
    """Limit the messages and bytes of a twin in each window of 60 s.

    A message larger than the limit of bytes is refused and not counted. Any other counts even if it
    is refused, as in the reference relay.

    Args:
        count: messages per window.
        size: bytes per window.
        capacity: twins counted at once.
        window: seconds.

    Raises:
        ValueError: an argument is not above 0.
    """

    def __init__(
        self, count: int, size: int, *, capacity: int = CAPACITY, window: float = WINDOW
    ) -> None:
        if count < 1 or size < 1 or capacity < 1 or not window > 0:
            raise ValueError(
                f"expected a count, size, capacity and window above 0, "
                f"got {count}, {size}, {capacity} and {window}"
            )
        self._count, self._size = count, size
        self._capacity = capacity
        self._seconds = window
        self._window = 0
        self._used: OrderedDict[int, tuple[int, int]] = OrderedDict()  # messages and bytes

    def allows(self, twin: int, size: int, now: float) -> bool:
        window = int(now // self._seconds)
        if window != self._window:
            self._window = window
            self._used.clear()
        if size > self._size:
            return False
        messages, total = self._used.get(twin, (0, 0))
        messages, total = messages + 1, total + size
        self._used[twin] = messages, total
        self._used.move_to_end(twin)
        if len(self._used) > self._capacity:
            self._used.popitem(last=False)
        return messages <= self._count and total <= self._size
