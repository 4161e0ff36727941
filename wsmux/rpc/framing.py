"""Carry messages of River over a byte stream: each behind its length, uint32 big-endian.

So does the TypeScript implementation over Unix sockets (section "Wire format"). There are no pings
and no closing message; River's own heartbeats and the end of the stream stand for them.
"""

from __future__ import annotations

import struct

from ..exceptions import FrameError
from ..protocols.base import Buffer, Message
from ..protocols.carrier import Framing, Kind, Received

__all__ = ["LengthFraming"]

_LENGTH = struct.Struct(">I")

TOO_BIG = 1009


class LengthFraming(Framing):
    """Be one end of a byte stream. See ``Framing`` for the calls."""

    has_controls = False

    def _parse(self, frames: list[Received]) -> bool:
        start, end = self._start, self._end
        body = start + _LENGTH.size
        if body > end:
            return False
        (size,) = _LENGTH.unpack_from(self._view, start)
        if size > self.max_message_size:
            raise FrameError(
                f"message of {size} bytes is above the limit of {self.max_message_size}", TOO_BIG
            )
        stop = body + size
        if stop > end:
            self._wanted = stop - start
            return False
        self._start, self._wanted = stop, 0
        frames.append((Kind.BINARY, self._view[body:stop]))
        return True

    def encode(self, message: Message, kind: Kind = Kind.BINARY) -> list[Buffer]:
        head, body = message
        return [_LENGTH.pack(len(head) + len(body)) + head, body]

    def encode_control(self, kind: Kind, payload: bytes) -> bytes:
        """Return nothing: there is no word for it here."""
        return b""
