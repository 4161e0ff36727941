"""Cut a stream of bytes into Yamux frames, and write their heads.

A frame is a head of 12 bytes, big-endian, and after the head of a data frame its body::

    version u8 | type u8 | flags u16 | stream id u32 | length u32
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple

from ..exceptions import CloseCode, RemoteProtocolError

__all__ = [
    "HEAD_SIZE",
    "NORMAL",
    "PROTOCOL_ERROR",
    "Flag",
    "FrameReader",
    "Head",
    "Type",
    "encode_head",
    "ended_by_peer",
    "go_away_code",
]

_HEAD = struct.Struct(">BBHII")
HEAD_SIZE = _HEAD.size

# The same with version, type and flags in one number, which is 0 on plain data.
_PLAIN = struct.Struct(">III")
_NONE = (0, 0, 0)

# What a GO_AWAY frame says.
NORMAL, PROTOCOL_ERROR, INTERNAL_ERROR = range(3)
_MEANINGS = {PROTOCOL_ERROR: "protocol error", INTERNAL_ERROR: "internal error"}


class Type(IntEnum):
    """Say what a frame is; the length means something else in each."""

    DATA = 0  # bytes of the body
    WINDOW = 1  # bytes of credit added, or the code of a reset
    PING = 2  # an opaque value
    GO_AWAY = 3  # a code


class Flag(IntFlag):
    """Say what a frame does to its stream besides."""

    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


class Head(NamedTuple):
    """Hold the fields of a head as they came; nothing is checked."""

    version: int
    type: int
    flags: int
    stream_id: int
    length: int


def encode_head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """Return the head of a frame of version 0."""
    return _HEAD.pack(0, kind, flags, stream_id, length)


class FrameReader:
    """Put heads and bodies together from pieces of any size.

    Holds at most one incomplete head or body; the caller checks what a head announces before it
    asks for the body.
    """

    def __init__(self) -> None:
        self._part = bytearray()  # of a head, or of a body that is kept
        self._missing: int | None = None  # bytes of a body that has begun, else None
        self._heads = 0  # that came in pieces, or with bodies in pieces

    def incomplete(self) -> int | None:
        """Return the number of the frame that is incomplete, ``None`` if none is."""
        if self._missing is not None:
            return -self._heads
        return self._heads if self._part else None

    def held(self) -> int:
        """Return how many bytes are kept of a frame that is not whole."""
        return len(self._part)

    def between_frames(self) -> bool:
        """Return whether nothing is incomplete, as far as heads go."""
        return not self._part

    def plain(self, data: memoryview, position: int) -> tuple[int, int, int]:
        """Return id, start and end of the body of a whole data frame without flags.

        Nearly all frames are such, and this costs less than ``head`` and ``body``. Nothing is
        taken. The id is 0, which no stream has, for any other frame and while one is incomplete.
        """
        start = position + HEAD_SIZE
        if self._part or self._missing is not None or start > len(data):
            return _NONE
        what, stream_id, length = _PLAIN.unpack_from(data, position)
        end = start + length
        return _NONE if what or not length or end > len(data) else (stream_id, start, end)

    def head(self, data: memoryview, position: int) -> tuple[Head | None, int]:
        """Return the next head, if it is whole, and the position after what was taken."""
        if not self._part and len(data) - position >= HEAD_SIZE:
            return Head._make(_HEAD.unpack_from(data, position)), position + HEAD_SIZE
        end = position + HEAD_SIZE - len(self._part)
        self._heads += not self._part
        self._part += data[position:end]
        if len(self._part) < HEAD_SIZE:
            return None, len(data)
        head = Head._make(_HEAD.unpack(self._part))
        self._part.clear()
        return head, end

    def body(
        self, data: memoryview, position: int, size: int, keep: bool
    ) -> tuple[bytes | None, int]:
        """Return the body, if it is whole, and the position after what was taken.

        A body that is not to be kept is passed over without being stored, and comes out empty.
        """
        missing = size if self._missing is None else self._missing
        end = min(position + missing, len(data))
        missing -= end - position
        if missing:
            self._heads += self._missing is None
            self._missing = missing
            if keep:
                self._part += data[position:end]
            return None, end
        if self._missing is None:
            return bytes(data[position:end]) if keep else b"", end
        self._missing = None
        if keep:
            self._part += data[position:end]
        body = bytes(self._part)
        self._part = bytearray()  # a large one is not to be held on to
        return body, end


def ended_by_peer(code: int) -> RemoteProtocolError:
    """Return what a GO_AWAY of the peer with a code but 0 ends the connection with."""
    meaning = _MEANINGS.get(code, "unknown")
    return RemoteProtocolError(
        f"the peer ended the connection with GO_AWAY code {code} ({meaning})",
        CloseCode.PROTOCOL_ERROR if code == PROTOCOL_ERROR else CloseCode.INTERNAL_ERROR,
        ended_by="remote",
    )


def go_away_code(close_code: int) -> int:
    """Return what a GO_AWAY says when this side ends the connection for a failure."""
    return PROTOCOL_ERROR if close_code == CloseCode.PROTOCOL_ERROR else INTERNAL_ERROR
