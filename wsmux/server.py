"""Serve connections on a port of its own, a thread per connection.

The accept thread only accepts. TLS, the HTTP request and the upgrade happen in the connection's
own thread, under one deadline and one size, so that a slow client holds up nobody. That thread
then runs the handler.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Literal, Self

from . import forks
from .behaviour import DEFAULT_WORKERS, Behaviour, ConnectionHandler
from .config import Config
from .connection import Connection, StartOn
from .deadline import Deadline
from .exceptions import HandshakeError, WsmuxError
from .protocols.base import Role
from .protocols.bymux_state import BymuxState
from .reasons import CodeToReason, ReasonToCode
from .transports.http_request import read_request, refuse
from .transports.tcp import SCHEME
from .transports.websocket_server import accept, check_request, request_of
from .transports.wires import subprotocols
from .workers import StreamHandler

__all__ = ["Server", "serve"]

# Connections served at once, those in their handshake included: one thread each, and one for I/O.
MAX_CONNECTIONS = 1024

# Seconds that shutdown lets running streams end, by default.
DRAIN = 10.0

# Seconds to wait when the system has no descriptor for a new connection, and for the answer to a
# client that is refused to get out.
PAUSE = 0.1
REFUSAL = 1.0

Transport = Literal["websocket", "tcp"]

_log = logging.getLogger("wsmux")


class Server:
    """Accept connections until ``shutdown``; made by ``serve``, which starts it.

    Attributes:
        host, port: where it listens; the port is a real one even if 0 was asked for.
        url: ``ws://``, ``wss://`` or ``tcp://`` with both.
    """

    def __init__(
        self,
        handler: ConnectionHandler | None,
        listener: socket.socket,
        behaviour: Behaviour,
        *,
        protocols: tuple[str, ...],
        transport: Transport,
        origins: Collection[str] | None,
        ssl_context: ssl.SSLContext | None,
        max_connections: int,
    ) -> None:
        self._handler = handler
        self._listener = listener
        self._behaviour = behaviour
        self._protocols = protocols
        self._plain = transport == "tcp"
        self._origins = origins
        self._ssl_context = ssl_context
        self._max_connections = max_connections
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._threads: set[threading.Thread] = set()
        self._shutting_down = threading.Lock()
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self.host, self.port = listener.getsockname()[:2]
        scheme = SCHEME if self._plain else "ws" if ssl_context is None else "wss"
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"{scheme}://{shown}:{self.port}"
        self._acceptor = threading.Thread(
            target=self._accept, name=f"wsmux-listener-{self.port}", daemon=True
        )
        self._acceptor.start()
        forks.register(self)

    def __repr__(self) -> str:
        return f"<Server {self.url} connections={len(self.connections)}>"

    @property
    def connections(self) -> list[Connection]:
        """The connections being served at this moment."""
        with self._lock:
            return list(self._connections)

    def serve_forever(self) -> None:
        """Block until another thread calls ``shutdown``; Ctrl-C shuts down and goes on up."""
        try:
            self._stopped.wait()
        except KeyboardInterrupt:
            self.shutdown()
            raise

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """Stop accepting, tell every peer, and close what is left when the time is up.

        Each connection gets GO_AWAY first, so that its client opens no further streams and knows
        which ones to retry elsewhere. Streams that are running have ``timeout`` seconds to end,
        ``None`` meaning no limit; then the connections are closed with 1001 (going away). The
        closing itself takes up to ``Config.close_timeout`` more. A handler still running finds its
        connection closed. Calling it again waits for the first call.
        """
        with self._shutting_down:  # a call that a second Ctrl-C interrupts can be made again
            if not self._stopped.is_set():
                self._shut_down(Deadline(timeout))

    def _shut_down(self, deadline: Deadline) -> None:
        with self._lock:
            self._stopping.set()
        self._stop_listening()
        connections = self.connections
        for connection in connections:
            try:
                connection.go_away()
            except WsmuxError as error:
                _log.debug("%s ended before it was told: %s", connection.name, error)
        for connection in connections:
            connection.wait_drained(deadline.remaining())
        for connection in connections:
            connection.begin_close(code=1001, reason="server shutdown")
        closing = Deadline(self._behaviour.config.close_timeout)
        for connection in connections:
            connection.close(closing.remaining(), code=1001)
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(closing.remaining())
        self._stopped.set()

    def _stop_listening(self) -> None:
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        except OSError as error:
            _log.debug("%s was not listening any more: %s", self.url, error)
        self._acceptor.join()
        self._listener.close()

    def forked(self) -> None:
        """Let go of the port in a forked child; the parent goes on serving."""
        self._lock = threading.Lock()
        self._shutting_down = threading.Lock()
        self._stopping, self._stopped = threading.Event(), threading.Event()
        self._stopping.set()
        self._stopped.set()
        self._connections = set()
        self._threads = set()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Shut down; after an exception, Ctrl-C among them, without letting streams end."""
        self.shutdown(DRAIN if exc is None else 0.0)

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
            thread = threading.Thread(
                target=self._serve,
                args=(sock, address),
                name=f"wsmux-{self.port}-{address[1] if address else 'unix'}",
                daemon=True,
            )
            with self._lock:
                full = len(self._threads) >= self._max_connections
                if not full:
                    self._threads.add(thread)
            if full:
                self._refuse(sock, 503, f"{self._max_connections} connections are open already")
                continue
            try:
                thread.start()
            except RuntimeError as error:
                _log.warning("%s has no thread for a connection: %s", self.url, error)
                with self._lock:
                    self._threads.discard(thread)
                self._refuse(sock, 503, "no thread for this connection")

    # A connection's thread

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        try:
            connection = self._shake_hands(sock, address)
            if connection is None:
                return
            with self._lock:
                self._connections.add(connection)
            try:
                if self._stopping.is_set():
                    connection.close(code=1001, reason="server shutdown")
                self._behaviour.serve(connection, self._handler)
            finally:
                with self._lock:
                    self._connections.discard(connection)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _shake_hands(self, sock: socket.socket, address: tuple[str, int]) -> Connection | None:
        config = self._behaviour.config
        deadline = Deadline(config.handshake_timeout)
        try:
            if self._ssl_context is not None:
                sock.settimeout(deadline.remaining())
                sock = self._ssl_context.wrap_socket(sock, server_side=True)
            if self._plain:
                return self._behaviour.over_bytes(sock, Role.SERVER, self._protocols[0])
            environ = read_request(sock, deadline, config.max_handshake_size)
            environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = (str(part) for part in address[:2])
            accepted = accept(environ, check_request(environ, self._protocols, self._origins))
            if accepted.socket is not sock:
                sock.close()
            return self._behaviour.over_websocket(
                accepted.socket, Role.SERVER, accepted.protocol, request_of(environ)
            )
        except HandshakeError as error:
            _log.info("%s refused %s: %s", self.url, address, error)
            self._refuse(sock, error.status, str(error))
        except (OSError, RuntimeError) as error:
            _log.info("%s: no connection with %s: %s", self.url, address, error)
            sock.close()
        return None

    def _refuse(self, sock: socket.socket, status: int | None, text: str) -> None:
        try:
            if status is not None and not self._plain:
                refuse(sock, status, text, REFUSAL)
        except OSError as error:
            _log.debug("a refused client did not hear why: %s", error)
        finally:
            sock.close()


def serve(
    handler: ConnectionHandler | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    protocols: Iterable[str] = ("wsmux",),
    transport: Transport = "websocket",
    # time and size
    config: Config | None = None,
    max_connections: int = MAX_CONNECTIONS,
    # the request
    origins: Collection[str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    # incoming streams
    accept_streams: bool = True,
    stream_handler: StreamHandler | None = None,
    start_on: StartOn = "open",
    workers: int = DEFAULT_WORKERS,
    # error codes
    code_to_reason: CodeToReason | None = None,
    reason_to_code: ReasonToCode | None = None,
    bymux_state: BymuxState | None = None,
) -> Server:
    """Listen and serve in background threads; return the running server.

    Args:
        handler: called with each ``Connection``, in its own thread; the connection is closed when
            it returns, with 1011 when it raises.
        host, port: where to listen; port 0 takes a free one, which ``server.port`` tells.
        protocols: the wires to serve, each client in its own. ``"js-ws"`` is given to clients that
            offer no subprotocol; any other client without a common one is refused with 400.
        transport: ``"tcp"`` serves plain sockets, without a WebSocket, in the one wire named.
        config: the limits of each connection.
        max_connections: served at once; a further client gets 503.
        origins: the only origins that a browser page may connect from, compared whole; ``"*"``
            accepts all. By default only pages of the same scheme, host and port.
        ssl_context: a server-side context, for ``wss://``.
        stream_handler: called with each stream that the client opens, in a worker thread, and
            closes it afterwards. One of the two handlers must be given; both may be.

    The other arguments are those of ``connect``.

    >>> import wsmux
    >>> with wsmux.serve(stream_handler=lambda stream: stream.write(stream.read())) as server:
    ...     with wsmux.connect(server.url) as connection, connection.open_stream() as stream:
    ...         stream.write(b"hello")
    ...         stream.close_write()
    ...         stream.read()
    5
    b'hello'
    """
    if handler is None and stream_handler is None:
        raise ValueError("serve() needs a handler or a stream_handler")
    names = tuple(protocols)
    subprotocols(names)  # raises for an unknown name
    if transport not in ("websocket", "tcp"):
        raise ValueError(f"transport must be 'websocket' or 'tcp', not {transport!r}")
    if transport == "tcp" and len(names) != 1:
        raise ValueError("a plain socket has no handshake to choose a protocol in: name one")
    behaviour = Behaviour(
        config=config or Config(),
        accept_streams=accept_streams,
        stream_handler=stream_handler,
        start_on=start_on,
        workers=workers,
        code_to_reason=code_to_reason,
        reason_to_code=reason_to_code,
        bymux_state=bymux_state,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=128)
    return Server(
        handler,
        listener,
        behaviour,
        protocols=names,
        transport=transport,
        origins=origins,
        ssl_context=ssl_context,
        max_connections=max_connections,
    )
