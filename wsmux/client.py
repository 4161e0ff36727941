"""Connect to a server, or take over a socket."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any, NamedTuple

from .config import Config, Resume
from .endpoints.connection_options import DEFAULT_WORKERS, ConnectionOptions, resume_options
from .endpoints.reconnector import Dial, Reconnector, begin
from .endpoints.stream_handlers import StreamHandler
from .exceptions import HandshakeError
from .handshake.resume_line import ask_to_resume
from .handshake.tcp import SCHEME, Watch, connect_tcp, is_tcp
from .handshake.websocket_client import shake_hands
from .mux.connection import Connection, StartOn
from .mux.error_codes import CodeToReason, ReasonToCode
from .protocols.base import Role
from .protocols.bymux_state import BymuxState
from .protocols.registry import (
    check_subprotocol,
    is_resumable,
    protocol_of,
    resumable,
    subprotocols,
)
from .protocols.resumption import SESSION_SIZE, Session
from .runtime.arguments import strings
from .runtime.deadline import Deadline
from .runtime.hints import check_url, field_hints

__all__ = ["connect", "from_socket", "pair"]

Headers = Mapping[str, str] | Sequence[str]


@field_hints(Config, "config")
def connect(
    url: str,
    *,
    protocol: str | Sequence[str] = "wsmux",
    # time and size
    timeout: float | None = None,
    config: Config | None = None,
    # the request
    subprotocol: str | EllipsisType | None = ...,
    headers: Headers | Callable[[], Headers] | None = None,
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
    **options: Any,
) -> Connection:
    """Connect to ``ws://``, ``wss://`` or ``tcp://host:port`` and return the connection.

    Blocks until the handshake has finished.

    Args:
        url: where to connect; ``tcp`` is a plain socket without a WebSocket.
        protocol: the wire, that is the multiplexing protocol: ``"wsmux"``, ``"js-ws"``, ``"yamux"``
            or ``"bymux"``; or several in order of preference, from which the server chooses (not
            ``js-ws``, which cannot be negotiated). ``connection.protocol`` is the one chosen.
        timeout: seconds for the whole handshake; ``Config.handshake_timeout`` by default.
        config: the limits of the connection.
        subprotocol: the WebSocket subprotocol to offer and to require in the answer, for a server
            that uses another name for the wire; ``None`` offers none, for servers that do not
            negotiate. By default the name of the wire. Only with a single ``protocol``. Without a
            subprotocol nothing checks that both ends use the same wire; with two different ones,
            the connection stays silent or ends. ``wsmux doctor URL`` finds out which one a server
            uses.
        headers: additional request headers, as a mapping or as lines; or a function that returns
            them, called for each request, such as for a token that expires.
        ssl_context: TLS settings; otherwise ``sslopt`` or websocket-client's defaults. ``tcp://``
            uses TLS only if a context is given.
        accept_streams: if false, every stream that the server opens is refused at once, with a
            code.
        stream_handler: called in a worker thread with each stream that the server opens; the stream
            is closed when it returns. Without a handler, streams wait for ``accept_stream``.
        start_on: ``"data"`` hands out an incoming stream only once it has received bytes or ended.
        workers: maximum number of threads that run ``stream_handler``.
        code_to_reason: maps an application's error code to the exception to raise.
        reason_to_code: maps an exception to the code to send: 0, or a code that the wire leaves to
            applications (from 64 on ``wsmux``, from 1 on ``js-ws`` and ``yamux``; 32 bits).
        bymux_state: the state that both ends of a ``bymux`` connection agreed on beforehand, as
            seen from this side.
        resume: keep the connection through outages of the network, a proxy or the address, as long
            as both processes live; ``True``, or a ``Resume`` with its limits. The server must allow
            it; with another one the connection is an ordinary one, see ``connection.resumable``.
            Neither with ``subprotocol``, nor with ``tcp://`` and TLS.
        options: passed to websocket-client's ``connect`` for proxies, cookies and TLS:
            ``http_proxy_host``, ``http_proxy_port``, ``http_proxy_auth``, ``proxy_type``
            (``"http"``, ``"socks5"``...; SOCKS needs ``python-socks``), ``http_no_proxy``,
            ``http_proxy_timeout``, ``cookie``, ``host``, ``origin``, ``suppress_origin``,
            ``redirect_limit``, ``sslopt``, ``sockopt``. Proxies are also read from the environment.
            ``Origin`` is sent only if ``origin`` is given, since it is meant for browsers.

    Raises:
        HandshakeError: the server, a proxy or TLS refused the connection.
        TimeoutError: the handshake took too long.
        OSError: the TCP connection could not be established.
        NoThreadError: the system has no thread left for the connection, or for its first stream.
        ValueError: the URL is invalid, or a header contains a character that headers cannot have,
            such as a line break. Raised before connecting.
    """
    url = check_url(url, "ws", "wss", SCHEME)
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
    limits = connection_options.config
    names = (protocol,) if isinstance(protocol, str) else strings("protocol", protocol, "wsmux")
    deadline = Deadline(limits.handshake_timeout if timeout is None else timeout)
    order = _Order(url, names, subprotocol, headers, ssl_context, deadline, options)
    connection = (_over_tcp if is_tcp(url) else _over_websocket)(connection_options, order)
    connection_options.start_workers(connection)
    return connection


class _Order(NamedTuple):
    """Hold the target of a connection and how to reach it."""

    url: str
    names: tuple[str, ...]
    subprotocol: str | EllipsisType | None
    headers: Headers | Callable[[], Headers] | None
    ssl_context: ssl.SSLContext | None
    deadline: Deadline
    options: dict[str, Any]


def _over_websocket(connection_options: ConnectionOptions, order: _Order) -> Connection:
    resume = connection_options.resume
    offered = _offers(order)
    if resume is not None:
        if order.subprotocol is not ...:
            raise ValueError("resume= has subprotocols of its own: leave subprotocol= out")
        offered = resumable(order.names) + offered
    if order.ssl_context is not None:
        order.options["sslopt"] = {**order.options.get("sslopt", {}), "context": order.ssl_context}
    max_size = connection_options.config.max_handshake_size
    sock, chosen = _shake_hands(order, offered, order.deadline, max_size)
    names = order.names
    # With a single name, the handshake has already checked the answer (or nothing was offered).
    single = len(names) == 1 and resume is None
    protocol = names[0] if single else protocol_of(chosen, names)
    if protocol is None:
        sock.close()
        text = f"{order.url} chose the subprotocol {chosen!r}, offered was {offered}"
        raise HandshakeError(text)
    if resume is None or chosen is None or not is_resumable(chosen):
        return connection_options.over_websocket(sock, Role.CLIENT, protocol)

    def dial(deadline: Deadline, watch: Watch) -> socket.socket:
        return _shake_hands(order, [chosen], deadline, max_size, watch)[0]

    return _begun(connection_options, resume, sock, protocol, order.deadline, dial)


def _begun(
    connection_options: ConnectionOptions,
    resume: Resume,
    sock: socket.socket,
    protocol: str,
    deadline: Deadline,
    dial: Dial,
) -> Connection:
    """Return a resumable connection over its first carrier, on which no HELLO was sent yet."""
    session = Session(os.urandom(SESSION_SIZE), resume.buffer, resume.grace)
    begin(sock, session, deadline)
    reconnector = Reconnector(dial, connection_options.config.handshake_timeout)
    return connection_options.over_carriers(sock, Role.CLIENT, protocol, session, reconnector)


def _shake_hands(
    order: _Order,
    offered: list[str],
    deadline: Deadline,
    max_size: int,
    watch: Watch | None = None,
) -> tuple[socket.socket, str | None]:
    """Return a socket after one handshake, and the subprotocol that the server chose."""
    return shake_hands(
        order.url,
        subprotocols=offered,
        headers=order.headers() if callable(order.headers) else order.headers,
        deadline=deadline,
        max_size=max_size,
        options=order.options,
        watch=watch,
    )


def _offers(order: _Order) -> list[str]:
    """Return the subprotocols to offer."""
    names, given = order.names, order.subprotocol
    own = subprotocols(names)  # raises for an unknown name
    if not names or (len(names) > 1 and len(own) < len(names)):
        raise ValueError("protocols must name at least one wire, and js-ws only alone")
    if given is ...:
        return own
    if len(names) > 1:
        raise ValueError("subprotocol= names one protocol, and there are several: leave it out")
    if given is None:
        return []
    return [check_subprotocol(given)]


def _over_tcp(connection_options: ConnectionOptions, order: _Order) -> Connection:
    if len(order.names) != 1:
        raise ValueError(
            f"{order.url} has no handshake in which to choose a protocol: name exactly one"
        )
    subprotocols(order.names)  # raises for an unknown name
    unused = ["subprotocol"] * (order.subprotocol is not ...) + ["headers"] * bool(order.headers)
    if unused or order.options:
        text = ", ".join(unused + sorted(order.options))
        raise TypeError(f"{order.url} has no HTTP request, so it takes no {text}")
    resume = connection_options.resume
    if resume is not None and order.ssl_context is not None:
        raise ValueError(f"{order.url} with TLS is not resumable: use wss, or leave resume= out")
    protocol = order.names[0]
    if resume is not None:

        def dial(deadline: Deadline, watch: Watch) -> socket.socket:
            sock = _ask_over_tcp(order.url, protocol, deadline, watch)
            if sock is None:
                raise HandshakeError(f"{order.url} does not resume connections any more")
            return sock

        sock = _ask_over_tcp(order.url, protocol, order.deadline)
        if sock is not None:
            return _begun(connection_options, resume, sock, protocol, order.deadline, dial)
    sock = connect_tcp(order.url, order.ssl_context, order.deadline)
    return connection_options.over_bytes(sock, Role.CLIENT, protocol)


def _ask_over_tcp(
    url: str, protocol: str, deadline: Deadline, watch: Watch | None = None
) -> socket.socket | None:
    """Return a socket whose server resumes connections, ``None`` if it does not."""
    sock = connect_tcp(url, None, deadline, watch)
    try:
        if ask_to_resume(sock, protocol, deadline):
            return sock
    except BaseException:
        sock.close()
        raise
    sock.close()
    return None


@field_hints(Config, "config")
def from_socket(
    sock: socket.socket,
    *,
    role: Role | str,
    protocol: str = "wsmux",
    config: Config | None = None,
    accept_streams: bool = True,
    stream_handler: StreamHandler | None = None,
    start_on: StartOn = "open",
    workers: int = DEFAULT_WORKERS,
    code_to_reason: CodeToReason | None = None,
    reason_to_code: ReasonToCode | None = None,
    bymux_state: BymuxState | None = None,
) -> Connection:
    """Carry streams over a connected socket, without a WebSocket, and take ownership of the socket.

    Both ends must do so, with opposite roles. TCP, Unix and TLS sockets work. The other arguments
    are those of ``connect``; there is no ``resume``, since it could not connect again.

    Raises:
        TypeError, ValueError: an argument is wrong; the caller still owns the socket.
        NoThreadError: the system has no thread left for the connection, or for its first stream.
    """
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
    if not hasattr(sock, "recv_into"):
        raise TypeError(f"from_socket() takes a connected socket, not {type(sock).__name__}")
    if role not in (Role.CLIENT, Role.SERVER):
        raise ValueError(f"role must be 'client' or 'server', not {role!r}")
    connection = connection_options.over_bytes(sock, Role(role), protocol)
    connection_options.start_workers(connection)
    return connection


@field_hints(Config, "config")
def pair(
    *,
    protocol: str = "wsmux",
    config: Config | None = None,
    bymux_state: BymuxState | None = None,
) -> tuple[Connection, Connection]:
    """Return a client and a server connection, joined in this process; for tests.

    ``bymux_state`` is as seen from the client.

    >>> import wsmux
    >>> client, server = wsmux.pair()
    >>> with client, server, client.open_stream() as ours:
    ...     ours.write(b"hello")
    ...     ours.close_write()
    ...     with server.accept_stream() as theirs:
    ...         theirs.read()
    5
    b'hello'
    """
    ours, theirs = socket.socketpair()
    mirrored = None if bymux_state is None else bymux_state.mirrored()
    options: dict[str, Any] = {"protocol": protocol, "config": config}
    client: Connection | None = None
    try:
        client = from_socket(ours, role=Role.CLIENT, bymux_state=bymux_state, **options)
        return client, from_socket(theirs, role=Role.SERVER, bymux_state=mirrored, **options)
    except BaseException:
        theirs.close()
        if client is None:
            ours.close()
        else:
            client.abort()
        raise
