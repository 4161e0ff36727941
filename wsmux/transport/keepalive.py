"""Send pings, match pongs, and notice a silent peer. Guarded by the transport's mutex."""

from __future__ import annotations

from ..protocols.base import Message
from ..runtime.parking import Parker, Waiter

__all__ = ["KeepAlive", "Ping"]


# Seconds between two measurements of the round-trip time.
MEASURE_INTERVAL = 1.0


class Ping:
    """One ping under way; ``rtt`` is set, in seconds, when it is answered."""

    __slots__ = ("rtt", "sent", "waiter")

    def __init__(self, sent: float) -> None:
        self.sent = sent
        self.rtt: float | None = None
        self.waiter = Waiter()


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
        self._serial = 0
        self._pings: dict[int, Ping] = {}

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
        self._serial += 1
        ping = self._pings[self._serial] = Ping(now)
        return ping, (self._serial.to_bytes(8, "big"), b"")

    def measure(self, now: float) -> Message | None:
        """Return a ping that nobody waits for, unless there was one not long ago."""
        if self._measured is not None and now - self._measured < MEASURE_INTERVAL:
            return None
        if self._measuring is not None:
            self.forget(self._measuring)  # a mute peer costs no memory
        self._measured = now
        self._measuring, message = self.new_ping(now)
        return message

    def forget(self, ping: Ping) -> None:
        """Wait no longer for a ping."""
        for serial in [n for n, other in self._pings.items() if other is ping]:
            del self._pings[serial]

    def pong(self, payload: bytes, now: float, wakes: list[Parker]) -> bool:
        """Match a pong; tell whether it was asked for.

        RFC 6455 section 5.5.3 lets it answer only the latest of several pings, and allows unasked
        ones, as a heartbeat in one direction.
        """
        serial = int.from_bytes(payload, "big")
        if serial not in self._pings:
            return False
        for answered in [n for n in self._pings if n <= serial]:
            ping = self._pings.pop(answered)
            self.rtt = ping.rtt = now - ping.sent
            self.least = self.rtt if self.least is None else min(self.least, self.rtt)
            ping.waiter.notify(wakes)
        return True

    def notify_forced(self, wakes: list[Parker]) -> None:
        """Collect every thread that waits for a pong, even one that was collected before."""
        for ping in self._pings.values():
            ping.waiter.notify_forced(wakes)
