"""Notify the application of events below its calls, in a thread that may block."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ...exceptions import NoThreadError
from ...runtime.logs import logger
from ...runtime.threads import daemon_thread, start_thread

__all__ = ["EventCallbacks"]

# Events not yet delivered; beyond that, new ones are dropped and logged.
MAX_WAITING = 10_000

_log = logger("wsmux.rpc")


class EventCallbacks:
    """Call one function per kind of event, in order, from a thread started with the first event."""

    def __init__(self, handlers: Mapping[str, Callable[..., object] | None], name: str) -> None:
        self._handlers = {kind: handler for kind, handler in handlers.items() if handler}
        self._name = name
        self._waiting: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # events come from several threads
        self._thread: threading.Thread | None = None

    def add(self, kind: str, *what: Any) -> None:
        """Queue an event for the application; never blocks."""
        # Anyone who knows the id of a session can take it over, so it is not logged.
        shown = what[:1] if kind in ("session_status", "session_transition") else what
        _log.debug("%s: %s %s", self._name, kind, shown)
        if kind not in self._handlers:
            return
        if self._waiting.qsize() >= MAX_WAITING:
            _log.warning("%s: an event was dropped: the callbacks are too slow", self._name)
            return
        self._waiting.put((kind, what))
        self._start()

    def close(self) -> None:
        """End the thread once all queued events are delivered; does not wait."""
        if not self._waiting.empty():
            self._start()
        self._waiting.put(None)

    def _start(self) -> None:
        """Start the thread, unless it runs; if the system has none, the next event tries again."""
        with self._lock:
            if self._thread is not None:
                return
            try:
                self._thread = daemon_thread(target=self._tell, name=f"{self._name}-callbacks")
                start_thread(self._thread)
            except NoThreadError as error:
                self._thread = None
                _log.warning("%s: the callbacks wait for a thread: %s", self._name, str(error))

    def _tell(self) -> None:
        while (event := self._waiting.get()) is not None:
            kind, what = event
            try:
                self._handlers[kind](*what)
            except Exception:
                _log.exception("%s: the callback for %s failed", self._name, kind)
