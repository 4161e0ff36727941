"""Say what a codec does: turn messages of River into bytes and back. Both ends must use the same.

A message is encoded in two steps, so that a large payload is packed by the calling thread before it
takes the session's lock, where the counters are known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ...exceptions import LocalProtocolError
from .envelope import Envelope

__all__ = ["Codec", "EncodeError"]

# What a codec accepts, by default: nesting that no honest schema has.
MAX_DEPTH = 100

# Encoding takes two calls of Python a level, and an interpreter takes 1000 inside each other.
MOST_DEPTH = 200


class EncodeError(LocalProtocolError):
    """Report a value that the codec cannot carry; nothing was sent."""


class Codec(ABC):
    """The base of the codecs; instances hold no state and may be shared by threads.

    How long a message may be is no matter of the codec, but of ``Options.max_size``.

    Args:
        max_depth: arrays and objects inside each other in a payload, when decoding and when
            encoding, at most 200; the message around it does not count.

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
        """Return a payload as it stands in a message.

        Raises:
            EncodeError: it holds what the codec cannot carry, or is too deep.
        """

    @abstractmethod
    def encode(self, envelope: Envelope, packed: bytes) -> bytes:
        """Return the message of ``envelope``, with ``packed`` in place of its payload.

        Raises:
            EncodeError: a name in it cannot be carried.
        """

    @abstractmethod
    def decode(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Return the message that ``data`` is.

        Raises:
            EnvelopeError: it is none; whatever the bytes are, nothing else is raised.
        """

    def decode_head(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Return the message that ``data`` is, with ``None`` for its payload.

        It is called for messages that are too large to be handed on. A codec that can skip a
        payload, instead of making it and dropping it, overrides this.

        Raises:
            EnvelopeError: it is none; whatever the bytes are, nothing else is raised.
        """
        return self.decode(data)._replace(payload=None)
