"""Split a byte stream into Yamux frames, and encode their headers.

A frame is a big-endian header of 12 bytes, and after that of a data frame its body::

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

# The same with version, type and flags as one number, which is 0 for plain data.
_PLAIN = struct.Struct(">III")
_NONE = (0, 0, 0)

# Codes of a GO_AWAY frame.
NORMAL, PROTOCOL_ERROR, INTERNAL_ERROR = range(3)
_MEANINGS = {PROTOCOL_ERROR: "protocol error", INTERNAL_ERROR: "internal error"}


class Type(IntEnum):
    """The type of a frame, with the meaning of its length field."""

    DATA = 0  # bytes of the body
    WINDOW = 1  # bytes of credit added, or the code of a reset
    PING = 2  # an opaque value
    GO_AWAY = 3  # a code


class Flag(IntFlag):
    """Flags that change the state of the stream."""

    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


class Head(NamedTuple):
    """Hold the fields of a header, unchecked."""

    version: int
    type: int
    flags: int
    stream_id: int
    length: int


def encode_head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """Return the header of a frame of version 0."""
    return _HEAD.pack(0, kind, flags, stream_id, length)


class FrameReader:
    """Assemble headers and bodies from pieces of any size.

    Holds at most one incomplete header or body; the caller checks a header before it requests the
    body.
    """

    def __init__(self) -> None:
        self._part = bytearray()  # of a header, or of a body that is kept
        self._missing: int | None = None  # bytes to come of a body, None outside of one
        self._heads = 0  # headers that arrived in pieces, or whose bodies did

    def incomplete(self) -> int | None:
        """Return the number of the incomplete frame, ``None`` if there is none."""
        if self._missing is not None:
            return -self._heads
        return self._heads if self._part else None

    def held(self) -> int:
        """Return the bytes buffered of an incomplete frame."""
        return len(self._part)

    def between_frames(self) -> bool:
        """Return whether no header is incomplete."""
        return not self._part

    def plain(self, data: memoryview, position: int) -> tuple[int, int, int]:
        """Return id, start and end of the body of a complete data frame without flags.

        Nearly all frames are like that, and this costs less than ``head`` and ``body``. Nothing is
        consumed. The id is 0, which no stream has, for any other frame, and while one is
        incomplete.
        """
        start = position + HEAD_SIZE
        if self._part or self._missing is not None or start > len(data):
            return _NONE
        what, stream_id, length = _PLAIN.unpack_from(data, position)
        end = start + length
        return _NONE if what or not length or end > len(data) else (stream_id, start, end)

    def head(self, data: memoryview, position: int) -> tuple[Head | None, int]:
        """Return the next header, if complete, and the position after the consumed bytes."""
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
        """Return the body, if complete, and the position after the consumed bytes.

        A body that is not to be kept is skipped without being stored, and returned empty.
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
        self._part = bytearray()  # do not hold on to a large one
        return body, end


def ended_by_peer(code: int) -> RemoteProtocolError:
    """Return the error for a GO_AWAY of the peer with a code other than 0."""
    meaning = _MEANINGS.get(code, "unknown")
    return RemoteProtocolError(
        f"the peer ended the connection with GO_AWAY code {code} ({meaning})",
        CloseCode.PROTOCOL_ERROR if code == PROTOCOL_ERROR else CloseCode.INTERNAL_ERROR,
        ended_by="remote",
    )


def go_away_code(close_code: int) -> int:
    """Return the GO_AWAY code when this side ends the connection because of a failure."""
    return PROTOCOL_ERROR if close_code == CloseCode.PROTOCOL_ERROR else INTERNAL_ERROR
