"""Say how large the receive windows of Yamux are, and when they grow.

Every stream of Yamux begins with 256 KiB of credit, which neither side can make smaller. On a long
way that is too little: a window is doubled when half of it was read in less than four round trips.
A larger half takes longer to arrive, so the four round trips grow in proportion with the window;
without that, growth would stop near 512 KiB on a path of 50 ms.
"""

from __future__ import annotations

from ..config import KIB
from .windows import GrowingWindow

__all__ = ["INITIAL_WINDOW", "YamuxWindow"]

# What each side may send on a new stream before it has heard anything ("Flow Control").
INITIAL_WINDOW = 256 * KIB

# A half window read in less than this many round trips makes the first doubling. As go-yamux.
GROWTH_ROUND_TRIPS = 4


class YamuxWindow(GrowingWindow):
    """Watch the peer's credit, which begins with 256 KiB."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(INITIAL_WINDOW)

    def short_time(self, rtt: float | None) -> float | None:
        """Return the seconds within which half of it must be read for it to grow."""
        return None if rtt is None else GROWTH_ROUND_TRIPS * rtt * self.size / INITIAL_WINDOW
