"""Convert between the bytes of a socket and messages, pings and close frames.

A ``Framing`` is pure: the owner of the socket receives into ``get_buffer()``, reports the number of
bytes with ``received()``, and sends the results of the ``encode`` methods. RFC 6455 is in
``wsmux.protocols.websocket``; the framings here are for plain byte streams: ``ByteFraming`` carries
native messages, ``NoFraming`` wires that delimit their own frames, ``LengthFraming`` River's
messages.

``ByteFraming`` encodes a message as ``varint id | type | varint length | body``. Three more types
on id 0 replace the control frames of a WebSocket, numbered as the opcodes of RFC 6455: 8 close
(uint16 code, UTF-8 reason), 9 ping, 10 pong. The js-ws specification only says that on a byte
stream a length would follow the type.

``LengthFraming`` prefixes each message with its length, uint32 big-endian, as River's TypeScript
implementation does over Unix sockets (section "Wire format"). It has neither pings nor a close
message; River uses its own heartbeats and the end of the stream instead.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from enum import IntEnum

from ..config import KIB
from ..exceptions import CloseCode, FrameError, RemoteProtocolError
from .base import Buffer, Message
from .varint import decode_varint, encode_varint

__all__ = [
    "ByteFraming",
    "Framing",
    "LengthFraming",
    "NoFraming",
    "Opcode",
    "Received",
    "check_close",
    "check_control",
    "decode_close",
    "encode_close",
]


# The cost of an idle connection; a read that fills the buffer doubles it, up to the largest.
SMALLEST_BUFFER = 16 * KIB
LARGEST_BUFFER = 256 * KIB
SAVING_BUFFER = 64 * KIB  # while memory is short; fits one of our frames

# RFC 6455 section 5.5: the payload of a control frame; a close code takes two bytes of it.
MAX_CONTROL = 125
MAX_REASON = MAX_CONTROL - 2

_UINT16 = struct.Struct(">H")


class Opcode(IntEnum):
    """The type of a received frame, by RFC 6455's opcodes."""

    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


# One message or control frame; its data is valid until the next ``get_buffer()``. A plain tuple,
# since a named one takes seven times as long to create.
Received = tuple[Opcode, Buffer]


class Framing(ABC):
    """The base class of the framings; holds the receive buffer.

    Attributes:
        failure: the rule that the peer broke. Frames before it were returned; none follow.
        filled: the last read filled the buffer, so more is probably waiting.
        controls: the last result of ``received`` contains control frames.
        has_controls: there are pings and close frames; otherwise the end of file is the end.
        due: of a framing that acknowledges, the owner must look whether to do so, and what is kept.
        pending: bytes of memory used by the fragments of an incomplete message.
        largest: the size up to which the receive buffer may grow if no message needs more.
    """

    has_controls = True
    due = False
    pending = 0
    largest = LARGEST_BUFFER

    def __init__(self, max_message_size: int) -> None:
        self.max_message_size = max_message_size
        self.failure: RemoteProtocolError | None = None
        self.filled = self.controls = False
        self._use(bytearray(SMALLEST_BUFFER))
        self._start = 0  # first unparsed byte
        self._end = 0  # first free byte
        self._wanted = 0  # known size of the next frame, from _start

    def _use(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)  # kept, since creating one for each read costs

    def get_buffer(self) -> memoryview:
        """Return the free part of the receive buffer, never empty."""
        if self._start == self._end and not self._wanted and not self.filled:
            self._start = self._end = 0
            return self._view
        size = self._size()
        unread = self._end - self._start
        if size > len(self._buffer):
            self._move(size)
        elif self._start:
            view = self._view
            view[:unread] = view[self._start : self._end]
            self._start, self._end = 0, unread
        return self._view[self._end :]

    def received(self, count: int) -> list[Received]:
        """Parse ``count`` more bytes; return complete frames. Sets ``failure`` on invalid input."""
        self._end = end = self._end + count
        size = len(self._view)
        self.filled = end == size
        self.controls = False
        frames: list[Received] = []
        try:
            if self.failure is None:
                while self._start != end and self._parse(frames):
                    pass
        except RemoteProtocolError as error:
            # Without frames, which refer to this object: only the garbage collector could free the
            # cycle.
            self.failure = error.with_traceback(None)
        if self.failure is not None:
            self._drop()
        if size > self.largest and self._start == self._end:
            self._move(self.largest)  # short messages must not pay for a long one
        return frames

    def fail(self, failure: RemoteProtocolError) -> None:
        """Stop receiving, because of ``failure``, and release the memory."""
        self.failure = failure
        self._drop()
        self.shrink()

    def _drop(self) -> None:
        """Drop incomplete data: whatever follows is ignored."""
        self._start = self._end = self._wanted = 0

    def held(self) -> int:
        """Return the received bytes of an incomplete message."""
        return self._end - self._start + self.pending

    def allocated(self) -> int:
        """Return the bytes of memory used by an incomplete message.

        An enlarged buffer counts before it is allocated, so that the next bytes are accounted for.
        One of up to ``LARGEST_BUFFER`` serves for reading anyway, so only its content counts.
        """
        unread = self._end - self._start
        size = self._size() if unread else 0
        return (size if size > LARGEST_BUFFER else unread) + self.pending

    def _size(self) -> int:
        """Return the size of the buffer for the next read.

        It doubles when filled, and never jumps to the size that a header announces: memory is
        allocated for received bytes, not for bytes that a peer promises.
        """
        size = len(self._buffer)
        if self._wanted > size and 4 * (self._end - self._start) >= 3 * size:
            return min(2 * size, self._wanted)
        return min(2 * size, self.largest) if self.filled and size < self.largest else size

    def save_memory(self, saves: bool) -> None:
        """Keep the buffer small unless a message needs more; or stop doing so."""
        self.largest = SAVING_BUFFER if saves else LARGEST_BUFFER
        if saves and len(self._buffer) > SAVING_BUFFER:
            self.shrink()

    def shrink(self) -> None:
        """Shrink the buffer to what it needs."""
        needed, size = self._end - self._start, SMALLEST_BUFFER
        while size <= needed:
            size *= 2
        if size < len(self._buffer):
            self._move(size)
            self.filled = False

    def _move(self, size: int) -> None:
        """Move unparsed bytes to a new buffer; views of the old one may still exist."""
        unread = self._end - self._start
        buffer = bytearray(size)
        buffer[:unread] = self._view[self._start : self._end]
        self._use(buffer)
        self._start, self._end = 0, unread

    def release(self) -> None:
        """Release the buffer for good; nothing is received any more."""
        self._drop()
        self._use(bytearray())

    def incomplete(self, received: int) -> int | None:
        """Return an identifier of the incomplete message, ``None`` if there is none.

        Args:
            received: the total number of bytes, from which its start is computed.
        """
        return None if self._start == self._end else received - (self._end - self._start)

    def between_messages(self) -> bool:
        """Return whether an end of file here would cut nothing off."""
        return self._start == self._end

    @abstractmethod
    def _parse(self, frames: list[Received]) -> bool:
        """Parse one complete frame, or several; return whether there may be another one."""

    @abstractmethod
    def encode(self, message: Message, kind: Opcode = Opcode.BINARY) -> list[Buffer]:
        """Return the bytes of a message, in pieces."""

    @abstractmethod
    def encode_control(self, kind: Opcode, payload: bytes) -> bytes:
        """Return the bytes of a ping, pong or close frame."""


def check_control(payload: bytes) -> None:
    """Raise ``ValueError`` if a payload is too long for a control frame."""
    if len(payload) > MAX_CONTROL:
        raise ValueError(f"a control frame carries at most 125 bytes, not {len(payload)}")


def _may_be_sent(code: int) -> bool:
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def check_close(code: int, reason: str) -> None:
    """Check code and reason that a user wants to close with.

    Raises:
        TypeError: the code is not an integer, or the reason is not a string.
        ValueError: no close frame may carry the code (RFC 6455 section 7.4), or the reason is not
            Unicode text.
    """
    if not isinstance(code, int):
        raise TypeError(f"a close code is an integer such as 1000, not {type(code).__name__}")
    if not isinstance(reason, str):
        raise TypeError(f"the reason of a close is a string, not {type(reason).__name__}")
    if not _may_be_sent(code) and code != CloseCode.NO_STATUS_RCVD:
        raise ValueError(
            f"a close must not carry the code {code}: use 1000 to 1003, 1007 to 1014, or one of "
            "your own from 3000 to 4999"
        )
    try:
        reason.encode()
    except UnicodeEncodeError:
        text = f"the reason {reason!r} cannot be sent as UTF-8: leave surrogates out"
        raise ValueError(text) from None


def encode_close(code: int, reason: str) -> bytes:
    """Return the payload of a close frame; a long reason is cut between characters."""
    if code == CloseCode.NO_STATUS_RCVD:  # stands for "no code", and is never sent
        return b""
    return _UINT16.pack(code) + reason.encode()[:MAX_REASON].decode(errors="ignore").encode()


def decode_close(payload: Buffer) -> tuple[int, str]:
    """Return the code and reason of a close frame (RFC 6455 sections 5.5.1 and 7.4).

    Raises:
        FrameError: the code is incomplete or must not be sent, or the reason is not UTF-8.
    """
    if not payload:
        return int(CloseCode.NO_STATUS_RCVD), ""
    if len(payload) == 1:
        raise FrameError("close with half a code")
    (code,) = _UINT16.unpack_from(payload)
    if not _may_be_sent(code):
        raise FrameError(f"close with the code {code}, which must not be sent")
    try:
        return code, str(payload[2:], "utf-8")
    except UnicodeDecodeError:
        raise FrameError("close with a reason that is not UTF-8", CloseCode.INVALID_DATA) from None


class ByteFraming(Framing):
    """Carry native messages over a byte stream."""

    def __init__(self, max_message_size: int, type_width: int = 1) -> None:
        super().__init__(max_message_size)
        self._width = type_width
        self._controls = {
            kind.to_bytes(type_width, "big"): kind
            for kind in (Opcode.CLOSE, Opcode.PING, Opcode.PONG)
        }

    def _parse(self, frames: list[Received]) -> bool:
        view = self._view[: self._end]
        parsed = decode_varint(view, self._start)
        if parsed is None:
            return False
        head_end = parsed[1] + self._width
        length = decode_varint(view, head_end)
        if length is None:
            return False
        size, body = length
        if size + head_end - self._start > self.max_message_size:
            raise FrameError(
                f"message of {size} bytes is above the limit of {self.max_message_size}",
                CloseCode.MESSAGE_TOO_BIG,
            )
        kind = self._controls.get(bytes(view[parsed[1] : head_end])) if not parsed[0] else None
        if kind is not None and size > MAX_CONTROL:
            raise FrameError(f"control message of {size} bytes is above the limit of 125")
        if body + size > self._end:
            self._wanted = body + size - self._start
            return False
        start = self._start
        payload = view[body : body + size]
        self._start, self._wanted = body + size, 0
        if kind is None:
            frames.append((Opcode.BINARY, bytes(view[start:head_end]) + bytes(payload)))
        else:
            self.controls = True
            frames.append((kind, bytes(payload)))
        return True

    def encode(self, message: Message, kind: Opcode = Opcode.BINARY) -> list[Buffer]:
        head, body = message
        return [head + encode_varint(len(body)), body]

    def encode_control(self, kind: Opcode, payload: bytes) -> bytes:
        check_control(payload)
        head = b"\x00" + kind.to_bytes(self._width, "big")
        return head + encode_varint(len(payload)) + payload


class NoFraming(Framing):
    """Carry a wire that needs no framing: bytes are passed on unchanged."""

    has_controls = False

    def __init__(self) -> None:
        super().__init__(LARGEST_BUFFER)

    def _parse(self, frames: list[Received]) -> bool:
        frames.append((Opcode.BINARY, self._view[self._start : self._end]))
        self._start = self._end
        return True

    def encode(self, message: Message, kind: Opcode = Opcode.BINARY) -> list[Buffer]:
        head, body = message
        return [head, body] if body else [head]

    def encode_control(self, kind: Opcode, payload: bytes) -> bytes:
        """Return nothing: there are no control frames."""
        return b""


_LENGTH = struct.Struct(">I")


class LengthFraming(Framing):
    """One end of a byte stream with length-prefixed messages. See ``Framing`` for the methods."""

    has_controls = False

    def _parse(self, frames: list[Received]) -> bool:
        start, end = self._start, self._end
        body = start + _LENGTH.size
        if body > end:
            return False
        (size,) = _LENGTH.unpack_from(self._view, start)
        if size > self.max_message_size:
            raise FrameError(
                f"message of {size} bytes is above the limit of {self.max_message_size}",
                CloseCode.MESSAGE_TOO_BIG,
            )
        stop = body + size
        if stop > end:
            self._wanted = stop - start
            return False
        self._start, self._wanted = stop, 0
        frames.append((Opcode.BINARY, self._view[body:stop]))
        return True

    def encode(self, message: Message, kind: Opcode = Opcode.BINARY) -> list[Buffer]:
        head, body = message
        return [_LENGTH.pack(len(head) + len(body)) + head, body]

    def encode_control(self, kind: Opcode, payload: bytes) -> bytes:
        """Return nothing: there are no control frames."""
        return b""
