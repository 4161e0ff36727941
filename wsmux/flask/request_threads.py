"""Know which WSGI servers get the threads of their requests back, and keep some free elsewhere.

A connection that holds its request's thread does so for as long as it lasts. A server that has none
left answers nothing, not even a health check, and tells nobody why. So a route refuses those
connections that would take the last threads. Those that hold none are bounded for the sake of
descriptors: gunicorn's worker dies if it finds none for the next client.
"""

from __future__ import annotations

import _thread
import logging
import signal
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..endpoints.acceptor import MAX_CONNECTIONS
from ..exceptions import HandshakeError
from ..runtime import descriptors, fork
from ..runtime.logs import logger

__all__ = [
    "ConnectionLimit",
    "closes_alone",
    "gets_threads_back",
    "longest_closing",
    "longest_stop",
    "most_connections",
    "request_threads",
    "tell_why_held",
    "why_held",
]

# One in so many threads is kept free, and at least one.
KEPT = 8

# The parts of the time, after which gunicorn kills a worker, that are left to what is open, and to
# the closing handshakes. A peer that answers nothing must not keep others from being told.
USED, CLOSING = 0.8, 0.1

# Signals whose handlers are a gunicorn worker's own methods, and which others seldom handle.
_WORKERS_OWN = (signal.SIGABRT, signal.SIGUSR1, signal.SIGWINCH)

# Workers of gunicorn that run each request in a thread, and leave others alone.
_THREADED = ("gunicorn.workers.gthread", "gunicorn.workers.sync")

_TLS = (
    "gunicorn's own TLS is bound to the number of a descriptor, so each connection holds one of "
    "its threads: let a proxy end TLS, or give gunicorn more --threads"
)
_WERKZEUG = "Werkzeug gives each request a thread of its own, which its connection holds"
_GREEN = "gevent has no threads to give back: each connection holds the greenlet of its request"
_UNKNOWN = (
    "this server is not known to let a connection leave the thread of its request: run gunicorn "
    "with gthread workers"
)

_GIVE_THREADS = (
    "the other threads of the server are for other requests; give the route detach=True, where the "
    "server allows that, or max_connections=, or the server more threads"
)
_GIVE_MORE = "it takes no more; give the route another max_connections="

_log = logger("wsmux")


def _gunicorn_worker() -> Any:
    """Return the worker of gunicorn that this process is, ``None`` if it is none.

    gunicorn does not put it into the environ, but a worker handles signals by its own methods.
    """
    for number in _WORKERS_OWN:
        worker: Any = getattr(signal.getsignal(number), "__self__", None)
        if any(kind.__module__ == "gunicorn.workers.base" for kind in type(worker).__mro__):
            return worker
    return None


def request_threads() -> int | None:
    """Return how many requests this process runs at once, ``None`` if it cannot tell.

    gunicorn alone is known to: a gthread worker has ``--threads``, a gevent worker
    ``--worker-connections``.
    """
    worker = _gunicorn_worker()
    if hasattr(worker, "tpool"):  # gthread
        return int(min(worker.cfg.threads, worker.worker_connections))
    if hasattr(worker, "worker_connections"):  # gevent
        return int(worker.worker_connections)
    return None


def longest_stop() -> float | None:
    """Return the seconds that streams have to end when gunicorn stops, ``None`` for no limit."""
    limit = _killed_after()
    return None if limit is None else USED * limit


def longest_closing() -> float | None:
    """Return the seconds that closing handshakes have then, ``None`` for no limit."""
    limit = _killed_after()
    return None if limit is None else CLOSING * limit


def _killed_after() -> float | None:
    worker = _gunicorn_worker()
    if worker is None:
        return None
    limits = [float(each) for each in (worker.cfg.timeout, worker.cfg.graceful_timeout) if each]
    return min(limits, default=None)


def why_held(environ: Mapping[str, Any] | None = None) -> str | None:
    """Return why connections hold threads of the server, ``None`` if they need not.

    It is ``""`` if the server gives no sockets to connections at all. Without the environ of a
    request, gunicorn's worker alone is known; ``None`` elsewhere.
    """
    worker = _gunicorn_worker()
    if worker is None:
        if environ is None:
            return None
        if environ.get("SERVER_SOFTWARE", "").startswith("gevent"):
            return _GREEN
        if "werkzeug.socket" in environ:
            return _WERKZEUG
        return _UNKNOWN if "gunicorn.socket" in environ else ""
    if type(_thread.allocate_lock()).__module__ != "_thread":  # gevent has replaced threads
        return _GREEN
    if not any(kind.__module__ in _THREADED for kind in type(worker).__mro__):
        return _UNKNOWN
    sock = None if environ is None else environ.get("gunicorn.socket")
    return _TLS if worker.cfg.is_ssl or isinstance(sock, ssl.SSLSocket) else None


def gets_threads_back() -> bool:
    """Return whether this process is a worker of gunicorn whose connections need hold no thread."""
    return _gunicorn_worker() is not None and why_held() is None


def closes_alone(environ: Mapping[str, Any], reason: str | None) -> bool:
    """Return whether the server does nothing to a socket after its request but close it.

    Of gunicorn with gevent. One with threads shuts it down before, as Werkzeug does, and gevent's
    own server reads from it.

    Args:
        reason: what ``why_held`` returned.
    """
    return reason is _GREEN and _gunicorn_worker() is not None and "gunicorn.socket" in environ


def tell_why_held(reason: str | None) -> None:
    """Log the result of ``why_held`` once in each process; a warning if there is a way out."""
    if not reason or reason in _process.told:
        return
    _process.told.add(reason)
    _log.log(logging.WARNING if reason in (_TLS, _UNKNOWN) else logging.INFO, "%s", reason)


def most_connections() -> int | None:
    """Return how many connections may hold threads by default, ``None`` for any number.

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
        self.detached = 0
        self.unlimited = 0  # of those that are detached, those without a limit of their own
        self.told: set[str] = set()


_process = _Process()


class ConnectionLimit:
    """Bound the connections of a route, or of several routes together.

    Args:
        name: who refuses, in the log.
        most: how many there may be; by default as many as ``most_connections`` of all routes of
            the process together, and ``MAX_CONNECTIONS`` of those that hold no thread and have no
            such limit of their own.
    """

    def __init__(self, name: str, most: int | None) -> None:
        if most is not None and most < 1:
            raise ValueError(f"max_connections must be at least 1, not {most}")
        self._name = name
        self._most = most
        self._told: set[str] = set()
        self.forked()
        fork.register(self)

    def forked(self) -> None:
        """Begin again: a forked child serves none of the connections."""
        self._count = 0

    def tell(self) -> None:
        """Log at start if gunicorn's process has too few descriptors for ``most`` connections."""
        if self._most is None or not gets_threads_back():
            return
        if self._most > (most := descriptors.most_connections()):
            _log.warning(
                "%s takes %d connections instead of max_connections=%d: %s",
                self._name,
                most,
                self._most,
                descriptors.RAISE,
            )

    @contextmanager
    def held(self, detached: bool = False, spare: int = 0) -> Iterator[bool]:
        """Count a connection as long as the block lasts.

        Yields whether the client may only return to a connection that is counted: there are as
        many as there may be, and it is one of ``spare`` more.

        Args:
            detached: it holds no thread of the server. There are at most as many of these as there
                are descriptors for, whatever the limit.
            spare: how many clients may return to a full server at once; as far as there are
                descriptors.

        Raises:
            HandshakeError: with 503; there are as many as there may be.
        """
        spare = min(spare, descriptors.descriptors() // descriptors.PARTS)
        with _process.lock:
            most, count, why = self._limit_locked(detached)
            beyond = -1 if most is None else count - most
            full = beyond >= spare
            if not full:
                _process.detached += detached
                _process.unlimited += detached and self._most is None
                _process.held += not detached
                self._count += 1
        if full:
            self._tell(count, why)
            raise HandshakeError(
                f"{count} connections are open, as many as this server takes; try again later", 503
            )
        try:
            yield beyond >= 0
        finally:
            with _process.lock:
                _process.detached -= detached
                _process.unlimited -= detached and self._most is None
                _process.held -= not detached
                self._count -= 1

    def _limit_locked(self, detached: bool) -> tuple[int | None, int, str]:
        """Return the limit that applies, how many count for it, and what to do about it."""
        if detached and _process.detached >= (most := descriptors.most_connections()):
            return most, _process.detached, descriptors.RAISE
        if self._most is not None:
            return self._most, self._count, _GIVE_MORE
        if detached:
            return MAX_CONNECTIONS, _process.unlimited, _GIVE_MORE
        return most_connections(), _process.held, _GIVE_THREADS

    def _tell(self, count: int, why: str) -> None:
        if why in self._told:
            return
        self._told.add(why)
        _log.warning(
            "%s refuses further connections with 503: %d are open, and %s", self._name, count, why
        )
