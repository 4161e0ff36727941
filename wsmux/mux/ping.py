"""Send pings of the wire's own, and limit how often.

The connection's mutex guards ``WirePings``. ``PingRateLimiter`` holds back pings that a peer of
this library would take for a flood.
"""

from __future__ import annotations

import time

from ..exceptions import LocalProtocolError, StreamError
from ..protocols.abuse_limits import BYTES_PER_PING, FLOOD_PERIOD, TokenBucket
from ..protocols.base import MuxProtocol
from ..runtime.deadline import Deadline
from ..runtime.parking import Parker, WaitQueue
from ..transport.message_transport import MessageTransport

__all__ = ["PingRateLimiter", "WirePing", "WirePings"]


class WirePing:
    """One ping under way: it comes back, or it is known that it never will."""

    __slots__ = ("answered", "number", "over", "sent", "stream_id")

    def __init__(self, number: int, stream_id: int | None, sent: float) -> None:
        self.number = number
        self.stream_id = stream_id  # None stands for the connection
        self.sent = sent
        self.answered = self.over = False


class WirePings:
    """Know the pings under way of one connection.

    An answer counts for every earlier ping of the same stream, since a peer may answer only the
    last of several. How long those of the connection take is noted with the carrier's.

    Attributes:
        askers: threads waiting for an answer.
    """

    def __init__(self, protocol: MuxProtocol, transport: MessageTransport) -> None:
        self.askers = WaitQueue()
        self._protocol = protocol
        self._transport = transport
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
        transport = self._transport
        try:
            while not ping.answered:
                if ping.over and ping.stream_id is not None:
                    text = f"stream {ping.stream_id} ended without a pong"
                    raise StreamError(text, ping.stream_id)
                transport.check_locked()
                if ping.over:
                    raise LocalProtocolError(
                        "pings are no longer answered: both sides are going away"
                    )
                if deadline.expired():
                    raise TimeoutError(f"{transport.name} received no pong in time")
                self.askers.wait(transport.mutex, deadline)
        finally:
            self._forget(ping)

    def _forget(self, ping: WirePing | None) -> None:
        self._under_way = [other for other in self._under_way if other is not ping]

    def came_back(
        self, stream_id: int | None, number: int, now: float, wakes: list[Parker]
    ) -> None:
        """Note an answer."""
        for ping in self._take(stream_id, number):
            ping.answered = True
            if stream_id is None:
                self._transport.keep_alive.rtt = now - ping.sent
        self.askers.notify(wakes)

    def ended(self, stream_id: int | None, wakes: list[Parker]) -> None:
        """Note that no ping of a stream, or of the connection, is answered any more."""
        for ping in self._take(stream_id, self._asked):
            ping.over = True
        self.askers.notify(wakes)

    def _take(self, stream_id: int | None, last: int) -> list[WirePing]:
        """Return the pings of a stream up to a number, in order; they are not under way now."""
        taken = [p for p in self._under_way if p.stream_id == stream_id and p.number <= last]
        self._under_way = [ping for ping in self._under_way if ping not in taken]
        return taken


# The part of Config.max_pings that is used: keepalive and measurements have the rest.
SHARE = 0.75


class PingRateLimiter:
    """Limit the rate of pings on one connection, by the bound that its own peer is held to."""

    def __init__(self, transport: MessageTransport) -> None:
        size = max(1.0, SHARE * transport.config.max_pings)
        self._transport = transport
        self._pause = FLOOD_PERIOD / size
        self._budget = TokenBucket(size, size / FLOOD_PERIOD)

    def wait(self, deadline: Deadline) -> None:
        """Wait until one more ping is no flood, or the connection has ended.

        Raises:
            TimeoutError: that is not so in time.
        """
        transport = self._transport
        while True:
            with transport.mutex:
                earned = transport.queue.bytes_sent // BYTES_PER_PING
                if self._budget.charge(time.monotonic(), earned):
                    return
            if deadline.expired():
                raise TimeoutError(f"timed out: too many pings are waiting on {transport.name}")
            left = deadline.remaining()
            if transport.wait_finished(self._pause if left is None else min(left, self._pause)):
                return
