"""Keep some threads of a WSGI server for requests other than connections.

A connection holds its request's thread for as long as it lasts. A server that has none left answers
nothing, not even a health check, and tells nobody why. So a route refuses those connections that
would take the last threads.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..exceptions import HandshakeError
from ..runtime import fork
from ..runtime.logs import logger

__all__ = ["ConnectionLimit", "most_connections", "request_threads"]

# One in so many threads is kept free, and at least one.
KEPT = 8

# Signals whose handlers are a gunicorn worker's own methods, and which others seldom handle.
_WORKERS_OWN = (signal.SIGABRT, signal.SIGUSR1, signal.SIGWINCH)

_log = logger("wsmux")


def request_threads() -> int | None:
    """Return how many requests this process runs at once, ``None`` if it cannot tell.

    gunicorn alone is known to: a gthread worker has ``--threads``, a gevent worker
    ``--worker-connections``. It does not put them into the environ, but a worker handles signals
    by methods of the object that has them.
    """
    for number in _WORKERS_OWN:
        worker: Any = getattr(signal.getsignal(number), "__self__", None)
        if not any(kind.__module__ == "gunicorn.workers.base" for kind in type(worker).__mro__):
            continue
        if hasattr(worker, "tpool"):  # gthread
            return int(min(worker.cfg.threads, worker.worker_connections))
        if hasattr(worker, "worker_connections"):  # gevent
            return int(worker.worker_connections)
    return None


def most_connections() -> int | None:
    """Return how many connections this process takes by default, ``None`` for any number.

    All threads but one in eight, and at least one; a server of one thread serves one connection,
    and nothing beside it.
    """
    threads = request_threads()
    return None if threads is None else max(1, threads - max(1, threads // KEPT))


class _Process:
    """Count the connections of all routes of this process."""

    def __init__(self) -> None:
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        self.lock = threading.Lock()
        self.held = 0


_process = _Process()


class ConnectionLimit:
    """Bound the connections of a route, or of several routes together.

    Args:
        name: who refuses, in the log.
        most: how many there may be; by default as many as ``most_connections`` of all routes of
            the process together.
    """

    def __init__(self, name: str, most: int | None) -> None:
        if most is not None and most < 1:
            raise ValueError(f"max_connections must be at least 1, not {most}")
        self._name = name
        self._most = most
        self._told = False
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Begin again: a forked child serves none of the connections."""
        self._held = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Count a connection as long as the block lasts.

        Raises:
            HandshakeError: with 503; there are as many as there may be.
        """
        most = most_connections() if self._most is None else self._most
        with _process.lock:
            held = _process.held if self._most is None else self._held
            full = most is not None and held >= most
            if not full:
                _process.held += 1
                self._held += 1
        if full:
            self._tell(held)
            raise HandshakeError(
                f"{held} connections are open, as many as this server takes; try again later", 503
            )
        try:
            yield
        finally:
            with _process.lock:
                _process.held -= 1
                self._held -= 1

    def _tell(self, held: int) -> None:
        if self._told:
            return
        self._told = True
        _log.warning(
            "%s refuses further connections with 503: %d are open, and the other threads of the "
            "server are for other requests; give it more threads, or the route max_connections=",
            self._name,
            held,
        )
