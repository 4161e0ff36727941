"""Implement the native wire, ``wsmux.v1``, and its dialect in npm's ``@matrixai/ws`` (js-ws).

One message is ``QUIC varint id | type | body``::

    0 DATA      bytes
    1 ACK       uint32, big-endian: bytes of credit
    2 ERROR     direction byte, varint code
    3 CLOSE     direction byte
    4 GO_AWAY   varint code; the id is the first one not processed        (wsmux.v1 only)

The direction is from the receiver's point of view: 0 Read ("your readable end"), 1 Write ("stop
writing").

Decisions where the js-ws specification ("Support stream multiplexing for websockets") is silent or
contradicts itself:

- Client streams are 0, 2, 4..., server streams 1, 3, 5..., all bidirectional. Ids only increase.
- The ACK that opens a stream, and the one that answers it, carry the receive window; every later
  one the bytes that the *application* has read, half a window at a time, or the growth of the
  window. The specification calls this the remaining space in one place and the bytes read in
  another.
- A stream need not wait for the ACK that answers it: see ``EarlyBytes``.  (wsmux.v1 only)
- That ACK, to a stream that came with early bytes, and the CLOSE that answers a CLOSE may wait for
  the next message, 20 ms at most: no stream depends on them.  (wsmux.v1 only)
- The receiver enforces the credit: DATA beyond it is answered with ERROR code 2 before anything is
  buffered; up to another window is dropped, and more ends the connection, as does DATA beyond the
  credit of a stream that is no longer read. So does an ACK that raises unspent credit above 2^32-1.
- Each frame other than data is charged to one of the ``abuse_limits``.
- A malformed message ends the connection with 1002 and a sentence; code 1 (parse) is understood
  when received, and never sent.
- CLOSE Write that is not an echo means "no longer reading" without an error.
- Code 3 (refused) ends a stream that nobody accepted; applications use codes from 64 up.
- GO_AWAY is an addition.

The js-ws dialect differs as the published package does: types of two bytes, no subprotocol, no
GO_AWAY, and all codes belong to the application. It works around defects of the package:

- CLOSE waits until every byte is acknowledged or five seconds have passed, since the package can
  lose data that arrives together with CLOSE. For a peer that waits in the same way, credit is
  returned as soon as all is read; but not after our own CLOSE on a stream that the peer opened,
  since there a late ACK opens a phantom stream.
- The announced window fits into one message, since the package sends all its credit in one.
- Reading stops with ERROR 0, since an unsolicited CLOSE Write is an error there; a received one is
  answered as the package answers it.
- Bytes after a complete body are ignored; an ACK on a lower id never seen counts as late.

``StreamIds`` tracks which ids have been opened by two numbers and the few skipped ranges.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ..config import MAX_HEAD, SMALLEST_WINDOW, Config
from ..exceptions import (
    FlowControlError,
    FrameError,
    LocalProtocolError,
    StreamIdError,
    StreamsExhausted,
)
from . import events as ev
from .base import CODE_UNKNOWN, AckBacklogProtocol, Buffer, Role
from .events import DataReceived
from .flow_control import GrowingWindow, SendCredit, WindowAutotuner
from .stream_states import ReadInput, ReadState, WriteInput, WriteState, advance_read, advance_write
from .varint import MAX_VARINT, decode_varint, encode_varint

__all__ = [
    "CODE_REFUSED",
    "JS_WS",
    "MAX_GAPS",
    "READ",
    "WRITE",
    "WRITE_DONE",
    "WSMUX_V1",
    "Dialect",
    "EarlyBytes",
    "NativeProtocol",
    "NativeStream",
    "StoppedStreams",
    "StreamIds",
    "check_body",
    "direction_of",
    "parse_head",
]

WRITE_DONE = frozenset({WriteState.CLOSED, WriteState.RESET, WriteState.STOPPED})

# Directions, from the receiver's point of view.
READ, WRITE = 0, 1


class NativeStream:
    """Hold one stream of the machine."""

    __slots__ = (
        "answered",
        "credit",
        "data_head",
        "early",
        "head",
        "id",
        "local",
        "read",
        "reset",
        "window",
        "write",
    )

    def __init__(self, stream_id: int, data: bytes, window: GrowingWindow, local: bool) -> None:
        self.id = stream_id
        self.head = encode_varint(stream_id)
        self.data_head = self.head + data  # the header with the type DATA
        self.write = WriteState.OPEN
        self.read = ReadState.OPEN
        self.credit = SendCredit()
        self.window = window
        self.local = local
        self.answered = not local  # the peer has sent something on it
        self.early: int | None = 0  # early credit, until its window is announced
        self.reset = False  # reset by the peer, and charged for it

    def ended(self, direction: int) -> bool:
        """Return whether the half that an end in ``direction`` refers to has already ended."""
        if direction == READ:
            return self.read is not ReadState.OPEN
        return self.write in WRITE_DONE

    @property
    def peer_credit(self) -> int:
        """The bytes that the peer may still send."""
        return self.window.available

    def receive_unread(self, size: int) -> None:
        """Account for bytes that nobody will read any more; they are limited all the same."""
        try:
            self.read = advance_read(self.read, ReadInput.DATA)
        except KeyError:
            raise StreamIdError(
                f"DATA on stream {self.id} after the peer ended its writing half"
            ) from None
        if not self.window.receive(size):
            raise overflow(self.id, size, self.window.available)


@dataclass(init=False)
class EarlyBytes:
    """Decide what may be sent on a stream before the ACK that answers it, to save a round trip.

    The rule, which ``wsmux.js`` implements too:

    - Each end makes one promise for the whole connection: on a stream that the peer opens, it takes
      its receive window, but at most 16 KiB, before it answers, however late that is. On a stream
      that it refuses, or ignores after its own GO_AWAY, it drops as much.
    - The first window that an end announces conveys the promise, which holds from then on: all its
      windows are at least 16 KiB, or all of one size.
    - So the opener of a stream may send as much as the smallest window announced to it so far, at
      most 16 KiB, before the answer. Until the first one, it waits.
    - These bytes are part of the window that the answer announces. It is never exceeded.

    In the js-ws specification and in js-ws, the sender waits.

    Attributes:
        given: the bytes that this side may send early.
        taken: the bytes that the peer may send early.

    Args:
        window: the window that this side is going to announce; 0 makes both sides wait.
    """

    given: int
    taken: int
    _most: int
    _smallest: int
    _promised: bool

    def __init__(self, window: int) -> None:
        self.given = 0
        self.taken = min(window, SMALLEST_WINDOW)
        self._most = self._smallest = SMALLEST_WINDOW if window else 0
        self._promised = False

    def announce(self, window: int) -> int:
        """Record a window that this side announces for a stream, and return it.

        Raises:
            LocalProtocolError: it breaks the promise made with the first one.
        """
        taken = min(window, self._most)
        if self._promised and taken != self.taken:
            more = " or more" if self.taken == self._most else ""
            raise LocalProtocolError(
                f"a window of {window} bytes breaks the promise that the first one was; "
                f"announce {self.taken}{more}"
            )
        self.taken, self._promised = taken, True
        return window

    def heard(self, stream: NativeStream, window: int) -> int:
        """Record a window that the peer announces; return the credit still to be granted for it.

        Raises:
            FlowControlError: it is smaller than the bytes allowed before it.
        """
        early = stream.early or 0
        if window < early:
            raise FlowControlError(
                f"ACK of {window} bytes answers stream {stream.id}, where {early} could be expected"
            )
        stream.early = None
        self.given = self._smallest = min(self._smallest, window)
        return window - early


class StoppedStreams(dict[int, int]):
    """Map the streams that have finished here to the bytes that the peer may still send on them.

    Args:
        limit: the maximum number of streams; beyond it the oldest are dropped.
        early: the bytes that the peer may send on a stream that this side never accepted.
    """

    def __init__(self, limit: int, early: EarlyBytes) -> None:
        super().__init__()
        self._limit = limit
        self._early = early

    def keep(self, stream: NativeStream) -> None:
        """Add a stream."""
        self._note(stream.id, stream.window.available)

    def receive(self, stream_id: int, size: int) -> None:
        """Account for bytes on one of them, or on a stream that was never accepted."""
        credit = self.get(stream_id, self._early.taken)
        if size > credit:
            raise overflow(stream_id, size, credit)
        if size:
            self._note(stream_id, credit - size)

    def _note(self, stream_id: int, credit: int) -> None:
        self[stream_id] = credit
        if len(self) > self._limit:
            del self[next(iter(self))]


def parse_head(data: Buffer, width: int) -> tuple[int, int, int]:
    """Return the id, the type, and the offset of the body of a message."""
    parsed = decode_varint(data)
    if parsed is None:
        raise FrameError("message without a whole stream id" if data else "empty message")
    stream_id, offset = parsed
    end = offset + width
    if end > len(data):
        raise FrameError(f"message for stream {stream_id} ends before its type")
    return stream_id, int.from_bytes(data[offset:end], "big"), end


def direction_of(kind: str, stream_id: int, data: Buffer, offset: int) -> int:
    """Return the direction at the start of a body."""
    if offset >= len(data):
        raise FrameError(f"{kind} on stream {stream_id} without a direction")
    direction = data[offset]
    if direction > WRITE:
        raise FrameError(f"{kind} on stream {stream_id} with the direction {direction}")
    return direction


def check_body(kind: str, stream_id: int, size: int, wanted: int, longer: bool) -> None:
    """Refuse a body of the wrong length, or only one too short if ``longer`` ones are legal."""
    if size != wanted and not (longer and size > wanted):
        raise FrameError(f"{kind} on stream {stream_id} has a body of the wrong length")


def overflow(stream_id: int, size: int, credit: int) -> FlowControlError:
    """Return the error for a peer that exceeds its credit on a stream no longer read."""
    return FlowControlError(
        f"{size} bytes with {credit} of credit on stream {stream_id}, which is read no further"
    )


CODE_REFUSED = 3  # nobody accepted the stream; an addition of ours


@dataclass(frozen=True, slots=True)
class Dialect:
    """Describe a form of the wire."""

    name: str
    subprotocol: str | None
    type_width: int
    first_application_code: int
    refused_code: int
    js_ws_quirks: bool  # behave like, and towards, the published js-ws package


WSMUX_V1 = Dialect("wsmux", "wsmux.v1", 1, 64, CODE_REFUSED, js_ws_quirks=False)
JS_WS = Dialect("js-ws", None, 2, 1, CODE_UNKNOWN, js_ws_quirks=True)


# Skipped ranges of ids that are remembered; a peer that counts up skips none.
MAX_GAPS = 64


class StreamIds:
    """Track the ids of both sides: even ones are the client's, odd ones the server's.

    Attributes:
        next: the id that this side opens next.
        peer_next: the high-water mark; lower ids of the peer have been opened, or skipped.
        ignore_from: the first id of the peer that this side does not accept, since its GO_AWAY.
    """

    def __init__(self, role: Role, strict: bool) -> None:
        self.next = 0 if role is Role.CLIENT else 1
        self.peer_next = 1 - self.next
        self.ignore_from: int | None = None
        self._strict = strict
        self._left_out: deque[tuple[int, int]] = deque(maxlen=MAX_GAPS)

    def open(self) -> int:
        """Return a new id for this side."""
        if self.next > MAX_VARINT:
            raise StreamsExhausted(61)
        self.next += 2
        return self.next - 2

    def peer_opened(self, stream_id: int) -> None:
        """Record an id opened by the peer."""
        if stream_id > self.peer_next:
            self._left_out.append((self.peer_next, stream_id - 2))
        self.peer_next = stream_id + 2

    def seen(self, stream_id: int) -> bool:
        """Return whether an id was opened before; raise if it can never be opened."""
        if (stream_id - self.next) % 2 == 0:
            if stream_id < self.next:
                return True
            raise StreamIdError(
                f"stream {stream_id} has the parity of this side, which has not opened it"
            )
        if stream_id >= self.peer_next:
            return False
        if self._strict and any(first <= stream_id <= last for first, last in self._left_out):
            raise StreamIdError(
                f"stream {stream_id} is new, but not above {self.peer_next - 2}, opened before"
            )
        return True

    def check_seen(self, stream_id: int, kind: str) -> None:
        """Refuse a message on an id that has not been opened."""
        if not self.seen(stream_id):
            raise StreamIdError(f"the first message on stream {stream_id} is {kind}, not ACK")

    def ignored(self, stream_id: int) -> bool:
        """Return whether an id was opened by a peer that had not yet received the GO_AWAY."""
        first = self.ignore_from
        return first is not None and stream_id >= first and (stream_id - first) % 2 == 0

    def go_away(self) -> int:
        """Accept no more ids of the peer; return the first one that is not accepted."""
        self.ignore_from = self.peer_next
        return self.peer_next

    def check_go_away(self, stream_id: int) -> None:
        """Refuse a GO_AWAY whose id is not of this side, or has not been reached."""
        if (stream_id - self.next) % 2 or stream_id > self.next:
            raise StreamIdError(
                f"GO_AWAY names stream {stream_id}; the next one here would be {self.next}"
            )


DATA, ACK, ERROR, CLOSE, GO_AWAY = range(5)

CODE_OVERFLOW = 2
REFUSED_DETAIL = "nobody took it there"

# Long enough for a busy peer to drain its queue, short enough not to be mistaken for a lost end.
JS_WS_CLOSE_DELAY = 5.0

_new = tuple.__new__
_UINT32 = struct.Struct(">I")
_DIRECTION = (b"\x00", b"\x01")
# Looking these up in the class for each message costs too much.
_READING, _WRITING = ReadState.OPEN, WriteState.OPEN


class NativeProtocol(AckBacklogProtocol):
    """One end of a native connection. See ``MuxProtocol`` for the methods."""

    def __init__(self, role: Role, config: Config, dialect: Dialect = WSMUX_V1) -> None:
        super().__init__(role, config)
        self.dialect = dialect
        self.name = dialect.name
        self.subprotocol = dialect.subprotocol
        self.first_application_code = dialect.first_application_code
        self.refused_code = dialect.refused_code
        self._ids = StreamIds(role, strict=not dialect.js_ws_quirks)
        self._streams: dict[int, NativeStream] = {}
        self._closing: dict[int, float] = {}  # deferred CLOSE: by id, when it is sent regardless
        self._stop_code = CODE_UNKNOWN if dialect.js_ws_quirks else None  # None sends CLOSE
        self._width = dialect.type_width
        self._max_frame = config.max_frame_size
        self._prompt = dialect.js_ws_quirks  # return credit as soon as all is read
        self.grows = not dialect.js_ws_quirks  # js-ws sends one DATA as large as its credit
        self._growth = WindowAutotuner(config.max_connection_buffer // 2)
        self._early = EarlyBytes(0 if dialect.js_ws_quirks else config.receive_window)
        self._stopped = StoppedStreams(config.max_cancelled, self._early)
        self._returned: NativeStream | None = None  # its credit may grow
        self._types = [kind.to_bytes(dialect.type_width, "big") for kind in range(5)]
        self._handlers = self._JS_WS_HANDLERS if dialect.js_ws_quirks else self._HANDLERS

    # Messages in

    def receive_data(self, data: Buffer) -> None:
        # The usual cases; ``parse_head`` does the same for all.
        size, first = len(data), data[0] if data else 0
        if size > 2 and first < 64 and self._width == 1:
            stream_id, kind, end = first, data[1], 2
        elif size > 2 and first < 128 and self._width == 1:
            stream_id, kind, end = (first - 64) << 8 | data[1], data[2], 3
        elif size > 4 and first < 192 and self._width == 1:
            stream_id, kind, end = _UINT32.unpack_from(data)[0] - 2**31, data[4], 5
        else:
            stream_id, kind, end = parse_head(data, self._width)
        if kind == DATA:
            return self._receive_data(stream_id, data, end)
        handler = self._handlers.get(kind)
        if handler is None:
            raise FrameError(f"message for stream {stream_id} has the unknown type {kind}")
        handler(self, stream_id, data, end)

    def _receive_data(self, stream_id: int, data: Buffer, offset: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return self._receive_late(stream_id, len(data) - offset)
        if stream.read is not _READING:
            stream.receive_unread(len(data) - offset)
            if offset == len(data):
                self._note_empty()
            return
        size = len(data) - offset
        if not size:
            self._note_empty()
            return
        window = stream.window
        if size > window.available:
            return self._overflowed(stream, size)
        window.available -= size  # as ``receive`` does
        # Equivalent to DataReceived(...), at half the cost: one is created for every message.
        self._events.append(_new(DataReceived, (stream_id, bytes(data[offset:]))))

    def _receive_late(self, stream_id: int, size: int) -> None:
        """Drop data on a stream that has ended, or that this side no longer accepts."""
        if stream_id not in self._stopped and not self._ids.ignored(stream_id):
            self._ids.check_seen(stream_id, "DATA")
            raise StreamIdError(f"DATA on stream {stream_id}, which has ended")
        self._stopped.receive(stream_id, size)
        if not size:
            self._note_empty()

    def _overflowed(self, stream: NativeStream, size: int) -> None:
        detail = f"the peer sent {size} bytes with {stream.window.available} bytes of credit"
        self.floods.solicited(self.now)
        stream.window.available = stream.window.size  # as much again may be in flight
        self._events.append(ev.StreamAborted(stream.id, CODE_OVERFLOW, True, detail))
        self.reset_read(stream.id, CODE_OVERFLOW)

    def _receive_ack(self, stream_id: int, data: Buffer, offset: int) -> None:
        check_body("ACK", stream_id, len(data) - offset, 4, self.dialect.js_ws_quirks)
        (count,) = _UINT32.unpack_from(data, offset)
        stream = self._streams.get(stream_id)
        if stream is None:
            if self._ids.ignored(stream_id):
                self.floods.opened()  # frames that follow on it are late
                return self.floods.solicited(self.now)
            if self._ids.seen(stream_id):
                self._note_update(useful=True)
                return
            stream = self._opened_by_peer(stream_id)
        else:
            self._note_update(useful=count > 0 or not stream.answered)
        if stream.early is not None:
            count = self._early.heard(stream, count)
        usable = stream.credit.available
        stream.credit.grant(count)
        self._answered(stream)
        if not usable and count and stream.write is _WRITING:
            self._events.append(ev.CreditGranted(stream_id))
        if stream.write is WriteState.CLOSING and not stream.credit.unacknowledged:
            self._send_close(stream)
            self._forget_if_done(stream)

    def _receive_error(self, stream_id: int, data: Buffer, offset: int) -> None:
        direction = direction_of("ERROR", stream_id, data, offset)
        parsed = decode_varint(data, offset + 1)
        if parsed is None:
            raise FrameError(f"ERROR on stream {stream_id} without a whole code")
        code, end = parsed
        check_body("ERROR", stream_id, len(data) - end, 0, self.dialect.js_ws_quirks)
        stop = direction == WRITE and code == self._stop_code
        stream = self._find(stream_id, "ERROR", direction, reset=not stop)
        if stream is None:
            return
        self._answered(stream)
        refused = code == self.refused_code and stream.local and not self.dialect.js_ws_quirks
        if direction == READ:
            if self._peer_ended(stream, ReadInput.PEER_RESET):
                self._send_error(stream, WRITE, code)
                self._events.append(
                    ev.StreamRejected(stream_id, code, REFUSED_DETAIL)
                    if refused
                    else ev.StreamAborted(stream_id, code, False, "")
                )
        elif self._peer_stopped(stream):
            self._send_error(stream, READ, code)
            self._events.append(
                ev.StreamRejected(stream_id, code, REFUSED_DETAIL)
                if refused
                else ev.WriteStopped(stream_id, code)
            )
        self._forget_if_done(stream)

    def _receive_close(self, stream_id: int, data: Buffer, offset: int) -> None:
        direction = direction_of("CLOSE", stream_id, data, offset)
        check_body("CLOSE", stream_id, len(data) - offset, 1, self.dialect.js_ws_quirks)
        stream = self._find(stream_id, "CLOSE", direction)
        if stream is None:
            return
        self._answered(stream)
        if direction == READ:
            if self._peer_ended(stream, ReadInput.PEER_CLOSE):
                self._control_message(stream.head, CLOSE, _DIRECTION[WRITE])
                if not self.dialect.js_ws_quirks:
                    self._postpone()
                self._events.append(ev.StreamEnded(stream_id))
        elif self._peer_stopped(stream):
            if self._stop_code is None:
                self._data_message(stream.head, CLOSE, _DIRECTION[READ])
                self.unawaited_data += 1
                self._postpone()
            else:
                self._send_error(stream, READ, self._stop_code)
            self._events.append(ev.WriteStopped(stream_id, self._stop_code))
        self._forget_if_done(stream)

    def _receive_go_away(self, stream_id: int, data: Buffer, offset: int) -> None:
        parsed = decode_varint(data, offset)
        if parsed is None or parsed[1] != len(data):
            raise FrameError("GO_AWAY without exactly one code")
        self._ids.check_go_away(stream_id)
        if self._peer_refuses:
            self._note_empty()
        code = parsed[0]
        self._peer_refuses = True
        self._events.append(ev.GoAwayReceived(stream_id, code))
        unhandled = [s for s in self._streams.values() if s.local and s.id >= stream_id]
        for stream in unhandled:
            self._peer_stopped(stream)
            self._peer_ended(stream, ReadInput.PEER_RESET)
            self._events.append(ev.StreamRejected(stream.id, code, "the peer is going away"))
            self._forget_if_done(stream)

    # Functions, since bound methods here would make each machine refer to itself.
    _JS_WS_HANDLERS: ClassVar[dict[int, Callable[[NativeProtocol, int, Buffer, int], None]]] = {
        ACK: _receive_ack,
        ERROR: _receive_error,
        CLOSE: _receive_close,
    }
    _HANDLERS = _JS_WS_HANDLERS | {GO_AWAY: _receive_go_away}

    # Looking up streams

    def _find(
        self, stream_id: int, kind: str, direction: int, reset: bool = False
    ) -> NativeStream | None:
        """Return the stream that an end refers to, if it exists, and charge the peer."""
        stream = self._streams.get(stream_id)
        if stream is None and not self._ids.ignored(stream_id):
            self._ids.check_seen(stream_id, kind)
            if direction == READ:
                self._stopped.pop(stream_id, None)
        if stream is None or stream.ended(direction):
            self._note_late()
        elif reset and not (stream.local or stream.reset):
            self.floods.reset(self.now)
            stream.reset = True
        return stream

    def _opened_by_peer(self, stream_id: int) -> NativeStream:
        self.floods.opened()
        self._ids.peer_opened(stream_id)
        window = GrowingWindow(self._early.taken)  # until accept() announces one
        stream = NativeStream(stream_id, self._types[DATA], window, local=False)
        self._streams[stream_id] = stream
        self._events.append(ev.StreamOpened(stream_id))
        return stream

    # Transitions of a stream

    def _peer_ended(self, stream: NativeStream, how: ReadInput) -> bool:
        was_open = stream.read is _READING
        stream.read = advance_read(stream.read, how)
        return was_open

    def _peer_stopped(self, stream: NativeStream) -> bool:
        was_open = stream.write not in WRITE_DONE
        stream.write = advance_write(stream.write, WriteInput.PEER_STOP)
        self._closing.pop(stream.id, None)
        return was_open

    def _forget_if_done(self, stream: NativeStream) -> None:
        if stream.read is _READING or stream.write not in WRITE_DONE:
            return
        del self._streams[stream.id]
        self._growth.ended(stream.window)
        self._answered(stream)  # a stream that has ended needs no acknowledgement
        if stream.read is ReadState.STOPPED:
            self._stopped.keep(stream)
        self._events.append(ev.StreamFinished(stream.id))

    # Messages out

    def _control_message(self, head: bytes, kind: int, body: Buffer) -> None:
        self._control.append((head + self._types[kind], body))

    def _data_message(self, head: bytes, kind: int, body: Buffer) -> None:
        self._data.append((head + self._types[kind], body))

    def _send_error(self, stream: NativeStream, direction: int, code: int) -> None:
        body = _DIRECTION[direction] + encode_varint(code)
        # "Your readable end" must not overtake the bytes sent before it.
        send = self._data_message if direction == READ else self._control_message
        send(stream.head, ERROR, body)

    def _send_close(self, stream: NativeStream) -> None:
        stream.write = advance_write(stream.write, WriteInput.CLOSE)
        self._closing.pop(stream.id, None)
        self._data_message(stream.head, CLOSE, _DIRECTION[READ])

    # Calls

    def open_stream(self, window: int | None = None) -> int:
        if self._peer_refuses:
            raise LocalProtocolError("the peer takes no further streams: it is going away")
        size = self._window(self.config.receive_window if window is None else window)
        stream_id = self._ids.open()
        stream = NativeStream(stream_id, self._types[DATA], GrowingWindow(size), local=True)
        self._streams[stream_id] = stream
        stream.early = stream.credit.available = self._early.given
        self._opening()
        self._control_message(stream.head, ACK, _UINT32.pack(size))
        return stream_id

    def announced_window(self, size: int) -> int:
        # js-ws sends one DATA as large as its credit, which must fit into a message here.
        if self.dialect.js_ws_quirks:
            size = min(size, self.config.max_message_size - MAX_HEAD)
        return size

    def _window(self, size: int) -> int:
        """Return the window to announce, which must then be announced at once."""
        return self._early.announce(self.announced_window(size))

    def accept(self, stream_id: int, window: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return  # it has ended in the meantime
        window = self._window(window)
        stream.window.widen(window - stream.window.size)  # early bytes count
        self._control_message(stream.head, ACK, _UINT32.pack(window))
        if self._early.taken:
            self._postpone((stream_id, window, self._early.taken))

    def refuse(self, stream_id: int, code: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.reset:
            self.floods.solicited(self.now)
        self.reset_write(stream_id, code)
        self.reset_read(stream_id, code)

    def credit(self, stream_id: int) -> int:
        stream = self._streams.get(stream_id)
        if stream is None or stream.write is not _WRITING:
            return 0
        return stream.credit.available

    def send_data(self, stream_id: int, data: Buffer) -> int:
        stream = self._streams.get(stream_id)
        if stream is None or stream.write is not _WRITING:
            raise LocalProtocolError(f"the writing half of stream {stream_id} has ended")
        credit, size = stream.credit, len(data)
        if size > credit.available or size > self._max_frame:
            size = min(credit.available, self._max_frame)
        if size:
            credit.available -= size  # as ``spend`` does, but for the check
            credit.unacknowledged += size
            body = data if size == len(data) else data[:size]
            self._data.append((stream.data_head, body))
            self.data_frames += 1
        return size

    def consumed(self, stream_id: int, count: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.read is not _READING:
            return  # the peer sends no more: returning credit would only confuse js-ws
        # A late ACK makes js-ws mistake a finished stream of its own for a new one: on those, none
        # is sent after our own end.
        prompt = self._prompt and (stream.local or stream.write is _WRITING)
        returned = stream.window.consume(count, prompt)
        if returned:
            self._control_message(stream.head, ACK, _UINT32.pack(returned))
            self._returned = stream

    def grow(self, now: float, rtt: float | None) -> int:
        stream, self._returned = self._returned, None
        if stream is None:
            return 0
        grown = self._growth.grow(stream.window, now, rtt)
        if grown:
            self._control_message(stream.head, ACK, _UINT32.pack(grown))
        return stream.window.size if grown else 0

    def close_write(self, stream_id: int, now: float) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.write is not _WRITING:
            return
        if self.dialect.js_ws_quirks and stream.credit.unacknowledged:
            stream.write = advance_write(stream.write, WriteInput.DEFER)
            self._closing[stream_id] = now + JS_WS_CLOSE_DELAY
            return
        self._send_close(stream)
        self._forget_if_done(stream)

    def close_read(self, stream_id: int) -> None:
        self._stop_reading(stream_id, self._stop_code)

    def reset_read(self, stream_id: int, code: int) -> None:
        self._stop_reading(stream_id, code)

    def _stop_reading(self, stream_id: int, code: int | None) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.read is not _READING:
            return
        stream.read = advance_read(stream.read, ReadInput.STOP)
        if code is None:
            self._control_message(stream.head, CLOSE, _DIRECTION[WRITE])
        else:
            self._send_error(stream, WRITE, code)
        self._forget_if_done(stream)

    def reset_write(self, stream_id: int, code: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.write in WRITE_DONE:
            return
        stream.write = advance_write(stream.write, WriteInput.RESET)
        self._closing.pop(stream_id, None)
        self._send_error(stream, READ, code)
        self._forget_if_done(stream)

    def go_away(self, code: int) -> None:
        if self._ids.ignore_from is not None or self.dialect.js_ws_quirks:
            return
        first = self._ids.go_away()
        if first <= MAX_VARINT:  # otherwise the peer has no id left anyway
            self._control_message(encode_varint(first), GO_AWAY, encode_varint(code))

    # Time

    def next_timer(self) -> float | None:
        return next(iter(self._closing.values()), None)

    def handle_timer(self, now: float) -> None:
        for stream_id in [i for i, due in self._closing.items() if due <= now]:
            stream = self._streams[stream_id]
            self._send_close(stream)
            self._forget_if_done(stream)

    def pending_closes(self) -> int:
        return len(self._closing)

    def open_streams(self) -> int:
        return len(self._streams)
