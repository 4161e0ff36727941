"""Bound what one message may take, at the end that sends it and at the end that receives it.

All of it follows from ``Options.max_size``, which counts one value of a call as the codec packs it:

- *A sender* refuses a larger value at once, and sends nothing; names and ids around a value may
  take ``ENVELOPE_ROOM`` bytes.
- *A receiver* takes a message of ``max_size`` bytes and that room. So what one end sends, another
  of the same ``max_size`` takes, and nobody has to reckon with what is around a value.
- It reads a message of up to ``READ_TIMES`` as much, to refuse it: the payload is skipped, the
  message counts in its session, and the call that it belongs to ends. While that lasts it is in
  memory about three times: as received, as handed on, and in a decoder; nothing is made of it.
- Beyond that it reads nothing: the connection ends with close code 1009. A sender that keeps the
  message sends it again over the next connection, so the second time ends the session.
"""

from __future__ import annotations

from typing import Any

from ...config import KIB
from ..errors import RiverError
from .codec import Codec, EncodeError
from .envelope import EnvelopeError, error_result, result

__all__ = ["ENVELOPE_ROOM", "Head", "Packer", "most_read", "most_taken"]

# Bytes of a message around its payload. Four ids of 1,024 characters take 24 KiB of JSON if each
# character must be escaped; the rest is for names of procedures, and for tracing.
ENVELOPE_ROOM = 64 * KIB

# Times max_size: a peer with larger limits than this one is told of them, and one that only
# announces much cannot make this one hold it.
READ_TIMES = 4


def most_taken(max_size: int) -> int:
    """Return the maximum size in bytes of a message that is delivered."""
    return max_size + ENVELOPE_ROOM


def most_read(max_size: int) -> int:
    """Return the maximum size in bytes of a message that ends only its call, not its connection."""
    return READ_TIMES * max_size + ENVELOPE_ROOM


class Head:
    """Collect the parts of a message around a skipped payload.

    Args:
        size: bytes of the whole message, for the error message.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._room = ENVELOPE_ROOM
        self._parts: list[bytes | memoryview] = []

    def add(self, part: bytes | memoryview) -> None:
        """Keep a part of the message.

        Raises:
            EnvelopeError: the parts beside the payload are too large.
        """
        self._room -= len(part)
        if self._room < 0:
            raise EnvelopeError(
                f"a message of {self._size} bytes has more than {ENVELOPE_ROOM} beside its payload"
            )
        self._parts.append(part)

    def data(self) -> bytes:
        """Return the parts kept, joined."""
        return b"".join(self._parts)


class Packer:
    """Pack the values of calls, and refuse those above ``max_size``.

    A value is measured without the result that carries it: what came in may go out as it is.
    """

    def __init__(self, codec: Codec, max_size: int) -> None:
        self._codec = codec
        self._max_size = max_size
        bare = len(codec.pack(None))
        self._around_result = len(codec.pack(result(None))) - bare
        self._around_error = len(codec.pack({"ok": False, "payload": None})) - bare

    def pack(self, value: Any) -> bytes:
        """Return the encoded payload of a plain value.

        Raises:
            EncodeError: the codec cannot encode it, or it is too large.
        """
        return self._bounded(self._codec.pack(value), 0)

    def pack_result(self, value: Any) -> bytes:
        """Return the encoded payload of a response.

        Raises:
            EncodeError: the codec cannot encode it, or it is too large.
        """
        return self._bounded(self._codec.pack(result(value)), self._around_result)

    def pack_error(self, error: RiverError) -> bytes:
        """Return the encoded payload of an error.

        Raises:
            EncodeError: the codec cannot encode it, or it is too large.
        """
        return self._bounded(self._codec.pack(error_result(error)), self._around_error)

    def _bounded(self, packed: bytes, around: int) -> bytes:
        size = len(packed) - around
        if size > self._max_size:
            raise EncodeError(
                f"a value of {size} bytes is above Options.max_size, {self._max_size}: "
                "send it in parts, or raise max_size at both ends"
            )
        return packed
