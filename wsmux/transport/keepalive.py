"""Send pings, match pongs, and notice a silent peer. Guarded by the transport's mutex."""

from __future__ import annotations

from ..protocols.base import Message
from ..runtime.parking import Parker, WaitQueue

__all__ = ["KeepAlive", "Ping", "Pings"]


# Seconds between two measurements of the round-trip time.
MEASURE_INTERVAL = 1.0


class Ping:
    """One ping under way: it comes back, or it is known that it never will.

    Attributes:
        number: which of the pings it is. sent: when it was asked for.
        stream_id: what is asked; ``None`` stands for the connection.
        rtt: seconds, once it is answered.
        over: it is never answered.
    """

    __slots__ = ("number", "over", "rtt", "sent", "stream_id")

    def __init__(self, number: int, sent: float, stream_id: int | None) -> None:
        self.number = number
        self.sent = sent
        self.stream_id = stream_id
        self.rtt: float | None = None
        self.over = False


class Pings:
    """Know the pings under way, those of a carrier or those of a wire.

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

    def new(self, now: float, stream_id: int | None = None) -> Ping:
        """Return a ping that is now under way."""
        self._last += 1
        ping = self._under_way[self._last] = Ping(self._last, now, stream_id)
        return ping

    def forget(self, ping: Ping | None) -> None:
        """Wait no longer for a ping."""
        if ping is not None:
            self._under_way.pop(ping.number, None)

    def came_back(
        self, stream_id: int | None, number: int, now: float, wakes: list[Parker]
    ) -> list[Ping]:
        """Note an answer; return the pings that it counts for, in order."""
        answered = self._take(stream_id, number)
        for ping in answered:
            ping.rtt = now - ping.sent
        self.askers.notify(wakes)
        return answered

    def ended(self, stream_id: int | None, wakes: list[Parker]) -> None:
        """Note that no ping of a stream, or of the connection, is answered any more."""
        for ping in self._take(stream_id, self._last):
            ping.over = True
        self.askers.notify(wakes)

    def _take(self, stream_id: int | None, last: int) -> list[Ping]:
        """Return the pings of a stream up to a number, in order; they are not under way now."""
        pings = self._under_way.values()
        taken = [ping for ping in pings if ping.stream_id == stream_id and ping.number <= last]
        for ping in taken:
            del self._under_way[ping.number]
        return taken


class KeepAlive:
    """Decide when to ping and when the peer counts as lost; every received byte counts."""

    def __init__(self, interval: float | None, timeout: float | None, now: float) -> None:
        self.rtt: float | None = None
        self.least: float | None = None  # of all round-trip times
        self._measured: float | None = None  # when one was asked for,
        self._measuring: Ping | None = None  # by this
        self._interval = interval
        self._timeout = timeout
        self._heard = now
        self._asked: float | None = None  # when a ping was sent into the silence
        self.pings = Pings()

    def heard(self, now: float) -> bool:
        """Note received bytes; tell whether that brings the next timer nearer."""
        self._heard = now
        answered = self._asked is not None
        self._asked = None
        return answered

    def next_timer(self) -> float | None:
        """Return when to look again."""
        if self._interval is None:
            return None
        if self._asked is None:
            return self._heard + self._interval
        return None if self._timeout is None else self._asked + self._timeout

    def due(self, now: float) -> bool:
        """Return whether it is time to ping, or to give up."""
        timer = self.next_timer()
        return timer is not None and now >= timer

    def lost(self, now: float) -> float | None:
        """Return the seconds of silence when a ping sent into it was not answered in time."""
        return now - self._heard if self._asked is not None and self.due(now) else None

    def silence(self, now: float) -> float:
        """Return for how many seconds nothing has come from the peer."""
        return max(0.0, now - self._heard)

    def unanswered(self, now: float) -> float | None:
        """Return for how many seconds a ping sent into the silence has had no answer."""
        return None if self._asked is None else max(0.0, now - self._asked)

    def asked(self, now: float) -> None:
        """Note that a ping was sent into the silence."""
        self._asked = now

    def ask(self, now: float) -> Message:
        """Return the ping to send into the silence."""
        self._asked = now
        return self.new_ping(now)[1]

    def new_ping(self, now: float) -> tuple[Ping, Message]:
        """Return a ping to wait for and the control frame to send for it."""
        ping = self.pings.new(now)
        return ping, (ping.number.to_bytes(8, "big"), b"")

    def measure(self, now: float) -> Message | None:
        """Return a ping that nobody waits for, unless there was one not long ago."""
        if self._measured is not None and now - self._measured < MEASURE_INTERVAL:
            return None
        self.pings.forget(self._measuring)  # a mute peer costs no memory
        self._measured = now
        self._measuring, message = self.new_ping(now)
        return message

    def pong(self, payload: bytes, now: float, wakes: list[Parker]) -> bool:
        """Match a pong; tell whether it was asked for.

        RFC 6455 section 5.5.3 allows unasked ones, as a heartbeat in one direction.
        """
        number = int.from_bytes(payload, "big")
        if number not in self.pings:
            return False
        for ping in self.pings.came_back(None, number, now, wakes):
            self.rtt = now - ping.sent
            self.least = self.rtt if self.least is None else min(self.least, self.rtt)
        return True
