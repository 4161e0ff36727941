"""Send pings of the wire, and limit their rate.

``WirePings`` is guarded by the connection's mutex. ``PingRateLimiter`` delays pings that a peer
using this library would consider a flood.
"""

from __future__ import annotations

from ..protocols.abuse_limits import BYTES_PER_PING, FLOOD_PERIOD, TokenBucket
from ..protocols.base import MuxProtocol
from ..runtime import clock
from ..runtime.deadline import Deadline
from ..runtime.parking import Parker
from ..transport.keepalive import Ping, Pings
from ..transport.message_transport import MessageTransport

__all__ = ["PingRateLimiter", "WirePings"]


class WirePings(Pings):
    """Track the pings of the wire on one connection.

    Round-trip times of the connection's pings are recorded in the transport's ``keep_alive``.
    """

    def __init__(self, protocol: MuxProtocol, transport: MessageTransport) -> None:
        super().__init__()
        self._protocol = protocol
        self._transport = transport
        self._into_silence: Ping | None = None  # no thread waits for it

    def ask(self, stream_id: int | None, now: float) -> Ping:
        """Send a ping of a stream, or of the connection.

        Raises:
            LocalProtocolError: the wire has no such ping.
        """
        self._protocol.now = now
        number = self._last + 1
        if stream_id is None:
            self._protocol.ping(number)
        else:
            self._protocol.ping_stream(stream_id, number)
        return self.new(now, stream_id)

    def break_silence(self, now: float) -> None:
        """Send a ping of the connection without a waiting thread; it replaces the previous one."""
        self.forget(self._into_silence)
        self._into_silence = self.ask(None, now)

    def came_back(
        self, stream_id: int | None, number: int, now: float, wakes: list[Parker]
    ) -> list[Ping]:
        """Record an answer; return the pings that it answers, in order."""
        answered = super().came_back(stream_id, number, now, wakes)
        if stream_id is None and answered:
            self._transport.keep_alive.rtt = answered[-1].rtt
        return answered


# The fraction of Config.max_pings in use; the rest is for keepalive and measurements.
SHARE = 0.75


class PingRateLimiter:
    """Limit the rate of pings on one connection to what the peer presumably allows."""

    def __init__(self, transport: MessageTransport) -> None:
        size = max(1.0, SHARE * transport.config.max_pings)
        self._transport = transport
        self._pause = FLOOD_PERIOD / size
        self._budget = TokenBucket(size, size / FLOOD_PERIOD)

    def wait(self, deadline: Deadline) -> None:
        """Wait until another ping is within the limit, or the connection has ended.

        Raises:
            TimeoutError: neither happened in time.
        """
        transport = self._transport
        while True:
            with transport.mutex:
                earned = transport.queue.bytes_sent // BYTES_PER_PING
                if self._budget.charge(clock.monotonic(), earned):
                    return
            if deadline.expired():
                raise TimeoutError(f"timed out: too many pings are waiting on {transport.name}")
            left = deadline.remaining()
            if transport.wait_finished(self._pause if left is None else min(left, self._pause)):
                return
