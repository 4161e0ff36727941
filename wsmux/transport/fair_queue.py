"""Order the data frames of a connection, so that short messages of quiet streams go before bulk.

As the new flows of fq_codel. No threads, sockets or clocks; the transport's mutex guards it.

- Frames stand in one line. A frame goes before the line when its stream has none in it, and has
  sent little since every stream that was in line then was served.
- All frames before the line go before all in it, and a stream with a frame in line has its next
  ones after it. So the order within a stream stays.
- While there is a line, what goes before it is bounded by what moves in it: an endless row of new
  streams, each with a message or two, gets half of the connection and one quantum more.

``SendRateEstimator`` estimates how fast a full socket sends, and derives the quantum of a stream
from it. The send queue, whose send lock guards it, passes the time.
"""

from __future__ import annotations

from collections import deque

from ..config import KIB
from ..protocols.base import Message
from ..protocols.framing import Opcode

__all__ = ["FairQueue", "FlowState", "Frame", "SendRateEstimator"]

# Bytes of one stream that may go before the line in one round of it: requests and keystrokes, and
# a quarter of what the round brings to each stream that is in line.
QUICK = 16 * KIB

Frame = tuple[Opcode, Message, int]  # the size of the message's parts together


class FlowState:
    """Note what one stream has had.

    Attributes:
        behind: how far the line must move until no frame of the stream is in it.
        until: how far it must move until a round is over.
        used: bytes that went before the line in that round.
    """

    __slots__ = ("behind", "until", "used")

    def __init__(self) -> None:
        self.behind = self.until = self.used = 0


class FairQueue:
    """Hold the frames before the line and those in it.

    Args:
        quantum: the size of the largest frame; as much may go before a line that does not move.

    Attributes:
        size: the bytes of all frames.
        new_flows: the frames before the line.
        old_flows: those in it.
    """

    def __init__(self, quantum: int) -> None:
        self.size = 0
        self.new_flows: deque[Frame] = deque()
        self.old_flows: deque[Frame] = deque()
        self._quantum = quantum
        self._end = 0  # bytes that ever came into the line
        self._moved = 0  # and that left it
        self._ahead = 0  # bytes that went before the line, less what has moved in it since

    def may_overtake(self, flow: FlowState, size: int, waiting: int) -> bool:
        """Return whether a frame may go before the line, and streams that wait to come into it."""
        moved = self._moved
        if size > QUICK or flow.behind > moved:
            return False
        if flow.until <= moved:
            flow.until = self._end + waiting * self._quantum
            flow.used = 0
        return flow.used + size <= QUICK and self._ahead + size <= self._quantum

    def overtake(self, frame: Frame, flow: FlowState) -> None:
        """Put a frame before the line."""
        size = frame[2]
        flow.used += size
        self._ahead += size
        self.size += size
        self.new_flows.append(frame)

    def append_frame(self, frame: Frame, flow: FlowState | None) -> None:
        """Put a frame at the end of the line."""
        self.size += frame[2]
        self._end += frame[2]
        self.old_flows.append(frame)
        if flow is not None:
            flow.behind = self._end

    def take(self, frames: list[Frame], size: int, count: int) -> int:
        """Move frames to a list until they have ``size`` bytes, or are so many.

        Returns how many of them were in line.
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
        """Drop every frame."""
        self.new_flows.clear()
        self.old_flows.clear()
        self.size = self._ahead = 0
        self._moved = self._end


# One turn takes a slow path this long, in seconds, so that a short message does not wait for more;
# but it has so many bytes at least, below which the cost per message shows.
QUANTUM_SECONDS = 0.008
MIN_QUANTUM = 16 * KIB

# Seconds that the socket must have been full in all for a figure; a reader that is late for a
# moment is no slow path. What a fast path carries in that time proves it one at once.
SPAN = 0.1


class SendRateEstimator:
    """Watch one socket.

    Attributes:
        quantum: bytes of one stream in one turn.
        slow: that is less than ``largest``.
        timing: the socket is full, or was and has not been emptied since.
    """

    def __init__(self, largest: int) -> None:
        self.quantum = self._largest = self._told = largest
        self._proof = largest / QUANTUM_SECONDS * SPAN
        self.slow = self.timing = False
        self._since = 0.0
        self._sent = 0
        self._seconds = 0.0  # that the socket was full since the last figure
        self._bytes = 0  # that it took meanwhile

    def full(self, now: float, sent: int) -> bool:
        """Note that the socket takes nothing more, after ``sent`` bytes in all.

        Returns whether the quantum has changed.
        """
        if self.timing:
            self._add(now, sent)
        self.timing = True
        self._since, self._sent = now, sent
        before, self._told = self._told, self.quantum
        return self.quantum != before

    def emptied(self, now: float, sent: int) -> None:
        """Note that everything was sent: the time until it is full again says nothing."""
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
