"""Order the data frames of a connection, so that short messages of quiet streams precede bulk.

A fair queue with new and old flows, as in fq_codel. No threads, sockets or clocks; the transport's
mutex guards it.

- Frames wait in two queues: that of the new flows, which is sent first, and that of the old flows.
  A frame joins the new flows if its stream has no frame among the old flows, and has sent little
  in the current round. A round lasts until all frames that were among the old flows at its start
  have been sent.
- A stream with a frame among the old flows appends its next frames there. So the order within a
  stream is kept.
- While there are old flows, the bytes of new flows are limited by those sent for old flows: an
  endless series of new streams, each with a message or two, gets half of the connection and one
  quantum more.

``SendRateEstimator`` estimates how fast a full socket sends, and derives the quantum of a stream
from it. The send queue passes the time to it, and guards it by its send lock.
"""

from __future__ import annotations

from collections import deque

from ..config import KIB
from ..protocols.base import Message
from ..protocols.framing import Opcode

__all__ = ["FairQueue", "FlowState", "Frame", "SendRateEstimator"]

# Bytes that one stream may send as a new flow per round of the old flows: requests and keystrokes,
# and a quarter of what the round brings each of the old flows.
QUICK = 16 * KIB

Frame = tuple[Opcode, Message, int]  # with the total size of the message


class FlowState:
    """Hold the position of one stream in the queue.

    Attributes:
        behind: the position that the old flows must reach until no frame of the stream is in them.
        until: the position that they must reach until the current round is over.
        used: bytes that the stream sent as a new flow in this round.
    """

    __slots__ = ("behind", "until", "used")

    def __init__(self) -> None:
        self.behind = self.until = self.used = 0


class FairQueue:
    """Hold the frames of the new flows and those of the old flows.

    Args:
        quantum: the size of the largest frame; as much may precede old flows that make no progress.

    Attributes:
        size: the bytes of all frames.
        new_flows: the frames sent first.
        old_flows: the frames sent after them.
    """

    def __init__(self, quantum: int) -> None:
        self.size = 0
        self.new_flows: deque[Frame] = deque()
        self.old_flows: deque[Frame] = deque()
        self._quantum = quantum
        self._end = 0  # bytes ever appended to the old flows
        self._moved = 0  # bytes ever taken from them
        self._ahead = 0  # bytes of new flows, minus those of old flows taken since

    def may_overtake(self, flow: FlowState, size: int, waiting: int) -> bool:
        """Return whether a frame may join the new flows, ahead of ``waiting`` blocked writers."""
        moved = self._moved
        if size > QUICK or flow.behind > moved:
            return False
        if flow.until <= moved:
            flow.until = self._end + waiting * self._quantum
            flow.used = 0
        return flow.used + size <= QUICK and self._ahead + size <= self._quantum

    def overtake(self, frame: Frame, flow: FlowState) -> None:
        """Append a frame to the new flows."""
        size = frame[2]
        flow.used += size
        self._ahead += size
        self.size += size
        self.new_flows.append(frame)

    def append_frame(self, frame: Frame, flow: FlowState | None) -> None:
        """Append a frame to the old flows."""
        self.size += frame[2]
        self._end += frame[2]
        self.old_flows.append(frame)
        if flow is not None:
            flow.behind = self._end

    def take(self, frames: list[Frame], size: int, count: int) -> int:
        """Move at least ``size`` bytes of frames to a list, but at most ``count`` frames.

        Returns how many of them were old flows.
        """
        old_flows = self.old_flows
        while self.new_flows and size > 0 and count:
            frame = self.new_flows.popleft()
            frames.append(frame)
            self.size -= frame[2]
            size -= frame[2]
            count -= 1
        left, lined = size, 0
        while old_flows and left > 0 and lined < count:
            frame = old_flows.popleft()
            frames.append(frame)
            left -= frame[2]
            lined += 1
        moved = size - left
        self.size -= moved
        self._moved += moved
        if self._ahead:
            self._ahead = max(0, self._ahead - moved)
        return lined

    def clear(self) -> None:
        """Drop all frames."""
        self.new_flows.clear()
        self.old_flows.clear()
        self.size = self._ahead = 0
        self._moved = self._end


# One quantum takes so many seconds on a slow path, so that a short message waits no longer; but it
# has at least MIN_QUANTUM bytes, below which the cost per message shows.
QUANTUM_SECONDS = 0.008
MIN_QUANTUM = 16 * KIB

# Total seconds of a full socket needed for an estimate; a reader that is late for a moment is not a
# slow path. As many bytes as a fast path sends in that time prove a fast path at once.
SPAN = 0.1


class SendRateEstimator:
    """Estimate the send rate of one socket.

    Attributes:
        quantum: the maximum number of bytes per frame of one stream.
        slow: the quantum is less than ``largest``.
        timing: the socket is full, or has not been emptied since it was.
    """

    def __init__(self, largest: int) -> None:
        self.quantum = self._largest = self._told = largest
        self._proof = largest / QUANTUM_SECONDS * SPAN
        self.slow = self.timing = False
        self._since = 0.0
        self._sent = 0
        self._seconds = 0.0  # of a full socket since the last estimate
        self._bytes = 0  # sent during that time

    def full(self, now: float, sent: int) -> bool:
        """Note that the socket is full, after ``sent`` bytes in total.

        Returns whether the quantum has changed.
        """
        if self.timing:
            self._add(now, sent)
        self.timing = True
        self._since, self._sent = now, sent
        before, self._told = self._told, self.quantum
        return self.quantum != before

    def emptied(self, now: float, sent: int) -> None:
        """Note that the queue is empty: the time until the socket is full again does not count."""
        self._add(now if self.timing else self._since, sent)
        self.timing, self._sent = False, sent

    def _add(self, now: float, sent: int) -> None:
        self._seconds += now - self._since
        self._bytes += sent - self._sent
        if self._seconds >= SPAN or self._bytes >= self._proof:
            rate = self._bytes / max(self._seconds, SPAN)
            self.quantum = min(max(MIN_QUANTUM, int(rate * QUANTUM_SECONDS)), self._largest)
            self.slow = self.quantum < self._largest
            self._seconds, self._bytes = 0.0, 0
