"""Serve River on a port or Unix socket, on mux streams, or on a route of a web application.

One ``RpcHandler`` holds the sessions of all transports: a session that began on one transport may
continue on another.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, TypedDict, Unpack

from ..config import Config
from ..endpoints.acceptor import DRAIN, MAX_CONNECTIONS, Acceptor, listen, listen_unix
from ..endpoints.shutdown_signals import shut_down_on_signals
from ..exceptions import HandshakeError
from ..handshake.http_request import respond
from ..handshake.origin import allowed_origins
from ..handshake.websocket_server import check_upgrade, is_upgrade
from ..mux.stream import Stream
from ..protocols.base import Role
from ..runtime import fork
from ..runtime.closing import Leaving
from ..runtime.deadline import Deadline
from ..runtime.parking import Condition
from ..transport.message_transport import MessageTransport
from .engine.dial import channel_over, socket_over
from .engine.event_callbacks import EventCallbacks
from .engine.server_engine import ServerEngine
from .engine.session_record import NOBODY, Caller
from .options import Options
from .schema import JsonSchema, Schema
from .schema.document import serialize
from .services import Service, service_list
from .session.metadata_validation import MetadataValidation
from .session.session_info import SessionInfo
from .wire.codec import Codec
from .wire.ids import SERVER_ID
from .wire.json_codec import codec_of

__all__ = [
    "DEFAULT_WORKERS",
    "RpcHandler",
    "RpcServer",
    "Serving",
    "check_river_upgrade",
    "handler",
    "serve",
]

# Limits of handlers running at once, per session and in total; each takes a thread.
DEFAULT_WORKERS = 128
MAX_WORKERS = 1024


class Serving(TypedDict, total=False):
    """Describe the options of ``handler``, ``serve`` and ``flask``."""

    codec: str | Codec
    """``"msgpack"`` (default), ``"json"``, ``"protobuf"`` or a codec; as used by the clients."""
    options: Options
    """Timeouts and limits."""
    server_id: str
    """The id by which clients address this server."""
    context: Any
    """Available to handlers as ``ctx.context``, and passed to the functions that make the state of
    a service. The server does not close it."""
    middleware: Iterable[Callable[..., Any]]
    """Functions ``(ctx, init, step)`` around each handler; they return what ``step()`` returns."""
    workers: int
    """Maximum of running handlers per session, 128 by default. Further calls wait for a worker, and
    are refused with CANCEL after ``Options.worker_timeout``. A generator does not count while it
    waits, for room or in ``Context.wait``."""
    max_workers: int
    """Maximum of running handlers, and so of threads, for all sessions together, 1,024 by default.
    When few are left, no session takes more than it leaves to the others."""
    expose_errors: bool
    """Send clients the text of exceptions that the procedure does not declare."""
    handshake_schema: JsonSchema
    """The schema of the handshake metadata."""
    validate: Callable[[Any, Any, str], Any]
    """``(metadata, previous, client_id)``; returns the value of ``ctx.metadata``, or raises
    ``Rejection``. It may block; ``previous`` is what it last returned for that session."""
    expiry: Callable[[Any], float | None]
    """Takes validated metadata and returns when it expires, in seconds since 1970 as in a token, or
    ``None``. One ``handshake_timeout`` earlier the client is asked for new metadata."""
    identity: Callable[[Any], object]
    """Takes validated metadata and returns the client's identity, such as the subject of a token.
    Only the same identity can resume or replace a session; without it, anyone who knows its ids
    can."""
    serve_schema: bool
    """Answer an ordinary HTTP GET of the address with the schema of the services."""
    on_session_status: Callable[[str, str], object]
    """Called with ``"created"`` or ``"closed"``, and the session id."""
    on_session_transition: Callable[[str, str], object]
    """Called with ``"connected"`` or ``"disconnected"``, and the session id, for each connection
    that a session gains or loses. Callbacks run in a thread of their own, and may block."""
    on_protocol_error: Callable[..., object]
    """Called with the kind of failure, a description, and the code of a refusal."""


class RpcHandler(Leaving):
    """Serve River on connections accepted elsewhere; made by ``handler``.

    Calling it with a stream or a connected socket serves that one, and returns when it has ended:
    ``wsmux.serve(stream_handler=rpc.handler(services))`` serves River on each stream. It is
    thread-safe.
    """

    def __init__(self, engine: ServerEngine, schema: Mapping[str, Any] | None) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._served = 0
        self._idle = Condition(self._lock)
        self._forked = False
        self._at_shutdown: list[Callable[[], object]] = []
        self.schema_json: bytes | None = None if schema is None else json.dumps(schema).encode()
        """The body that answers an ordinary GET, if any."""
        fork.register(self)

    def forked(self) -> None:
        """Reset after a fork, see ``runtime.fork``; the parent continues to serve."""
        self._lock = threading.Lock()
        self._idle = Condition(self._lock)
        self._served = 0
        self._forked = True

    def __call__(self, carrier: Stream | socket.socket) -> None:
        """Serve a stream or plain socket until it ends; messages are length-prefixed."""
        sock = socket_over(carrier) if isinstance(carrier, Stream) else carrier
        self.serve_socket(sock, websocket=False)

    def serve_socket(
        self, sock: socket.socket, *, websocket: bool, caller: Caller = NOBODY
    ) -> None:
        """Serve a socket until it ends, and close it; a WebSocket must already be upgraded."""
        size = self._engine.first_size
        self._serve(channel_over(sock, Role.SERVER, size, websocket=websocket), caller)

    def _serve(self, channel: MessageTransport, caller: Caller) -> None:
        with self._lock:
            self._served += 1
        try:
            self._engine.serve(channel, caller)
        finally:
            with self._lock:
                self._served -= 1
                self._idle.notify_all()

    def at_shutdown(self, function: Callable[[], object]) -> None:
        """Call a function at the end of each ``shutdown``, for who accepts the connections."""
        self._at_shutdown.append(function)

    def check(self) -> None:
        """Raise ``HandshakeError`` if a connection would end at once."""
        if self._forked:
            text = "River is served by the process that made its handler: make it in each worker"
            raise HandshakeError(text, 500)
        if self._engine.closed:
            raise HandshakeError("the server shuts down", 503)

    def request_handshake(self, client_id: str) -> bool:
        """Ask a client for new metadata, which is validated like the first.

        The session ends if the metadata is refused, or does not arrive within
        ``Options.handshake_timeout``. A request that the client has not answered yet counts for
        this one, too. Returns false if the client is not connected: its next connection brings new
        metadata.
        """
        return self._engine.request_handshake(client_id)

    def list_sessions(self) -> list[SessionInfo]:
        """Return a snapshot of each session, the oldest first.

        The snapshots are taken one after the other, not all at the same moment.
        """
        return self._engine.list_sessions()

    def end_session(self, client_id: str, reason: str = "ended by the server") -> bool:
        """End the session of a client: its calls end on both sides with UNEXPECTED_DISCONNECT.

        The client may connect again, with a new session, unless ``validate`` refuses it. Returns
        false if the client has no session. Never blocks.
        """
        return self._engine.end_session(client_id, reason)

    @property
    def sessions(self) -> int:
        """The number of sessions, including those without a connection."""
        return self._engine.session_count()

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """End every session, and wait up to ``timeout`` seconds for the connections to end.

        Pending calls end with UNEXPECTED_DISCONNECT on both sides. The states of the services are
        disposed of; an error of ``dispose`` is raised at the end.
        """
        deadline = Deadline(timeout)
        try:
            self._engine.close(deadline)
        finally:
            with self._lock:
                while self._served and not deadline.expired():
                    self._idle.wait(deadline.remaining())
            for function in self._at_shutdown:
                function()

    def drain_on_sigterm(self, timeout: float | None = DRAIN) -> None:
        """Call ``shutdown`` on SIGTERM, which stops and reloads the processes of a WSGI server.

        Like ``Mux.drain_on_sigterm`` of ``wsmux.flask``, which describes where to call it. Sessions
        end at once, handlers have ``timeout`` seconds to return, and the states of the services are
        disposed of; errors of ``dispose`` are logged.

        Raises:
            ValueError: this is not the main thread.
        """
        shut_down_on_signals(self.shutdown, timeout)

    def _leave(self, error: BaseException | None) -> None:
        self.shutdown(DRAIN if error is None else 0.0)


def handler(services: Iterable[Service], **options: Unpack[Serving]) -> RpcHandler:
    """Return a handler that serves procedures on streams and sockets.

    Args:
        services: the services to offer.
        options: see ``Serving``.

    Raises:
        ValueError: an option is invalid, or two services have the same name.
        TypeError: ``services`` is not a collection of services.
    """
    offered = service_list(services)
    server_id = options.get("server_id", SERVER_ID)
    handshake_schema = options.get("handshake_schema")
    callbacks = EventCallbacks(
        {
            "session_status": options.get("on_session_status"),
            "session_transition": options.get("on_session_transition"),
            "protocol_error": options.get("on_protocol_error"),
        },
        f"wsmux-rpc-{server_id}",
    )
    validation = MetadataValidation(
        schema=None if handshake_schema is None else Schema(handshake_schema),
        validate=options.get("validate"),
        expiry=options.get("expiry"),
        identity=options.get("identity"),
    )
    engine = ServerEngine(
        offered,
        codec_of(options.get("codec", "msgpack")),
        options.get("options") or Options(),
        callbacks,
        server_id=server_id,
        context=options.get("context"),
        validation=validation,
        middleware=tuple(options.get("middleware", ())),
        workers=_checked_workers("workers", options.get("workers", DEFAULT_WORKERS)),
        max_workers=_checked_workers("max_workers", options.get("max_workers", MAX_WORKERS)),
        expose_errors=options.get("expose_errors", False),
    )
    schema = serialize(offered, handshake_schema) if options.get("serve_schema") else None
    return RpcHandler(engine, schema)


def _checked_workers(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number from 1 up, but is {value!r}")
    return value


def check_river_upgrade(environ: dict[str, Any], origins: Collection[str] | None) -> None:
    """Check that a request asks for a WebSocket of River.

    Raises:
        HandshakeError: it does not; ``status`` is the HTTP status of the refusal.
    """
    if check_upgrade(environ, origins):
        raise HandshakeError("River has no subprotocol; offer none", 400)


class RpcServer(Acceptor):
    """Serve River until ``shutdown``; made by ``serve``, which starts it.

    Attributes:
        host, port: the address it listens on; the actual port, even if 0 was requested.
        url: the URL for clients: ``ws://``, ``wss://``, ``tcp://`` or ``unix://``.
        handler: the ``RpcHandler`` that serves the connections.
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

    def list_sessions(self) -> list[SessionInfo]:
        """Return ``handler.list_sessions()``."""
        return self.handler.list_sessions()

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """Stop accepting, end every session, and wait up to ``timeout`` seconds for the threads.

        Pending calls end with UNEXPECTED_DISCONNECT on both sides. The states of the services are
        disposed of; an error of ``dispose`` is raised at the end.
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
                    headers = {"Content-Type": "application/json"}
                    respond(sock, 200, schema, headers, self._config.handshake_timeout)
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
    # access
    origins: Iterable[str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    max_connections: int = MAX_CONNECTIONS,
    config: Config | None = None,
    **options: Unpack[Serving],
) -> RpcServer:
    """Listen and serve procedures in background threads; return the running server.

    Args:
        services: the services to offer.
        host, port: where to listen; port 0 takes a free one, see ``server.port``.
        path: listen on a Unix socket at this path instead; messages are length-prefixed.
        transport: ``"tcp"`` serves plain sockets with length-prefixed messages.
        origins, ssl_context, max_connections: as in ``wsmux.serve``.
        config: the limits of handshakes and addresses, and ``trusted_proxies``; its other settings
            apply to streams only. River's own limits are in ``Options``.
        options: codec, access, workers and callbacks; see ``Serving``.

    Raises:
        ValueError, TypeError: an argument is invalid.
        OSError: the address cannot be listened on.
    """
    if transport not in ("websocket", "tcp"):
        raise ValueError(f"transport must be 'websocket' or 'tcp', not {transport!r}")
    pages = allowed_origins(origins)  # validate before anything is started
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
