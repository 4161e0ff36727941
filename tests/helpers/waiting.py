"""Wait for a state, never for a time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import wsmux
from wsmux.endpoints.acceptor import Acceptor

from .inside import multiplexer_of
from .scripted import WAIT

__all__ = [
    "pause",
    "polls",
    "threads_of",
    "wait_for",
    "wait_for_reader",
    "wait_for_value",
    "wait_for_writer",
]

T = TypeVar("T")

# Seconds between two looks: a part of those waited so far, so that long waits cost little.
SHORTEST, LONGEST = 0.001, 0.02
PART = 0.05


def pause(since: float) -> None:
    """Sleep before the next look, in a wait that began then."""
    time.sleep(min(max(SHORTEST, PART * (time.monotonic() - since)), LONGEST))


def wait_for(condition: Callable[[], object], timeout: float = WAIT) -> None:
    """Return when ``condition()`` is true; fail after ``timeout`` seconds."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() < start + timeout, "the condition did not come true in time"
        pause(start)


def wait_for_value(value: Callable[[], T], wanted: T, timeout: float = WAIT) -> None:
    """Return when ``value()`` is ``wanted``; fail after ``timeout`` seconds, and tell both.

    Several conditions at once are a tuple of their values, of which one sees what was missing.
    """
    start = time.monotonic()
    while (found := value()) != wanted:
        assert time.monotonic() < start + timeout, f"{found} after {timeout:g} s, not {wanted}"
        pause(start)


def wait_for_reader(connection: wsmux.Connection, count: int = 1) -> None:
    """Return when ``count`` threads are blocked in reads."""
    wait_for(lambda: connection.stats().waiting_readers == count)


def wait_for_writer(connection: wsmux.Connection, count: int = 1) -> None:
    """Return when ``count`` threads are blocked in writes for want of credit."""
    wait_for(lambda: connection.stats().waiting_writers == count)


def polls(connection: wsmux.Connection) -> bool:
    """Return whether the I/O thread waits for its socket and its timers."""
    return sys._current_frames()[multiplexer_of(connection).io_ident].f_code.co_name == "_poll"


def threads_of(server: Acceptor) -> int:
    """Count the threads that serve a connection of a server, by their names."""
    own = f"wsmux-{server.port}-"
    return sum(thread.name.startswith(own) for thread in threading.enumerate())
