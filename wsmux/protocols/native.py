"""Speak the native wire, ``wsmux.v1``, and the dialect of it that npm ``@matrixai/ws`` ships.

One message is ``QUIC varint id | type | body``::

    0 DATA      bytes
    1 ACK       uint32, big-endian: bytes of credit
    2 ERROR     direction byte, varint code
    3 CLOSE     direction byte
    4 GO_AWAY   varint code; the id is the first one not handled          (wsmux.v1 only)

Direction is named from the receiver: 0 Read ("your readable ends"), 1 Write ("stop writing").

Departures from the founding text (js-ws, "Support stream multiplexing for websockets"), each where
it is silent or contradicts itself:

- Client streams are 0, 2, 4..., server streams 1, 3, 5..., all bidirectional. Ids only rise.
- The ACK that opens a stream, and the one that answers it, carry the receive window; every later
  one the bytes that the *application* has read, half a window at a time, or what the window has
  grown by. The text calls that the remaining space in one place and the bytes read in another.
- A stream need not wait for the ACK that answers it: ``EarlyBytes`` tells.  (wsmux.v1 only)
- The receiver enforces the credit: DATA beyond it is answered with ERROR code 2 before anything
  is buffered; a window more is dropped, and what exceeds that ends the connection, as does DATA
  beyond the credit of a stream that is read no further. So does an ACK that lifts unspent credit
  above 2^32-1.
- Each frame that is no data is charged to a budget of ``budgets.py``.
- A malformed message ends the connection with 1002 and a sentence; code 1 (parse) is understood
  when it comes, and never sent.
- CLOSE Write that is not an echo says "I read no further" without an error.
- Code 3 (refused) ends a stream that nobody took; applications use codes from 64 up.
- GO_AWAY is not in the text.

The js-ws dialect, and what it works around, stands in ``dialects.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import ClassVar

from ..config import MAX_HEAD, Config
from ..exceptions import FrameError, LocalProtocolError, StreamIdError
from . import events as ev
from .base import Buffer, Role
from .dialects import CODE_UNKNOWN, WSMUX_V1, Dialect
from .events import DataReceived
from .ids import StreamIds
from .nativestream import (
    READ,
    WRITE,
    WRITE_DONE,
    EarlyBytes,
    NativeStream,
    StoppedStreams,
    check_body,
    direction_of,
    parse_head,
)
from .opens import AnsweredProtocol
from .states import ReadInput, ReadState, WriteInput, WriteState, advance_read, advance_write
from .varint import MAX_VARINT, decode_varint, encode_varint
from .windows import GrowingWindow, Growth

__all__ = ["NativeProtocol"]

DATA, ACK, ERROR, CLOSE, GO_AWAY = range(5)

CODE_OVERFLOW = 2
REFUSED_DETAIL = "nobody took it there"

# Long enough for a busy peer to drain its queue, short enough not to look like a lost end.
JS_WS_CLOSE_DELAY = 5.0

_new = tuple.__new__
_UINT32 = struct.Struct(">I")
_DIRECTION = (b"\x00", b"\x01")
# Looking a member up in its class costs too much for each message.
_READING, _WRITING = ReadState.OPEN, WriteState.OPEN


class NativeProtocol(AnsweredProtocol):
    """Be one end of a native connection. See ``MuxProtocol`` for the calls."""

    def __init__(self, role: Role, config: Config, dialect: Dialect = WSMUX_V1) -> None:
        super().__init__(role, config)
        self.dialect = dialect
        self.name = dialect.name
        self.subprotocol = dialect.subprotocol
        self.first_application_code = dialect.first_application_code
        self.refused_code = dialect.refused_code
        self._ids = StreamIds(role, strict=not dialect.shipped)
        self._streams: dict[int, NativeStream] = {}
        self._closing: dict[int, float] = {}  # deferred CLOSE: id to the time it goes out anyway
        self._stop_code = CODE_UNKNOWN if dialect.shipped else None  # js-ws says CLOSE so
        self._width = dialect.type_width
        self._max_frame = config.max_frame_size
        self._prompt = dialect.shipped  # return credit as soon as nothing is unread
        self.grows = not dialect.shipped  # js-ws sends one DATA as large as its credit
        self._growth = Growth(config.max_connection_buffer // 2)
        self._early = EarlyBytes(0 if dialect.shipped else config.receive_window)
        self._stopped = StoppedStreams(config.max_cancelled, self._early)
        self._returned: NativeStream | None = None  # whose credit may grow
        self._types = [kind.to_bytes(dialect.type_width, "big") for kind in range(5)]
        self._handlers = self._SHIPPED_HANDLERS if dialect.shipped else self._HANDLERS

    # Messages in

    def receive_data(self, data: Buffer) -> None:
        if len(data) > 1 and data[0] < 64 and self._width == 1:
            stream_id, kind, end = data[0], data[1], 2  # mostly
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
        if not stream.window.receive(size):
            return self._overflowed(stream, size)
        # The same as DataReceived(...), at half the cost: it is made for every message.
        self._events.append(_new(DataReceived, (stream_id, bytes(data[offset:]))))

    def _receive_late(self, stream_id: int, size: int) -> None:
        """Drop the same for a stream that is over, or that this side takes no more."""
        if stream_id not in self._stopped and not self._ids.ignored(stream_id):
            self._ids.check_seen(stream_id, "DATA")
            raise StreamIdError(f"DATA on stream {stream_id}, which has ended")
        self._stopped.receive(stream_id, size)
        if not size:
            self._note_empty()

    def _overflowed(self, stream: NativeStream, size: int) -> None:
        detail = f"the peer sent {size} bytes with {stream.window.available} bytes of credit"
        self.floods.provoked(self.now)
        stream.window.available = stream.window.size  # as much again may be under way
        self._events.append(ev.StreamAborted(stream.id, CODE_OVERFLOW, True, detail))
        self.reset_read(stream.id, CODE_OVERFLOW)

    def _receive_ack(self, stream_id: int, data: Buffer, offset: int) -> None:
        check_body("ACK", stream_id, len(data) - offset, 4, self.dialect.shipped)
        (count,) = _UINT32.unpack_from(data, offset)
        stream = self._streams.get(stream_id)
        if stream is None:
            if self._ids.ignored(stream_id):
                self.floods.opened()  # what follows on it is late
                return self.floods.provoked(self.now)
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
        check_body("ERROR", stream_id, len(data) - end, 0, self.dialect.shipped)
        stop = direction == WRITE and code == self._stop_code
        stream = self._find(stream_id, "ERROR", direction, reset=not stop)
        if stream is None:
            return
        self._answered(stream)
        refused = code == self.refused_code and stream.local and not self.dialect.shipped
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
        check_body("CLOSE", stream_id, len(data) - offset, 1, self.dialect.shipped)
        stream = self._find(stream_id, "CLOSE", direction)
        if stream is None:
            return
        self._answered(stream)
        if direction == READ:
            if self._peer_ended(stream, ReadInput.PEER_CLOSE):
                self._control_message(stream.head, CLOSE, _DIRECTION[WRITE])
                self._events.append(ev.StreamEnded(stream_id))
        elif self._peer_stopped(stream):
            if self._stop_code is None:
                self._data_message(stream.head, CLOSE, _DIRECTION[READ])
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

    # Functions, since methods bound here would make each machine refer to itself.
    _SHIPPED_HANDLERS: ClassVar[dict[int, Callable[[NativeProtocol, int, Buffer, int], None]]] = {
        ACK: _receive_ack,
        ERROR: _receive_error,
        CLOSE: _receive_close,
    }
    _HANDLERS = _SHIPPED_HANDLERS | {GO_AWAY: _receive_go_away}

    # Which stream a message means

    def _find(
        self, stream_id: int, kind: str, direction: int, reset: bool = False
    ) -> NativeStream | None:
        """Return the stream that an end is for, if it is there, and charge the peer."""
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

    # What a message does to a stream

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
        self._answered(stream)  # nothing is owed to a stream that is over
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
        # "Your readable ends" must not overtake the bytes sent before it.
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

    def _window(self, size: int) -> int:
        """Return a window that may be announced, which it must be at once."""
        if self.dialect.shipped:  # js-ws sends one DATA as large as its credit: we must take it
            size = min(size, self.config.max_message_size - MAX_HEAD)
        return self._early.announce(size)

    def accept(self, stream_id: int, window: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return  # it came to its end in the meantime
        window = self._window(window)
        stream.window.widen(window - stream.window.size)  # what came early counts
        self._control_message(stream.head, ACK, _UINT32.pack(window))

    def refuse(self, stream_id: int, code: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.reset:
            self.floods.provoked(self.now)
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
            credit.spend(size)
            body = data if size == len(data) else data[:size]
            self._data.append((stream.data_head, body))
            self.data_frames += 1
        return size

    def consumed(self, stream_id: int, count: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.read is not _READING:
            return  # the peer sends no more: returning credit would only confuse js-ws
        # A late ACK makes js-ws take a finished stream of its own for a new one: on those, none
        # behind our own end.
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
        if self.dialect.shipped and stream.credit.unacknowledged:
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
        if self._ids.ignore_from is not None or self.dialect.shipped:
            return
        first = self._ids.go_away()
        if first <= MAX_VARINT:  # else the peer has no id left to open anyway
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
