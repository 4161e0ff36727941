"""Listen on a socket and give each connection a thread.

The accept thread only accepts. TLS, the HTTP request and the upgrade happen in the connection's own
thread, under one deadline and one size limit, so that a slow client blocks no other. That thread
then serves the connection.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from ..config import Config
from ..exceptions import HandshakeError, NoThreadError
from ..handshake.admission import Admission, Guest, cut_reading
from ..handshake.http_request import read_body, read_request, refuse
from ..handshake.websocket_server import accept
from ..runtime import descriptors, fork
from ..runtime.closing import Ending, Leaving
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from ..runtime.memory import REPORT_STEP, Verdict, process_memory
from ..runtime.parking import OneShotEvent
from ..runtime.threads import daemon_thread, register, start_thread

__all__ = ["DRAIN", "MAX_CONNECTIONS", "REFUSAL", "Acceptor", "host_of", "listen", "listen_unix"]

# Maximum connections, including those in their handshake: each takes one thread, and one for I/O.
# There are fewer where the process has no descriptors for so many.
MAX_CONNECTIONS = 1024

# Connections that the system queues until they are accepted.
BACKLOG = 128

# Default seconds for which shutdown lets open streams finish.
DRAIN = 10.0

# Seconds to wait if the system has no descriptor left for a new connection, and to send a refusal
# to a client.
PAUSE = 0.1
REFUSAL = 1.0

_log = logger("wsmux")


def host_of(address: Any) -> str:
    """Return the host of a peer's address; ``""`` for a Unix socket."""
    return str(address[0]) if address else ""


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a listening socket; port 0 picks a free port.

    Several processes of one user may listen on a ``shared`` port; the system distributes
    connections among them.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=shared)


def listen_unix(path: str) -> socket.socket:
    """Return a listening Unix socket; a stale socket file is replaced.

    Raises:
        OSError: another process listens there, or the path cannot be used.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(path) == errno.ECONNREFUSED:
                    os.unlink(path)
        listener.bind(path)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _cut(sock: socket.socket) -> None:
    """End both directions of a socket on which another thread waits, with TLS or without."""
    with suppress(OSError):  # the client has disconnected
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _where(error: Exception) -> str:
    """Describe an exception and its origin in one line: peers must not cause tracebacks in logs."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.filename}, line {frame.lineno}, in {frame.name}"
    return f"{type(error).__name__}: {error} ({place})"


class _HeldBody:
    """Account for the received body of a request, within the memory limit of the process.

    Args:
        sock: the socket it arrives on.
        limit: ``Config.max_process_buffer``.
    """

    def __init__(self, sock: socket.socket, limit: int) -> None:
        self._sock = sock
        self._limit = limit
        self._reported = 0
        self._given_up = False

    def add(self, size: int) -> None:
        """Record how many bytes have arrived.

        Raises:
            HandshakeError: all peers together exceed the limit, and this is the largest, with 503.
        """
        if size - self._reported >= REPORT_STEP:
            self._reported = size
            if process_memory.report(self, size, self._limit) is Verdict.GIVE_UP:
                self._given_up = True
        self.check()

    def wake(self) -> None:
        """Give up, as the largest holder. Called by a thread whose report exceeded the limit."""
        self._given_up = True
        cut_reading(self._sock)

    def check(self) -> None:
        """Raise the ``HandshakeError`` of a body that was given up."""
        if self._given_up:
            raise HandshakeError("this server holds too many unread bytes; try again later", 503)


class Acceptor(Leaving, ABC):
    """Accept connections until ``shutdown``; the base class of the servers.

    Attributes:
        host, port: the listening address; the actual port, even if 0 was requested. For a Unix
            socket, its path and 0.
        url: the address as a URL.
    """

    def __init__(
        self,
        listener: socket.socket,
        config: Config,
        *,
        scheme: str,
        http: bool,
        ssl_context: ssl.SSLContext | None,
        max_connections: int,
    ) -> None:
        self._listener = listener
        self._config = config
        self._http = http  # refusals are HTTP responses
        self._ssl_context = ssl_context
        most = descriptors.most_connections()
        self._max_connections = min(max_connections, most)
        self._lock = threading.Lock()
        self._threads: dict[threading.Thread, Guest] = {}
        self._opening: set[socket.socket] = set()  # waiting for their clients
        self._served = threading.local()  # the ``socket`` of each connection's thread
        self._ending = Ending()
        self._stopping = OneShotEvent()
        self._stopped = OneShotEvent()
        self._unix = listener.family == socket.AF_UNIX
        self.host: str
        self.port: int
        if self._unix:
            self.host, self.port = listener.getsockname(), 0
            self.url = f"unix://{quote(self.host)}"
        else:
            self.host, self.port = listener.getsockname()[:2]
            shown = f"[{self.host}]" if ":" in self.host else self.host
            self.url = f"{scheme}://{shown}:{self.port}"
        self._why_full = ""
        if max_connections > most:
            self._why_full = f"; max_connections={max_connections}, but {descriptors.RAISE}"
            _log.info("%s takes %d connections%s", self.url, most, self._why_full)
        self._admission = Admission(config, self.url, self._max_connections)
        try:
            self._acceptor = daemon_thread(target=self._accept, name=f"wsmux-listener-{self.port}")
            start_thread(self._acceptor)
        except NoThreadError:
            listener.close()
            raise
        fork.register(self)
        register(self)

    def serve_forever(self) -> None:
        """Block until another thread calls ``shutdown``; Ctrl-C shuts down and is re-raised."""
        try:
            self._stopped.wait()
        except KeyboardInterrupt:
            self.shutdown()
            raise

    @abstractmethod
    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """Stop accepting and end all connections, which have ``timeout`` seconds to finish.

        A second call waits for the first; in a signal handler that interrupts the first, it returns
        at once.
        """

    def _shut_down_once(self, timeout: float | None) -> None:
        self._ending.run(partial(self._shut_down, timeout))

    def _shut_down(self, timeout: float | None) -> None:
        """Shut down; a call interrupted by a second Ctrl-C can be repeated."""
        if self._stopped.is_set():
            return
        deadline = Deadline(timeout)
        self._take_leave(deadline)
        with self._lock:
            self._stopping.set()
        self._stop_listening()
        with self._lock:
            for sock in self._opening:
                _cut(sock)
        try:
            self._end(deadline)
        except Exception:  # serving failed, but has ended all the same
            self._stopped.set()
            raise
        self._stopped.set()

    def _take_leave(self, deadline: Deadline) -> None:
        """Do what has to be done while clients are still accepted, for as long at most."""

    @abstractmethod
    def _end(self, deadline: Deadline) -> None:
        """End all connections; no more are accepted."""

    def _join_threads(self, deadline: Deadline) -> None:
        with self._lock:
            threads = self._threads.keys() - {threading.current_thread()}
        for thread in threads:
            thread.join(deadline.remaining())

    def _stop_listening(self) -> None:
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        except OSError as error:
            _log.debug("%s was no longer listening: %s", self.url, error)
        self._acceptor.join()
        if self._unix:
            with suppress(FileNotFoundError):  # already removed
                os.unlink(self.host)
        self._listener.close()

    def leave(self) -> None:
        """Stop accepting without waiting for any client; see ``runtime.threads``."""
        self.shutdown(0.0)

    def forked(self) -> None:
        """Release the port in a forked child; the parent continues to serve."""
        self._lock = threading.Lock()
        self._ending = Ending()
        self._stopping, self._stopped = OneShotEvent(), OneShotEvent()
        self._stopping.set()
        self._stopped.set()
        self._threads = {}
        self._opening = set()
        self._listener.close()

    def _leave(self, error: BaseException | None) -> None:
        """Shut down; after an exception, including Ctrl-C, without waiting for streams to end."""
        self.shutdown(DRAIN if error is None else 0.0)

    # The accept thread

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if not self._stopping.is_set():
                    _log.warning("%s cannot accept: %s", self.url, error)
                    self._stopping.wait(PAUSE)
                continue
            try:
                self._start(sock, address)
            except HandshakeError as error:
                # Refusals cannot be read before TLS, which is too slow for this thread.
                status = None if self._ssl_context else error.status
                self._refuse(sock, status, str(error), error.retry_after)

    def _start(self, sock: socket.socket, address: Any) -> None:
        """Start the thread of a connection.

        Raises:
            HandshakeError: there is no room for it; nothing is counted then.
        """
        if not descriptors.descriptors_left(sock.fileno()):  # whatever has taken them
            _log.warning("%s refuses a connection: %s", self.url, descriptors.RAISE)
            raise HandshakeError("no descriptor is left for this connection", 503)
        guest = self._admission.arrive(host_of(address), self._resumable())
        thread = daemon_thread(
            target=self._run,
            args=(sock, address),
            name=f"wsmux-{self.port}-{address[1] if address else 'unix'}",
        )
        # Only this thread adds connections.
        beyond = len(self._threads) - self._admission.leaving - self._max_connections
        if 0 <= beyond < guest.spare:
            guest.returns = True
        elif beyond >= 0 and not self._admission.make_room():
            self._admission.leave(guest)
            _log.warning(
                "%s is full: %d connections are open%s",
                self.url,
                self._max_connections,
                self._why_full,
            )
            raise HandshakeError(f"{self._max_connections} connections are already open", 503)
        with self._lock:
            self._threads[thread] = guest
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("%s cannot start a thread for a connection: %s", self.url, error)
            self._let_go(thread)
            raise HandshakeError("no thread for this connection", 503) from error

    def _resumable(self) -> int:
        """Return how many connections clients may return to, each with another socket."""
        return 0

    def _let_go(self, thread: threading.Thread) -> None:
        """Remove a thread, and stop counting its connection."""
        self._admission.leave(self._threads.get(thread))
        with self._lock:
            self._threads.pop(thread, None)

    # A connection's thread

    def _run(self, sock: socket.socket, address: Any) -> None:
        self._served.socket = sock
        try:
            self._serve(sock, address)
        except Exception as error:  # unexpected
            self._served.socket.close()
            _log.error("%s: serving %s failed: %s", self.url, address, _where(error))
            _log.debug("%s: serving %s failed", self.url, address, exc_info=error)
        finally:
            self._let_go(threading.current_thread())

    @abstractmethod
    def _serve(self, sock: socket.socket, address: Any) -> None:
        """Perform the handshake and serve one connection until it has ended."""

    @contextmanager
    def _cut_by_shutdown(self, sock: socket.socket) -> Iterator[None]:
        """Let a shutdown end the wait for a client that is not served yet."""
        with self._lock:
            if self._stopping.is_set():
                raise ConnectionAbortedError("the server shuts down")
            self._opening.add(sock)
        try:
            yield
        finally:
            with self._lock:
                self._opening.discard(sock)

    @contextmanager
    def _awaiting(self, sock: socket.socket) -> Iterator[None]:
        """Let a shutdown, or a client that replaces this one, end a wait during the handshake."""
        guest = self._guest()
        guest.sock = sock
        try:
            self._admission.check(guest)  # from now on other threads can end the wait
            with self._cut_by_shutdown(sock):
                yield
        except (HandshakeError, OSError):
            self._admission.check(guest)  # that is why it ended, and the answer
            raise
        finally:
            guest.sock = None

    def _secure(self, sock: socket.socket, deadline: Deadline) -> socket.socket:
        """Perform the TLS handshake, if configured."""
        if self._ssl_context is None:
            return sock
        sock.settimeout(deadline.remaining())
        secure = self._ssl_context.wrap_socket(
            sock, server_side=True, do_handshake_on_connect=False
        )
        self._served.socket = secure
        try:
            with self._awaiting(secure):
                secure.do_handshake()
        except BaseException:
            secure.close()
            raise
        return secure

    def _request(
        self,
        sock: socket.socket,
        address: Any,
        deadline: Deadline,
        methods: Collection[str] = ("GET",),
    ) -> dict[str, Any]:
        """Return the environ of the next HTTP request, and count the address of its client.

        A request with a body is unfinished until ``_body`` has read it.
        """
        guest = self._guest()
        held = partial(self._admission.hold, guest)
        with self._awaiting(sock):
            environ = read_request(
                sock, deadline, self._config.max_handshake_size, methods, held=held
            )
        environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = (str(part) for part in address[:2])
        if environ["REQUEST_METHOD"] != "POST":
            self._admission.settle(guest, environ)
        return environ

    @contextmanager
    def _body(
        self, sock: socket.socket, environ: dict[str, Any], deadline: Deadline, max_size: int
    ) -> Iterator[bytes]:
        """Read the body of a request, which counts as received memory until the block ends.

        Raises:
            HandshakeError: as ``read_body``; or with 503, if other clients need its place or its
                memory.
            OSError: as ``read_body``.
        """
        held = _HeldBody(sock, self._config.max_process_buffer)
        try:
            with self._awaiting(sock):
                try:
                    body = read_body(sock, environ, deadline, max_size, held=held.add)
                except (HandshakeError, OSError):
                    held.check()
                    raise
            self._admission.settle(self._guest(), environ)
            yield body
        finally:
            process_memory.forget(held)

    def _settle(self) -> None:
        """End the handshake of this thread's connection, if there is no HTTP request."""
        self._admission.settle(self._guest())

    def _guest(self) -> Guest:
        return self._threads[threading.current_thread()]

    def _upgrade(
        self, sock: socket.socket, environ: dict[str, Any], protocol: str | None
    ) -> socket.socket:
        """Accept a checked request as a WebSocket, and return its socket."""
        accepted = accept(environ, protocol)
        if accepted.socket is not sock:
            sock.close()
        self._served.socket = accepted.socket
        return accepted.socket

    def _refused(self, sock: socket.socket, address: Any, error: Exception) -> None:
        """Log why a connection failed, and answer the client if HTTP allows it."""
        if isinstance(error, HandshakeError):
            _log.info("%s refused %s: %s", self.url, address, error)
            self._refuse(sock, error.status, str(error), error.retry_after)
        else:
            _log.info("%s: the connection with %s failed: %s", self.url, address, error)
            sock.close()

    def _refuse(
        self, sock: socket.socket, status: int | None, text: str, retry_after: float | None
    ) -> None:
        try:
            if status is not None and self._http:
                refuse(sock, status, text, REFUSAL, retry_after)
        except OSError as error:
            _log.debug("a refused client could not be sent the reason: %s", error)
        finally:
            sock.close()
