"""Limit the size of messages, at the sender and at the receiver.

All limits follow from ``Options.max_size``, the maximum size of one value of a call as packed by
the codec:

- *A sender* refuses a larger value at once, and sends nothing. Names and ids around a value may
  take ``ENVELOPE_ROOM`` bytes.
- *A receiver* accepts messages of ``max_size`` bytes plus that room. So it accepts all values of a
  sender with the same ``max_size``, and users need not know the size of what is around a value.
- It also reads messages of up to ``READ_TIMES`` as much, in order to refuse them: the payload is
  skipped, the message counts in its session, and its call ends with an error. Meanwhile the bytes
  are in memory about three times: as received, as passed on, and in the decoder.
- A larger message is not read: the connection ends with close code 1009. The sender keeps the
  message and sends it again over the next connection, so the second time ends the session.
"""

from __future__ import annotations

from typing import Any

from ...config import KIB
from ..errors import RiverError
from .codec import Codec, EncodeError
from .envelope import EnvelopeError, error_result, result

__all__ = ["ENVELOPE_ROOM", "Head", "Packer", "most_read", "most_taken"]

# Maximum size of a message without its payload. Four ids of 1,024 characters take 24 KiB of JSON if
# each character is escaped; the rest is for names of procedures and for tracing.
ENVELOPE_ROOM = 64 * KIB

# Times max_size. A peer with somewhat larger limits gets an error for its call instead of a closed
# connection; a hostile one cannot make this end buffer more.
READ_TIMES = 4


def most_taken(max_size: int) -> int:
    """Return the maximum size in bytes of a message that is delivered."""
    return max_size + ENVELOPE_ROOM


def most_read(max_size: int) -> int:
    """Return the maximum size in bytes of a message that ends its call, not the connection."""
    return READ_TIMES * max_size + ENVELOPE_ROOM


class Head:
    """Collect the parts of a message except its payload.

    Args:
        size: size of the whole message in bytes, for the error message.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._room = ENVELOPE_ROOM
        self._parts: list[bytes | memoryview] = []

    def add(self, part: bytes | memoryview) -> None:
        """Append a part of the message.

        Raises:
            EnvelopeError: all parts are larger than ``ENVELOPE_ROOM``.
        """
        self._room -= len(part)
        if self._room < 0:
            raise EnvelopeError(
                f"a message of {self._size} bytes has more than {ENVELOPE_ROOM} beside its payload"
            )
        self._parts.append(part)

    def data(self) -> bytes:
        """Return all parts, joined."""
        return b"".join(self._parts)


class Packer:
    """Pack the values of calls, and refuse those above ``max_size``.

    The result object around a response or an error does not count, so that a value which was
    received can always be sent back.
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
