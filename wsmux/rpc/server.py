"""Serve River on a port of its own."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

from ..acceptor import DRAIN, MAX_CONNECTIONS, Acceptor, listen
from ..config import Config
from ..deadline import Deadline
from ..exceptions import HandshakeError
from ..protocols.base import Role
from ..transports.websocket_server import check_upgrade
from .carriers import channel_over
from .codec import Codec
from .codecs import codec_of
from .ids import SERVER_ID
from .notices import Notices
from .options import Options
from .schema import JsonSchema, Schema
from .server_engine import ServerEngine
from .services import Service

__all__ = ["RpcServer", "serve"]

# Threads that run handlers; each call takes one for as long as its handler runs.
DEFAULT_WORKERS = 128


class RpcServer(Acceptor):
    """Serve River until ``shutdown``; made by ``serve``, which starts it.

    Attributes:
        host, port: where it listens; the port is a real one even if 0 was asked for.
        url: ``ws://``, ``wss://`` or ``tcp://`` with both.
    """

    def __init__(
        self,
        engine: ServerEngine,
        listener: socket.socket,
        *,
        plain: bool,
        origins: Collection[str] | None,
        ssl_context: ssl.SSLContext | None,
        max_connections: int,
    ) -> None:
        self._engine = engine
        self._plain = plain
        self._origins = origins
        scheme = "tcp" if plain else "ws" if ssl_context is None else "wss"
        super().__init__(
            listener,
            Config(),
            scheme=scheme,
            http=not plain,
            ssl_context=ssl_context,
            max_connections=max_connections,
        )

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """Stop accepting, end every session, and wait at most ``timeout`` seconds for the threads.

        Pending calls end with UNEXPECTED_DISCONNECT on both sides. Services' states are disposed.
        """
        self._shut_down_once(timeout)

    def _end(self, deadline: Deadline) -> None:
        self._engine.close()
        self._join_threads(deadline)

    def _serve(self, sock: socket.socket, address: Any) -> None:
        deadline = Deadline(self._config.handshake_timeout)
        try:
            sock = self._secure(sock, deadline)
            if not self._plain:
                environ = self._request(sock, address, deadline)
                if check_upgrade(environ, self._origins):
                    raise HandshakeError("River has no subprotocol; offer none", 400)
                sock = self._upgrade(sock, environ, None)
            size = self._engine.codec.max_size
            channel = channel_over(sock, Role.SERVER, size, websocket=not self._plain)
        except (HandshakeError, OSError) as error:
            self._refused(sock, address, error)
            return
        self._engine.serve(channel)


def serve(
    services: Iterable[Service],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    codec: str | Codec = "msgpack",
    options: Options | None = None,
    server_id: str = SERVER_ID,
    transport: Literal["websocket", "tcp"] = "websocket",
    # what handlers share
    context: Any = None,
    middleware: Iterable[Callable[..., Any]] = (),
    workers: int = DEFAULT_WORKERS,
    expose_errors: bool = False,
    # who may come
    handshake_schema: JsonSchema | None = None,
    validate: Callable[[Any, Any, str], Any] | None = None,
    origins: Collection[str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    max_connections: int = MAX_CONNECTIONS,
    # events
    on_session_status: Callable[[str, str], object] | None = None,
    on_protocol_error: Callable[..., object] | None = None,
) -> RpcServer:
    """Listen and serve procedures in background threads; return the running server.

    Args:
        services: what is offered.
        host, port: where to listen; port 0 takes a free one, which ``server.port`` tells.
        codec, options: as in ``connect``; both ends must agree on the codec.
        server_id: what clients must call this server.
        transport: ``"tcp"`` serves plain sockets, each message behind its length.
        context: what handlers find as ``ctx.context``, and services' states are made from.
        middleware: functions ``(ctx, init, step)`` around each handler; what ``step()`` returns is
            the handler's.
        workers: most handlers that run at once; further calls wait.
        expose_errors: tell clients the text of exceptions that no procedure declares.
        handshake_schema: what metadata must look like.
        validate: ``(metadata, previous, client_id)`` returns what handlers find as
            ``ctx.metadata``, or raises ``Rejection``.
        origins, ssl_context, max_connections: as in ``wsmux.serve``.
        on_session_status, on_protocol_error: as in ``connect``.
    """
    chosen = codec_of(codec)
    notices = Notices(
        {"session_status": on_session_status, "protocol_error": on_protocol_error},
        f"wsmux-rpc-{server_id}",
    )
    engine = ServerEngine(
        services,
        chosen,
        options or Options(),
        notices,
        server_id=server_id,
        context=context,
        handshake_schema=None if handshake_schema is None else Schema(handshake_schema),
        validate=validate,
        middleware=tuple(middleware),
        workers=workers,
        expose_errors=expose_errors,
    )
    return RpcServer(
        engine,
        listen(host, port),
        plain=transport == "tcp",
        origins=origins,
        ssl_context=ssl_context,
        max_connections=max_connections,
    )
