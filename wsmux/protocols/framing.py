"""Turn the bytes of a socket into messages, pings and closes, and back.

A ``Framing`` is pure: the owner of the socket receives into ``get_buffer()``, reports how much came
with ``received()`` and sends what the ``encode`` calls return. RFC 6455 is in
``wsmux.protocols.websocket``; here are those for a plain byte stream: ``ByteFraming`` carries
native messages, ``NoFraming`` the wires that cut the stream themselves, ``LengthFraming`` River's
messages.

``ByteFraming`` writes a message as ``varint id | type | varint length | body``. What a WebSocket
says with control frames is said by three further types on id 0, numbered as RFC 6455's opcodes:
8 close (uint16 code, UTF-8 reason), 9 ping, 10 pong. The founding text only says that a length
would follow the type on a carrier without messages.

``LengthFraming`` writes each message after its length, uint32 big-endian, as River's TypeScript
implementation does over Unix sockets (section "Wire format"). There are no pings and no closing
message; River's own heartbeats and the end of the stream stand for them.
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
    "check_control",
    "decode_close",
    "encode_close",
]


# An idle connection costs this much; a read that fills the buffer doubles it, up to the largest.
SMALLEST_BUFFER = 16 * KIB
LARGEST_BUFFER = 256 * KIB
SAVING_BUFFER = 64 * KIB  # where memory is short; one frame of ours fits

# RFC 6455 section 5.5: the payload of a control frame, less the two bytes of a close code.
MAX_CONTROL = 125
MAX_REASON = MAX_CONTROL - 2

_UINT16 = struct.Struct(">H")


class Opcode(IntEnum):
    """Say what was received, by RFC 6455's opcodes."""

    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


# One message or control frame; its data is valid until the next ``get_buffer()``. A plain tuple:
# a named one costs seven times as much to make.
Received = tuple[Opcode, Buffer]


class Framing(ABC):
    """The base of the framings; holds the receive buffer.

    Attributes:
        failure: the rule the peer broke. What came before it was returned; nothing follows.
        filled: the last read left no room, so more is likely to be waiting.
        controls: there were others than messages in what ``received`` returned last.
        has_controls: the carrier can ping, and say that it ends; else its end of file says that.
        pending: bytes of memory that the fragments of an incomplete message take.
        largest: bytes that the receive buffer may grow to where no message needs more.
    """

    has_controls = True
    pending = 0
    largest = LARGEST_BUFFER

    def __init__(self, max_message_size: int) -> None:
        self.max_message_size = max_message_size
        self.failure: RemoteProtocolError | None = None
        self.filled = self.controls = False
        self._use(bytearray(SMALLEST_BUFFER))
        self._start = 0  # first byte not yet parsed
        self._end = 0  # first free byte
        self._wanted = 0  # bytes from _start that the next frame is known to need

    def _use(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)  # kept: making one costs, for each read of the socket

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
        """Parse ``count`` further bytes; return what is whole. Sets ``failure`` on bad input."""
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
            # Without its frames, which lead back here: memory would wait for the garbage collector.
            self.failure = error.with_traceback(None)
        if self.failure is not None:
            self._drop()
        if size > self.largest and self._start == self._end:
            self._move(self.largest)  # a long message is not to be paid for by short ones
        return frames

    def fail(self, failure: RemoteProtocolError) -> None:
        """Take nothing further, because of ``failure``, and give the memory back."""
        self.failure = failure
        self._drop()
        self.shrink()

    def _drop(self) -> None:
        """Forget what is incomplete: nothing that follows counts."""
        self._start = self._end = self._wanted = 0

    def held(self) -> int:
        """Return how many bytes have come of a message that is not whole yet."""
        return self._end - self._start + self.pending

    def allocated(self) -> int:
        """Return the bytes of memory that a message which is not whole takes.

        A larger buffer counts before it is made: so the next bytes find their room accounted for.
        One of up to ``LARGEST_BUFFER`` is there for reading, and counts by what it holds.
        """
        unread = self._end - self._start
        size = self._size() if unread else 0
        return (size if size > LARGEST_BUFFER else unread) + self.pending

    def _size(self) -> int:
        """Return how large the buffer is to be when more is received.

        It doubles when it is filled, and is never made as large at once as a head announces:
        memory is for bytes that came, not for bytes that a peer says will come.
        """
        size = len(self._buffer)
        if self._wanted > size and 4 * (self._end - self._start) >= 3 * size:
            return min(2 * size, self._wanted)
        return min(2 * size, self.largest) if self.filled and size < self.largest else size

    def save_memory(self, saves: bool) -> None:
        """Read into a small buffer where no message needs a larger one; or again into any."""
        self.largest = SAVING_BUFFER if saves else LARGEST_BUFFER
        if saves and len(self._buffer) > SAVING_BUFFER:
            self.shrink()

    def shrink(self) -> None:
        """Give what a buffer has grown by, and does not need, back to the system."""
        needed, size = self._end - self._start, SMALLEST_BUFFER
        while size <= needed:
            size *= 2
        if size < len(self._buffer):
            self._move(size)
            self.filled = False

    def _move(self, size: int) -> None:
        """Move what is not parsed yet to a new buffer; views of the old one may still be around."""
        unread = self._end - self._start
        buffer = bytearray(size)
        buffer[:unread] = self._view[self._start : self._end]
        self._use(buffer)
        self._start, self._end = 0, unread

    def release(self) -> None:
        """Let go of the buffer for good; nothing is received any more."""
        self._drop()
        self._use(bytearray())

    def incomplete(self, received: int) -> int | None:
        """Return what tells the message that is incomplete from others, ``None`` if none is.

        Args:
            received: bytes in all, so that where it begins is known.
        """
        return None if self._start == self._end else received - (self._end - self._start)

    def between_messages(self) -> bool:
        """Return whether the end of the bytes here would cut nothing off."""
        return self._start == self._end

    @abstractmethod
    def _parse(self, frames: list[Received]) -> bool:
        """Parse one frame; return whether there was a whole one."""

    @abstractmethod
    def encode(self, message: Message, kind: Opcode = Opcode.BINARY) -> list[Buffer]:
        """Return the bytes of a message, in pieces."""

    @abstractmethod
    def encode_control(self, kind: Opcode, payload: bytes) -> bytes:
        """Return the bytes of a ping, pong or close."""


def check_control(payload: bytes) -> None:
    """Raise ``ValueError`` for what no control frame can carry."""
    if len(payload) > MAX_CONTROL:
        raise ValueError(f"a control frame carries at most 125 bytes, not {len(payload)}")


def encode_close(code: int, reason: str) -> bytes:
    """Return the payload of a close; a reason too long for it is cut between characters."""
    if code == CloseCode.NO_STATUS_RCVD:  # it stands for "no code", and is never sent
        return b""
    return _UINT16.pack(code) + reason.encode()[:MAX_REASON].decode(errors="ignore").encode()


def decode_close(payload: Buffer) -> tuple[int, str]:
    """Return the code and reason of a close (RFC 6455 sections 5.5.1 and 7.4).

    Raises:
        FrameError: a cut code, a code that must not be sent, or a reason that is not UTF-8.
    """
    if not payload:
        return int(CloseCode.NO_STATUS_RCVD), ""
    if len(payload) == 1:
        raise FrameError("close with half a code")
    (code,) = _UINT16.unpack_from(payload)
    if not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
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
    """Carry a wire that needs no framing: its bytes go out and come in as they are."""

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
        """Return nothing: there is no word for it here."""
        return b""


_LENGTH = struct.Struct(">I")


class LengthFraming(Framing):
    """One end of a byte stream. See ``Framing`` for the calls."""

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
        """Return nothing: there is no word for it here."""
        return b""
