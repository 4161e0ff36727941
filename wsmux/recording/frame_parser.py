"""Parse the headers of frames of all wires, to summarise a conversation.

Unlike the protocol machines, this checks no protocol rules: each frame is parsed by itself. A
``Cutter`` finds the frames of wires that form a byte stream; on the other wires, each message of
the carrier is one frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from ..exceptions import FrameError
from ..protocols import bymux_packets as bymux
from ..protocols.base import Buffer
from ..protocols.framing import Opcode, decode_close
from ..protocols.native import READ, direction_of, parse_head
from ..protocols.resumption import (
    MessageType,
    Refusal,
    parse_acknowledgement,
    parse_answer,
    parse_end,
    parse_hello,
)
from ..protocols.varint import decode_varint
from ..protocols.yamux_frames import HEAD_SIZE, Flag, FrameReader, Type

__all__ = [
    "CARRIED",
    "KEPT",
    "TYPE_WIDTHS",
    "Cutter",
    "FrameHead",
    "cutter",
    "read_carried",
    "read_head",
]

# Bytes of a frame that include all its fields: the longest is a native ERROR, of 19.
KEPT = 24

NATIVE = ("DATA", "ACK", "ERROR", "CLOSE", "GO_AWAY")
BYMUX = ("CREDIT", "WRITE", "PING", "PONG", "CLOSE", "STOP_READ")
_UINT32 = struct.Struct(">I")
LONGEST = 2**64

# How the types of messages of resumable connections begin.
CARRIED = "RESUME_"

# Bytes shown of an id of 16 random ones: enough to tell sessions apart, too few to be one.
SHOWN = 4

# Width of the type field in native frames.
TYPE_WIDTHS = {"wsmux": 1, "js-ws": 2}


class FrameHead(NamedTuple):
    """Hold the fields of a frame except its payload; ``None`` if it has no such field.

    Attributes:
        type: the wire's name for it; types such as ``CARRIER_CLOSE`` belong to the carrier.
        stream: the id on the wire; ``None`` on frames for the connection.
        length: bytes of payload, at the end of the frame.
        credit: bytes of credit; number of streams for a Bymux CREDIT without a stream.
        code: of an error, a reset, or the end of the connection.
        direction: ``"read"`` or ``"write"``, from the receiver's point of view; native frames only.
        flags: the flags of Yamux, in bit order.
        value: of a ping; the first unprocessed stream of a native GO_AWAY; the stream opened by a
            Bymux WRITE without a stream.
        detail: the reason of a close, or why a frame cannot be parsed; the rest that a message of a
            resumable connection or a durable stream says.
        position: bytes before it in a durable stream, or before what a message of a resumable
            connection or a durable stream says was received, or committed.
    """

    type: str
    stream: int | None = None
    length: int | None = None
    credit: int | None = None
    code: int | None = None
    direction: str | None = None
    flags: tuple[str, ...] = ()
    value: int | None = None
    detail: str = ""
    position: int | None = None


def read_head(wire: str, data: Buffer, size: int, kind: Opcode = Opcode.BINARY) -> FrameHead:
    """Return the fields of a frame.

    Args:
        wire: its name, as in ``connect(protocol=)``.
        data: at least the first ``KEPT`` bytes of the frame.
        size: the size of the frame.
        kind: its opcode in the carrier.

    Returns:
        A header of type ``MALFORMED`` if the frame cannot be parsed.
    """
    try:
        if kind is not Opcode.BINARY:
            return _carrier(kind, data, size)
        if wire == "yamux":
            return _yamux(memoryview(data))
        if wire == "bymux":
            return _bymux(memoryview(data))
        return _native(data, size, TYPE_WIDTHS[wire])
    except FrameError as error:
        return FrameHead("MALFORMED", length=size, detail=str(error))


def read_carried(message: bytes) -> FrameHead:
    """Return the fields of a message of a resumable connection that carries none of its wire.

    A secret, such as the key in WELCOME, is not among them.

    Returns:
        A header of type ``MALFORMED`` if it cannot be parsed.
    """
    try:
        return _carried(message)
    except FrameError as error:
        return FrameHead("MALFORMED", length=len(message), detail=str(error))


def _carried(message: bytes) -> FrameHead:
    kind = message[0] if message else None
    if kind == MessageType.HELLO:
        hello, _, _ = parse_hello(message)
        return FrameHead(
            "RESUME_HELLO",
            flags=("RESUMING",) if hello.resuming else (),
            position=hello.received,
            detail=f"session {hello.session[:SHOWN].hex()} generation {hello.generation} "
            f"oldest {hello.oldest} buffer {hello.buffer}",
        )
    if kind == MessageType.ACK:
        return FrameHead("RESUME_ACK", position=parse_acknowledgement(message))
    if kind == MessageType.END:
        code, reason = parse_end(message)
        return FrameHead("RESUME_END", code=code, detail=reason)
    answer = parse_answer(message)
    if isinstance(answer, Refusal):
        return FrameHead("RESUME_LOST" if answer.lost else "RESUME_REFUSED", detail=answer.reason)
    return FrameHead(
        "RESUME_WELCOME",
        position=answer.received,
        detail=f"epoch {answer.epoch[:SHOWN].hex()} grace {answer.grace:g} buffer {answer.buffer}",
    )


def _carrier(kind: Opcode, data: Buffer, size: int) -> FrameHead:
    if kind is Opcode.TEXT:
        return FrameHead("TEXT", length=size)
    if kind is Opcode.CLOSE:
        code, reason = decode_close(data)
        return FrameHead("CARRIER_CLOSE", code=code, detail=reason)
    return FrameHead(f"CARRIER_{kind.name}", length=size)


def _native(data: Buffer, size: int, width: int) -> FrameHead:
    stream, kind, start = parse_head(data, width)
    if kind >= len(NATIVE):
        raise FrameError(f"message for stream {stream} has the unknown type {kind}")
    name = NATIVE[kind]
    if name == "DATA":
        return FrameHead(name, stream, length=size - start)
    if name == "ACK":
        if len(data) < start + 4:
            raise FrameError(f"ACK on stream {stream} has a body of the wrong length")
        return FrameHead(name, stream, credit=int.from_bytes(data[start : start + 4], "big"))
    if name == "GO_AWAY":
        return FrameHead(name, code=_code(name, stream, data, start), value=stream)
    direction = "read" if direction_of(name, stream, data, start) == READ else "write"
    code = _code(name, stream, data, start + 1) if name == "ERROR" else None
    return FrameHead(name, stream, code=code, direction=direction)


def _code(name: str, stream: int, data: Buffer, start: int) -> int:
    parsed = decode_varint(data, start)
    if parsed is None:
        raise FrameError(f"{name} on stream {stream} without a whole code")
    return parsed[0]


def _yamux(data: memoryview) -> FrameHead:
    head, _ = FrameReader().head(data, 0)
    if head is None:
        raise FrameError("frame without a whole head")
    if head.version or head.type > Type.GO_AWAY:
        raise FrameError(f"frame of version {head.version} and type {head.type}")
    kind, number = Type(head.type), head.length
    flags = tuple(flag.name or "" for flag in Flag if head.flags & flag)
    if kind is Type.DATA:
        return FrameHead(kind.name, head.stream_id, length=number, flags=flags)
    if kind is Type.WINDOW:
        if head.flags & Flag.RST:
            return FrameHead(kind.name, head.stream_id, code=number, flags=flags)
        return FrameHead(kind.name, head.stream_id, credit=number, flags=flags)
    if kind is Type.PING:
        return FrameHead(kind.name, value=number, flags=flags)
    return FrameHead(kind.name, code=number, flags=flags)


def _bymux(data: memoryview) -> FrameHead:
    packet = bymux.PacketReader().packet(data, 0)[0] if data else None
    if packet is None:
        raise FrameError("packet without a whole head")
    name, stream, number = BYMUX[packet.kind], packet.wire_id, packet.number
    if packet.kind == bymux.CREDIT:
        return FrameHead(name, stream, credit=number)
    if packet.kind != bymux.WRITE:
        return FrameHead(name, stream)
    if stream is None:
        return FrameHead(name, value=number)
    return FrameHead(name, stream, length=number)


# The ends of the header at a position and of its frame; 0 and 0 if unknown as yet.
Extent = Callable[[memoryview, int], tuple[int, int]]


def _yamux_extent(data: memoryview, position: int) -> tuple[int, int]:
    end = position + HEAD_SIZE
    if end > len(data):
        return 0, 0
    # Parses no more than necessary: every frame of a conversation passes through here.
    return end, end if data[position + 1] else end + _UINT32.unpack_from(data, end - 4)[0]


def _bymux_extent(data: memoryview, position: int) -> tuple[int, int]:
    layout = bymux.WRITE_LAYOUTS.get(data[position])
    if layout is None:
        packet, end = bymux.PacketReader().packet(data, position)
        return (0, 0) if packet is None else (end, end)
    end = position + layout.size
    if end > len(data):
        return 0, 0
    return end, end + int(layout.unpack_from(data, position)[-1])


class Cutter:
    """Cut a byte stream, in chunks of any size, into frames.

    Buffers at most one incomplete header or, if payloads are kept, one incomplete frame.

    Args:
        extent: finds the end of a frame.
        keep: return whole frames, not just their headers.
    """

    def __init__(self, extent: Extent, keep: bool) -> None:
        self._extent = extent
        self._keep = keep
        self._part = bytearray()
        self._rest = 0  # bytes still to come of a frame already returned
        self._wanted = 0  # the size of the next frame, if known

    @property
    def incomplete(self) -> bool:
        """Whether the bytes so far end in the middle of a frame."""
        return bool(self._part or self._rest)

    def feed(self, data: Buffer, most: int = LONGEST) -> list[tuple[bytes, int]]:
        """Return the frames completed by further bytes, each with its size.

        Without ``keep``, a frame is returned once its header is complete. With it, a frame longer
        than ``most`` is truncated to that.

        Raises:
            FrameError: the length of a frame cannot be determined; nothing may be fed after that.
        """
        view, position = memoryview(data), 0
        if view and not self._part and not self._rest:
            head, end = self._extent(view, 0)
            if head and end == len(view):  # the usual case
                return [(bytes(view[: min(end, most) if self._keep else head]), end)]
        found: list[tuple[bytes, int]] = []
        if self._part:
            self._part += view
            if self._wanted > len(self._part):
                return found
            view, self._wanted = memoryview(bytes(self._part)), 0
            self._part.clear()
        elif self._rest:
            position = min(self._rest, len(view))
            self._rest -= position
        size = len(view)
        while position < size:
            head, end = self._extent(view, position)
            if not head:
                self._part += view[position:]
                break
            stop = min(end, position + most) if self._keep else head
            if stop > size:
                self._part += view[position:]
                self._wanted = stop - position
                break
            found.append((bytes(view[position:stop]), end - position))
            position = end
        self._rest = max(0, position - size) or self._rest
        return found


EXTENTS: dict[str, Extent] = {"yamux": _yamux_extent, "bymux": _bymux_extent}


def cutter(wire: str, keep: bool) -> Cutter | None:
    """Return the cutter for a wire; ``None`` if each message is already a frame."""
    extent = EXTENTS.get(wire)
    return None if extent is None else Cutter(extent, keep)
