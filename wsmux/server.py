"""Serve multiplexed connections on a port of its own, a thread per connection."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from typing import Any, Literal

from .config import Config
from .endpoints.acceptor import DRAIN, MAX_CONNECTIONS, Acceptor, listen
from .endpoints.connection_options import DEFAULT_WORKERS, ConnectionHandler, ConnectionOptions
from .endpoints.shutdown import REASON, end_connections
from .endpoints.stream_handlers import StreamHandler
from .exceptions import CloseCode, HandshakeError
from .handshake.access import Access, TokenCheck
from .handshake.origin import allowed_origins
from .handshake.tcp import SCHEME
from .handshake.websocket_server import check_request, check_upgrade, request_of
from .mux.connection import Connection, StartOn
from .mux.error_codes import CodeToReason, ReasonToCode
from .protocols.base import Role
from .protocols.bymux_state import BymuxState
from .protocols.registry import served_protocols
from .runtime.deadline import Deadline
from .runtime.hints import field_hints
from .runtime.logs import logger

__all__ = ["Server", "serve"]

Transport = Literal["websocket", "tcp"]

_log = logger("wsmux")


class Server(Acceptor):
    """Accept connections until ``shutdown``; made by ``serve``, which starts it.

    Attributes:
        host, port: where it listens; the port is a real one even if 0 was asked for.
        url: ``ws://``, ``wss://`` or ``tcp://`` with both.
    """

    def __init__(
        self,
        handler: ConnectionHandler | None,
        listener: socket.socket,
        connection_options: ConnectionOptions,
        *,
        protocols: Iterable[str],
        transport: Transport,
        origins: Iterable[str] | None,
        ssl_context: ssl.SSLContext | None,
        max_connections: int,
        access: Access | None = None,
    ) -> None:
        self._access = access or Access(None)
        self._handler = handler
        self._connection_options = connection_options
        self._protocols = served_protocols(protocols)
        self._plain = transport == "tcp"
        self._origins = allowed_origins(origins)
        self._connections: set[Connection] = set()
        super().__init__(
            listener,
            connection_options.config,
            scheme=SCHEME if self._plain else "ws" if ssl_context is None else "wss",
            http=not self._plain,
            ssl_context=ssl_context,
            max_connections=max_connections,
        )

    def __repr__(self) -> str:
        return f"<Server {self.url} connections={len(self.connections)}>"

    @property
    def connections(self) -> list[Connection]:
        """The connections being served at this moment."""
        with self._lock:
            return list(self._connections)

    @property
    def stopping(self) -> bool:
        """Whether ``shutdown`` was called."""
        return self._stopping.is_set()

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """Stop accepting, tell every peer, and close what is left when the time is up.

        Each connection gets GO_AWAY first, so that its client opens no further streams and knows
        which ones to retry elsewhere. Streams that are running have ``timeout`` seconds to end,
        ``None`` meaning no limit; then the connections are closed with 1001 (going away). The
        closing itself takes up to ``Config.close_timeout`` more. A handler still running finds its
        connection closed. Calling it again waits for the first call.
        """
        self._shut_down_once(timeout)

    def _end(self, deadline: Deadline) -> None:
        self._join_threads(self._end_connections(deadline))

    def _end_connections(self, deadline: Deadline) -> Deadline:
        """Let the streams of every connection end, then close it; return what is left for that."""
        return end_connections(
            self.connections, deadline, self._connection_options.config.close_timeout
        )

    def forked(self) -> None:
        """Let go of the port in a forked child; the parent goes on serving."""
        super().forked()
        self._connections = set()

    # A connection's thread

    def _serve(self, sock: socket.socket, address: Any) -> None:
        connection = self._shake_hands(sock, address)
        if connection is None:
            return
        with self._lock:
            self._connections.add(connection)
        try:
            if self._stopping.is_set():
                connection.close(code=CloseCode.GOING_AWAY, reason=REASON)
            self._connection_options.serve(connection, self._handler)
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _shake_hands(self, sock: socket.socket, address: Any) -> Connection | None:
        deadline = Deadline(self._connection_options.config.handshake_timeout)
        try:
            sock = self._secure(sock, deadline)
            if self._plain:
                self._settle()
                return self._connection_options.over_bytes(sock, Role.SERVER, self._protocols[0])
            environ = self._request(sock, address, deadline)
            offered = check_upgrade(environ, self._origins)
            self._access.check(environ)
            if self._take(sock, environ, offered):
                return None
            protocol = check_request(environ, self._protocols, self._origins)
            sock = self._upgrade(sock, environ, protocol)
            request = request_of(environ)
            return self._connection_options.over_websocket(sock, Role.SERVER, protocol, request)
        except (HandshakeError, OSError, RuntimeError) as error:
            self._refused(sock, address, error)
        return None

    def _take(self, sock: socket.socket, environ: dict[str, Any], offered: list[str]) -> bool:
        """Refuse a checked request, or serve it until it has ended; false to leave it to the mux.

        For servers built on this one, which have more to offer on the same port.

        Args:
            offered: the subprotocols that the client offers.

        Raises:
            HandshakeError: it is refused, with ``status``.
        """
        return False


@field_hints(Config, "config")
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
    origins: Iterable[str] | None = None,
    token: TokenCheck | None = None,
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
        protocols: the wires to serve, each client in its own. A client that offers no subprotocol
            gets ``"js-ws"`` where that is served, else the wire where it is the only one; any other
            client without a common subprotocol is refused with 400.
        transport: ``"tcp"`` serves plain sockets, without a WebSocket, in the one wire named.
        config: the limits of each connection, and of what one address may hold of the server.
        max_connections: served at once, those in their handshake included. A further client takes
            the place of a handshake that has taken two seconds; without any it gets 503. One
            address gets at most half of them, unless ``config`` says otherwise.
        origins: the only origins that a browser page may connect from, such as
            ``["https://example.org"]``, compared whole; ``["*"]`` accepts all. By default only
            pages of the same scheme, host and port; ``"loopback"`` in the list accepts those of
            them that have ``localhost`` or a loopback address for a host, so not a page whose own
            name was made to resolve to this machine.
        token: what clients must send as ``Authorization: Bearer TOKEN``, else they get 401 before
            there is a WebSocket: a string, several, or a function of one that returns whether it
            is good. By default whoever can connect may.
        ssl_context: a server-side context, for ``wss://``.
        stream_handler: called with each stream that the client opens, in a worker thread, and
            closes it afterwards. One of the two handlers must be given; both may be.

    The other arguments are those of ``connect``.

    Raises:
        TypeError: ``origins`` or ``protocols`` is no collection of strings. ValueError: an argument
            is wrong, such as an origin that no page can have. OSError: it cannot listen there.

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
    if handler is not None and not callable(handler):
        kind = type(handler).__name__
        raise TypeError(f"serve() takes a function of a connection as its handler, not {kind}")
    names = served_protocols(protocols)
    pages = allowed_origins(origins)  # before anything is opened
    if transport not in ("websocket", "tcp"):
        raise ValueError(f"transport must be 'websocket' or 'tcp', not {transport!r}")
    if transport == "tcp" and len(names) != 1:
        raise ValueError(
            "a plain socket has no handshake in which to choose a protocol: name exactly one"
        )
    if transport == "tcp" and token is not None:
        raise ValueError(
            "tokens are sent in the HTTP request, which a plain socket does not have: serve "
            "WebSockets"
        )
    access = Access(token)  # raises for what cannot be one
    connection_options = ConnectionOptions(
        config=config or Config(),
        accept_streams=accept_streams,
        stream_handler=stream_handler,
        start_on=start_on,
        workers=workers,
        code_to_reason=code_to_reason,
        reason_to_code=reason_to_code,
        bymux_state=bymux_state,
    )
    return Server(
        handler,
        listen(host, port),
        connection_options,
        protocols=names,
        transport=transport,
        origins=pages,
        ssl_context=ssl_context,
        max_connections=max_connections,
        access=access,
    )
