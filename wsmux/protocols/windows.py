"""Let the receive windows of a connection grow where a window holds up a reader that keeps up.

What a peer may send without waiting crosses the path once a round trip, so a window bounds what a
stream carries to itself per round trip. When half of a window was read in less than some round
trips, the reader could take more, and the window is doubled. It never shrinks. How many round trips
count is for the machine of the wire to say.

There is no clock here: the owner says what time it is. Without a round-trip time nothing grows.
"""

from __future__ import annotations

from typing import Protocol

from ..config import MIB
from .credit import ReceiveWindow

__all__ = ["MAX_STREAM_WINDOW", "GrowingWindow", "Growth", "Widening"]

# A window does not grow beyond it: 1 s of round trip at 16 MiB/s. As go-yamux and js.
MAX_STREAM_WINDOW = 16 * MIB


class Widening(Protocol):
    """Be a window that can be made larger.

    Attributes:
        size: bytes that the peer may send until credit is returned.
        grown: those that the round-trip time has added.
        updated: when credit was last returned.
    """

    size: int
    grown: int
    updated: float | None

    def widen(self, count: int) -> None:
        """Add ``count`` bytes, which the caller announces."""


class GrowingWindow(ReceiveWindow):
    """Watch the peer's credit, which may be raised at any time; see ``Widening``."""

    __slots__ = ("grown", "updated")

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.grown = 0
        self.updated: float | None = None

    def widen(self, count: int) -> None:
        """Add ``count`` bytes, which the caller announces."""
        self.size += count
        self.available += count

    def unread(self) -> int:
        """Return how many bytes came that were not yet consumed."""
        return self.size - self.available - self.consumed


class Growth:
    """Decide which window grows.

    Args:
        limit: bytes that all windows of the connection may grow by together.

    Attributes:
        total: bytes by which the windows of living streams have grown.
    """

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._limit = limit

    def grow(self, window: Widening, now: float, within: float | None) -> int:
        """Widen a window whose credit is returned now, if it is due; return by how much.

        Args:
            window: the window.
            now: the time, in seconds.
            within: it is due when its last half was read in less than so many seconds; ``None``
                when that is not known.
        """
        last, window.updated = window.updated, now
        if within is None or last is None or now - last >= within:
            return 0
        room = min(MAX_STREAM_WINDOW - window.size, self._limit - self.total)
        count = max(0, min(window.size, room))
        window.widen(count)
        window.grown += count
        self.total += count
        return count

    def ended(self, window: Widening) -> None:
        """Take back what the window of a stream that is over had grown by."""
        self.total -= window.grown
