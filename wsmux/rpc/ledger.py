"""Count the messages of a session, and keep what was not acknowledged.

The rules are those of the section "Transparent reconnections": ``seq`` is the number of the next
message to send, ``ack`` the number of messages accepted, which is the next number wanted.
Handshakes are not counted.

A message is encoded once. It is repeated with the same bytes, an old ``ack`` among them, so acks
that go backwards are no error. An ack above ``seq`` is one here: shipped code believes it, and
empties its buffer of messages that nobody has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from .failures import SessionFailure

__all__ = ["Ledger", "Verdict"]


class Verdict(Enum):
    """Say what a number makes of a message."""

    ACCEPTED = auto()
    DUPLICATE = auto()
    GAP = auto()


class Ledger:
    """Hold the counters of one end of a session, and its send buffer.

    Attributes:
        seq: number of the next message to send.
        ack: messages accepted.
        buffered_bytes: bytes sent and not acknowledged.
        owed_messages: messages accepted since anything was sent; the peer does not know of them.
        owed_bytes: the same in bytes.
    """

    __slots__ = ("_buffer", "ack", "buffered_bytes", "owed_bytes", "owed_messages", "seq")

    def __init__(self) -> None:
        self.seq = self.ack = 0
        self.buffered_bytes = self.owed_messages = self.owed_bytes = 0
        self._buffer: deque[tuple[int, bytes]] = deque()

    @property
    def buffered_messages(self) -> int:
        """Messages sent and not acknowledged."""
        return len(self._buffer)

    @property
    def oldest(self) -> int:
        """Number of the oldest message not acknowledged, or of the next one if there is none."""
        return self._buffer[0][0] if self._buffer else self.seq

    def send(self, encode: Callable[[int, int], bytes]) -> bytes:
        """Return the message that ``encode`` makes of ``seq`` and ``ack``, and keep it.

        What ``encode`` raises is passed on, and nothing has changed.
        """
        data = encode(self.seq, self.ack)
        self._buffer.append((self.seq, data))
        self.seq += 1
        self.buffered_bytes += len(data)
        self.owed_messages = self.owed_bytes = 0
        return data

    def accept(self, seq: int, ack: int, size: int, *, owed: bool = True) -> Verdict:
        """Decide about a message of ``size`` bytes; an accepted one trims the buffer.

        Args:
            seq: its number.
            ack: what it says the peer has accepted.
            size: its bytes.
            owed: whether it asks for an acknowledgement before the next heartbeat.

        Raises:
            SessionFailure: the peer acknowledges what was never sent; nothing has changed.
        """
        if ack > self.seq:
            raise SessionFailure(f"the peer acknowledges {ack} messages, but had only {self.seq}")
        if seq != self.ack:
            return Verdict.DUPLICATE if seq < self.ack else Verdict.GAP
        self.ack += 1
        if owed:
            self.owed_messages += 1
            self.owed_bytes += size
        self.acknowledged(ack)
        return Verdict.ACCEPTED

    def acknowledged(self, count: int) -> None:
        """Drop the messages below ``count``; costs time for what is dropped only."""
        buffer = self._buffer
        while buffer and buffer[0][0] < count:
            self.buffered_bytes -= len(buffer.popleft()[1])

    def buffered(self) -> list[bytes]:
        """Return what was not acknowledged, in order."""
        return [data for _, data in self._buffer]

    def clear(self) -> None:
        """Drop the buffer: the session is over."""
        self._buffer.clear()
        self.buffered_bytes = 0
