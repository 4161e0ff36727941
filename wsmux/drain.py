"""Tell how fast a full socket drains, and what a turn of a stream should be there.

No clock: the send queue, whose send lock guards it, passes the time when the socket is full.
"""

from __future__ import annotations

from .config import KIB

__all__ = ["Drain"]

# One turn takes a slow path this long, in seconds, so that a short message does not wait for more;
# but it has so many bytes at least, below which the cost per message shows.
TURN_SECONDS = 0.008
LEAST_TURN = 16 * KIB

# Seconds that the socket must have been full in all for a figure; a reader who is late for a moment
# is no slow path. What a fast path carries in that time proves it one at once.
SPAN = 0.1


class Drain:
    """Watch one socket.

    Attributes:
        turn: bytes of one stream in one turn.
        slow: that is less than ``largest``.
        timing: the socket is full, or was and has not been emptied since.
    """

    def __init__(self, largest: int) -> None:
        self.turn = self._largest = self._told = largest
        self._proof = largest / TURN_SECONDS * SPAN
        self.slow = self.timing = False
        self._since = 0.0
        self._sent = 0
        self._seconds = 0.0  # that the socket was full since the last figure
        self._bytes = 0  # that it took meanwhile

    def full(self, now: float, sent: int) -> bool:
        """Note that the socket takes nothing more, after ``sent`` bytes in all.

        Returns whether a turn is another one than the last time.
        """
        if self.timing:
            self._add(now, sent)
        self.timing = True
        self._since, self._sent = now, sent
        before, self._told = self._told, self.turn
        return self.turn != before

    def emptied(self, now: float, sent: int) -> None:
        """Note that everything was sent: the time until it is full again says nothing."""
        self._add(now if self.timing else self._since, sent)
        self.timing, self._sent = False, sent

    def _add(self, now: float, sent: int) -> None:
        self._seconds += now - self._since
        self._bytes += sent - self._sent
        if self._seconds >= SPAN or self._bytes >= self._proof:
            rate = self._bytes / max(self._seconds, SPAN)
            self.turn = min(max(LEAST_TURN, int(rate * TURN_SECONDS)), self._largest)
            self.slow = self.turn < self._largest
            self._seconds, self._bytes = 0.0, 0
