"""Let the receive windows of a Yamux connection grow with its round-trip time.

Every stream of Yamux begins with 256 KiB of credit, which neither side can make smaller. On a long
way that is too little: a window is doubled when half of it was read in less than four round trips.
A larger half takes longer to arrive, so the four round trips grow in proportion with the window;
without that, growth would stop near 512 KiB on a path of 50 ms. A window never shrinks.

There is no clock here: the owner says what time it is. Without pings no round-trip time is known,
and nothing grows.
"""

from __future__ import annotations

from ..config import KIB, MIB
from .credit import ReceiveWindow

__all__ = ["INITIAL_WINDOW", "MAX_STREAM_WINDOW", "Growth", "YamuxWindow"]

# What each side may send on a new stream before it has heard anything ("Flow Control").
INITIAL_WINDOW = 256 * KIB

# A window does not grow beyond it: 1 s of round trip at 16 MiB/s. As go-yamux and js.
MAX_STREAM_WINDOW = 16 * MIB

# A half window read in less than this many round trips makes the first doubling. As go-yamux.
GROWTH_ROUND_TRIPS = 4


class YamuxWindow(ReceiveWindow):
    """Watch the peer's credit, which begins with 256 KiB and may be raised at any time."""

    __slots__ = ("grown", "updated")

    def __init__(self) -> None:
        super().__init__(INITIAL_WINDOW)
        self.grown = 0  # bytes that the round-trip time has added
        self.updated: float | None = None  # when credit was last returned

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

    def grow(self, window: YamuxWindow, now: float, rtt: float | None) -> int:
        """Widen a window whose credit is returned now, if it is due; return by how much."""
        last, window.updated = window.updated, now
        if rtt is None or last is None:
            return 0
        threshold = GROWTH_ROUND_TRIPS * rtt * window.size / INITIAL_WINDOW
        if now - last >= threshold:
            return 0
        room = min(MAX_STREAM_WINDOW - window.size, self._limit - self.total)
        count = max(0, min(window.size, room))
        window.widen(count)
        window.grown += count
        self.total += count
        return count

    def ended(self, window: YamuxWindow) -> None:
        """Take back what the window of a stream that is over had grown by."""
        self.total -= window.grown
