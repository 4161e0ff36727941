"""Ask the peer for signs of life in the wire's own words. Guarded by the connection's mutex."""

from __future__ import annotations

from .bell import Bell
from .channel import Channel
from .deadlines import Deadline
from .exceptions import LocalProtocolError, StreamError
from .protocols.base import MuxProtocol
from .waiter import WaitList

__all__ = ["Pings", "WirePing"]


class WirePing:
    """Stand for one ping under way: it comes back, or it is known that it never will."""

    __slots__ = ("answered", "number", "over", "sent", "stream_id")

    def __init__(self, number: int, stream_id: int | None, sent: float) -> None:
        self.number = number
        self.stream_id = stream_id  # None stands for the connection
        self.sent = sent
        self.answered = self.over = False


class Pings:
    """Know the pings under way of one connection.

    An answer counts for every earlier ping of the same stream, since a peer may answer only the
    last of several. How long those of the connection take is noted with the carrier's.

    Attributes:
        askers: threads waiting for an answer.
    """

    def __init__(self, protocol: MuxProtocol, channel: Channel) -> None:
        self.askers = WaitList()
        self._protocol = protocol
        self._channel = channel
        self._asked = 0
        self._under_way: list[WirePing] = []
        self._into_silence: WirePing | None = None  # nobody waits for it

    def ask(self, stream_id: int | None, now: float) -> WirePing:
        """Send a ping of a stream, or of the connection.

        Raises:
            LocalProtocolError: the wire cannot ask that.
        """
        self._protocol.now = now
        number = self._asked + 1
        if stream_id is None:
            self._protocol.ping(number)
        else:
            self._protocol.ping_stream(stream_id, number)
        self._asked = number
        ping = WirePing(number, stream_id, now)
        self._under_way.append(ping)
        return ping

    def break_silence(self, now: float) -> None:
        """Send a ping of the connection that nobody waits for, in the place of the one before."""
        self._forget(self._into_silence)
        self._into_silence = self.ask(None, now)

    def wait(self, ping: WirePing, deadline: Deadline) -> None:
        """Wait, with the mutex held, until a ping comes back.

        Raises:
            TimeoutError: no answer in time. ConnectionClosed: the connection ended.
            StreamError, LocalProtocolError: the stream ended, or no ping of the connection is
            answered any more.
        """
        channel = self._channel
        try:
            while not ping.answered:
                if ping.over and ping.stream_id is not None:
                    text = f"stream {ping.stream_id} ended without a pong"
                    raise StreamError(text, ping.stream_id)
                channel.check_locked()
                if ping.over:
                    raise LocalProtocolError("no ping is answered any more: both are going away")
                if deadline.expired():
                    raise TimeoutError(f"no pong on {channel.name} in time")
                self.askers.wait(channel.mutex, deadline)
        finally:
            self._forget(ping)

    def _forget(self, ping: WirePing | None) -> None:
        self._under_way = [other for other in self._under_way if other is not ping]

    def came_back(self, stream_id: int | None, number: int, now: float, wakes: list[Bell]) -> None:
        """Note an answer."""
        for ping in self._take(stream_id, number):
            ping.answered = True
            if stream_id is None:
                self._channel.keep_alive.rtt = now - ping.sent
        self.askers.collect(wakes)

    def ended(self, stream_id: int | None, wakes: list[Bell]) -> None:
        """Note that no ping of a stream, or of the connection, is answered any more."""
        for ping in self._take(stream_id, self._asked):
            ping.over = True
        self.askers.collect(wakes)

    def _take(self, stream_id: int | None, last: int) -> list[WirePing]:
        """Return the pings of a stream up to a number, in order; they are not under way now."""
        taken = [p for p in self._under_way if p.stream_id == stream_id and p.number <= last]
        self._under_way = [ping for ping in self._under_way if ping not in taken]
        return taken
