"""Define codecs, which turn River messages into bytes and back. Both ends must use the same one.

A message is encoded in two steps, so that the calling thread packs a large payload before it takes
the lock of the session, under which the counters are known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ...exceptions import LocalProtocolError
from .envelope import Envelope

__all__ = ["Codec", "EncodeError"]

# Default maximum of nesting levels; no reasonable schema has as many.
MAX_DEPTH = 100

# Encoding takes two nested Python calls per level, and the interpreter allows 1000.
MOST_DEPTH = 200


class EncodeError(LocalProtocolError):
    """Report a value that the codec cannot encode; nothing was sent."""


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
        """Return an encoded payload.

        Raises:
            EncodeError: the codec cannot encode a value in it, or it is too deep.
        """

    @abstractmethod
    def encode(self, envelope: Envelope, packed: bytes) -> bytes:
        """Return the message of ``envelope``, with ``packed`` in place of its payload.

        Raises:
            EncodeError: a name in it cannot be encoded.
        """

    @abstractmethod
    def decode(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Return the message in ``data``.

        Raises:
            EnvelopeError: ``data`` is not a message; no other error is raised for any bytes.
        """

    def decode_head(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Return the message in ``data``, with ``None`` for its payload.

        Called for messages that are too large to be delivered. A codec that can skip a payload
        without decoding it overrides this.

        Raises:
            EnvelopeError: ``data`` is not a message; no other error is raised for any bytes.
        """
        return self.decode(data)._replace(payload=None)
