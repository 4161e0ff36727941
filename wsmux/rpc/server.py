"""Serve River on a port or a Unix socket of its own."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Collection, Iterable
from typing import Any, Literal, Unpack

from ..acceptor import DRAIN, MAX_CONNECTIONS, REFUSAL, Acceptor, listen, listen_unix
from ..config import Config
from ..deadlines import Deadline
from ..exceptions import HandshakeError
from ..transports.http_request import respond
from ..transports.origin import allowed_origins
from ..transports.websocket_server import check_upgrade, is_upgrade
from .services import Service
from .serving import RpcHandler, Serving, handler

__all__ = ["RpcServer", "check_river_upgrade", "serve"]


def check_river_upgrade(environ: dict[str, Any], origins: Collection[str] | None) -> None:
    """Check that a request is for a WebSocket of River.

    Raises:
        HandshakeError: it is not; ``status`` is the HTTP status that refuses.
    """
    if check_upgrade(environ, origins):
        raise HandshakeError("River has no subprotocol; offer none", 400)


class RpcServer(Acceptor):
    """Serve River until ``shutdown``; made by ``serve``, which starts it.

    Attributes:
        host, port: where it listens; the port is a real one even if 0 was asked for.
        url: what clients connect to: ``ws://``, ``wss://``, ``tcp://`` or ``unix://``.
        handler: what serves the connections.
    """

    def __init__(
        self,
        handler: RpcHandler,
        listener: socket.socket,
        *,
        plain: bool,
        origins: Iterable[str] | None,
        ssl_context: ssl.SSLContext | None,
        max_connections: int,
        config: Config | None = None,
    ) -> None:
        self.handler = handler
        self._plain = plain
        self._origins = allowed_origins(origins)
        scheme = "tcp" if plain else "ws" if ssl_context is None else "wss"
        super().__init__(
            listener,
            config or Config(),
            scheme=scheme,
            http=not plain,
            ssl_context=ssl_context,
            max_connections=max_connections,
        )

    def __repr__(self) -> str:
        return f"<RpcServer {self.url} sessions={self.handler.sessions}>"

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """Stop accepting, end every session, and wait at most ``timeout`` seconds for the threads.

        Pending calls end with UNEXPECTED_DISCONNECT on both sides. Services' states are disposed;
        what that raises is raised at the end.
        """
        self._shut_down_once(timeout)

    def _end(self, deadline: Deadline) -> None:
        try:
            self.handler.shutdown(deadline.remaining())
        finally:
            self._join_threads(deadline)

    def _serve(self, sock: socket.socket, address: Any) -> None:
        deadline = Deadline(self._config.handshake_timeout)
        try:
            sock = self._secure(sock, deadline)
            if self._plain:
                self._settle()
            else:
                environ = self._request(sock, address, deadline)
                schema = self.handler.schema_json
                if schema is not None and not is_upgrade(environ):
                    respond(sock, 200, schema, {"Content-Type": "application/json"}, REFUSAL)
                    sock.close()
                    return
                check_river_upgrade(environ, self._origins)
                sock = self._upgrade(sock, environ, None)
            self.handler.serve_socket(sock, websocket=not self._plain)
        except (HandshakeError, OSError) as error:
            self._refused(sock, address, error)


def serve(
    services: Iterable[Service],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    path: str | None = None,
    transport: Literal["websocket", "tcp"] = "websocket",
    # who may come
    origins: Iterable[str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    max_connections: int = MAX_CONNECTIONS,
    config: Config | None = None,
    **options: Unpack[Serving],
) -> RpcServer:
    """Listen and serve procedures in background threads; return the running server.

    Args:
        services: what is offered.
        host, port: where to listen; port 0 takes a free one, which ``server.port`` tells.
        path: listen on a Unix socket there instead; each message goes behind its length.
        transport: ``"tcp"`` serves plain sockets, each message behind its length.
        origins, ssl_context, max_connections: as in ``wsmux.serve``.
        config: the limits of handshakes and addresses, and ``trusted_proxies``; what else it holds
            is for streams. River's own limits are ``Options``.
        options: what handlers share, who may come, and the rest; see ``Serving``.

    Raises:
        ValueError, TypeError: an argument is wrong. OSError: it cannot listen there.
    """
    if transport not in ("websocket", "tcp"):
        raise ValueError(f"transport must be 'websocket' or 'tcp', not {transport!r}")
    pages = allowed_origins(origins)  # before anything is started
    made = handler(services, **options)
    try:
        listener = listen(host, port) if path is None else listen_unix(path)
    except BaseException:
        made.shutdown(0)
        raise
    return RpcServer(
        made,
        listener,
        plain=transport == "tcp" or path is not None,
        origins=pages,
        ssl_context=ssl_context,
        max_connections=max_connections,
        config=config,
    )
