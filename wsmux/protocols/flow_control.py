"""Track the credit of both sides, and let receive windows grow.

Credit starts at 0 and is only ever added: the first grant is the receiver's window, and each later
one the bytes that its application has read since. So each end can track the unspent credit in a
single number, and between two machines
``credit + in flight + unread + read but not yet returned = window`` always holds.

The bytes that a peer may send without waiting cross the path once per round trip, so the window
limits the throughput of a stream to its size per round trip. If half of a window was read within a
few round trips, the reader could take more, and the window is doubled. It never shrinks. The
machine of the wire decides how many round trips count.

There is no clock here: the owner passes the time. Without a round-trip time, windows do not grow.
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
    """The right to send ``available`` more bytes on one stream."""

    __slots__ = ("available", "unacknowledged")

    def __init__(self) -> None:
        self.available = 0
        self.unacknowledged = 0  # sent, and not yet returned by the peer

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
        """Spend ``count`` bytes, never more than are available."""
        if not 0 <= count <= self.available:
            raise ValueError(f"spending {count} of {self.available} bytes of credit")
        self.available -= count
        self.unacknowledged += count


class ReceiveWindow:
    """Track the peer's credit on one stream, and decide when to return bytes that were read."""

    __slots__ = ("available", "consumed", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.available = size  # bytes that the peer may still send
        self.consumed = 0  # read by the application, not yet returned

    def receive(self, count: int) -> bool:
        """Account for received bytes; return false, without effect, if they exceed the credit."""
        if count > self.available:
            return False
        self.available -= count
        return True

    def consume(self, count: int, prompt: bool = False) -> int:
        """Account for bytes that were read; return how many to acknowledge now, usually 0.

        Half a window is returned at a time: returning each read would cost 15-30 % of the
        throughput, and waiting for the whole window would stall the peer. This cannot stall either:
        once all is read, either half the window is returned or more than half of it is still
        available. With ``prompt``, for a peer that waits until everything is acknowledged, all is
        returned as soon as nothing is unread.
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


# A window does not grow beyond this: 1 s of round trip at 16 MiB/s. As in go-yamux and js.
MAX_STREAM_WINDOW = 16 * MIB


class Tunable(Protocol):
    """A window that can be enlarged.

    Attributes:
        size: bytes that the peer may send until credit is returned.
        grown: bytes added because of the round-trip time.
        updated: when credit was last returned.
    """

    size: int
    grown: int
    updated: float | None

    def widen(self, count: int) -> None:
        """Add ``count`` bytes, which the caller announces."""


class GrowingWindow(ReceiveWindow):
    """Track the peer's credit, which may be increased at any time; see ``Tunable``."""

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
        """Return how many received bytes have not been consumed."""
        return self.size - self.available - self.consumed


class WindowAutotuner:
    """Decide which windows grow.

    Args:
        limit: bytes by which all windows of the connection may grow in total.

    Attributes:
        total: bytes by which the windows of open streams have grown.
    """

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._limit = limit

    def grow(self, window: Tunable, now: float, within: float | None) -> int:
        """Widen a window whose credit is being returned, if due; return by how many bytes.

        Args:
            window: the window.
            now: the time, in seconds.
            within: growth is due if the last half was read in less than so many seconds; ``None``
                if unknown.
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
        """Subtract the growth of the window of a stream that has ended."""
        self.total -= window.grown
