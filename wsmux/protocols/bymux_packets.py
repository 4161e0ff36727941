"""Parse and encode Bymux packet headers: a header byte and up to two big-endian integers.

::

    bit    7 6 5    4        3 2         1 0
           type     global   id width    number width

    0 Credit     number: credit added              global: for opening streams
    1 Write      number: length of the body        global: the id of the stream that it opens
    2 Ping       no number
    3 Pong       no number
    4 Close      no number
    5 StopRead   no number

A width code of 0, 1, 2 or 3 means 1, 2, 4 or 8 bytes. A global packet has no id, whatever its id
width. Integers are sent in the fewest bytes and accepted in any width; bits without a meaning are
sent as 0 and ignored. The types 6 and 7 do not exist.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from ..exceptions import FrameError
from .base import Buffer

__all__ = [
    "CLOSE",
    "CREDIT",
    "MAX_NUMBER",
    "NAMES",
    "PING",
    "PONG",
    "STOP_READ",
    "WRITE",
    "WRITE_LAYOUTS",
    "Packet",
    "PacketReader",
    "encode_head",
]

CREDIT, WRITE, PING, PONG, CLOSE, STOP_READ = range(6)
NAMES = ("Credit", "Write", "Ping", "Pong", "Close", "StopRead")

MAX_NUMBER = 2**64 - 1

_GLOBAL = 0x10
_FORMATS = "BHIQ"


class Packet(NamedTuple):
    """Hold one packet; ``wire_id`` is ``None`` on global ones, ``number`` 0 without one.

    The body is that of a Write on a stream. If it arrives in parts, the packet is returned twice:
    first without the body, so that a body too long need not be waited for.
    """

    kind: int
    wire_id: int | None
    number: int
    body: Buffer | None


class _Shape(NamedTuple):
    """Describe the packet after a header byte; the layout begins with that byte."""

    kind: int
    is_global: bool
    has_number: bool
    layout: struct.Struct


def _shape(header: int) -> _Shape:
    kind, is_global = header >> 5, bool(header & _GLOBAL)
    wire_id = "" if is_global else _FORMATS[header >> 2 & 3]
    has_number = kind in (CREDIT, WRITE)
    number = _FORMATS[header & 3] if has_number else ""
    return _Shape(kind, is_global, has_number, struct.Struct(f">B{wire_id}{number}"))


# The shape for each header byte, up to the last of a type that exists.
_SHAPES = tuple(_shape(header) for header in range(STOP_READ + 1 << 5))

# The layouts of Writes on a stream by their header bytes.
WRITE_LAYOUTS = {
    header: shape.layout
    for header, shape in enumerate(_SHAPES)
    if shape.kind == WRITE and not shape.is_global
}


class PacketReader:
    """Split a byte stream, in chunks of any size, into packets."""

    def __init__(self) -> None:
        self._kept = bytearray()  # the start of an incomplete packet
        self._wanted = 0  # the size at which more of it can be parsed
        self._packets = 0  # packets that arrived in pieces
        self._body = 0  # where the body of an incomplete Write begins in the data

    def between_packets(self) -> bool:
        """Return whether no packet is incomplete."""
        return not self._kept

    def held(self) -> int:
        """Return the bytes buffered of an incomplete packet."""
        return len(self._kept)

    def incomplete(self) -> int | None:
        """Return the number of the incomplete packet, ``None`` if there is none."""
        return self._packets if self._kept else None

    def packet(self, data: memoryview, position: int) -> tuple[Packet | None, int]:
        """Return the next packet, if enough has arrived, and the position after the consumed bytes.

        Raises:
            FrameError: the type of a packet does not exist.
        """
        if not self._kept:
            packet, end = self._parse(data, position)
            if not end:
                # Nothing of a body is kept before the caller has seen its header.
                end = len(data) if packet is None else self._body
                self._kept += data[position:end]
                self._packets += 1
            return packet, end
        end = position + self._wanted - len(self._kept)
        self._kept += data[position:end]
        if end > len(data):
            return None, len(data)
        packet, whole = self._parse(memoryview(bytes(self._kept)), 0)
        if whole:
            self._kept.clear()
        return packet, end

    def _parse(self, data: memoryview, start: int) -> tuple[Packet | None, int]:
        """Return the available part of a packet, and its end; 0 if it is incomplete."""
        header = data[start]
        if header >= len(_SHAPES):
            raise FrameError(f"packet of the undefined type {header >> 5}")
        kind, is_global, has_number, layout = _SHAPES[header]
        end = start + layout.size
        if end > len(data):
            self._wanted = end - start
            return None, 0
        numbers = layout.unpack_from(data, start)
        wire_id = None if is_global else numbers[1]
        number = numbers[-1] if has_number else 0
        if kind != WRITE or is_global:
            return Packet(kind, wire_id, number, None), end
        stop = end + number
        if stop <= len(data):
            return Packet(kind, wire_id, number, data[end:stop]), stop
        self._wanted, self._body = stop - start, end
        return Packet(kind, wire_id, number, None), 0


@lru_cache(maxsize=256)
def encode_head(kind: int, wire_id: int | None, number: int | None = None) -> bytes:
    """Return the header of a packet for a stream, or a global one if ``wire_id`` is ``None``.

    Raises:
        ValueError: an integer is negative or needs more than 64 bits.
    """
    header = kind << 5
    header |= _GLOBAL if wire_id is None else _width_code(wire_id) << 2
    header |= 0 if number is None else _width_code(number)
    numbers = [value for value in (wire_id, number) if value is not None]
    return _SHAPES[header].layout.pack(header, *numbers)


def _width_code(value: int) -> int:
    if 0 <= value < 1 << 8:
        return 0
    if 0 <= value < 1 << 16:
        return 1
    if 0 <= value < 1 << 32:
        return 2
    if 0 <= value <= MAX_NUMBER:
        return 3
    raise ValueError(f"{value} does not fit the 64 bits of a Bymux integer")
