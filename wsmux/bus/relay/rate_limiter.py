"""Limit what each twin may send in each minute. Pure: times are arguments.

All sessions of a twin count together. The known relay refreshes its table only when a twin
connects, so that many connections reset a busy twin's count; here each use does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict

__all__ = ["WINDOW", "FixedWindow", "Limiter", "NoLimit"]

# Seconds of one window, aligned to the clock.
WINDOW = 60

# Twins counted at once; of more, the one not heard of for longest starts again.
CAPACITY = 100_000


class Limiter(ABC):
    """Decide on each message. Not locked: its owner sees to that."""

    @abstractmethod
    def allows(self, twin: int, size: int, now: float) -> bool:
        """Count a message of ``size`` bytes at ``now``, Unix seconds; tell whether it may pass."""


class NoLimit(Limiter):
    """Let everything pass."""

    def allows(self, twin: int, size: int, now: float) -> bool:
        return True


class FixedWindow(Limiter):
    """Let a twin send so many messages and bytes in each window of 60 s.

    A message above the limit of bytes is refused and does not count. Any other counts, even when
    it is refused, as in the known relay.

    Args:
        count: messages in one window. size: bytes in one window.
        capacity: twins counted at once.
        window: seconds.

    Raises:
        ValueError: one of them is not above 0.
    """

    def __init__(
        self, count: int, size: int, *, capacity: int = CAPACITY, window: float = WINDOW
    ) -> None:
        if count < 1 or size < 1 or capacity < 1 or not window > 0:
            raise ValueError(
                f"a limit has a count, a size, a capacity and a window above 0, "
                f"not {count}, {size}, {capacity} and {window}"
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
