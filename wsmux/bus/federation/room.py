"""Share the room for messages to other relays between those that answer and those that do not.

A message is held until a relay has taken it or it expires, which may be an hour. Those for relays
that are down would take all room, and messages for others would wait behind them. So relays that
have failed for ``DOWN`` seconds, and have answered nothing since, have half of the room together,
and each of them an equal part of that. Relays that answer have all of it. Pure: times are
arguments.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["DOWN", "Room"]

# Seconds of failures after which a relay counts as down: its restart takes less.
DOWN = 10.0


@dataclass(slots=True)
class _Domain:
    """Count what waits for a relay; ``failing_since`` is when it failed after its last answer."""

    count: int = 0
    bytes: int = 0
    failing_since: float | None = None


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
        self._failing = 0  # how many of these

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
                self._failing -= domain.failing_since is not None
                del self._domains[name]

    def failed(self, name: str, now: float) -> None:
        """Note that a relay did not answer."""
        domain = self._domains.get(name)
        if domain is not None and domain.failing_since is None:
            domain.failing_since = now
            self._failing += 1

    def answered(self, name: str) -> None:
        """Note that a relay has taken a message, or refused it for good."""
        domain = self._domains.get(name)
        if domain is not None and domain.failing_since is not None:
            domain.failing_since = None
            self._failing -= 1

    def is_crowded(self, domains: Collection[str], now: float) -> bool:
        """Return whether each of these relays is down and has more than its part of the room."""
        return bool(domains) and all(self._is_crowded(name, now) for name in domains)

    def _is_crowded(self, name: str, now: float) -> bool:
        domain = self._domains.get(name)
        if domain is None or domain.failing_since is None or now < domain.failing_since + DOWN:
            return False
        parts = 2 * self._failing
        return domain.count * parts > self._max_count or domain.bytes * parts > self._max_bytes
