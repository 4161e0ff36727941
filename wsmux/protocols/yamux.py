"""Implement Yamux as specified by hashicorp, and as its implementations behave.

Decisions where the specification is silent, or where this machine is stricter or more lenient than
others:

- Client streams are 1, 3, 5..., server streams 2, 4, 6...; our ids only increase. The peer may
  reuse an id once its stream has ended, but not before; for the owner such a stream is called
  id + n * 2^64, for a new n, so that no late call reaches it.
- Both sides begin with 256 KiB of credit and can only add to it: a smaller ``receive_window``
  cannot be announced, and counts as 256 KiB; one above 16 MiB counts as 16 MiB. Windows grow.
- ``open_stream`` and ``accept`` send an empty window update with SYN or ACK, and no call waits for
  the answer. Any frame of the peer except RST acknowledges the stream.
- Events of a stream that the owner has neither accepted nor refused are held back until it has.
- Only a whole stream can be reset. ``reset_write``, ``reset_read`` and ``refuse`` send RST with the
  code in the length field of a window update, if the half in question is still open. RST overtakes
  data, which it makes void; after our FIN it does not, since data ended by FIN is complete.
- There is no frame for "no longer reading". After ``close_read`` nothing is sent; incoming data is
  counted, dropped, and its credit returned. Once writing has ended too, the peer has
  ``close_timeout`` to end its half; then RST frees the stream.
- GO_AWAY 0 asks for no new streams; open ones continue. It cannot carry another code. Any other
  code ends the connection, as in all implementations: ``RemoteProtocolError`` is raised with 1002
  for its code 1 and 1011 for the rest, and nothing is answered.
- A broken rule queues GO_AWAY 1 and raises. Unknown flags, repeated ACK and FIN, pings without
  flags and unsolicited pongs have no effect. Nor have frames of streams that have ended, or never
  existed, but their bytes are limited to what an honest peer can have in flight.
- Each frame without data is charged to one of the ``abuse_limits``.
- By its size alone, only data beyond 16 MiB in one frame is refused; otherwise the credit is the
  limit.

There is no clock here: the owner passes the time.

Every stream of Yamux begins with 256 KiB of credit, which neither side can reduce. On a long path
that is too little: a window is doubled if half of it was read in less than four round trips. A
larger half takes longer to arrive, so the four round trips grow in proportion to the window;
without that, growth would stop near 512 KiB on a path of 50 ms.
"""

from __future__ import annotations

from collections import deque

from ..config import KIB, MAX_WINDOW, Config
from ..exceptions import (
    CLEAN_CODES,
    FlowControlError,
    FrameError,
    LocalProtocolError,
    RemoteProtocolError,
    StreamIdError,
    StreamsExhausted,
)
from .base import AckBacklogProtocol, Buffer, Message, Role
from .events import (
    CreditGranted,
    DataReceived,
    Event,
    GoAwayReceived,
    PongReceived,
    StreamAborted,
    StreamEnded,
    StreamFinished,
    StreamOpened,
    StreamRejected,
    WriteStopped,
)
from .flow_control import MAX_STREAM_WINDOW, GrowingWindow, SendCredit, WindowAutotuner
from .stream_states import ReadInput, ReadState, WriteInput, WriteState, advance_read, advance_write
from .yamux_frames import (
    NORMAL,
    PROTOCOL_ERROR,
    Flag,
    FrameReader,
    Head,
    Type,
    encode_head,
    ended_by_peer,
    go_away_code,
)

__all__ = [
    "INITIAL_WINDOW",
    "MEASURING",
    "PEER_DONE",
    "READING",
    "WRITING",
    "Pings",
    "YamuxProtocol",
    "YamuxStream",
    "YamuxWindow",
    "check",
    "reset_events",
]

# Queued answers; a peer that pings faster than they can be sent loses the oldest. As in go-yamux.
MAX_ANSWERS = 32

# Pings awaiting an answer; the oldest are given up, so that a silent peer costs no memory.
MAX_PINGS = 32

# The value of pings that measure the round trip; the owner's are smaller.
MEASURING = 2**32 - 1

# Seconds between two measurements of the round-trip time. As in go-yamux.
MEASURE_INTERVAL = 30.0

_SYN, _ACK, _PING = int(Flag.SYN), int(Flag.ACK), int(Type.PING)


class Pings:
    """Track the pings in flight in both directions.

    Attributes:
        answers: values of the peer's pings, to be returned.
        rtt: the round-trip time in seconds, half of it the last measurement; ``None`` before the
            first.
    """

    def __init__(self) -> None:
        self.answers: deque[int] = deque(maxlen=MAX_ANSWERS)
        self.rtt: float | None = None
        self._measured: float | None = None  # when the last measurement began
        self._sent: dict[int, float] = {}

    def take_answers(self) -> list[Message]:
        """Return the answers to the peer's pings, as frames."""
        answers: list[Message] = [(encode_head(_PING, _ACK, 0, v), b"") for v in self.answers]
        self.answers.clear()
        return answers

    def ask(self, value: int, now: float) -> Message:
        """Start timing a ping of the owner, and return its frame."""
        if not 0 <= value < MEASURING:
            raise LocalProtocolError(f"a ping carries a number from 0 to 2^32-2, not {value}")
        return self._ask(value, now)

    def measure(self, now: float) -> Message:
        """Return a frame that measures the round trip."""
        self._measured = now
        return self._ask(MEASURING, now)

    def next_measurement(self, now: float) -> float:
        """Return when to measure; at once for the first time."""
        return now if self._measured is None else self._measured + MEASURE_INTERVAL

    def _ask(self, value: int, now: float) -> Message:
        self._sent.pop(value, None)
        self._sent[value] = now
        if len(self._sent) > MAX_PINGS:
            del self._sent[next(iter(self._sent))]
        return encode_head(_PING, _SYN, 0, value), b""

    def received(self, flags: int, value: int, now: float) -> bool:
        """Process a ping or pong; return whether it was a ping to answer or a solicited pong."""
        if flags & _SYN:
            self.answers.append(value)
            return True
        sent = self._sent.pop(value, None) if flags & _ACK else None
        if sent is None:
            return False
        sample = now - sent
        self.rtt = sample if self.rtt is None else (self.rtt + sample) / 2
        return True


# Bytes that each side may send on a new stream before it has received anything ("Flow Control").
INITIAL_WINDOW = 256 * KIB

# The first doubling requires half a window to be read in less than this many round trips. As in
# go-yamux.
GROWTH_ROUND_TRIPS = 4


class YamuxWindow(GrowingWindow):
    """Track the peer's credit, which begins with 256 KiB."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(INITIAL_WINDOW)

    def short_time(self, rtt: float | None) -> float | None:
        """Return the seconds within which half of the window must be read for it to grow."""
        return None if rtt is None else GROWTH_ROUND_TRIPS * rtt * self.size / INITIAL_WINDOW


# Looking these up in the class for each frame costs too much.
READING, WRITING = ReadState.OPEN, WriteState.OPEN
PEER_DONE = frozenset({ReadState.ENDED, ReadState.FORGOTTEN})
_SYN, _RST = int(Flag.SYN), int(Flag.RST)
_DATA, _PING, _GO_AWAY = int(Type.DATA), int(Type.PING), int(Type.GO_AWAY)


class YamuxStream:
    """Hold one stream; both sides begin with 256 KiB of credit.

    Attributes:
        id: the owner's id of the stream.
        wire_id: the id in frames.
    """

    __slots__ = ("answered", "credit", "early", "id", "local", "read", "window", "wire_id", "write")

    def __init__(self, stream_id: int, wire_id: int, local: bool) -> None:
        self.id = stream_id
        self.wire_id = wire_id
        self.local = local
        self.answered = not local  # the peer has sent something on it
        self.early: list[Event] | None = None if local else []  # until the owner has decided
        self.write = WRITING
        self.read = READING
        self.credit = SendCredit()
        self.credit.grant(INITIAL_WINDOW)
        self.window = YamuxWindow()

    @property
    def peer_credit(self) -> int:
        """The bytes that the peer may still send."""
        return self.window.available

    def receive(self, size: int) -> bool:
        """Account for the bytes of a frame that has no other effect; return whether it has none.

        If it has, or if the bytes exceed the credit, nothing changes.
        """
        plain = self.read is READING and self.answered and self.early is None
        return plain and self.window.receive(size)


def check(
    head: Head, stream: YamuxStream | None, may_open: bool | None, late_allowance: int
) -> None:
    """Refuse a frame that breaks a rule, before anything is stored for it.

    Args:
        head: its header, unchecked.
        stream: the stream that it names, if it exists.
        may_open: whether the peer may open the id; ``None`` if the id is of this side's parity.
        late_allowance: bytes still accepted on streams that do not exist.

    Raises:
        RemoteProtocolError: a subclass, which names the rule.
    """
    version, kind, flags, stream_id, length = head
    if version:
        raise FrameError(f"frame of version {version}, not 0")
    if kind > _GO_AWAY:
        raise FrameError(f"frame of the unknown type {kind}")
    if (kind >= _PING) is not (stream_id == 0):
        raise StreamIdError(f"{Type(kind).name} frame on stream {stream_id}")
    if kind >= _PING:
        return
    if flags & _SYN and not may_open:
        what = "of the parity of this side" if may_open is None else "which is open"
        raise StreamIdError(f"the peer opened stream {stream_id}, {what}")
    if kind == _DATA:
        _check_data(head, stream, late_allowance)
    elif not flags & _RST:
        credit = INITIAL_WINDOW if flags & _SYN else stream.credit.available if stream else 0
        if credit + length > MAX_WINDOW:
            raise FlowControlError(
                f"window update of {length} bytes lifts the credit of {credit} above 2^32-1"
            )


def _check_data(head: Head, stream: YamuxStream | None, late_allowance: int) -> None:
    stream_id, length = head.stream_id, head.length
    if length > MAX_STREAM_WINDOW:
        raise FrameError(f"data frame of {length} bytes, above {MAX_STREAM_WINDOW}")
    where = ""
    if stream is not None:
        if length and stream.read in PEER_DONE:
            raise StreamIdError(f"data on stream {stream_id} after its FIN")
        credit = stream.window.available
    elif head.flags & _SYN:
        credit = INITIAL_WINDOW
    else:
        credit, where = late_allowance, ", which is not open"
    if length > credit:
        raise FlowControlError(
            f"{length} bytes with {credit} bytes of credit on stream {stream_id}{where}"
        )


def reset_events(stream: YamuxStream, code: int) -> list[Event]:
    """Return the events for a stream reset by the peer."""
    reading, writing = stream.read is READING, stream.write is WRITING
    if not stream.answered:
        rejected = StreamRejected(stream.id, code, "the peer refused it")
        return [rejected] if reading or writing else []
    events: list[Event] = []
    if reading:
        events.append(StreamAborted(stream.id, code, False, ""))
    if writing:
        events.append(WriteStopped(stream.id, code))
    return events


_new = tuple.__new__  # for events that come with every frame: at half the cost
MAX_UINT32 = 2**32 - 1
# Largest data frame sent, whatever is configured: rust-yamux accepts at most 1 MiB.
MAX_DATA = 64 * 1024

# Plain numbers: looking these up in the class for each frame costs too much.
SYN, ACK, FIN, RST = (int(flag) for flag in (Flag.SYN, Flag.ACK, Flag.FIN, Flag.RST))
DATA, WINDOW, PING, GO_AWAY = (int(kind) for kind in Type)


class YamuxProtocol(AckBacklogProtocol):
    """One end of a Yamux connection. See ``MuxProtocol`` for the methods.

    While there are streams it measures the round-trip time, by which windows grow; for that the
    owner sets ``now``.
    """

    name = subprotocol = "yamux"
    first_application_code = 1  # the wire reserves none; 0 means a reset without a code
    last_code = MAX_UINT32
    refused_code = 0
    keeps_boundaries = False
    min_window = INITIAL_WINDOW
    pings = True

    def __init__(self, role: Role, config: Config) -> None:
        super().__init__(role, config)
        self._next_id = 1 if role is Role.CLIENT else 2
        self._peer_highest = 0
        self._reused = 0
        self._streams: dict[int, YamuxStream] = {}  # by the owner's ids
        self._active: dict[int, YamuxStream] = {}  # by their ids on the wire
        # By their ids on the wire: neither accepted nor refused; may have ended.
        self._offered: dict[int, YamuxStream] = {}
        self._lingering: dict[int, float] = {}  # closed here: when they are reset
        self._peer_streams = 0
        self._refusing = False
        self._late_allowance = INITIAL_WINDOW  # bytes still accepted on streams that do not exist
        self._pings = Pings()
        self._growth = WindowAutotuner(config.max_connection_buffer // 2)
        self._max_data = min(config.max_frame_size, MAX_DATA)
        self._reader = FrameReader()
        self._head: Head | None = None  # of the frame whose body is arriving
        self._keep = False

    # Frames in

    def receive_data(self, data: Buffer) -> None:
        try:
            if not data:
                self._note_empty()
            with memoryview(data) as view:
                position, size = 0, len(view)
                while position < size:
                    position = self._plain(view, position) or self._frame(view, position)
        except RemoteProtocolError as error:
            if error.ended_by == "local":
                self._control_frame(GO_AWAY, 0, 0, PROTOCOL_ERROR)
            raise

    def _plain(self, view: memoryview, position: int) -> int:
        """Process a frame that only carries data; return its end, or 0 for any other frame."""
        wire_id, start, end = self._reader.plain(view, position)
        stream = self._active.get(wire_id)
        if stream is None or not stream.receive(end - start):
            return 0
        self._events.append(_new(DataReceived, (stream.id, bytes(view[start:end]))))
        return end

    def _frame(self, view: memoryview, position: int) -> int:
        """Process the available part of a frame; return its end."""
        head = self._head
        if head is None:
            head, position = self._reader.head(view, position)
            if head is None:
                return position
            self._announced(head)
        size = head.length if head.type == DATA else 0
        body, position = self._reader.body(view, position, size, self._keep)
        if body is not None:
            self._head = None
            self._apply(head, body)
        return position

    def _announced(self, head: Head) -> None:
        """Refuse a frame that breaks a rule; decide whether the body of any other is kept."""
        wire_id = head.stream_id
        stream = self._active.get(wire_id)
        foreign = (wire_id - self._next_id) % 2
        may_open = (stream is None and wire_id not in self._offered) if foreign else None
        check(head, stream, may_open, self._late_allowance)
        self._head = head
        self._keep = bool(head.flags & SYN) or (stream is not None and stream.read is READING)

    def _apply(self, head: Head, body: bytes) -> None:
        _, kind, flags, wire_id, length = head
        if kind == PING:
            if not self._pings.received(flags, length, self.now):
                self._note_empty()
            elif flags & SYN:
                self.floods.ping(self.now, self.received)
            elif length != MEASURING:
                self._events.append(PongReceived(None, length))
        elif kind == GO_AWAY:
            self._receive_go_away(length)
        else:
            if flags & SYN and not self._opened_by_peer(kind, flags, wire_id, length):
                return
            stream = self._active.get(wire_id)
            if stream is not None:
                self._receive(stream, kind, flags, length, body)
            else:
                self._receive_late(kind, flags, length)

    def _receive_late(self, kind: int, flags: int, length: int) -> None:
        """Drop a frame of a stream that has ended, or never existed."""
        self._late_allowance -= length if kind == DATA else 0
        if flags:
            self._note_late()
        elif kind == WINDOW or not length:
            self._note_update(useful=length > 0)

    def _receive(
        self, stream: YamuxStream, kind: int, flags: int, length: int, body: bytes
    ) -> None:
        if kind == DATA:
            stream.window.receive(length)
        if flags & RST:
            if not stream.local:
                self.floods.reset(self.now)
            self._peer_reset(stream, length if kind == WINDOW else 0)
            return
        moved = self._answered(stream) or bool(length or flags & SYN)
        if length and kind == WINDOW:
            self._note_update(useful=True)
            self._grant(stream, length)
        elif length and stream.read is READING:
            self._emit(stream, DataReceived(stream.id, body))
        elif length:
            self._return_credit(stream, stream.window.consume(length))
        if flags & FIN and stream.read not in PEER_DONE:
            moved = True
            if stream.read is READING:
                self._emit(stream, StreamEnded(stream.id))
            stream.read = advance_read(stream.read, ReadInput.PEER_CLOSE)
            self._forget_if_done(stream)
        if not moved:
            self._note_empty()

    def _grant(self, stream: YamuxStream, count: int) -> None:
        usable = stream.credit.available
        stream.credit.grant(count)
        if not usable and stream.write is WRITING:
            self._emit(stream, CreditGranted(stream.id))

    def _opened_by_peer(self, kind: int, flags: int, wire_id: int, length: int) -> bool:
        """Register a stream; return whether it was accepted."""
        if flags & RST:
            self._note_empty()
            return False
        self.floods.opened()
        if self._refusing or max(self._peer_streams, len(self._offered)) >= self.config.max_streams:
            self.floods.solicited(self.now)
            self._control_frame(WINDOW, RST, wire_id, self.refused_code)
            self._late_allowance += INITIAL_WINDOW - (length if kind == DATA else 0)
            return False
        stream_id = wire_id
        if wire_id > self._peer_highest:
            self._peer_highest = wire_id
        else:
            self._reused += 1
            stream_id += self._reused << 64
        self._offered[wire_id] = self._add(stream_id, wire_id, local=False)
        self._peer_streams += 1
        self._events.append(StreamOpened(stream_id))
        return True

    def _add(self, stream_id: int, wire_id: int, local: bool) -> YamuxStream:
        stream = YamuxStream(stream_id, wire_id, local)
        self._streams[stream_id] = self._active[wire_id] = stream
        return stream

    def _peer_reset(self, stream: YamuxStream, code: int) -> None:
        for event in reset_events(stream, code):
            self._emit(stream, event)
        self._void(stream, WriteInput.PEER_STOP, ReadInput.PEER_RESET)

    def _receive_go_away(self, code: int) -> None:
        if code != NORMAL:
            raise ended_by_peer(code)
        if self._peer_refuses:
            self._note_empty()
            return
        self._peer_refuses = True
        unanswered = (s.id for s in self._streams.values() if not s.answered)
        self._events.append(GoAwayReceived(next(unanswered, self._next_id), code))

    # Transitions of a stream

    def _emit(self, stream: YamuxStream, event: Event) -> None:
        (self._events if stream.early is None else stream.early).append(event)

    def _forget_if_done(self, stream: YamuxStream) -> None:
        if stream.write is not WRITING and stream.read in PEER_DONE:
            self._forget(stream)

    def _void(self, stream: YamuxStream, write: WriteInput, read: ReadInput) -> None:
        """End both halves at once."""
        if stream.read not in PEER_DONE:
            self._late_allowance += stream.window.available  # may be in flight
        stream.write = advance_write(stream.write, write)
        stream.read = advance_read(stream.read, read)
        self._forget(stream)

    def _forget(self, stream: YamuxStream) -> None:
        del self._streams[stream.id], self._active[stream.wire_id]
        self._lingering.pop(stream.id, None)
        self._peer_streams -= not stream.local
        self._growth.ended(stream.window)
        self._answered(stream)
        self._emit(stream, StreamFinished(stream.id))

    def _linger_if_closed(self, stream: YamuxStream) -> None:
        if stream.write is WriteState.CLOSED and stream.read is ReadState.STOPPED:
            self._lingering[stream.id] = self.now + self.config.close_timeout

    # Frames out

    def has_output(self) -> bool:
        return bool(self._pings.answers) or super().has_output()

    def control_to_send(self) -> list[Message]:
        answers = self._pings.take_answers() if self._pings.answers else []
        return answers + super().control_to_send()

    def _control_frame(self, kind: int, flags: int, wire_id: int, length: int) -> None:
        self._control.append((encode_head(kind, flags, wire_id, length), b""))

    def _return_credit(self, stream: YamuxStream, count: int) -> None:
        if count:
            self._control_frame(WINDOW, 0, stream.wire_id, count)

    def _reset(self, stream: YamuxStream, code: int) -> None:
        if not 0 <= code <= MAX_UINT32:
            raise LocalProtocolError(f"a reset of yamux carries 32 bits, not the code {code}")
        lane = self._control if stream.write is WRITING else self._data
        lane.append((encode_head(WINDOW, RST, stream.wire_id, code), b""))
        self._void(stream, WriteInput.RESET, ReadInput.STOP)

    # Calls

    @property
    def rtt(self) -> float | None:
        """The smoothed round-trip time in seconds, ``None`` before a ping was answered."""
        return self._pings.rtt

    def ping(self, value: int) -> None:
        """Send a ping with ``value``, which ``PongReceived`` reports.

        At most 32 are awaited; the answer to an older one is charged as an empty frame.
        """
        self._control.append(self._pings.ask(value, self.now))

    def open_stream(self, window: int | None = None) -> int:
        """Open a stream with a window of at least 256 KiB; as much may be sent at once."""
        if self._peer_refuses:
            raise LocalProtocolError("the peer takes no further streams: it is going away")
        if self._head is not None and self._head.stream_id == self._next_id:
            self._next_id += 2  # a body arriving for no stream must not become that of this one
        stream_id = self._next_id
        if stream_id > MAX_UINT32:
            raise StreamsExhausted(31)
        self._next_id += 2
        stream = self._add(stream_id, stream_id, local=True)
        self._opening()
        self._announce(stream, SYN, self.config.receive_window if window is None else window)
        return stream_id

    def announced_window(self, size: int) -> int:
        # A peer may fill the window with one frame, so it must not exceed the size limit of a
        # frame.
        return min(max(size, INITIAL_WINDOW), MAX_STREAM_WINDOW)

    def _announce(self, stream: YamuxStream, flag: int, size: int) -> None:
        extra = self.announced_window(size) - INITIAL_WINDOW
        stream.window.widen(extra)
        self._control_frame(WINDOW, flag, stream.wire_id, extra)

    def accept(self, stream_id: int, window: int) -> None:
        """Accept a stream and announce at least 256 KiB; its held-back events are reported."""
        stream = self._offered.pop(stream_id & MAX_UINT32)
        if stream_id in self._streams:
            self._announce(stream, ACK, window)
            self._postpone((stream_id, stream.window.size, INITIAL_WINDOW))
        self._events += stream.early or ()
        stream.early = None

    def refuse(self, stream_id: int, code: int) -> None:
        offered = self._offered.get(stream_id & MAX_UINT32)
        if offered is not None and offered.id == stream_id:
            del self._offered[offered.wire_id]
            offered.early = None
        else:
            offered = None
        stream = self._streams.get(stream_id)
        if stream is not None:
            self.floods.solicited(self.now)
            self._reset(stream, code)
        elif offered is not None:  # the peer had already reset it
            self._events.append(StreamFinished(stream_id))

    def credit(self, stream_id: int) -> int:
        stream = self._streams.get(stream_id)
        return stream.credit.available if stream and stream.write is WRITING else 0

    def send_data(self, stream_id: int, data: Buffer) -> int:
        stream = self._streams.get(stream_id)
        if stream is None or stream.write is not WRITING:
            raise LocalProtocolError(f"the writing half of stream {stream_id} has ended")
        credit, size = stream.credit, len(data)
        if size > credit.available or size > self._max_data:
            size = min(credit.available, self._max_data)
        if size:
            credit.spend(size)
            body = data if size == len(data) else data[:size]
            self._data.append((encode_head(DATA, 0, stream.wire_id, size), body))
            self.data_frames += 1
        return size

    def consumed(self, stream_id: int, count: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.read is not READING:
            return  # the peer sends no more, or its credit has been returned
        if returned := stream.window.consume(count):
            grown = self._growth.grow(stream.window, self.now, stream.window.short_time(self.rtt))
            self._return_credit(stream, returned + grown)

    def close_write(self, stream_id: int, now: float) -> None:
        self.now = now
        stream = self._streams.get(stream_id)
        if stream is None or stream.write is not WRITING:
            return
        stream.write = advance_write(stream.write, WriteInput.CLOSE)
        self._data.append((encode_head(WINDOW, FIN, stream.wire_id, 0), b""))
        self._linger_if_closed(stream)
        self._forget_if_done(stream)

    def close_read(self, stream_id: int) -> None:
        """Stop reading, without notifying the peer; its data is treated as the module describes."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.read is not READING:
            return
        stream.read = advance_read(stream.read, ReadInput.STOP)
        self._return_credit(stream, stream.window.consume(stream.window.unread()))
        self._linger_if_closed(stream)

    def reset_write(self, stream_id: int, code: int) -> None:
        """Reset the whole stream, unless the writing half has ended."""
        stream = self._streams.get(stream_id)
        if stream is not None and stream.write is WRITING:
            self._reset(stream, code)

    def reset_read(self, stream_id: int, code: int) -> None:
        """Reset the whole stream, unless the peer has ended its half."""
        stream = self._streams.get(stream_id)
        if stream is not None and stream.read not in PEER_DONE:
            self._reset(stream, code)

    def go_away(self, code: int) -> None:
        """Accept no more streams; the wire has only code 0 for that, whatever ``code`` is.

        It is sent after all data, since many peers end the connection in response.
        """
        if not self._refusing:
            self._refusing = True
            self._data.append((encode_head(GO_AWAY, 0, 0, NORMAL), b""))

    def close_notice(self, code: int) -> None:
        if code in CLEAN_CODES:
            self.go_away(NORMAL)
        else:
            self._data.append((encode_head(GO_AWAY, 0, 0, go_away_code(code)), b""))

    def incomplete(self) -> int | None:
        return self._reader.incomplete()

    def held(self) -> int:
        return self._reader.held()

    def close_notice_came(self) -> bool:
        return self._peer_refuses and self._head is None and self._reader.between_frames()

    # Time

    def next_timer(self) -> float | None:
        if not self._streams:
            return None
        return min([self._pings.next_measurement(self.now), *self._lingering.values()])

    def handle_timer(self, now: float) -> None:
        self.now = now
        if self._streams and self._pings.next_measurement(now) <= now:
            self._control.append(self._pings.measure(now))
        for stream_id, due in list(self._lingering.items()):
            if due <= now:
                self._reset(self._streams[stream_id], self.refused_code)

    def open_streams(self) -> int:
        return len(self._streams)
