"""Send pings of the wire's own, and limit how often.

The connection's mutex guards ``WirePings``. ``PingRateLimiter`` holds back pings that a peer of
this library would take for a flood.
"""

from __future__ import annotations

import time

from ..protocols.abuse_limits import BYTES_PER_PING, FLOOD_PERIOD, TokenBucket
from ..protocols.base import MuxProtocol
from ..runtime.deadline import Deadline
from ..runtime.parking import Parker
from ..transport.keepalive import Ping, Pings
from ..transport.message_transport import MessageTransport

__all__ = ["PingRateLimiter", "WirePings"]


class WirePings(Pings):
    """Know the wire's own pings of one connection.

    How long those of the connection take is noted with the carrier's.
    """

    def __init__(self, protocol: MuxProtocol, transport: MessageTransport) -> None:
        super().__init__()
        self._protocol = protocol
        self._transport = transport
        self._into_silence: Ping | None = None  # nobody waits for it

    def ask(self, stream_id: int | None, now: float) -> Ping:
        """Send a ping of a stream, or of the connection.

        Raises:
            LocalProtocolError: the wire cannot ask that.
        """
        self._protocol.now = now
        number = self._last + 1
        if stream_id is None:
            self._protocol.ping(number)
        else:
            self._protocol.ping_stream(stream_id, number)
        return self.new(now, stream_id)

    def break_silence(self, now: float) -> None:
        """Send a ping of the connection that nobody waits for, in the place of the one before."""
        self.forget(self._into_silence)
        self._into_silence = self.ask(None, now)

    def came_back(
        self, stream_id: int | None, number: int, now: float, wakes: list[Parker]
    ) -> list[Ping]:
        """Note an answer; return the pings that it counts for, in order."""
        answered = super().came_back(stream_id, number, now, wakes)
        if stream_id is None and answered:
            self._transport.keep_alive.rtt = answered[-1].rtt
        return answered


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
