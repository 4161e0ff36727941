"""Ask the peer for signs of life in the wire's own words. Guarded by the connection's mutex."""

from __future__ import annotations

from collections import deque

from .bell import Bell
from .exceptions import StreamError
from .keepalive import KeepAlive
from .protocols.base import MuxProtocol
from .waiter import WaitList

__all__ = ["Pings"]

# Pings of the connection whose time of sending is known; more are never of use.
KEPT = 32


class Pings:
    """Number the pings of one connection, and know which have come back.

    An answer counts for every earlier ping of the same stream, since a peer may answer only the
    last of several. How long those of the connection take is noted with the carrier's.

    Attributes:
        askers: threads waiting for an answer.
    """

    def __init__(self, protocol: MuxProtocol, keep_alive: KeepAlive) -> None:
        self.askers = WaitList()
        self._protocol = protocol
        self._keep_alive = keep_alive
        self._asked = 0
        self._answered: dict[int | None, int] = {}  # by stream; None stands for the connection
        self._sent: deque[tuple[int, float]] = deque(maxlen=KEPT)  # when; the connection's alone

    def ask(self, stream_id: int | None, now: float) -> int:
        """Send a ping of a stream, or of the connection; return its number.

        Raises:
            LocalProtocolError: the wire cannot ask that.
        """
        self._protocol.now = now
        number = self._asked + 1
        if stream_id is None:
            self._protocol.ping(number)
            self._sent.append((number, now))
        else:
            self._protocol.ping_stream(stream_id, number)
        self._asked = number
        return number

    def is_back(self, stream_id: int | None, number: int, alive: bool) -> bool:
        """Tell whether a ping was answered.

        Raises:
            StreamError: the stream is not ``alive`` any more, so it will never be.
        """
        if self._answered.get(stream_id, 0) >= number:
            return True
        if stream_id is not None and not alive:
            raise StreamError(f"stream {stream_id} ended without a pong", stream_id)
        return False

    def came_back(self, stream_id: int | None, number: int, now: float, wakes: list[Bell]) -> None:
        """Note an answer."""
        if stream_id is None:
            for asked, sent in self._sent:
                if asked == number:
                    self._keep_alive.rtt = now - sent
        self._answered[stream_id] = max(number, self._answered.get(stream_id, 0))
        self.askers.collect(wakes)

    def ended(self, stream_id: int, wakes: list[Bell]) -> None:
        """Forget a stream; whoever waits for its answer waits in vain."""
        self._answered.pop(stream_id, None)
        self.askers.collect(wakes)
