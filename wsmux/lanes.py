"""Put the data frames of a connection in order: short messages of quiet streams go before bulk.

As the new flows of fq_codel. No threads, sockets or clocks; the channel's mutex guards it.

- Frames stand in one line. A frame goes before the line when its stream has none in it, and has
  sent little before it since everybody who was in line then had a turn.
- All frames before the line go before all in it, and a stream with a frame in line has its next
  ones behind it. So the order within a stream stays.
- While there is a line, what goes before it is bounded by what moves in it: an endless row of new
  streams, each with a message or two, gets half of the connection and one turn more.
"""

from __future__ import annotations

from collections import deque

from .config import KIB
from .protocols.base import Message
from .protocols.carrier import Kind

__all__ = ["Frame", "Lanes", "Share"]

# Bytes of one stream that may go before the line in one round of it: requests and keystrokes, and
# a quarter of what the round brings to each stream that is in line.
QUICK = 16 * KIB

Frame = tuple[Kind, Message, int]  # the size of the message's parts together


class Share:
    """Note what one stream has had.

    Attributes:
        behind: how far the line must move until no frame of the stream is in it.
        until: how far it must move until a round is over.
        used: bytes that went before the line in that round.
    """

    __slots__ = ("behind", "until", "used")

    def __init__(self) -> None:
        self.behind = self.until = self.used = 0


class Lanes:
    """Hold the frames before the line and those in it.

    Args:
        turn: the size of the largest frame; as much may go before a line that does not move.

    Attributes:
        size: the bytes of all frames.
        quick: the frames before the line.
        line: those in it.
    """

    def __init__(self, turn: int) -> None:
        self.size = 0
        self.quick: deque[Frame] = deque()
        self.line: deque[Frame] = deque()
        self._turn = turn
        self._end = 0  # bytes that ever came into the line
        self._moved = 0  # and that left it
        self._ahead = 0  # bytes that went before the line, less what has moved in it since

    def may_overtake(self, share: Share, size: int, waiting: int) -> bool:
        """Tell whether a frame may go before the line, and streams that wait to come into it."""
        moved = self._moved
        if size > QUICK or share.behind > moved:
            return False
        if share.until <= moved:
            share.until = self._end + waiting * self._turn
            share.used = 0
        return share.used + size <= QUICK and self._ahead + size <= self._turn

    def overtake(self, frame: Frame, share: Share) -> None:
        """Put a frame before the line."""
        size = frame[2]
        share.used += size
        self._ahead += size
        self.size += size
        self.quick.append(frame)

    def line_up(self, frame: Frame, share: Share | None) -> None:
        """Put a frame at the end of the line."""
        self.size += frame[2]
        self._end += frame[2]
        self.line.append(frame)
        if share is not None:
            share.behind = self._end

    def take(self, frames: list[Frame], size: int, count: int) -> int:
        """Move frames to a list until they have ``size`` bytes, or are so many.

        Returns how many of them were in line.
        """
        line = self.line
        while self.quick and size > 0 and count:
            frame = self.quick.popleft()
            frames.append(frame)
            self.size -= frame[2]
            size -= frame[2]
            count -= 1
        left, lined = size, 0
        while line and left > 0 and lined < count:
            frame = line.popleft()
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
        self.quick.clear()
        self.line.clear()
        self.size = self._ahead = 0
        self._moved = self._end
