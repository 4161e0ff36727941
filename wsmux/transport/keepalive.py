"""Send pings, match pongs, and detect silent peers; guarded by the transport's mutex."""

from __future__ import annotations

from ..protocols.base import Message
from ..runtime.parking import Parker, WaitQueue

__all__ = ["KeepAlive", "Ping", "Pings"]


# Seconds between two measurements of the round-trip time.
MEASURE_INTERVAL = 1.0


class Ping:
    """A ping in flight: it is answered, or known never to be answered.

    Attributes:
        number: its number.
        sent: when it was requested.
        stream_id: the stream that is pinged; ``None`` for the connection.
        rtt: the round-trip time in seconds, once it is answered.
        over: it will never be answered.
    """

    __slots__ = ("number", "over", "rtt", "sent", "stream_id")

    def __init__(self, number: int, sent: float, stream_id: int | None) -> None:
        self.number = number
        self.sent = sent
        self.stream_id = stream_id
        self.rtt: float | None = None
        self.over = False


class Pings:
    """Track the pings in flight, of the framing or of the wire.

    An answer counts for every earlier ping of the same stream, since a peer may answer only the
    last of several (RFC 6455 section 5.5.3).

    Attributes:
        askers: threads waiting for an answer.
    """

    def __init__(self) -> None:
        self.askers = WaitQueue()
        self._last = 0
        self._under_way: dict[int, Ping] = {}  # by number, in order

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, number: int) -> bool:
        return number in self._under_way

    def numbers(self) -> list[int]:
        """Return the numbers of the pings in flight, in order."""
        return list(self._under_way)

    def new(self, now: float, stream_id: int | None = None) -> Ping:
        """Return a new ping, now in flight."""
        self._last += 1
        ping = self._under_way[self._last] = Ping(self._last, now, stream_id)
        return ping

    def forget(self, ping: Ping | None) -> None:
        """Stop waiting for a ping."""
        if ping is not None:
            self._under_way.pop(ping.number, None)

    def came_back(
        self, stream_id: int | None, number: int, now: float, wakes: list[Parker]
    ) -> list[Ping]:
        """Record an answer; return the pings that it answers, in order."""
        answered = self._take(stream_id, number)
        for ping in answered:
            ping.rtt = now - ping.sent
        self.askers.notify(wakes)
        return answered

    def ended(self, stream_id: int | None, wakes: list[Parker]) -> None:
        """Record that pings of a stream, or of the connection, will not be answered any more."""
        for ping in self._take(stream_id, self._last):
            ping.over = True
        self.askers.notify(wakes)

    def _take(self, stream_id: int | None, last: int) -> list[Ping]:
        """Remove and return the pings of a stream up to a number, in order."""
        pings = self._under_way.values()
        taken = [ping for ping in pings if ping.stream_id == stream_id and ping.number <= last]
        for ping in taken:
            del self._under_way[ping.number]
        return taken


class KeepAlive:
    """Decide when to ping and when the peer counts as lost; any received byte shows it is alive."""

    def __init__(self, interval: float | None, timeout: float | None, now: float) -> None:
        self.rtt: float | None = None
        self.least: float | None = None  # the minimum of all round-trip times
        self._measured: float | None = None  # when the last measurement was sent
        self._measuring: Ping | None = None  # its ping
        self._interval = interval
        self._timeout = timeout
        self._heard = now
        self._asked: float | None = None  # when a silent peer was pinged
        self.pings = Pings()

    def heard(self, now: float) -> bool:
        """Record received bytes; return whether the next timer is due earlier now."""
        self._heard = now
        answered = self._asked is not None
        self._asked = None
        return answered

    def next_timer(self) -> float | None:
        """Return when to check again."""
        if self._interval is None:
            return None
        if self._asked is None:
            return self._heard + self._interval
        return None if self._timeout is None else self._asked + self._timeout

    def due(self, now: float) -> bool:
        """Return whether it is time to ping, or to give up the connection."""
        timer = self.next_timer()
        return timer is not None and now >= timer

    def lost(self, now: float) -> float | None:
        """Return the seconds of silence if a ping was not answered in time, otherwise ``None``."""
        return now - self._heard if self._asked is not None and self.due(now) else None

    def silence(self, now: float) -> float:
        """Return for how many seconds nothing has been received from the peer."""
        return max(0.0, now - self._heard)

    def unanswered(self, now: float) -> float | None:
        """Return for how many seconds a ping to a silent peer has been unanswered."""
        return None if self._asked is None else max(0.0, now - self._asked)

    def asked(self, now: float) -> None:
        """Record that a silent peer was pinged."""
        self._asked = now

    def ask(self, now: float) -> Message:
        """Return the ping to send to a silent peer."""
        self._asked = now
        return self.new_ping(now)[1]

    def ask_again(self) -> list[Message]:
        """Return all pings in flight, which went with a lost carrier."""
        return [(number.to_bytes(8, "big"), b"") for number in self.pings.numbers()]

    def new_ping(self, now: float) -> tuple[Ping, Message]:
        """Return a ping to wait for and the control frame to send for it."""
        ping = self.pings.new(now)
        return ping, (ping.number.to_bytes(8, "big"), b"")

    def measure(self, now: float) -> Message | None:
        """Return a ping without a waiting thread, unless one was sent recently."""
        if self._measured is not None and now - self._measured < MEASURE_INTERVAL:
            return None
        self.pings.forget(self._measuring)  # a silent peer must not cost memory
        self._measured = now
        self._measuring, message = self.new_ping(now)
        return message

    def pong(self, payload: bytes, now: float, wakes: list[Parker]) -> bool:
        """Match a pong; return whether it was solicited.

        RFC 6455 section 5.5.3 allows unsolicited ones, as a unidirectional heartbeat.
        """
        number = int.from_bytes(payload, "big")
        if number not in self.pings:
            return False
        for ping in self.pings.came_back(None, number, now, wakes):
            self.rtt = now - ping.sent
            self.least = self.rtt if self.least is None else min(self.least, self.rtt)
        return True
