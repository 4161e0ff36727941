"""Say what durable streams need of those who keep offsets and data."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Journal", "Offsets"]


class Offsets(Protocol):
    """Keep how much of each name a receiver has committed.

    Epoch and offset are one record: they change together, and survive together. Any thread may
    call, for one name one at a time. What a method raises refuses the stream: a ``DurableRefused``
    as it says, anything else as ``FAILED``.
    """

    def committed(self, name: str, epoch: bytes) -> int:
        """Return the committed offset; 0 if the name is unknown, or has another epoch."""

    def commit(self, name: str, epoch: bytes, offset: int) -> None:
        """Record that everything before ``offset`` has its effect.

        When it returns, the effect and the offset survive the process.
        """


class Journal(Protocol):
    """Keep what a sender has written and its receiver has not committed. Any thread may call.

    Attributes:
        epoch: 16 bytes, made once for the journal.
        max_bytes: the most bytes that are kept; a longer write is appended in parts.
        start: the offset of the oldest byte that is kept.
        end: the offset behind the newest.
    """

    @property
    def epoch(self) -> bytes: ...

    @property
    def max_bytes(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    def append(self, data: bytes, timeout: float | None = None) -> int:
        """Add data, and return the offset behind it; wait while the journal is full.

        Raises:
            TimeoutError: it was full for ``timeout`` seconds, and nothing was added.
        """

    def read(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes from an offset that is kept."""

    def trim(self, offset: int) -> None:
        """Drop what is before an offset."""
