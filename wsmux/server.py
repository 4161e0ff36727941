"""Serve multiplexed connections on a listening socket, with one thread per connection."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

from .config import Config, Resume, UserLimits
from .endpoints import audit
from .endpoints.acceptor import DRAIN, MAX_CONNECTIONS, Acceptor, host_of, listen
from .endpoints.connection_options import (
    DEFAULT_WORKERS,
    ConnectionHandler,
    ConnectionOptions,
    resume_options,
)
from .endpoints.resumable_sessions import ResumableSessions
from .endpoints.shutdown import REASON, end_connections, let_drain
from .endpoints.stream_handlers import StreamHandler
from .endpoints.user_limits import UserPlace, Users
from .exceptions import CloseCode, HandshakeError
from .handshake.access import Access, Authorize, TokenCheck, authorized, check_authorize
from .handshake.origin import allowed_origins
from .handshake.request import Request
from .handshake.resume_line import asks_to_resume
from .handshake.tcp import SCHEME
from .handshake.websocket_server import (
    asks_to_return,
    check_request,
    check_upgrade,
    request_of,
)
from .mux.connection import Connection, StartOn
from .mux.error_codes import CodeToReason, ReasonToCode
from .protocols.base import Role
from .protocols.bymux_state import BymuxState
from .protocols.registry import resumable, served_protocols
from .runtime.deadline import Deadline
from .runtime.hints import field_hints
from .runtime.logs import logger

__all__ = ["Server", "serve"]

Transport = Literal["websocket", "tcp"]

# Told to a client that was let in only to return to a connection that it has.
FULL = "as many connections are open as this server takes"

# Told to a client that comes while the server shuts down.
LEAVING = "the server shuts down"

# Seconds for which a server that shuts down waits for clients that were cut, to tell them: as long
# as they may pause between two attempts.
FAREWELL = 2.5

_log = logger("wsmux")


class Server(Acceptor):
    """Accept connections until ``shutdown``; returned by ``serve``, which starts it.

    Attributes:
        host, port: the listening address; the actual port, even if 0 was requested.
        url: the address as a ``ws://``, ``wss://`` or ``tcp://`` URL.
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
        authorize: Authorize | None = None,
        users: Users | None = None,
        shared: bool = False,
    ) -> None:
        self._access = access or Access(None)
        self._authorize = authorize
        self._users = users
        self._shared = shared  # other processes accept at the same address
        self._leaving = False
        self._handler = handler
        self._connection_options = connection_options
        self._protocols = served_protocols(protocols)
        self._plain = transport == "tcp"
        self._origins = allowed_origins(origins)
        self._connections: set[Connection] = set()
        resume = connection_options.resume
        try:
            self._sessions = None if resume is None else ResumableSessions(resume)
        except OSError:
            listener.close()
            raise
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
        """The connections currently being served."""
        return list(self._connections.copy())  # without a lock, which a signal handler may want

    @property
    def stopping(self) -> bool:
        """Whether ``shutdown`` has been called."""
        return self._leaving or self._stopping.is_set()

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """Stop accepting, let open streams finish, and close all connections.

        With ``resume`` the port stays open meanwhile: whoever returns to a connection that was cut
        learns that it is lost, for which it has ``FAREWELL`` seconds, and whoever begins one gets
        503. A port that other processes share is closed first, since they tell both.

        Each connection first gets GO_AWAY, so that its client opens no further streams and can tell
        which ones to retry elsewhere. Open streams have ``timeout`` seconds to end (``None``: no
        limit); then the connections are closed with 1001 (going away). Closing takes up to
        ``Config.close_timeout`` seconds more. A handler that is still running finds its connection
        closed. A second call waits for the first; in a signal handler that interrupts the first, it
        returns at once, and the first goes on behind it.
        """
        self._shut_down_once(timeout)

    def _take_leave(self, deadline: Deadline) -> None:
        self._leaving = True
        if self._sessions is None or self._shared:
            return
        self._sessions.stop()
        let_drain(self.connections, deadline)
        left = deadline.remaining()
        self._sessions.wait_told(Deadline(FAREWELL if left is None else min(FAREWELL, left)))

    def _end(self, deadline: Deadline) -> None:
        self._join_threads(self._end_connections(deadline))
        if self._users is not None:
            self._users.close()

    def _end_connections(self, deadline: Deadline) -> Deadline:
        """Let all streams end, then close their connections; return the deadline for closing."""
        if self._sessions is not None:
            self._sessions.stop()
        return end_connections(
            self.connections, deadline, self._connection_options.config.close_timeout
        )

    def forked(self) -> None:
        """Release the port in a forked child; the parent continues to serve."""
        super().forked()
        self._connections = set()

    # A connection's thread

    def _serve(self, sock: socket.socket, address: Any) -> None:
        with ExitStack() as held:
            connection = self._shake_hands(sock, address, held)
            if connection is not None:
                self._serve_connection(connection, address)

    def _serve_connection(self, connection: Connection, address: Any) -> None:
        with self._lock:
            self._connections.add(connection)
        visit = audit.Visit(connection, host_of(address))
        try:
            if self._stopping.is_set():
                connection.close(code=CloseCode.GOING_AWAY, reason=REASON)
            self._connection_options.serve(connection, self._handler)
        finally:
            with self._lock:
                self._connections.discard(connection)
            visit.ended()

    def _shake_hands(self, sock: socket.socket, address: Any, held: ExitStack) -> Connection | None:
        """Return the connection of a client, ``None`` if there is none to serve.

        Args:
            held: given back what is held for the connection, once that has ended.
        """
        deadline = Deadline(self._connection_options.config.handshake_timeout)
        request: Request | None = None
        try:
            sock = self._secure(sock, deadline)
            if self._plain:
                return self._shake_hands_over_tcp(sock, deadline)
            environ = self._request(sock, address, deadline)
            request = request_of(environ)
            offered = check_upgrade(environ, self._origins)
            self._access.check(environ)
            if self._leaving and not asks_to_return(environ):
                raise HandshakeError(LEAVING, 503)
            returns = self._guest().returns
            if returns and not asks_to_return(environ):
                raise HandshakeError(FULL, 503)
            if self._take(sock, environ, offered):
                return None
            protocol = check_request(
                environ, self._protocols, self._origins, self._sessions is not None
            )
            request = self._authorized(request)
            place = self._entered(request, environ, held)
            options = self._connection_options
            if place is not None:
                options = replace(options, admit_stream=place.take_stream)
            sock = self._upgrade(sock, environ, protocol)
            connection = self._accepted(sock, protocol, request, deadline, options)
            if connection is None and place is not None:
                place.returned()
            return connection
        except (HandshakeError, OSError, RuntimeError) as error:
            if isinstance(error, HandshakeError):
                audit.refused(request, host_of(address), error.status, str(error))
            self._refused(sock, address, error)
        return None

    def _authorized(self, request: Request) -> Request:
        """Return the request with the name of its user.

        Raises:
            HandshakeError: the application refuses it, or its function has failed.
        """
        try:
            return authorized(self._authorize, request)
        except HandshakeError:
            raise
        except (Exception, SystemExit) as error:  # the latter would leave the client waiting
            _log.exception("%s: authorize= failed", self.url)
            raise HandshakeError("internal error", 500) from error

    def _entered(
        self, request: Request, environ: dict[str, Any], held: ExitStack
    ) -> UserPlace | None:
        """Count a connection of a user, and return its place.

        Raises:
            HandshakeError: it is one too many.
        """
        if self._users is None or request.user is None:
            return None
        sessions = self._sessions
        returns = sessions is not None and sessions.may_return() and asks_to_return(environ)
        place = self._users.enter(request.user, returns)
        held.callback(place.leave)
        if place.returns:
            self._guest().returns = True
        return place

    def _start(self, sock: socket.socket, address: Any) -> None:
        try:
            super()._start(sock, address)
        except HandshakeError as error:
            audit.refused(None, host_of(address), error.status, str(error))
            raise

    def _shake_hands_over_tcp(self, sock: socket.socket, deadline: Deadline) -> Connection | None:
        protocol, resumes = self._protocols[0], False
        if self._sessions is not None:
            with self._awaiting(sock):
                resumes = asks_to_resume(sock, protocol, deadline)
        self._settle()
        if resumes:
            options = self._connection_options
            return self._accepted(sock, resumable((protocol,))[0], None, deadline, options)
        if self._guest().returns:
            raise HandshakeError(FULL)
        if self._leaving:
            raise HandshakeError(LEAVING)
        return self._connection_options.over_bytes(sock, Role.SERVER, protocol)

    def _accepted(
        self,
        sock: socket.socket,
        protocol: str,
        request: Request | None,
        deadline: Deadline,
        options: ConnectionOptions,
    ) -> Connection | None:
        """Return the connection of a client, ``None`` if it came back to one that it has."""
        accepted = options.accepted(
            sock,
            protocol,
            request,
            self._sessions,
            deadline,
            self._cut_by_shutdown(sock),
            self._guest().returns,
        )
        return accepted if isinstance(accepted, Connection) else None

    def _resumable(self) -> int:
        return 0 if self._sessions is None else len(self._sessions)

    def _take(self, sock: socket.socket, environ: dict[str, Any], offered: list[str]) -> bool:
        """Refuse a checked request, or serve it to its end; return false to leave it to the mux.

        A hook for subclasses that serve more on the same port.

        Args:
            offered: the subprotocols that the client offers.

        Raises:
            HandshakeError: the request is refused, with ``status``.
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
    authorize: Authorize | None = None,
    user_limits: UserLimits | None = None,
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
    # outages
    resume: Resume | bool = False,
    reuse_port: bool = False,
) -> Server:
    """Listen and serve in background threads; return the running server.

    Args:
        handler: called with each ``Connection``, in its own thread; the connection is closed when
            it returns, or with 1011 when it raises.
        host, port: where to listen; port 0 picks a free one, see ``server.port``.
        protocols: the wires to serve; each client chooses one by its subprotocol. A client that
            offers no subprotocol gets ``"js-ws"`` if that is served, or else the wire if there is
            only one; any other client without a common subprotocol is refused with 400.
        transport: ``"tcp"`` serves plain sockets, without a WebSocket, in a single wire.
        config: the limits of each connection, and the server's limits per client address.
        max_connections: maximum number of connections, including those in their handshake; fewer
            where the process has too few descriptors, such as 192 with 1,024 of them. A further
            client replaces a handshake that has lasted two seconds; if there is none, it
            gets 503. One address gets at most half of them, unless ``config`` says otherwise.
        origins: the only origins from which a browser page may connect, such as
            ``["https://example.org"]``, compared as a whole; ``["*"]`` accepts all. By default,
            only pages of the same scheme, host and port. ``"loopback"`` in the list accepts
            same-origin pages whose host is ``localhost`` or a loopback address, and thus not a page
            whose own name was made to resolve to this machine.
        token: required from clients as ``Authorization: Bearer TOKEN``; others get 401 before the
            upgrade. A string, several strings, or a function that takes one and returns whether it
            is valid. It may raise ``PermissionError`` with a sentence for the client, or a
            ``HandshakeError`` with a status of its own; any other exception is logged, and the
            answer is 500. By default, no token is required.
        authorize: called with the ``Request`` of each client, in the thread of its connection,
            before the WebSocket is accepted and behind all other checks. It returns the name of the
            user, which is ``connection.user``; ``True`` for a client without a name; or ``False``
            or ``None``: 403. A ``HandshakeError`` that it raises is the answer, with its status,
            or 403 if it has none; any other exception is logged, and the answer is 500. By
            default, nobody is asked.
        user_limits: what each user of ``authorize`` may do.
        ssl_context: a server-side context, for ``wss://``.
        stream_handler: called in a worker thread with each stream that the client opens; the stream
            is closed when it returns. At least one of the two handlers is required.
        resume: let clients that ask for it resume their connections after an outage; ``True``, or a
            ``Resume`` with its limits. Others are served as without it, but over ``"tcp"`` not
            before they have sent a byte, or been silent for two seconds. Not over TCP with TLS.
        reuse_port: let other processes of this user listen on the same port (``SO_REUSEPORT``),
            among which the system distributes the clients. With ``resume`` give all of them the
            same ``Resume.workers``, since a client returns to any of them.

    The other arguments are those of ``connect``.

    Raises:
        TypeError: ``origins`` or ``protocols`` is not a collection of strings.
        ValueError: another argument is wrong, such as an origin that no page can have.
        OSError: the server cannot listen on this address, or use ``Resume.workers``.

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
    check_authorize(authorize)
    if transport == "tcp" and authorize is not None:
        raise ValueError(
            "authorize is given the HTTP request, which a plain socket does not have: serve "
            "WebSockets"
        )
    if user_limits is not None and authorize is None:
        raise ValueError("user_limits= needs authorize=, which names the user of a request")
    users = None if user_limits is None else Users(user_limits)  # raises for wrong limits
    access = Access(token)  # raises for an invalid token
    connection_options = ConnectionOptions(
        config=config or Config(),
        accept_streams=accept_streams,
        stream_handler=stream_handler,
        start_on=start_on,
        workers=workers,
        code_to_reason=code_to_reason,
        reason_to_code=reason_to_code,
        bymux_state=bymux_state,
        resume=resume_options(resume),
    )
    if transport == "tcp" and ssl_context is not None and connection_options.resume is not None:
        raise ValueError("a plain socket with TLS is not resumable: serve WebSockets")
    if ssl_context is not None and getattr(connection_options.resume, "workers", None) is not None:
        raise ValueError(
            "a connection whose TLS ends here cannot be passed to another process: leave out "
            "Resume.workers, or let a proxy end TLS"
        )
    if reuse_port and getattr(connection_options.resume, "workers", resume) is None:
        raise ValueError(
            "reuse_port= and resume= need Resume.workers, since a client returns to any process: "
            "give all of them resume=Resume(workers=DIRECTORY)"
        )
    return Server(
        handler,
        listen(host, port, shared=reuse_port),
        connection_options,
        protocols=names,
        transport=transport,
        origins=pages,
        ssl_context=ssl_context,
        max_connections=max_connections,
        access=access,
        authorize=authorize,
        users=users,
        shared=reuse_port,
    )
