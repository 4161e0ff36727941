"""Wait for a state, never for a time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import wsmux
from wsmux.endpoints.acceptor import Acceptor

from .scripted import WAIT

__all__ = [
    "polls",
    "threads_of",
    "wait_for",
    "wait_for_reader",
    "wait_for_value",
    "wait_for_writer",
]

T = TypeVar("T")

PAUSE = 0.001


def wait_for(condition: Callable[[], object], timeout: float = WAIT) -> None:
    """Return when ``condition()`` is true; fail after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(PAUSE)


def wait_for_value(value: Callable[[], T], wanted: T, timeout: float = WAIT) -> None:
    """Return when ``value()`` is ``wanted``; fail after ``timeout`` seconds, and tell both.

    Several conditions at once are a tuple of their values, of which one sees what was missing.
    """
    deadline = time.monotonic() + timeout
    while (found := value()) != wanted:
        assert time.monotonic() < deadline, f"{found} after {timeout:g} s, not {wanted}"
        time.sleep(PAUSE)


def wait_for_reader(connection: wsmux.Connection, count: int = 1) -> None:
    """Return when ``count`` threads are blocked in reads."""
    wait_for(lambda: connection.stats().waiting_readers == count)


def wait_for_writer(connection: wsmux.Connection, count: int = 1) -> None:
    """Return when ``count`` threads are blocked in writes for want of credit."""
    wait_for(lambda: connection.stats().waiting_writers == count)


def polls(connection: wsmux.Connection) -> bool:
    """Tell whether the I/O thread waits for its socket and its timers."""
    (thread,) = (t for t in threading.enumerate() if t.name == f"{connection.name}-io")
    assert thread.ident is not None
    return sys._current_frames()[thread.ident].f_code.co_name == "_poll"


def threads_of(server: Acceptor) -> int:
    """Count the threads that serve a connection of a server, by their names."""
    own = f"wsmux-{server.port}-"
    return sum(thread.name.startswith(own) for thread in threading.enumerate())
