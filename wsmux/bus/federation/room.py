"""Share the room for messages to other relays between those that answer and those that do not.

A message is held until a relay has taken it or it expires, which may be an hour. Those for relays
that are down would take all room, and messages for others would wait behind them. So relays that
have failed for ``DOWN`` seconds, and have answered nothing since, have half of the room together,
and each of them an equal part of that. Relays that answer have all of it. Pure: times are
arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["DOWN", "Room"]

# Seconds of failures after which a relay counts as down: its restart takes less.
DOWN = 10.0


@dataclass(slots=True)
class _Domain:
    """Count what waits for a relay."""

    count: int = 0
    bytes: int = 0


class Room:
    """Count what is held; not thread-safe.

    Attributes:
        count: messages that are held.
        bytes: their bytes.

    Args:
        max_count: messages that may be held.
        max_bytes: their bytes; both are told by the caller to whoever adds more.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.count = self.bytes = 0
        self._max_count, self._max_bytes = max_count, max_bytes
        self._domains: dict[str, _Domain] = {}
        self._failing: OrderedDict[str, float] = OrderedDict()  # since when, the longest first
        self._down: set[str] = set()  # those that have failed for long enough

    def is_full(self) -> bool:
        """Return whether nothing more may be added."""
        return self.count >= self._max_count or self.bytes >= self._max_bytes

    def left(self) -> int:
        """Return how many more messages may be added."""
        return max(0, self._max_count - self.count)

    def add(self, domains: Collection[str], size: int) -> None:
        """Count a message that waits for one of these relays, if they are known."""
        self.count += 1
        self.bytes += size
        for name in domains:
            domain = self._domains.setdefault(name, _Domain())
            domain.count += 1
            domain.bytes += size

    def remove(self, domains: Collection[str], size: int) -> None:
        """Count a message no more that was added with the same arguments."""
        self.count -= 1
        self.bytes -= size
        for name in domains:
            domain = self._domains[name]
            domain.count -= 1
            domain.bytes -= size
            if not domain.count:
                del self._domains[name]
                self.answered(name)

    def failed(self, name: str, now: float) -> None:
        """Note that a relay did not answer."""
        if name in self._domains and name not in self._down:
            self._failing.setdefault(name, now)

    def answered(self, name: str) -> None:
        """Note that a relay has taken a message, or refused it for good."""
        self._failing.pop(name, None)
        self._down.discard(name)

    def is_crowded(self, domains: Collection[str], now: float) -> bool:
        """Return whether each of these relays is down and has more than its part of the room."""
        while self._failing:
            name, since = next(iter(self._failing.items()))
            if now < since + DOWN:
                break
            del self._failing[name]
            self._down.add(name)
        return bool(domains) and all(map(self._is_crowded, domains))

    def _is_crowded(self, name: str) -> bool:
        if name not in self._down:
            return False
        domain, parts = self._domains[name], 2 * len(self._down)
        return domain.count * parts > self._max_count or domain.bytes * parts > self._max_bytes
