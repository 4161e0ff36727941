"""Measure remote calls, which carry ``SMALL`` bytes and return them, but for those of ``echoes``.

What lasts so many seconds returns how many were answered, and the seconds that took.
"""

from __future__ import annotations

import time

from .blocking import both_ways, count_at_once, exchange_on_all, exchanging
from .words import HEAD, SMALL, SMALL_ONES, Open, Talk, echo_of, talk


class LineCalls:
    """Measure with lines that keep messages apart, one call at a time on each."""

    def __init__(self, opener: Open) -> None:
        self._open = opener

    def rpcs(self, at_once: int, seconds: float) -> tuple[int, float]:
        """Make calls, so many at a time, each line of them after one not counted."""
        return exchange_on_all([self._open() for _ in range(at_once)], SMALL, seconds)

    def streamed(self, count: int) -> float:
        """Have messages echoed on one stream, none waited for; return the seconds for all."""
        message, line = echo_of(SMALL), self._open()
        elapsed = both_ways(line, [message] * count, take_all(message, count))
        line.close()
        return elapsed

    def subscribed(self, count: int) -> float:
        """Have messages sent; return the seconds until the last has come."""
        line, start = self._open(), time.perf_counter()
        line.send(HEAD.pack(SMALL_ONES, count))
        talk(line, take_all(bytes(SMALL), count))
        elapsed = time.perf_counter() - start
        line.close()
        return elapsed

    def echoes(self, size: int, seconds: float) -> tuple[int, float]:
        """Have messages of ``size`` bytes echoed on one stream, one after the other."""
        line = self._open()
        counted = count_at_once([exchanging(line, size)], seconds)
        line.close()
        return counted


def take_all(message: bytes, count: int) -> Talk[None]:
    """Receive so many messages, each of which must be that one."""
    for received in range(count):
        if (yield None) != message:
            raise RuntimeError(f"message {received + 1} of {count} is not what was asked for")
