"""Serve connections in threads of our own, while the threads of their requests go back."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..runtime import fork
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.threads import daemon_thread, start_thread

__all__ = ["DetachedThreads"]

_log = logger("wsmux")


class DetachedThreads:
    """Start the threads, and know them until they have ended."""

    def __init__(self) -> None:
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Begin again: the threads of a parent do not run in a forked child."""
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def start(self, serve: Callable[[], object], name: str) -> None:
        """Call ``serve`` in a thread; what it raises is logged.

        Raises:
            NoThreadError: the system has none left.
        """
        thread = daemon_thread(self._run, name=name, args=(serve,))
        with self._lock:
            self._threads.add(thread)
        try:
            start_thread(thread)
        except BaseException:
            with self._lock:
                self._threads.discard(thread)
            raise

    def _run(self, serve: Callable[[], object]) -> None:
        try:
            serve()
        except Exception:
            _log.exception("serving a connection failed")
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def join(self, deadline: Deadline) -> None:
        """Wait until the threads have ended, or until the deadline."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(deadline.remaining())
