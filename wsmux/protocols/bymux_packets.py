"""Read and write the heads of Bymux packets: a header byte and up to two big-endian integers.

::

    bit    7 6 5    4        3 2         1 0
           type     global   id width    number width

    0 Credit     number: credit added              global: to the right to open streams
    1 Write      number: length of what follows    global: the id of the stream that it opens
    2 Ping       no number
    3 Pong       no number
    4 Close      no number
    5 StopRead   no number

A width code is 0, 1, 2 or 3 for 1, 2, 4 or 8 bytes. A global packet has no id, whatever its id
width says. Integers are written in the fewest bytes and read in any width; bits without a meaning
are written as 0 and not looked at. The types 6 and 7 do not exist.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
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
    "Packet",
    "PacketReader",
    "encode_head",
]

CREDIT, WRITE, PING, PONG, CLOSE, STOP_READ = range(6)
NAMES = ("Credit", "Write", "Ping", "Pong", "Close", "StopRead")

MAX_NUMBER = 2**64 - 1

_GLOBAL = 0x10
_WIDTHS = (1, 2, 4, 8)


class Packet(NamedTuple):
    """Be what one packet says; ``wire_id`` is ``None`` on global ones, ``number`` 0 without one.

    The body is that of a Write on a stream, which comes twice when it arrives in parts: first
    without the body, so that a body too long need not be waited for.
    """

    kind: int
    wire_id: int | None
    number: int
    body: Buffer | None


class _Shape(NamedTuple):
    """Say what a header byte announces; the offsets count from that byte."""

    kind: int
    is_global: bool
    id_end: int  # the id stands from 1 to here, the number from here to ``end``
    end: int


def _shape(header: int) -> _Shape | None:
    kind = header >> 5
    if kind > STOP_READ:
        return None
    is_global = bool(header & _GLOBAL)
    id_end = 1 if is_global else 1 + _WIDTHS[header >> 2 & 3]
    end = id_end + _WIDTHS[header & 3] if kind in (CREDIT, WRITE) else id_end
    return _Shape(kind, is_global, id_end, end)


# What each header byte announces; ``None`` for the types that do not exist.
_SHAPES = tuple(_shape(header) for header in range(256))


class PacketReader:
    """Cut a stream of bytes, however it is chopped, into packets."""

    def __init__(self) -> None:
        self._kept = bytearray()  # the start of an incomplete packet
        self._wanted = 0  # the size it must reach before more of it is known

    def between_packets(self) -> bool:
        """Tell whether no packet is incomplete."""
        return not self._kept

    def packets(self, data: Buffer) -> Iterator[Packet]:
        """Yield the packets that ``data`` completes; the rest is kept for the next call.

        Raises:
            FrameError: a packet is of a type that does not exist.
        """
        rest = memoryview(data)
        while self._kept:
            missing = self._wanted - len(self._kept)
            self._kept += rest[:missing]
            rest = rest[missing:]
            if len(self._kept) < self._wanted:
                return
            if (yield from self._whole(bytes(self._kept))):
                self._kept.clear()
        taken = yield from self._whole(rest)
        self._kept += rest[taken:]

    def _whole(self, data: Buffer) -> Generator[Packet, None, int]:
        """Yield the whole packets at the start of ``data``; return how many bytes they have."""
        start, size = 0, len(data)
        while start < size:
            shape = _SHAPES[data[start]]
            if shape is None:
                raise FrameError(f"packet of the undefined type {data[start] >> 5}")
            kind, is_global, id_end, end = shape
            id_end, end = start + id_end, start + end
            if end > size:
                self._wanted = end - start
                break
            wire_id = None if is_global else int.from_bytes(data[start + 1 : id_end], "big")
            number = int.from_bytes(data[id_end:end], "big")
            if kind != WRITE or is_global:
                yield Packet(kind, wire_id, number, None)
                start = end
            elif end + number <= size:
                yield Packet(kind, wire_id, number, data[end : end + number])
                start = end + number
            else:
                yield Packet(kind, wire_id, number, None)
                self._wanted = end + number - start
                break
        return start


def encode_head(kind: int, wire_id: int | None, number: int | None = None) -> bytes:
    """Return the head of a packet for a stream, or a global one when ``wire_id`` is ``None``.

    Raises:
        ValueError: an integer is negative or needs more than 64 bits.
    """
    header, fields = kind << 5, b""
    if wire_id is None:
        header |= _GLOBAL
    else:
        code = _width_code(wire_id)
        header |= code << 2
        fields = wire_id.to_bytes(_WIDTHS[code], "big")
    if number is not None:
        code = _width_code(number)
        header |= code
        fields += number.to_bytes(_WIDTHS[code], "big")
    return bytes((header,)) + fields


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
