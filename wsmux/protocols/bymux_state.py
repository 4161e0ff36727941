"""Hold what both ends of a Bymux connection know of each direction, and agree on at the start.

A stream has two directions, and so has the right to open streams. Each direction is the same
thing: credit that its writer spends, the writer's Close and the reader's StopRead. The two may
pass in either order, and the direction is over when both have::

               Close                            StopRead
           ┌──────────► closed ─────────────────────┐
    running                                         ▼
           └──────────► stopped ─────────────────► over
             StopRead                 Close

A packet that its sender may not send again, or any more, is for the caller to find: it knows whom
to blame.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..exceptions import FlowControlError, FrameError, StreamIdError
from .base import InitialStream
from .bymux_packets import MAX_NUMBER, NAMES

__all__ = ["INFINITE", "BymuxState", "HalfState", "ReceiveHalf", "Scope", "SendHalf", "StreamState"]

# The credit of a stream that needs none any more. Global credit has no such value.
INFINITE = MAX_NUMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfState:
    """Say how one direction stands.

    Attributes:
        credit: what its writer may still spend; 2^64-1 is infinite on a stream, and a finite
            number for the opening of streams.
        closed: the writer's Close has passed.
        stopped: the reader's StopRead has passed.
    """

    credit: int = 0
    closed: bool = False
    stopped: bool = False

    def __post_init__(self) -> None:
        _check("credit", self.credit)

    @property
    def over(self) -> bool:
        """Return whether both packets have passed."""
        return self.closed and self.stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """Say how a stream stands that is there from the start."""

    stream_id: int
    outgoing: HalfState = field(default_factory=HalfState)
    incoming: HalfState = field(default_factory=HalfState)

    def __post_init__(self) -> None:
        _check("stream_id", self.stream_id)
        if self.outgoing.over and self.incoming.over:
            raise ValueError(f"stream {self.stream_id} has ended before the start")

    def seen(self, parity: int) -> InitialStream:
        """Return what the owner of this side, whose ids have ``parity``, is to know of it."""
        return InitialStream(
            stream_id=self.stream_id,
            peer_opened=self.stream_id % 2 != parity,
            write_closed=self.outgoing.closed,
            write_stopped=self.outgoing.stopped,
            read_closed=self.incoming.stopped,
            read_ended=self.incoming.closed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BymuxState:
    """Say what both ends agreed on before the first byte, seen from one of them.

    The default is vanilla Bymux: no streams, no credit, nothing closed. The other end starts with
    ``mirrored()``.

    Attributes:
        streams: those that live from the start.
        opening: this side's right to open streams: its global credit, its global Close, the
            peer's global StopRead.
        accepting: the same of the peer.
        starting_credit: what this side may write on each stream it opens, without waiting.
        peer_starting_credit: the same of the peer.
    """

    streams: tuple[StreamState, ...] = ()
    opening: HalfState = field(default_factory=HalfState)
    accepting: HalfState = field(default_factory=HalfState)
    starting_credit: int = 0
    peer_starting_credit: int = 0

    def __post_init__(self) -> None:
        _check("starting_credit", self.starting_credit)
        _check("peer_starting_credit", self.peer_starting_credit)
        ids = [stream.stream_id for stream in self.streams]
        if len(set(ids)) < len(ids):
            raise ValueError("two streams of the initial state have the same id")

    def mirrored(self) -> BymuxState:
        """Return the same state as the other end sees it."""
        return BymuxState(
            streams=tuple(
                StreamState(stream_id=s.stream_id, outgoing=s.incoming, incoming=s.outgoing)
                for s in self.streams
            ),
            opening=self.accepting,
            accepting=self.opening,
            starting_credit=self.peer_starting_credit,
            peer_starting_credit=self.starting_credit,
        )


def _check(name: str, value: int) -> None:
    if not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{name} must be from 0 to 2^64-1, not {value!r}")


class _Half:
    __slots__ = ("_infinite", "closed", "credit", "stopped")

    def __init__(self, state: HalfState, of_stream: bool) -> None:
        self.credit = state.credit
        self.closed = state.closed
        self.stopped = state.stopped
        self._infinite = INFINITE if of_stream else None

    @property
    def infinite(self) -> bool:
        """Return whether credit is no limit any more."""
        return self.credit == self._infinite

    @property
    def over(self) -> bool:
        """Return whether both packets have passed."""
        return self.closed and self.stopped


class SendHalf(_Half):
    """The direction that this side writes."""

    __slots__ = ()

    def grant(self, count: int, target: Scope) -> None:
        """Add the credit that a packet brings; ``target`` is what it is for.

        Raises:
            FlowControlError: the sum exceeds 2^64-1, or there was no end to it already; nothing
                is added.
        """
        if self.credit == self._infinite:
            if count:
                raise FlowControlError(
                    f"Credit of {count} for {target.label}, whose credit is infinite"
                )
        elif not count and self._infinite is not None:
            self.credit = self._infinite
        elif self.credit + count > MAX_NUMBER:
            raise FlowControlError(f"Credit of {count} for {target.label} lifts it above 2^64-1")
        else:
            self.credit += count  # the sum 2^64-1 is infinite by itself

    def spend(self, count: int) -> None:
        """Use ``count``, never more than there is."""
        if not 0 <= count <= self.credit:
            raise ValueError(f"spending {count} of {self.credit} credit")
        if self.credit != self._infinite:
            self.credit -= count


class ReceiveHalf(_Half):
    """The direction that the peer writes.

    ``credit + in flight + unread + returned`` is all that is granted at a time.

    Attributes:
        unread: taken and not yet given back by the application: bytes, or living streams.
        returned: given back, and not yet granted again.
        size: all that is granted at a time.
        grown, updated: as those of a ``GrowingWindow``.
    """

    __slots__ = ("_regained", "grown", "returned", "size", "unread", "updated")

    def __init__(self, state: HalfState, of_stream: bool) -> None:
        super().__init__(state, of_stream)
        self.unread = 0
        self.returned = 0
        self.size = self.credit
        self._regained = 0  # granted again, since that was half of it all
        self.grown = 0
        self.updated: float | None = None

    def take(self, count: int) -> bool:
        """Note bytes that arrive and are to be read; tell whether they may come.

        If not, or where there is more to be looked at, nothing is noted.
        """
        credit = self.credit
        if not 0 < count <= credit or self.closed or self.stopped or credit == self._infinite:
            return False
        self.credit = credit - count
        self.unread += count
        return True

    def receive(self, count: int) -> None:
        """Note what arrives; the caller has compared it with the credit."""
        if not self.infinite:
            self.credit -= count
        self.unread += count

    def top_up(self, limit: int) -> int:
        """Raise all that is granted to ``limit``; return the credit to send, often 0."""
        count = limit - self.credit - self.unread - self.returned
        if self.stopped or self.infinite or count <= 0:
            return 0
        self.widen(count)
        return count

    def widen(self, count: int) -> None:
        """Grant ``count`` more at a time, which the caller announces."""
        self.credit += count
        self.size += count

    def consume(self, count: int) -> int:
        """Note what the application gave back; return the credit to send now, mostly 0.

        Bymux, Appendix B: as soon as it is at least what the peer still has, and at least one.
        None at all once nothing further is read.
        """
        if self.stopped:
            return 0
        if count > self.unread:
            raise ValueError("more consumed than received")
        self.unread -= count
        if self.credit == self._infinite:
            return 0
        self.returned += count
        if self.returned < max(self.credit, 1):
            return 0
        count, self.returned = self.returned, 0
        self.credit += count
        self._regained += count
        return count

    def halved(self) -> bool:
        """Return whether half of it all was granted again since that was last so.

        What is granted at a time may be little: the less the peer has, the less is enough.
        """
        if self._regained < self.size // 2:
            return False
        self._regained = 0
        return True


class Scope:
    """What packets apply to: a stream, or the whole connection, both of which have halves.

    Attributes:
        id: what the owner calls the stream; ``None`` is the connection.
        wire_id: what packets call it.
        outgoing, incoming: the halves; of the connection, the opening of streams by each side.
        ping: the value of the ping under way.
        next_ping: that of the ping to send when it is answered.
    """

    __slots__ = ("id", "incoming", "next_ping", "outgoing", "ping", "wire_id")

    def __init__(
        self, scope_id: int | None, wire_id: int | None, outgoing: HalfState, incoming: HalfState
    ) -> None:
        self.id = scope_id
        self.wire_id = wire_id
        self.outgoing = SendHalf(outgoing, of_stream=wire_id is not None)
        self.incoming = ReceiveHalf(incoming, of_stream=wire_id is not None)
        self.ping: int | None = None
        self.next_ping: int | None = None

    @property
    def label(self) -> str:
        """Name it in a sentence."""
        return "opening streams" if self.wire_id is None else f"stream {self.wire_id}"

    @property
    def ended(self) -> bool:
        """Return whether all four packets have passed."""
        return self.outgoing.over and self.incoming.over

    @property
    def peer_credit(self) -> int | None:
        """How many bytes the peer may still send; ``None`` where there is no limit."""
        return None if self.incoming.infinite else self.incoming.credit

    def forbid(self, broken: bool, kind: int, after: str) -> None:
        """Refuse a packet that its sender may not send any more, naming what forbids it."""
        if broken and self.id is None:
            raise FrameError(f"global {NAMES[kind]} after the same side's global {after}")
        if broken:
            raise StreamIdError(f"{NAMES[kind]} on {self.label} after the same side's {after}")

    @property
    def mute(self) -> bool:
        """Return whether this side has sent both packets that end, and may ping no more."""
        return self.outgoing.closed and self.incoming.stopped

    @property
    def peer_mute(self) -> bool:
        """Return the same of the peer."""
        return self.incoming.closed and self.outgoing.stopped
