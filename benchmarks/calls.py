"""Say what a client of remote calls must measure, and do it with lines and threads.

Calls carry ``SMALL`` bytes and return them, but for those that say otherwise.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from .blocking import count_at_once
from .peer import CHUNK, ECHO, HEAD, Line, Open, serve_line

__all__ = [
    "SMALL",
    "SMALL_ONES",
    "Calls",
    "LineCalls",
    "receive_all",
    "serve_calls",
    "time_pipelined",
]

SMALL = 64

# The command of a line that asks for messages of that size; see ``peer.py``.
SMALL_ONES = b"S"


class Calls(ABC):
    """Do the client's part of each measurement of calls, and hold the clock.

    What lasts so many seconds returns how many were answered, and the seconds that took.
    """

    @abstractmethod
    def rpcs(self, at_once: int, seconds: float) -> tuple[int, float]:
        """Make calls, so many at a time, each line of them after one not counted."""

    @abstractmethod
    def streamed(self, count: int) -> float:
        """Have messages echoed on one stream, none waited for; return the seconds for all."""

    @abstractmethod
    def subscribed(self, count: int) -> float:
        """Have messages sent; return the seconds until the last has come."""

    @abstractmethod
    def echoes(self, size: int, seconds: float) -> tuple[int, float]:
        """Have messages of ``size`` bytes echoed on one stream, one after the other."""

    def idle(self, count: int) -> tuple[float, float]:
        """Open sessions that stay; return the bytes by which both processes grew for each."""
        raise NotImplementedError(f"{type(self).__name__} has no sessions")


class LineCalls(Calls):
    """Measure with lines that keep messages apart, one call at a time on each."""

    def __init__(self, opener: Open) -> None:
        self._open = opener

    def rpcs(self, at_once: int, seconds: float) -> tuple[int, float]:
        return self._exchanged(SMALL, at_once, seconds)

    def echoes(self, size: int, seconds: float) -> tuple[int, float]:
        return self._exchanged(size, 1, seconds)

    def _exchanged(self, size: int, lines: int, seconds: float) -> tuple[int, float]:
        message = ECHO + bytes(size - 1)
        opened = [self._open() for _ in range(lines)]

        def exchange(line: Line) -> None:
            line.send(message)
            if len(line.receive(CHUNK)) != size:
                raise RuntimeError("the echo is not what was sent")

        counted = count_at_once([partial(exchange, line) for line in opened], seconds)
        for line in opened:
            line.close()
        return counted

    def streamed(self, count: int) -> float:
        message = ECHO + bytes(SMALL - 1)
        line = self._open()
        elapsed = time_pipelined(
            lambda: line.send(message), lambda: len(line.receive(CHUNK)) == SMALL, count
        )
        line.close()
        return elapsed

    def subscribed(self, count: int) -> float:
        line = self._open()
        start = time.perf_counter()
        line.send(HEAD.pack(SMALL_ONES, count))
        receive_all(lambda: len(line.receive(CHUNK)) == SMALL, count)
        elapsed = time.perf_counter() - start
        line.close()
        return elapsed


def serve_calls(line: Line) -> None:
    """Do what ``LineCalls`` asks for, as the server."""
    first = line.receive(CHUNK)
    if first[:1] != SMALL_ONES:
        serve_line(line, first)
        return
    message = bytes(SMALL)
    for _ in range(HEAD.unpack(first)[1]):
        line.send(message)


def time_pipelined(send: Callable[[], object], receive: Callable[[], bool], count: int) -> float:
    """Send from another thread, and return the seconds until everything is back."""
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(count):
                send()
        except Exception as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    start = time.perf_counter()
    writer.start()
    receive_all(receive, count)
    elapsed = time.perf_counter() - start
    writer.join()
    if failures:
        raise failures[0]
    return elapsed


def receive_all(receive: Callable[[], bool], count: int) -> None:
    """Receive so many messages, each of which must be a good one."""
    for received in range(count):
        if not receive():
            raise RuntimeError(f"message {received + 1} of {count} is not what was asked for")
