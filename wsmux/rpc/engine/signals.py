"""Let handlers wait for a change; generators do so without occupying a thread."""

from __future__ import annotations

import threading
from typing import NamedTuple

from ...exceptions import NoThreadError
from ...runtime import fork
from ...runtime.parking import Parker, wake
from ...runtime.threads import daemon_thread, start_thread

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
        """Make all waiting handlers check again. Never blocks.

        If a signal such as Ctrl-C interrupts it, all of them do, or none.
        """
        try:
            with self._lock:
                self._changes += 1
        finally:
            if self._waiting:
                self._wake_apart()

    def _wake_apart(self) -> None:
        """Wake the waiting handlers, in another thread if this one may be interrupted.

        Signals are handled in the main thread. An exception between two lines of what starts a
        handler would leave that one, and those after it, neither waiting nor running.
        """
        if threading.current_thread() is threading.main_thread():
            try:
                start_thread(daemon_thread(target=self._wake, name="wsmux-rpc-signal"))
                return
            except NoThreadError:
                pass  # wake them here, then
        self._wake()

    def _wake(self) -> None:
        with self._lock:
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
