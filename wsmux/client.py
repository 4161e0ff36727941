"""Connect to a server, or take over a socket."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

from .behaviour import DEFAULT_WORKERS, Behaviour
from .config import Config
from .connection import Connection, StartOn
from .deadline import Deadline
from .exceptions import HandshakeError
from .protocols.base import Role
from .reasons import CodeToReason, ReasonToCode
from .transports.plain import protocol_of, subprotocols
from .transports.websocket_client import shake_hands
from .workers import StreamHandler

__all__ = ["connect", "from_socket", "pair"]


def connect(
    url: str,
    *,
    protocol: str = "wsmux",
    # time and size
    timeout: float | None = None,
    config: Config | None = None,
    # the request
    headers: Mapping[str, str] | Sequence[str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    # incoming streams
    accept_streams: bool = True,
    stream_handler: StreamHandler | None = None,
    start_on: StartOn = "open",
    workers: int = DEFAULT_WORKERS,
    # error codes
    code_to_reason: CodeToReason | None = None,
    reason_to_code: ReasonToCode | None = None,
    **options: Any,
) -> Connection:
    """Connect to ``ws://`` or ``wss://`` and return the connection.

    Args:
        url: where to connect.
        protocol: the wire, ``"wsmux"`` or ``"js-ws"``.
        timeout: seconds for the whole handshake, ``Config.handshake_timeout`` by default.
        config: the limits.
        headers: further headers, as a mapping or as lines.
        ssl_context: how to do TLS; else websocket-client's defaults, or ``sslopt``.
        accept_streams: false ends each stream that the server opens at once, with a code.
        stream_handler: called with each stream that the server opens, in a worker thread, and
            closes it afterwards; without one they wait for ``accept_stream``.
        start_on: ``"data"`` offers a stream only once it has bytes or has ended.
        workers: most threads that run ``stream_handler``.
        code_to_reason: turns an application's error code into the exception to raise.
        reason_to_code: turns an exception into the code to send, 0 or from 64 up.
        options: what websocket-client's ``connect`` takes for proxies, cookies and TLS:
            ``http_proxy_host``, ``http_proxy_port``, ``http_proxy_auth``, ``proxy_type``
            (``"http"``, ``"socks5"``...; SOCKS needs ``python-socks``), ``http_no_proxy``,
            ``http_proxy_timeout``, ``cookie``, ``host``, ``origin``, ``suppress_origin``,
            ``redirect_limit``, ``sslopt``, ``sockopt``. Proxies are also taken from the
            environment.

    Raises:
        HandshakeError: the server, a proxy or TLS refused. TimeoutError: it took too long.
        OSError: no TCP connection came about.
    """
    behaviour = Behaviour(
        config=config or Config(),
        accept_streams=accept_streams,
        stream_handler=stream_handler,
        start_on=start_on,
        workers=workers,
        code_to_reason=code_to_reason,
        reason_to_code=reason_to_code,
    )
    limits = behaviour.config
    offered = subprotocols((protocol,))
    if ssl_context is not None:
        options["sslopt"] = {**options.get("sslopt", {}), "context": ssl_context}
    sock, chosen = shake_hands(
        url,
        subprotocols=offered,
        headers=headers,
        deadline=Deadline(limits.handshake_timeout if timeout is None else timeout),
        max_size=limits.max_handshake_size,
        options=options,
    )
    if protocol_of(chosen, (protocol,)) is None:
        sock.close()
        raise HandshakeError(f"{url} chose the subprotocol {chosen!r}, offered was {offered}")
    connection = behaviour.over_websocket(sock, Role.CLIENT, protocol)
    behaviour.start_workers(connection)
    return connection


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
) -> Connection:
    """Carry streams over a connected socket, without a WebSocket. The socket is ours from now on.

    Both ends must do so, with opposite roles. TCP, Unix and TLS sockets will do. See ``connect``
    for the arguments.
    """
    behaviour = Behaviour(
        config=config or Config(),
        accept_streams=accept_streams,
        stream_handler=stream_handler,
        start_on=start_on,
        workers=workers,
        code_to_reason=code_to_reason,
        reason_to_code=reason_to_code,
    )
    connection = behaviour.over_bytes(sock, Role(role), protocol)
    behaviour.start_workers(connection)
    return connection


def pair(*, protocol: str = "wsmux", config: Config | None = None) -> tuple[Connection, Connection]:
    """Return two connections, client and server, joined in this process; for tests.

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
    return (
        from_socket(ours, role=Role.CLIENT, protocol=protocol, config=config),
        from_socket(theirs, role=Role.SERVER, protocol=protocol, config=config),
    )
