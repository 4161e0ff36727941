"""Hold the state of each direction of a Bymux connection, and the initial state of both ends.

A stream has two directions, and so does the right to open streams. Each direction is the same:
credit that its writer spends, the writer's Close and the reader's StopRead. The two may be sent in
either order, and the direction is over after both::

               Close                            StopRead
           ┌──────────► closed ─────────────────────┐
    running                                         ▼
           └──────────► stopped ─────────────────► over
             StopRead                 Close

The caller detects packets that their sender may not send twice, or any more, since it knows which
side to blame.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..exceptions import FlowControlError, FrameError, StreamIdError
from .base import InitialStream
from .bymux_packets import MAX_NUMBER, NAMES

__all__ = ["INFINITE", "BymuxState", "HalfState", "ReceiveHalf", "Scope", "SendHalf", "StreamState"]

# The credit of a stream without a limit. Global credit has no such value.
INFINITE = MAX_NUMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfState:
    """Describe the state of one direction.

    Attributes:
        credit: what its writer may still spend; 2^64-1 is infinite on a stream, and a finite number
            for opening streams.
        closed: the writer has sent Close.
        stopped: the reader has sent StopRead.
    """

    credit: int = 0
    closed: bool = False
    stopped: bool = False

    def __post_init__(self) -> None:
        _check("credit", self.credit)

    @property
    def over(self) -> bool:
        """Return whether both packets have been sent."""
        return self.closed and self.stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """Describe a stream that exists from the start."""

    stream_id: int
    outgoing: HalfState = field(default_factory=HalfState)
    incoming: HalfState = field(default_factory=HalfState)

    def __post_init__(self) -> None:
        _check("stream_id", self.stream_id)
        if self.outgoing.over and self.incoming.over:
            raise ValueError(f"stream {self.stream_id} has ended before the start")

    def seen(self, parity: int) -> InitialStream:
        """Return this stream as seen by the side whose ids have ``parity``."""
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
    """Describe what both ends agreed on before the first byte, as seen from one of them.

    The default is plain Bymux: no streams, no credit, nothing closed. The other end starts with
    ``mirrored()``.

    Attributes:
        streams: the streams that exist from the start.
        opening: this side's right to open streams: its global credit, its global Close, the peer's
            global StopRead.
        accepting: the same for the peer.
        starting_credit: what this side may write on each stream it opens, without waiting.
        peer_starting_credit: the same for the peer.
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
        """Return the same state as seen from the other end."""
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
        """Return whether credit is unlimited."""
        return self.credit == self._infinite

    @property
    def over(self) -> bool:
        """Return whether both packets have been sent."""
        return self.closed and self.stopped


class SendHalf(_Half):
    """The direction that this side writes."""

    __slots__ = ()

    def grant(self, count: int, target: Scope) -> None:
        """Add the credit of a packet; ``target`` is what it applies to.

        Raises:
            FlowControlError: the sum exceeds 2^64-1, or credit was infinite already; nothing is
                added.
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
        """Spend ``count``, never more than is available."""
        if not 0 <= count <= self.credit:
            raise ValueError(f"spending {count} of {self.credit} credit")
        if self.credit != self._infinite:
            self.credit -= count


class ReceiveHalf(_Half):
    """The direction that the peer writes.

    ``credit + in flight + unread + returned`` is the total granted at a time.

    Attributes:
        unread: received, and not yet given back by the application: bytes, or open streams.
        returned: given back, and not yet granted again.
        size: the total granted at a time.
        grown, updated: as in ``GrowingWindow``.
    """

    __slots__ = ("_regained", "grown", "returned", "size", "unread", "updated")

    def __init__(self, state: HalfState, of_stream: bool) -> None:
        super().__init__(state, of_stream)
        self.unread = 0
        self.returned = 0
        self.size = self.credit
        self._regained = 0  # granted again, since that was last half of the total
        self.grown = 0
        self.updated: float | None = None

    def take(self, count: int) -> bool:
        """Account for received bytes that are to be read; return whether they are allowed.

        If not, or if further checks are needed, nothing changes.
        """
        credit = self.credit
        if not 0 < count <= credit or self.closed or self.stopped or credit == self._infinite:
            return False
        self.credit = credit - count
        self.unread += count
        return True

    def receive(self, count: int) -> None:
        """Account for received bytes; the caller has compared them with the credit."""
        if not self.infinite:
            self.credit -= count
        self.unread += count

    def top_up(self, limit: int) -> int:
        """Raise the total granted to ``limit``; return the credit to send, often 0."""
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
        """Account for what the application gave back; return the credit to send now, usually 0.

        Bymux, Appendix B: once it is at least the peer's remaining credit, and at least one. None
        is sent after reading has stopped.
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
        """Return whether half of the total was granted again since this was last true.

        A single grant may be small: the less credit the peer has left, the less is enough.
        """
        if self._regained < self.size // 2:
            return False
        self._regained = 0
        return True


class Scope:
    """The target of packets: a stream, or the whole connection; both have halves.

    Attributes:
        id: the owner's id of the stream; ``None`` for the connection.
        wire_id: the id in packets.
        outgoing, incoming: the halves; for the connection, the opening of streams by each side.
        ping: the value of the ping in flight.
        next_ping: the value of the ping to send once it is answered.
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
        """Its name in an error message."""
        return "opening streams" if self.wire_id is None else f"stream {self.wire_id}"

    @property
    def ended(self) -> bool:
        """Return whether all four packets have been sent."""
        return self.outgoing.over and self.incoming.over

    @property
    def peer_credit(self) -> int | None:
        """The bytes that the peer may still send; ``None`` for no limit."""
        return None if self.incoming.infinite else self.incoming.credit

    def forbid(self, broken: bool, kind: int, after: str) -> None:
        """Refuse a packet that its sender may not send any more, with the reason."""
        if broken and self.id is None:
            raise FrameError(f"global {NAMES[kind]} after the same side's global {after}")
        if broken:
            raise StreamIdError(f"{NAMES[kind]} on {self.label} after the same side's {after}")

    @property
    def mute(self) -> bool:
        """Return whether this side has sent both final packets, and may not ping any more."""
        return self.outgoing.closed and self.incoming.stopped

    @property
    def peer_mute(self) -> bool:
        """Return the same for the peer."""
        return self.incoming.closed and self.outgoing.stopped
