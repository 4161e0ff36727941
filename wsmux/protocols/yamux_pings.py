"""Answer the pings of a Yamux peer, ask for its own answers, and measure round trips by them.

There is no clock here: the owner says what time it is.
"""

from __future__ import annotations

from collections import deque

from ..exceptions import LocalProtocolError
from .base import Message
from .yamux_frames import Flag, Type, encode_head

__all__ = ["MEASURING", "Pings"]

# Answers not yet taken; a peer that asks for more than can be sent loses the oldest. As go-yamux.
MAX_ANSWERS = 32

# Pings whose answer is awaited; the oldest are given up, so that a mute peer costs no memory.
MAX_PINGS = 32

# What the pings that measure carry; the owner's carry less.
MEASURING = 2**32 - 1

# Seconds between two measurements of the round-trip time. As go-yamux.
MEASURE_INTERVAL = 30.0

_SYN, _ACK, _PING = int(Flag.SYN), int(Flag.ACK), int(Type.PING)


class Pings:
    """Hold what is under way in both directions.

    Attributes:
        answers: values of the peer's pings, to be sent back.
        rtt: seconds, half of it the last measurement; ``None`` before the first.
    """

    def __init__(self) -> None:
        self.answers: deque[int] = deque(maxlen=MAX_ANSWERS)
        self.rtt: float | None = None
        self._measured: float | None = None  # when the last measurement began
        self._sent: dict[int, float] = {}

    def take_answers(self) -> list[Message]:
        """Return the frames that answer the peer."""
        answers: list[Message] = [(encode_head(_PING, _ACK, 0, v), b"") for v in self.answers]
        self.answers.clear()
        return answers

    def ask(self, value: int, now: float) -> Message:
        """Start the clock of a ping of the owner's, and return its frame."""
        if not 0 <= value < MEASURING:
            raise LocalProtocolError(f"a ping carries a number from 0 to 2^32-2, not {value}")
        return self._ask(value, now)

    def measure(self, now: float) -> Message:
        """Return the frame that measures the round trip."""
        self._measured = now
        return self._ask(MEASURING, now)

    def next_measurement(self, now: float) -> float:
        """Return when to measure; the first time at once."""
        return now if self._measured is None else self._measured + MEASURE_INTERVAL

    def _ask(self, value: int, now: float) -> Message:
        self._sent.pop(value, None)
        self._sent[value] = now
        if len(self._sent) > MAX_PINGS:
            del self._sent[next(iter(self._sent))]
        return encode_head(_PING, _SYN, 0, value), b""

    def received(self, flags: int, value: int, now: float) -> bool:
        """Take a ping or a pong; tell whether it was one that is answered or was asked for."""
        if flags & _SYN:
            self.answers.append(value)
            return True
        sent = self._sent.pop(value, None) if flags & _ACK else None
        if sent is None:
            return False
        sample = now - sent
        self.rtt = sample if self.rtt is None else (self.rtt + sample) / 2
        return True
