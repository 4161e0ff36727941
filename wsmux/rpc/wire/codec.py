"""Define codecs, which encode and decode River's messages. Both ends must use the same one.

A message is encoded in two steps. The calling thread packs the payload, which may be large, without
a lock; the rest needs the session's counters, and so its lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ...exceptions import LocalProtocolError
from .envelope import Envelope

__all__ = ["Codec", "EncodeError"]

# Default maximum of nesting levels, more than any reasonable schema has.
MAX_DEPTH = 100

# Encoding takes two nested Python calls per level, and the interpreter allows 1000.
MOST_DEPTH = 200


class EncodeError(LocalProtocolError):
    """Report a value that the codec cannot encode; nothing was sent."""


class Codec(ABC):
    """The base class of codecs, whose instances have no state and may be shared by threads.

    The size of messages is limited by ``Options.max_size``, not by the codec.

    Args:
        max_depth: maximum nesting of arrays and objects in a payload, encoded or decoded, from 1
            to 200. The message around the payload does not count.

    Raises:
        ValueError: ``max_depth`` is below 1 or above 200.
    """

    name: ClassVar[str]

    def __init__(self, max_depth: int = MAX_DEPTH) -> None:
        if not 1 <= max_depth <= MOST_DEPTH:
            raise ValueError(f"max_depth must be from 1 to {MOST_DEPTH}, but is {max_depth!r}")
        self.max_depth = max_depth

    @abstractmethod
    def pack(self, payload: Any) -> bytes:
        """Return an encoded payload.

        Raises:
            EncodeError: the codec cannot encode a value in it, or it is too deep.
        """

    @abstractmethod
    def encode(self, envelope: Envelope, packed: bytes) -> bytes:
        """Return the encoded message of ``envelope``, with ``packed`` as its payload.

        Raises:
            EncodeError: a name in it cannot be encoded.
        """

    @abstractmethod
    def decode(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Decode a message.

        Raises:
            EnvelopeError: ``data`` is not a message. No bytes raise any other error.
        """

    def decode_head(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Decode a message without its payload, which is ``None``.

        It is called for messages that are too large to be delivered. Codecs that can skip a
        payload without decoding it override this method.

        Raises:
            EnvelopeError: ``data`` is not a message. No bytes raise any other error.
        """
        return self.decode(data)._replace(payload=None)
