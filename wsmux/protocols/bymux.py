"""Implement Bymux (AljoschaMeyer/bymux): streams over a byte channel, with credit for everything.

Packets are defined in ``bymux_packets.py``, the state of each direction in ``bymux_state.py``. The
initiator of the connection is proactive: the client, with even ids. The server is reactive, with
odd ids.

Decisions where the specification leaves points open:

- The "1st bit" is the most significant; "4th byte of zero" means the 4th bit. The width of the id
  of a global Write is in bits 7 and 8, as its own section says.
- The types 110 and 111 end the connection: the length of such a packet is unknown. Bits without a
  meaning are sent as 0 and ignored; integers are accepted in any width.
- Global credit has no infinite value: 0 adds nothing, 2^64-1 is a number. Neither is ever sent.
- Forbidden actions end the connection: opening a stream with the wrong parity or without credit. Id
  0 is an even id. Both sides start without credit (unless ``BymuxState`` sets it), grant global
  credit with their first bytes, and again as streams end.
- Infinite credit (0, or the sum 2^64-1) is accepted and never granted, since it has no
  back-pressure: no Credit packet of 0 is ever sent. If it was agreed on, only
  ``Config.max_message_size`` limits the body of a Write (1009).
- A Write of 0 bytes is accepted even without credit. It is charged to the ``abuse_limits``, like
  everything but data. There are no resets to charge, only refusals: credit limits streams that are
  opened only to end.
- A Close is answered with StopRead at once: no more credit is needed, and received data stays
  readable. A StopRead is answered with Close at once: remaining credit need not be used up first,
  and infinite credit never would be.
- Data that crosses this side's StopRead is legal while credit lasts, and dropped. So are Credit and
  Ping that cross a Close.
- Pongs have no id, so one ping is in flight at a time; of those requested meanwhile, the last is
  sent when that one is answered. Unsolicited pongs are ignored. A side that has sent Close and
  StopRead sends no Pong. A queued Pong answers further pings, too.
- Streams that the peer opens, with credit, after this side's global StopRead are ended at once.
- A stream ends once all four packets have passed. The peer may then reuse the id; for the owner
  such a stream is called id + n * 2^64, for a new n, so that no late call reaches it. This side
  uses no id twice: its opening might overtake the Close of the previous stream in the send queue.
- There is no reset and no error code. ``reset_write`` is Close and ``reset_read`` is StopRead: to
  the peer, an abort looks like a clean end. To "terminate", the WebSocket is closed with 1002.
- A Write's size is compared with the credit before its body is read, so no more than that is
  buffered.
- "Small enough" packets are 16 KiB; those of one quantum share a message.
- Appendix B says when credit is granted again. Its amount is free: it grows if the reader keeps up,
  as ``flow_control`` describes.

``go_away`` sends both global packets: open streams finish, and neither side opens new ones.

A quantum of a stream is several packets. Sent as one message and reported as one piece of data, it
costs little more than a single packet: consecutive Writes on one stream are joined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import ClassVar

from ..config import KIB, Config
from ..exceptions import (
    CLEAN_CODES,
    CloseCode,
    FlowControlError,
    FrameError,
    LocalProtocolError,
    StreamIdError,
    StreamsExhausted,
)
from . import events as ev
from .base import MAX_ID, Buffer, Message, MuxProtocol, Role
from .bymux_packets import (
    CLOSE,
    CREDIT,
    MAX_NUMBER,
    NAMES,
    PING,
    PONG,
    STOP_READ,
    WRITE,
    WRITE_LAYOUTS,
    Packet,
    PacketReader,
    encode_head,
)
from .bymux_state import BymuxState, HalfState, Scope
from .events import DataReceived, Event, StreamFinished, StreamOpened
from .flow_control import WindowAutotuner

__all__ = ["MAX_BODY", "BymuxProtocol", "PausedEvents", "take_writes", "writes"]

# Largest body of a packet: 13 ms at 10 Mbit/s, so other streams need not wait long.
MAX_BODY = 16 * KIB

# Most bytes reported as one piece; a read usually asks for no more, and would split it again.
MAX_PIECE = 64 * KIB


def writes(wire_id: int | None, data: Buffer) -> Message:
    """Return ``data`` as Writes, as many as necessary."""
    size = len(data)
    if size <= MAX_BODY:
        return encode_head(WRITE, wire_id, size), data
    parts: list[Buffer] = []
    rest = size % MAX_BODY
    whole = size - rest
    head = encode_head(WRITE, wire_id, MAX_BODY)
    for start in range(0, whole, MAX_BODY):
        parts += (head, data[start : start + MAX_BODY])
    if rest:
        parts += (encode_head(WRITE, wire_id, rest), data[whole:])
    return b"", b"".join(parts)


def take_writes(
    active: dict[int, Scope], data: memoryview, position: int
) -> tuple[Scope | None, bytes, int]:
    """Take complete consecutive Writes on one stream that is read and has credit for them.

    Returns:
        The stream, the bytes and their end. No stream if the next packet is another one, or a Write
        that needs further checks; then nothing was taken.
    """
    header, size = data[position], len(data)
    layout = WRITE_LAYOUTS.get(header)
    if layout is None or position + layout.size > size:
        return None, b"", position
    read, head = layout.unpack_from, layout.size
    _, wire_id, number = read(data, position)
    stream = active.get(wire_id)
    start = position + head
    end = start + number
    if stream is None or end > size or not stream.incoming.take(number):
        return None, b"", position
    if end == size:
        return stream, bytes(data[start:end]), end
    bodies, joined = [data[start:end]], 0
    room = min(stream.incoming.credit, MAX_PIECE - number)
    while end + head <= size:
        kind, following, number = read(data, end)
        start = end + head
        if kind != header or following != wire_id or not 0 < number <= room - joined:
            break
        if start + number > size:
            break
        end = start + number
        joined += number
        bodies.append(data[start:end])
    stream.incoming.take(joined)
    return stream, b"".join(bodies), end


# Events reported even for a refused stream.
_KEPT = (StreamOpened, StreamFinished)


class PausedEvents:
    """Hold back events until the owner may receive them.

    One message contains many packets, and each event costs the same however many are held back:
    otherwise short messages from a peer could take minutes.

    Attributes:
        needed: ``take`` may return something other than its argument.
    """

    def __init__(self) -> None:
        self.needed = False
        self._waiting: deque[Event] = deque()
        self._refused: set[int] = set()  # streams whose events still held back are void

    def refuse(self, stream_id: int) -> None:
        """Drop the held-back events of a stream; only its start and its end are reported."""
        self._refused.add(stream_id)
        self.needed = True

    def take(self, new: list[Event]) -> list[Event]:
        """Return the held-back events and then ``new``, up to a ``StreamOpened``."""
        self._waiting += new
        events = []
        while self._waiting:
            event = self._waiting.popleft()
            if isinstance(event, _KEPT) or getattr(event, "stream_id", None) not in self._refused:
                events.append(event)
            if type(event) is StreamOpened:
                return events
        self._refused.clear()
        self.needed = False
        return events


_new = tuple.__new__  # for events that come with every packet: at half the cost


class BymuxProtocol(MuxProtocol):
    """One end of a Bymux connection. See ``MuxProtocol`` for the methods.

    Args:
        role: the client is proactive, with even ids; the server reactive, with odd ones.
        config: the limits.
        state: what both ends agreed on beforehand; the owner knows its streams, without events.
    """

    name = subprotocol = "bymux"
    first_application_code = refused_code = 0  # the wire has no codes
    keeps_boundaries = False
    pings = grows = True

    def __init__(self, role: Role, config: Config, state: BymuxState | None = None) -> None:
        super().__init__(role, config)
        state = BymuxState() if state is None else state
        self._starting = HalfState(credit=state.starting_credit)
        self._peer_starting = HalfState(credit=state.peer_starting_credit)
        self._parity = 0 if role is Role.CLIENT else 1
        self._next = self._parity
        self._given = {stream.stream_id for stream in state.streams}  # never opened here
        self.initial = [stream.seen(self._parity) for stream in state.streams]
        self._peer_highest = -1
        self._reused = 0
        self._all = Scope(None, None, state.opening, state.accepting)
        self._streams: dict[int, Scope] = {}  # by the owner's ids
        self._active: dict[int, Scope] = {}  # by their ids on the wire
        self._over = 0  # ended streams of the peer whose credit has not been granted again
        self._pongs: set[int | None] = set()  # with a queued Pong
        self._paused = PausedEvents()
        self._max_quantum = config.max_frame_size
        self._growth = WindowAutotuner(config.max_connection_buffer // 2)
        self._returned: Scope | None = None  # its credit may grow
        self._reader = PacketReader()
        self._start(state)

    def _start(self, state: BymuxState) -> None:
        """Add the streams of the initial state, send packets that are due, and grant credit."""
        for stream in state.streams:
            self._add(stream.stream_id, stream.stream_id, stream.outgoing, stream.incoming)
            if stream.stream_id % 2 != self._parity:
                self._peer_highest = max(self._peer_highest, stream.stream_id)
                self._all.incoming.unread += 1
        if self._all.outgoing.stopped:
            self._events.append(ev.GoAwayReceived(self._next, 0))
        for scope in [self._all, *self._streams.values()]:
            if scope.incoming.closed:
                self._stop_reading(scope)
            if scope.outgoing.stopped:
                self._stop_writing(scope)
            limit = self.config.max_streams if scope is self._all else self.config.receive_window
            self._grant(scope, scope.incoming.top_up(limit))
            self._forget_if_done(scope)

    def _add(self, stream_id: int, wire_id: int, outgoing: HalfState, incoming: HalfState) -> None:
        stream = Scope(stream_id, wire_id, outgoing, incoming)
        self._streams[stream_id] = self._active[wire_id] = stream

    def events(self) -> list[Event]:
        """Return what happened, up to a ``StreamOpened``, which may be refused: call again."""
        events = MuxProtocol.events(self)  # super() costs too much for each message
        return self._paused.take(events) if self._paused.needed else events

    def has_output(self) -> bool:
        return bool(self._data or self._control or self._over)

    def control_to_send(self) -> list[Message]:
        # Not earlier: the peer cannot know of this credit while its message is still being read.
        if self._over:
            self._grant(self._all, self._all.incoming.consume(self._over))
            self._over = 0
        self._pongs.clear()
        return super().control_to_send()

    # Packets in

    def receive_data(self, data: Buffer) -> None:
        view = memoryview(data)
        position, size = 0, len(view)
        if not size:
            self._note_empty()
        while position < size:
            if self._reader.between_packets():
                stream, body, position = take_writes(self._active, view, position)
                if stream is not None:
                    self._events.append(_new(DataReceived, (stream.id, body)))
                    continue
            packet, position = self._reader.packet(view, position)
            if packet is not None:
                self._receive(packet)

    def _receive(self, packet: Packet) -> None:
        kind, wire_id, number, body = packet
        scope = self._all if wire_id is None else self._active.get(wire_id)
        if scope is None:
            raise StreamIdError(f"{NAMES[kind]} on stream {wire_id}, which is not active")
        if kind != WRITE:
            self._HANDLERS[kind](self, scope, number)
        elif wire_id is None:
            self._receive_opening(number)
        else:
            self._receive_write(scope, number, body)

    def _receive_write(self, stream: Scope, size: int, data: Buffer | None) -> None:
        half = stream.incoming
        stream.forbid(half.closed, WRITE, "Close")
        if size > half.credit:
            raise FlowControlError(
                f"Write of {size} bytes on stream {stream.wire_id} with {half.credit} of credit"
            )
        if half.infinite and size > self.config.max_message_size:
            raise FrameError(
                f"Write of {size} bytes on stream {stream.wire_id}", CloseCode.MESSAGE_TOO_BIG
            )
        if not size:
            self._note_empty()
        if data is None or not size:
            return  # until its data arrives, if there is any
        half.receive(size)
        if not half.stopped and stream.id is not None:
            self._events.append(DataReceived(stream.id, bytes(data)))

    def _receive_opening(self, wire_id: int) -> None:
        half = self._all.incoming
        self._all.forbid(half.closed, WRITE, "Close")
        if wire_id % 2 == self._parity:
            raise StreamIdError(f"the peer opened stream {wire_id}, an id of this side")
        if wire_id in self._active:
            raise StreamIdError(f"the peer opened stream {wire_id}, which is active")
        if not half.credit:
            raise FlowControlError(f"the peer opened stream {wire_id} without credit for it")
        self.floods.opened()
        half.receive(1)
        stream_id = wire_id
        if wire_id > self._peer_highest:
            self._peer_highest = wire_id
        else:
            self._reused += 1
            stream_id += self._reused << 64
        self._add(stream_id, wire_id, HalfState(), self._peer_starting)
        if half.stopped:
            self.refuse(stream_id, self.refused_code)
        else:
            self._paused.needed = True
            self._events.append(ev.StreamOpened(stream_id))

    def _receive_credit(self, scope: Scope, count: int) -> None:
        half = scope.outgoing
        scope.forbid(half.stopped, CREDIT, "StopRead")
        self._note_update(useful=count > 0 or scope.id is not None)
        usable = half.credit > 0 or half.closed
        half.grant(count, scope)
        if not usable and half.credit:
            self._events.append(
                ev.OpenPermitted() if scope.id is None else ev.CreditGranted(scope.id)
            )

    def _receive_ping(self, scope: Scope, _: int) -> None:
        scope.forbid(scope.peer_mute, PING, "Close and StopRead")
        self.floods.ping(self.now, self.received)
        if not scope.mute and scope.id not in self._pongs:
            self._pongs.add(scope.id)
            self._send(PONG, scope)

    def _receive_pong(self, scope: Scope, _: int) -> None:
        scope.forbid(scope.peer_mute, PONG, "Close and StopRead")
        if scope.ping is None:
            self._note_empty()
            return
        self._events.append(ev.PongReceived(scope.id, scope.ping))
        scope.ping, value, scope.next_ping = None, scope.next_ping, None
        if value is not None and not scope.mute:
            self._send_ping(scope, value)
        elif value is not None:
            self._events.append(ev.PongsEnded(scope.id))

    def _receive_close(self, scope: Scope, _: int) -> None:
        scope.forbid(scope.incoming.closed, CLOSE, "Close")
        scope.incoming.closed = True
        if self._stop_reading(scope) and scope.id is not None:
            self._events.append(ev.StreamEnded(scope.id))
        self._forget_if_done(scope)

    def _receive_stop_read(self, scope: Scope, _: int) -> None:
        scope.forbid(scope.outgoing.stopped, STOP_READ, "StopRead")
        scope.outgoing.stopped = True
        unasked = self._stop_writing(scope)
        if unasked and scope.id is None:
            self._events.append(ev.GoAwayReceived(self._next, 0))  # all opened are processed
        elif unasked and scope.id is not None:
            self._events.append(ev.WriteStopped(scope.id, None))
        self._forget_if_done(scope)

    # Functions, since bound methods here would make each machine refer to itself.
    _HANDLERS: ClassVar[dict[int, Callable[[BymuxProtocol, Scope, int], None]]] = {
        CREDIT: _receive_credit,
        PING: _receive_ping,
        PONG: _receive_pong,
        CLOSE: _receive_close,
        STOP_READ: _receive_stop_read,
    }

    # Packets out

    def _send(self, kind: int, scope: Scope, number: int | None = None) -> None:
        self._control.append((encode_head(kind, scope.wire_id, number), b""))

    def _grant(self, scope: Scope, count: int) -> int:
        """Send credit, unless it is 0, which would be infinite; return its amount."""
        if count:
            self._send(CREDIT, scope, count)
        return count

    def _send_ping(self, scope: Scope, value: int) -> None:
        if scope.ping is not None:
            scope.next_ping = value
            return
        scope.ping = value
        self._send(PING, scope)

    def _stop_reading(self, scope: Scope) -> bool:
        """Send StopRead; return whether it was not sent before."""
        if scope.incoming.stopped:
            return False
        scope.incoming.stopped = True
        self._send(STOP_READ, scope)
        return True

    def _stop_writing(self, scope: Scope) -> bool:
        """Send Close after all that it ends; return whether it was not sent before."""
        if scope.outgoing.closed:
            return False
        scope.outgoing.closed = True
        outbox = self._control if scope is self._all else self._data  # openings are control
        outbox.append((encode_head(CLOSE, scope.wire_id), b""))
        return True

    def _forget_if_done(self, scope: Scope) -> None:
        if scope is self._all and scope.peer_mute and scope.ping is not None:
            self._events.append(ev.PongsEnded(None))
        if scope.id is None or scope.wire_id is None or not scope.ended:
            return
        del self._streams[scope.id], self._active[scope.wire_id]
        self._growth.ended(scope.incoming)
        self._events.append(ev.StreamFinished(scope.id))
        if scope.wire_id % 2 != self._parity:
            self._over += 1

    # Calls

    def may_open(self) -> bool:
        """Return whether ``open_stream`` can decide now: a stream, or why there will be none."""
        return self._all.outgoing.credit > 0 or self._all.outgoing.closed

    def open_stream(self, window: int | None = None) -> int:
        if self._all.outgoing.closed:
            raise LocalProtocolError("no further streams can be opened: one side is going away")
        if not self._all.outgoing.credit:
            raise LocalProtocolError("the peer has given no credit for a further stream")
        while self._next in self._given:
            self._next += 2
        stream_id = self._next
        if stream_id > MAX_NUMBER:
            raise StreamsExhausted(63)
        self._next += 2
        self._all.outgoing.spend(1)
        self.floods.streams += 1
        self._add(stream_id, stream_id, self._starting, HalfState())
        self._send(WRITE, self._all, stream_id)
        self.accept(stream_id, self.config.receive_window if window is None else window)
        return stream_id

    def accept(self, stream_id: int, window: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:  # otherwise it was ended by the bytes that opened it
            self._grant(stream, stream.incoming.top_up(window))

    def refuse(self, stream_id: int, code: int) -> None:
        """End both halves, and report only that it has finished."""
        self._paused.refuse(stream_id)
        self.floods.solicited(self.now)
        self.reset_write(stream_id, code)
        self.reset_read(stream_id, code)

    def credit(self, stream_id: int) -> int:
        """Return how many bytes the stream may send in its next quantum."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.outgoing.closed:
            return 0
        return min(stream.outgoing.credit, self._max_quantum)

    def send_data(self, stream_id: int, data: Buffer) -> int:
        stream = self._streams.get(stream_id)
        if stream is None or stream.outgoing.closed:
            raise LocalProtocolError(f"the writing half of stream {stream_id} has ended")
        half, size = stream.outgoing, len(data)
        if size > half.credit or size > self._max_quantum:
            size = min(half.credit, self._max_quantum)
        if size:
            half.spend(size)
            body = data if size == len(data) else data[:size]
            self._data.append(writes(stream.wire_id, body))
            self.data_frames += 1
        return size

    def consumed(self, stream_id: int, count: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and self._grant(stream, stream.incoming.consume(count)):
            self._returned = stream

    def grow(self, now: float, rtt: float | None) -> int:
        stream, self._returned = self._returned, None
        if stream is None or not stream.incoming.halved():
            return 0
        grown = self._grant(stream, self._growth.grow(stream.incoming, now, rtt))
        return stream.incoming.size if grown else 0

    def close_write(self, stream_id: int, now: float) -> None:
        self.reset_write(stream_id, 0)

    def close_read(self, stream_id: int) -> None:
        self.reset_read(stream_id, 0)

    def reset_write(self, stream_id: int, code: int) -> None:
        """End the writing half; the wire has only one kind of end, so written bytes stay valid."""
        stream = self._streams.get(stream_id)
        if stream is not None and self._stop_writing(stream):
            self._forget_if_done(stream)

    def reset_read(self, stream_id: int, code: int) -> None:
        """Notify the peer that nothing more is read; the wire cannot say why."""
        stream = self._streams.get(stream_id)
        if stream is not None and self._stop_reading(stream):
            self._forget_if_done(stream)

    def go_away(self, code: int) -> None:
        """Open and accept no more streams; open ones continue. The wire carries no code."""
        usable = self.may_open()
        self._stop_writing(self._all)
        self._stop_reading(self._all)
        if not usable:
            # Waiting threads must learn that no stream will be opened.
            self._events.append(ev.OpenPermitted())

    def close_notice(self, code: int) -> None:
        """Go away at a clean end; other ends have no packet, and must not look clean."""
        if code in CLEAN_CODES:
            self.go_away(code)

    def close_notice_came(self) -> bool:
        return self._all.peer_mute and self._reader.between_packets()

    def incomplete(self) -> int | None:
        return self._reader.incomplete()

    def held(self) -> int:
        return self._reader.held()

    def may_ping(self) -> bool:
        return not self._all.mute

    def ping(self, value: int) -> None:
        if self._all.mute:
            raise LocalProtocolError("no ping may follow the global Close and StopRead")
        self._send_ping(self._all, value)

    def ping_stream(self, stream_id: int, value: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.mute:
            number = stream_id & MAX_ID
            raise LocalProtocolError(f"no ping may follow the end of stream {number}")
        self._send_ping(stream, value)

    def open_streams(self) -> int:
        return len(self._streams)
