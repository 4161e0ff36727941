"""Join pure machines in memory by a faulty network, with a clock that only the test advances.

There are no threads, sockets or system clocks: the same seed and script always give the same bytes
at the same times, and an hour of delays takes no time.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable

from .faultynet import FaultyNet
from .link import Faults, How, Link, Way

__all__ = ["End", "Network"]

# Maximum output taken from an end at once; the rest waits in the end, as it would before a socket.
CHUNK = 64 * 1024

# Rounds without the time advancing, after which two ends are assumed to answer each other forever.
MAX_ROUNDS = 1_000_000


class End(ABC):
    """One end of a connection in memory; ``MuxEnd`` is an end with streams.

    Any object that takes and returns bytes can be an end. ``now`` is the network's time in seconds.
    """

    @abstractmethod
    def receive(self, data: bytes, now: float) -> None:
        """Process the next bytes of the peer."""

    @abstractmethod
    def end_of_file(self, now: float) -> None:
        """Handle the end of the peer's bytes; called once."""

    @abstractmethod
    def lost(self, error: OSError, now: float) -> None:
        """Handle the loss of the connection in both directions."""

    @abstractmethod
    def output(self, now: float) -> bytes:
        """Return the bytes to send now; each only once."""

    @abstractmethod
    def output_ended(self) -> bool:
        """Return whether no more bytes follow, so that the peer gets the end of file."""

    def next_timer(self) -> float | None:
        """Return when to call ``handle_timer``, if at all."""
        return None

    def handle_timer(self, now: float) -> None:  # noqa: B027  (not every end has timers)
        """Do everything due by ``now``."""


class Network(FaultyNet):
    """Carry bytes between ends in memory, with the same faults as ``FaultProxy``.

    Bytes move, and time passes, only in ``run`` and ``sleep``. For one thread.

    Args:
        seed: the seed of jitter and ``chance``.
        up, down: the faults of each direction; see ``set``.

    Attributes:
        now: the time in seconds, which begins at 0.

    >>> from wsmux.testing import Faults, MuxEnd, Network
    >>> network = Network(up=Faults(latency=0.5, slice=1))
    >>> client, server = MuxEnd("client"), MuxEnd("server")
    >>> network.join(client, server)
    >>> stream = client.open_stream()
    >>> client.write(stream, b"hello")
    >>> network.run()
    >>> bytes(server.received[stream]), network.now
    (b'hello', 1.0)
    """

    def __init__(
        self, *, seed: int = 0, up: Faults | None = None, down: Faults | None = None
    ) -> None:
        super().__init__(up, down, seed)
        self.now: float = 0.0
        self._joined: list[_Joined] = []
        self._made = 0

    def join(self, client: End, server: End) -> None:
        """Connect two ends; they are separated when the connection ends."""
        seed = f"{self.seed} {self._made}"
        self._made += 1
        self._joined.append(_Joined(client, server, self._ways, seed))

    @property
    def connections(self) -> int:
        """The number of connections that have not ended."""
        return len(self._joined)

    def run(self, seconds: float = 3600.0) -> None:
        """Move bytes until none are in transit, or so many seconds have passed.

        Timers of the ends run only while bytes are in transit; see ``sleep``.

        Raises:
            RuntimeError: the ends answer each other forever, while no time passes.
        """
        self._run(self.now + seconds, timers=False)

    def sleep(self, seconds: float) -> None:
        """Let exactly so many seconds pass; move the bytes due in them, and run all timers."""
        until = self.now + seconds
        self._run(until, timers=True)
        self.now = until

    def _run(self, limit: float, timers: bool) -> None:
        for _ in range(MAX_ROUNDS):
            if self._move():
                continue
            moves = [at for joined in self._joined if (at := joined.next_move()) is not None]
            due = [at for joined in self._joined if (at := joined.next_timer()) is not None]
            times = moves + due if moves or timers else []
            if not times:
                return
            if min(times) > limit:
                self.now = limit
                return
            self.now = max(self.now, min(times))
        raise RuntimeError(f"the ends do not come to rest at {self.now} s")

    def _move(self) -> bool:
        """Give every connection one turn; return whether anything was done."""
        moved = False
        for joined in list(self._joined):
            done, how = joined.step(self.now)
            moved |= done
            if how is not None:
                self._end_all(how)
                return True
            if joined.over:
                self._joined.remove(joined)
        return moved

    # Hooks of ``FaultyNet``

    def _do(self, action: Callable[[], object]) -> None:
        action()

    def _end_all(self, how: How) -> None:
        for joined in self._joined:
            joined.cut(how, self.now)
        self._joined.clear()

    def _half_close_all(self, way: str) -> None:
        for joined in self._joined:
            joined.flows[way].half_close(self.now)


class _Flow:
    """One direction of a connection in memory."""

    def __init__(self, source: End, sink: End, way: Way, seed: str) -> None:
        self.source = source
        self.sink = sink
        self.way = way
        self.link = Link(way, seed)
        self.deaf = False  # ended before its bytes had ended; the rest is dropped
        self.finished = False
        self._waiting = b""

    def step(self, now: float) -> tuple[bool, How | None]:
        """Read from the source and forward what is due; return whether either happened."""
        if self.way.frozen:
            return False, None
        moved = self._take(now)
        while (piece := self.link.piece(now)) is not None:
            moved = True
            passing = bytes(self.way.passing(piece))
            self.link.taken(len(passing), now)
            self.sink.receive(passing, now)
            how = self.way.passed(len(passing))
            if how is not None:
                return True, how
        if self.link.over() and not self.finished:
            self._finish(now)
            moved = True
        return moved, None

    def _take(self, now: float) -> bool:
        moved = False
        while self.link.room() or (self.deaf and not self.link.ended):
            if not self._waiting:
                self._waiting = self.source.output(now)
            if not self._waiting:
                if self.source.output_ended() and not self.link.ended:
                    self.link.ended = moved = True
                break
            moved = True
            size = len(self._waiting) if self.deaf else min(CHUNK, self.link.room())
            taken, self._waiting = self._waiting[:size], self._waiting[size:]
            if self.way.received(len(taken)):
                if self.deaf:
                    self.way.dropped(len(taken))
                else:
                    self.link.put(taken, now)
        return moved

    def _finish(self, now: float) -> None:
        self.finished = True
        self.sink.end_of_file(now)

    def half_close(self, now: float) -> None:
        if not self.finished:
            self.link.drop()
            self.deaf = True
            self._finish(now)


class _Joined:
    """One connection in memory."""

    def __init__(self, client: End, server: End, ways: dict[str, Way], seed: str) -> None:
        self.flows = {
            "up": _Flow(client, server, ways["up"], f"{seed} up"),
            "down": _Flow(server, client, ways["down"], f"{seed} down"),
        }

    @property
    def over(self) -> bool:
        return all(flow.finished and flow.link.ended for flow in self.flows.values())

    def step(self, now: float) -> tuple[bool, How | None]:
        moved = False
        for flow in self.flows.values():
            timer = flow.source.next_timer()
            if timer is not None and timer <= now:
                flow.source.handle_timer(now)
            done, how = flow.step(now)
            moved |= done
            if how is not None:
                return True, how
        return moved, None

    def next_move(self) -> float | None:
        flows = [flow for flow in self.flows.values() if not flow.way.frozen]
        return min((at for f in flows if (at := f.link.next_time()) is not None), default=None)

    def next_timer(self) -> float | None:
        ends = [flow.source for flow in self.flows.values()]
        return min((at for end in ends if (at := end.next_timer()) is not None), default=None)

    def cut(self, how: How, now: float) -> None:
        for flow in self.flows.values():
            flow.link.drop()
            if how == "rst":
                flow.sink.lost(ConnectionResetError(errno.ECONNRESET, "reset by the test"), now)
            elif not flow.finished:
                flow.sink.end_of_file(now)
