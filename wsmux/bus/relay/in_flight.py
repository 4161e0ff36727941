"""Know which envelopes a twin has read, by pings behind them.

RMB has no acknowledgements, but every WebSocket answers pings, in order: a pong says that the
twin's WebSocket has read all that was sent before its ping. One ping serves all envelopes that were
sent since the last one, and few are sent: peers of this package refuse floods of pings.

Not thread-safe: guarded by the lock of the session.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from ...config import KIB, MIB
from ...transport.keepalive import Ping
from ..session.link import Link

__all__ = ["InFlight"]

# Envelopes, and their bytes, that a twin may have without a pong behind them; a single one may be
# larger.
WINDOW, WINDOW_BYTES = 1024, MIB

# Seconds between two pings, and the envelopes or bytes that need one sooner: at a message for each
# ping, acknowledging takes as long as sending. A peer of this package
# takes 128 pings in 5 s, and one more for each KiB.
PAUSE, MANY, MANY_BYTES = 0.25, 256, 256 * KIB


class _Mark(NamedTuple):
    """Hold a ping, and how many envelopes were sent before it."""

    ping: Ping
    before: int


class InFlight:
    """Hold the envelopes that were sent over one link and not yet acknowledged.

    Args:
        link: the connection of the twin.
        limit: seconds without a sign that the twin reads, after which it counts as stuck.
    """

    def __init__(self, link: Link, limit: float) -> None:
        self._link = link
        self._limit = limit
        self._entries: deque[tuple[str, int]] = deque()  # ids and sizes
        self._marks: deque[_Mark] = deque()
        self._bytes = 0
        self._sent = self._marked = self._settled = 0  # envelopes, from the first one
        self._unmarked_bytes = 0
        self._last_mark = -math.inf
        self._moved = (0, 0)  # what was acknowledged, and taken by the system of the twin ...
        self._moved_at = 0.0  # ... when that was last different

    def __len__(self) -> int:
        return len(self._entries)

    def has_room(self) -> bool:
        """Return whether another envelope may be sent."""
        return len(self._entries) < WINDOW and self._bytes < WINDOW_BYTES

    def add(self, entry: str, size: int) -> None:
        """Record an envelope that was handed to the link."""
        self._entries.append((entry, size))
        self._bytes += size
        self._unmarked_bytes += size
        self._sent += 1

    def settle(self) -> list[str]:
        """Remove what is acknowledged; return the ids."""
        count = self._settled
        while self._marks and self._marks[0].ping.rtt is not None:
            count = self._marks.popleft().before
        done = []
        for _ in range(count - self._settled):
            entry, size = self._entries.popleft()
            self._bytes -= size
            done.append(entry)
        self._settled = count
        return done

    def mark(self, now: float, *, all_of_it: bool = False) -> None:
        """Send a ping behind what has none, if it is time.

        Raises:
            ConnectionClosed, ForkedError: the link has ended.
        """
        fresh = self._sent - self._marked
        if not fresh or not (
            all_of_it
            or now >= self._last_mark + PAUSE
            or fresh >= MANY
            or self._unmarked_bytes >= MANY_BYTES
        ):
            return
        if not self._marks:
            self._moved_at = now
        self._marks.append(_Mark(self._link.ping_behind(), self._sent))
        self._marked, self._unmarked_bytes, self._last_mark = self._sent, 0, now

    def due(self) -> float | None:
        """Return when to call ``mark`` or ``is_stuck``; ``None`` if nothing is in flight."""
        if self._sent > self._marked:
            return self._last_mark + PAUSE
        return self._moved_at + self._limit if self._marks else None

    def is_stuck(self, now: float) -> bool:
        """Return whether for the whole limit no pong came and the twin's system took no byte."""
        if not self._marks or now < self._moved_at + self._limit:
            return False
        moved = (self._settled, self._link.taken_by_peer())
        if moved == self._moved:
            return True
        self._moved, self._moved_at = moved, now
        return False
