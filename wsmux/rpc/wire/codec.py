"""Say what a codec does: turn messages of River into bytes and back. Both ends must use the same.

A message is encoded in two steps, so that a large payload is packed by the calling thread before it
takes the session's lock, where the counters are known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ...exceptions import LocalProtocolError
from .envelope import Envelope, EnvelopeError

__all__ = ["Codec", "EncodeError"]

# What a codec accepts, by default: nesting that no honest schema has, and the mux's own limit.
MAX_DEPTH = 100
MAX_SIZE = 16 * 1024 * 1024

# Encoding takes two calls of Python a level, and an interpreter takes 1000 inside each other.
MOST_DEPTH = 200


class EncodeError(LocalProtocolError):
    """Report a value that the codec cannot carry; nothing was sent."""


class Codec(ABC):
    """The base of the codecs; instances hold no state and may be shared by threads.

    Args:
        max_depth: arrays and objects inside each other in a payload, when decoding and when
            encoding, at most 200; the message around it does not count.
        max_size: bytes of one message, both ways.

    Raises:
        ValueError: a limit is below 1, or ``max_depth`` above 200.
    """

    name: ClassVar[str]

    def __init__(self, max_depth: int = MAX_DEPTH, max_size: int = MAX_SIZE) -> None:
        if not 1 <= max_depth <= MOST_DEPTH:
            raise ValueError(f"max_depth must be from 1 to {MOST_DEPTH}, but is {max_depth!r}")
        if max_size < 1:
            raise ValueError(f"max_size must be from 1 up, but is {max_size!r}")
        self.max_depth = max_depth
        self.max_size = max_size

    @abstractmethod
    def pack(self, payload: Any) -> bytes:
        """Return a payload as it stands in a message.

        Raises:
            EncodeError: it holds what the codec cannot carry, or is too deep or too large.
        """

    @abstractmethod
    def encode(self, envelope: Envelope, packed: bytes) -> bytes:
        """Return the message of ``envelope``, with ``packed`` in place of its payload.

        Raises:
            EncodeError: a name in it cannot be carried, or the whole is too large.
        """

    @abstractmethod
    def decode(self, data: bytes | bytearray | memoryview) -> Envelope:
        """Return the message that ``data`` is.

        Raises:
            EnvelopeError: it is none; whatever the bytes are, nothing else is raised.
        """

    def _bounded(self, encoded: bytes) -> bytes:
        if len(encoded) > self.max_size:
            raise EncodeError(f"{len(encoded)} bytes are above max_size, {self.max_size}")
        return encoded

    def _admitted(self, data: bytes | bytearray | memoryview) -> bytes:
        if type(data) is not bytes:
            data = bytes(data)
        if len(data) > self.max_size:
            raise EnvelopeError(f"a message of {len(data)} bytes is above max_size")
        return data
