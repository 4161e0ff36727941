"""Let handlers wait for a change; generators do so without occupying a thread."""

from __future__ import annotations

import threading
from typing import NamedTuple

from ...runtime import fork
from ...runtime.parking import Parker, wake

__all__ = ["Pause", "Signal"]


class Signal:
    """Notify handlers that wait in ``Context.wait`` of a change.

    Make one for each value that handlers watch, and call ``notify`` after each change, from any
    thread; it never blocks. A forked child starts without waiting handlers.

    >>> changed = Signal()
    >>> changed.notify()
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes = 0
        self._waiting: set[Parker] = set()
        fork.register(self)

    def forked(self) -> None:
        """Reset after a fork, see ``runtime.fork``."""
        self._lock = threading.Lock()
        self._waiting = set()

    def notify(self) -> None:
        """Make all waiting handlers check again. Never blocks."""
        with self._lock:
            self._changes += 1
            wakes, self._waiting = list(self._waiting), set()
        wake(wakes)

    def arm(self, parker: Parker, seen: int) -> int:
        """Unpark a parker on the next change, unless there was one since ``seen``.

        Returns the number of changes so far.
        """
        with self._lock:
            if self._changes == seen:
                self._waiting.add(parker)
            return self._changes

    def disarm(self, parker: Parker) -> None:
        """Stop unparking a parker."""
        with self._lock:
            self._waiting.discard(parker)


class Pause(NamedTuple):
    """Yielded by a generator to wait: for a signal, or until ``due`` on the monotonic clock."""

    signal: Signal | None
    due: float | None
