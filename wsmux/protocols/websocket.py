"""Encode and parse RFC 6455 frames on a socket after the handshake.

Strict wherever the RFC says MUST: reserved bits and opcodes, masking by role, shortest lengths,
unfragmented control frames of at most 125 bytes, UTF-8 in text and close reasons, close codes. No
extension is ever negotiated, so reserved bits are always an error. Text is validated once complete.

If message boundaries do not matter, fragments are passed on as they arrive, and frames larger than
``max_message_size`` in pieces: nothing is buffered, so no size is refused.
"""

from __future__ import annotations

import os
import struct

from ..exceptions import CloseCode, FrameError
from .base import Buffer, Message, Role
from .framing import Framing, Opcode, Received, check_control
from .masking import mask, rotate

__all__ = ["WebSocketFraming"]

_FIN = 0x80
_RESERVED = 0x70
_OPCODE = 0x0F
_MASKED = 0x80
_LENGTH = 0x7F

# Looking these up in the class for each frame costs too much.
_BINARY, _CLOSE = Opcode.BINARY, int(Opcode.CLOSE)

_WHOLE_BINARY = _FIN | int(_BINARY)
_SHORT, _MEDIUM, _LONG = 125, 2**16 - 1, 2**63 - 1
_MEDIUM_HEADER = struct.Struct(">BBH")
_LONG_HEADER = struct.Struct(">BBQ")
_UINT64 = struct.Struct(">Q")

# Below this size, masking and sending one joined piece costs less than two.
_JOIN_BELOW = 4096


class WebSocketFraming(Framing):
    """One end of a WebSocket after the handshake. See ``Framing`` for the methods.

    Args:
        role: the client masks.
        max_message_size: in bytes; the module docstring describes what happens above it.
        max_fragments: the limit per message.
        keeps_boundaries: pass on a message only once it is complete.
    """

    def __init__(
        self,
        role: Role,
        max_message_size: int,
        max_fragments: int = 1024,
        keeps_boundaries: bool = True,
    ) -> None:
        super().__init__(max_message_size)
        self.max_fragments = max_fragments
        self._keeps_boundaries = keeps_boundaries
        self._rest = 0  # bytes to come of a frame passed on in pieces
        self._rest_key = b""  # their mask
        # RFC 6455 section 5.1
        self._sent_mask = _MASKED if role is Role.CLIENT else 0
        self._wanted_mask = _MASKED - self._sent_mask
        self._kind: Opcode | None = None  # of the message whose fragments are arriving
        # The fragments so far, in one block: many small pieces, freed among those of other
        # connections, would leave holes of the same total size.
        self._message = bytearray()
        self._fragments = 0
        self._fragmented = 0  # number of messages received in fragments

    def _drop(self) -> None:
        super()._drop()
        self._message = bytearray()
        self._fragments = self.pending = 0

    def incomplete(self, received: int) -> int | None:
        if self._kind is not None and self._keeps_boundaries:
            return -self._fragmented
        return super().incomplete(received)

    def between_messages(self) -> bool:
        return super().between_messages() and self._kind is None and not self._rest

    def _parse(self, frames: list[Received]) -> bool:
        if self._rest:
            self._piece(frames)
            return True
        buffer, view, start, end = self._buffer, self._view, self._start, self._end
        wanted_mask, limit = self._wanted_mask, self.max_message_size - len(self._message)
        usual = _WHOLE_BINARY if self._kind is None else -1
        while (masked := start + 2) <= end:
            first, second = buffer[start], buffer[start + 1]
            plain = first == usual and second & _MASKED == wanted_mask
            if not plain:
                self._check_head(first, second)
            size = second & _LENGTH
            if size == _SHORT + 1:
                masked += 2
                if masked > end:
                    break
                size = buffer[start + 2] << 8 | buffer[start + 3]
                if size <= _SHORT:
                    self._wrong_size(size)
            elif size > _SHORT:
                masked += 8
                if masked > end:
                    break
                (size,) = _UINT64.unpack_from(buffer, start + 2)
                if not _MEDIUM < size <= _LONG:
                    self._wrong_size(size)
            payload = masked + 4 if wanted_mask else masked
            if size > limit and first & _OPCODE < _CLOSE:
                self._start, self._wanted = start, 0
                return self._too_big(first, size, masked, payload)
            stop = payload + size
            if stop > end:
                self._start, self._wanted = start, stop - start
                return False
            data: Buffer = view[payload:stop]
            if wanted_mask:
                data = mask(data, bytes(buffer[masked:payload]))
            start = stop
            if not plain:
                self._start, self._wanted = start, 0
                self._add(first, data, frames)
                return True
            frames.append((_BINARY, data))
        self._start, self._wanted = start, 0
        return False

    def _add(self, first: int, data: Buffer, frames: list[Received]) -> None:
        """Add a frame that is not a whole binary message."""
        opcode = first & _OPCODE
        if opcode >= _CLOSE:
            self.controls = True
            frames.append((Opcode(opcode), bytes(data)))
        elif first & _FIN and opcode:
            frames.append(_whole(Opcode(opcode), data))
        else:
            self._fragment(opcode, bool(first & _FIN), data, frames)

    def _check_head(self, first: int, second: int) -> None:
        opcode = first & _OPCODE
        if first & _RESERVED:
            raise FrameError("frame with a reserved bit set")
        if opcode >= Opcode.CLOSE:
            if opcode > Opcode.PONG:
                raise FrameError(f"frame with the reserved opcode {opcode}")
            if not first & _FIN:
                raise FrameError("fragmented control frame")
            if second & _LENGTH > _SHORT:
                raise FrameError("control frame of more than 125 bytes")
        elif opcode > Opcode.BINARY:
            raise FrameError(f"frame with the reserved opcode {opcode}")
        elif opcode and self._kind is not None:
            raise FrameError("new message before the last fragment of the one before")
        elif not opcode and self._kind is None:
            raise FrameError("continuation frame without a message to continue")
        if second & _MASKED != self._wanted_mask:
            raise FrameError(
                "masked frame from the server" if self._sent_mask else "unmasked frame"
            )

    def _wrong_size(self, size: int) -> None:
        if size > _LONG:
            raise FrameError("frame length with the top bit set")
        raise FrameError("frame length not in its shortest form")

    def _too_big(self, first: int, size: int, masked: int, payload: int) -> bool:
        """Refuse a frame whose header is complete, or begin to pass it on in pieces."""
        opcode = first & _OPCODE
        if self._keeps_boundaries or (self._kind or opcode) != _BINARY:
            raise FrameError(
                f"message of at least {size + len(self._message)} bytes is above the limit of "
                f"{self.max_message_size}",
                CloseCode.MESSAGE_TOO_BIG,
            )
        if payload > self._end:
            return False
        self._kind = None if first & _FIN else _BINARY
        self._start, self._rest = payload, size
        self._rest_key = bytes(self._buffer[masked:payload])
        return True

    def _piece(self, frames: list[Received]) -> None:
        """Pass on the available part of a frame."""
        size = min(self._rest, self._end - self._start)
        data: Buffer = self._view[self._start : self._start + size]
        self._start += size
        self._rest -= size
        if self._wanted_mask:
            data = mask(data, self._rest_key)
            self._rest_key = rotate(self._rest_key, size)
        frames.append((_BINARY, data))

    def _fragment(self, opcode: int, last: bool, data: Buffer, frames: list[Received]) -> None:
        if opcode:
            self._kind = Opcode(opcode)
            self._fragmented += 1
        if self._kind is _BINARY and not self._keeps_boundaries:
            frames.append((_BINARY, data))
            if last:
                self._kind = None
            return
        self._message += data
        self._fragments += 1
        self.pending = len(self._message) * 9 // 8  # CPython may have allocated as much
        if self._fragments > self.max_fragments:
            raise FrameError(
                f"message of more than {self.max_fragments} fragments", CloseCode.POLICY_VIOLATION
            )
        if last and self._kind is not None:
            frames.append(_whole(self._kind, self._message))
            self._kind = None
            self._message = bytearray()
            self._fragments = self.pending = 0

    def encode(self, message: Message, kind: Opcode = Opcode.BINARY) -> list[Buffer]:
        head, body = message
        size = len(head) + len(body)
        if size <= _SHORT:
            header = bytes((_FIN | kind, self._sent_mask | size))
        else:
            header = _header(kind, size, self._sent_mask)
        if not self._sent_mask:
            if size < _JOIN_BELOW:
                return [b"".join((header, head, body))]
            return [header + head, body]
        key = os.urandom(4)
        header += key
        if size < _JOIN_BELOW:
            return [header + mask(b"".join((head, body)), key)]
        return [header + mask(head, key), mask(body, rotate(key, len(head)))]

    def encode_control(self, kind: Opcode, payload: bytes) -> bytes:
        check_control(payload)
        return b"".join(self.encode((payload, b""), kind))


def _whole(kind: Opcode, data: Buffer) -> Received:
    if kind is Opcode.TEXT:
        try:
            str(data, "utf-8")
        except UnicodeDecodeError:
            raise FrameError("text message that is not UTF-8", CloseCode.INVALID_DATA) from None
    return kind, data


def _header(kind: Opcode, size: int, masked: int) -> bytes:
    """Return the header of a frame of more than 125 bytes."""
    first = _FIN | kind
    if size <= _MEDIUM:
        return _MEDIUM_HEADER.pack(first, masked | _SHORT + 1, size)
    return _LONG_HEADER.pack(first, masked | _SHORT + 2, size)
