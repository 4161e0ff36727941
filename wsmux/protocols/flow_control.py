"""Count the bytes that each side may still send, and let receive windows grow.

Credit starts at 0 and only adds: the first grant is the receiver's window, each later one what
its application has read since. One number at each end therefore tells the unspent credit, and
between two machines ``credit + in flight + unread + read but not yet returned = window`` always
holds.

What a peer may send without waiting crosses the path once a round trip, so a window bounds what a
stream carries to itself per round trip. When half of a window was read in less than some round
trips, the reader could take more, and the window is doubled. It never shrinks. How many round trips
count is for the machine of the wire to say.

There is no clock here: the owner says what time it is. Without a round-trip time nothing grows.
"""

from __future__ import annotations

from typing import Protocol

from ..config import MAX_WINDOW, MIB
from ..exceptions import FlowControlError

__all__ = [
    "MAX_STREAM_WINDOW",
    "GrowingWindow",
    "ReceiveWindow",
    "SendCredit",
    "Tunable",
    "WindowAutotuner",
]


class SendCredit:
    """Hold the right to send ``available`` more bytes of one stream."""

    __slots__ = ("available", "unacknowledged")

    def __init__(self) -> None:
        self.available = 0
        self.unacknowledged = 0  # bytes sent that the peer has not returned yet

    def grant(self, count: int) -> None:
        """Add ``count`` bytes.

        Raises:
            FlowControlError: the unspent credit would exceed 2^32-1; nothing is added.
        """
        if self.available + count > MAX_WINDOW:
            raise FlowControlError(
                f"ACK of {count} bytes lifts the unspent credit of {self.available} above 2^32-1"
            )
        self.available += count
        self.unacknowledged = max(0, self.unacknowledged - count)

    def spend(self, count: int) -> None:
        """Use ``count`` bytes, never more than are available."""
        if not 0 <= count <= self.available:
            raise ValueError(f"spending {count} of {self.available} bytes of credit")
        self.available -= count
        self.unacknowledged += count


class ReceiveWindow:
    """Watch the peer's credit for one stream and decide when to return what was read."""

    __slots__ = ("available", "consumed", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.available = size  # what the peer may still send
        self.consumed = 0  # read by the application, not yet returned

    def receive(self, count: int) -> bool:
        """Note arriving bytes; tell whether they were within the credit, else note nothing."""
        if count > self.available:
            return False
        self.available -= count
        return True

    def consume(self, count: int, prompt: bool = False) -> int:
        """Note bytes read by the application; return how many to acknowledge now, mostly 0.

        Half a window is returned at a time: each read would cost 15-30 % of the throughput, and
        waiting for the whole window would stall the peer. No stall can come of it: when all is
        read, either half the window is returned or more than half of it is still available.
        With ``prompt``, for a peer that waits until everything is acknowledged, all is returned
        as soon as nothing is unread.
        """
        unread = self.size - self.available - self.consumed - count
        if unread < 0:
            raise ValueError("more bytes consumed than received")
        self.consumed += count
        if self.consumed * 2 < self.size and not (prompt and not unread):
            return 0
        returned, self.consumed = self.consumed, 0
        self.available += returned
        return returned


# A window does not grow beyond it: 1 s of round trip at 16 MiB/s. As go-yamux and js.
MAX_STREAM_WINDOW = 16 * MIB


class Tunable(Protocol):
    """A window that can be made larger.

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
    """Watch the peer's credit, which may be raised at any time; see ``Tunable``."""

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


class WindowAutotuner:
    """Decide which window grows.

    Args:
        limit: bytes that all windows of the connection may grow by together.

    Attributes:
        total: bytes by which the windows of living streams have grown.
    """

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._limit = limit

    def grow(self, window: Tunable, now: float, within: float | None) -> int:
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

    def ended(self, window: Tunable) -> None:
        """Take back what the window of a stream that is over had grown by."""
        self.total -= window.grown
