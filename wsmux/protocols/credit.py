"""Count the bytes that each side may still send.

Credit starts at 0 and only adds: the first grant is the receiver's window, each later one what
its application has read since. One number at each end therefore tells the unspent credit, and
between two machines ``credit + in flight + unread + read but not yet returned = window`` always
holds.
"""

from __future__ import annotations

from ..config import MAX_WINDOW
from ..exceptions import FlowControlError

__all__ = ["ReceiveWindow", "SendCredit"]


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
