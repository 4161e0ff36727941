"""Serve River on whatever comes in: a server's sockets, mux streams, a route of a web application.

One ``RpcHandler`` holds the sessions, whichever way their connections come: a session that began on
one carrier may go on over another.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from .. import forks
from ..acceptor import DRAIN
from ..channel import Channel
from ..deadlines import Deadline
from ..protocols.base import Role
from ..stream import Stream
from .carriers import channel_over, socket_over
from .codec import Codec
from .codecs import codec_of
from .greeting import Greeting
from .ids import SERVER_ID
from .notices import Notices
from .options import Options
from .schema import JsonSchema, Schema
from .served import serialize
from .server_engine import ServerEngine
from .services import Service, service_list

__all__ = ["DEFAULT_WORKERS", "RpcHandler", "Serving", "handler"]

# Threads that run handlers; each call takes one for as long as its handler runs.
DEFAULT_WORKERS = 128


class Serving(TypedDict, total=False):
    """Name what ``handler``, ``serve`` and ``flask`` take beside their services, all optional."""

    codec: str | Codec
    """``"msgpack"``, the default, ``"json"`` or a codec; clients must use the same."""
    options: Options
    """Times and bounds."""
    server_id: str
    """What clients must call this server."""
    context: Any
    """What handlers find as ``ctx.context``, and services' states are made from. The server does
    not close it."""
    middleware: Iterable[Callable[..., Any]]
    """Functions ``(ctx, init, step)`` around each handler; what ``step()`` returns is its."""
    workers: int
    """Most handlers that run at once, 128 by default; further calls wait."""
    expose_errors: bool
    """Tell clients the text of exceptions that no procedure declares."""
    handshake_schema: JsonSchema
    """What metadata must look like."""
    validate: Callable[[Any, Any, str], Any]
    """``(metadata, previous, client_id)`` returns what handlers find as ``ctx.metadata``, or raises
    ``Rejection``. It may block; ``previous`` is what it returned before for that session."""
    expiry: Callable[[Any], float | None]
    """Given validated metadata, returns when they expire, in seconds since 1970 as in a token, or
    ``None``. One ``handshake_timeout`` before, the client is asked for new ones."""
    identity: Callable[[Any], object]
    """Given validated metadata, returns who the client is, such as the subject of a token. Only the
    same one resumes or replaces a session; without it, whoever knows its ids does."""
    serve_schema: bool
    """Answer an ordinary HTTP GET of the address with the schema of the services."""
    on_session_status: Callable[[str, str], object]
    """Called with ``"created"`` or ``"closed"``, and the session's id."""
    on_protocol_error: Callable[..., object]
    """Called with the kind of failure, a sentence, and the code of a refusal."""


class RpcHandler:
    """Serve River on connections that somebody else has accepted; made by ``handler``.

    Calling it with a stream or a connected socket serves that one, and returns when it has ended:
    ``wsmux.serve(stream_handler=rpc.handler(services))`` serves River on each stream. It may be
    called from any number of threads at once.
    """

    def __init__(self, engine: ServerEngine, schema: Mapping[str, Any] | None) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._served = 0
        self._idle = threading.Condition(self._lock)
        self.schema_json = None if schema is None else json.dumps(schema).encode()
        """What an ordinary GET is answered with, if anything."""
        forks.register(self)

    def forked(self) -> None:
        """See ``forks``; the parent goes on serving."""
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._served = 0

    def __call__(self, carrier: Stream | socket.socket) -> None:
        """Serve one stream or plain socket until it has ended, each message behind its length."""
        sock = socket_over(carrier) if isinstance(carrier, Stream) else carrier
        self.serve_socket(sock, websocket=False)

    def serve_socket(self, sock: socket.socket, *, websocket: bool) -> None:
        """Serve a socket, which is closed then; a WebSocket must have been upgraded already."""
        size = self._engine.codec.max_size
        self._serve(channel_over(sock, Role.SERVER, size, websocket=websocket))

    def _serve(self, channel: Channel) -> None:
        with self._lock:
            self._served += 1
        try:
            self._engine.serve(channel)
        finally:
            with self._lock:
                self._served -= 1
                self._idle.notify_all()

    def request_handshake(self, client_id: str) -> bool:
        """Ask a client for new metadata, which are validated like the first.

        The session ends if they are refused or do not come within ``Options.handshake_timeout``.
        Returns false if that client is not connected: its next connection brings new ones.
        """
        return self._engine.request_handshake(client_id)

    @property
    def sessions(self) -> int:
        """How many sessions there are, those without a connection included."""
        return self._engine.session_count()

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """End every session, and wait at most ``timeout`` seconds for the connections to end.

        Pending calls end with UNEXPECTED_DISCONNECT on both sides. Services' states are disposed;
        what that raises is raised at the end.
        """
        deadline = Deadline(timeout)
        try:
            self._engine.close(deadline)
        finally:
            with self._lock:
                while self._served and not deadline.expired():
                    self._idle.wait(deadline.remaining())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown(DRAIN if exc is None else 0.0)


def handler(services: Iterable[Service], **options: Unpack[Serving]) -> RpcHandler:
    """Return what serves procedures on streams and sockets.

    Args:
        services: what is offered.
        options: see ``Serving``.

    Raises:
        ValueError: an option is wrong, or two services have the same name. TypeError: ``services``
            is no collection of them.
    """
    offered = service_list(services)
    server_id = options.get("server_id", SERVER_ID)
    handshake_schema = options.get("handshake_schema")
    notices = Notices(
        {
            "session_status": options.get("on_session_status"),
            "protocol_error": options.get("on_protocol_error"),
        },
        f"wsmux-rpc-{server_id}",
    )
    greeting = Greeting(
        schema=None if handshake_schema is None else Schema(handshake_schema),
        validate=options.get("validate"),
        expiry=options.get("expiry"),
        identity=options.get("identity"),
    )
    engine = ServerEngine(
        offered,
        codec_of(options.get("codec", "msgpack")),
        options.get("options") or Options(),
        notices,
        server_id=server_id,
        context=options.get("context"),
        greeting=greeting,
        middleware=tuple(options.get("middleware", ())),
        workers=options.get("workers", DEFAULT_WORKERS),
        expose_errors=options.get("expose_errors", False),
    )
    schema = serialize(offered, handshake_schema) if options.get("serve_schema") else None
    return RpcHandler(engine, schema)
