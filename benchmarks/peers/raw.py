"""Measure what has no streams: a line is a WebSocket, or a plain socket.

The WebSockets are of websocket-client and simple-websocket; the plain sockets are the limit.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ..blocking import Blocking, LineCalls
from ..measures import MEASURES
from ..peer import IDLE_CONNECTIONS, OURS, Peer
from ..sockets import AUTHORITY, client_context, connected, listening, server_context
from ..words import Line, Serve, serve_line

HANDSHAKE = 10.0
MAX_HEAD = 64 * 1024

# Bytes asked of a plain socket at a time, as many as wsmux comes to take.
RECEIVE = 256 * 1024


@dataclass
class Plain(Peer):
    """Send and receive as much at a time as the others."""

    tls: bool = False

    @contextmanager
    def serve(self) -> Iterator[Any]:
        with server_context(self.tls) as (context, certificate):

            def serve(sock: socket.socket) -> None:
                with context.wrap_socket(sock, server_side=True) if context else sock as wrapped:
                    serve_line(_socket_line(wrapped))

            with listening(serve) as port:
                yield port, certificate

    @contextmanager
    def connect(self, address: Any) -> Iterator[Blocking]:
        port, certificate = address
        context = client_context(certificate)

        def dial() -> Line:
            sock = connected(port)
            if context:
                sock = context.wrap_socket(sock, server_hostname="127.0.0.1")
            return _socket_line(sock)

        yield Blocking(dial)


def _socket_line(sock: socket.socket) -> Line:
    return Line(sock.sendall, lambda size: sock.recv(RECEIVE), sock.close)


@dataclass
class Raw(Peer):
    """Both as shipped, but for TCP_NODELAY on the server, which simple-websocket leaves off."""

    needs: tuple[str, ...] = ("websocket", "simple_websocket")
    hides: tuple[str, ...] = ("wsaccel",)
    leaves_out: tuple[str, ...] = (*IDLE_CONNECTIONS, *OURS)
    tls: bool = False
    measure: Any = Blocking

    def check(self) -> None:
        from websocket import _abnf

        if hasattr(_abnf, "XorMaskerSimple") is bool(self.hides):
            raise RuntimeError(f"{self.name}: websocket-client does not mask as promised")

    def serve_line(self, line: Line) -> None:
        """Do what the client asks for on one line."""
        serve_line(line)

    @contextmanager
    def serve(self) -> Iterator[Any]:
        with server_context(self.tls) as (context, certificate):

            def serve(sock: socket.socket) -> None:
                wrapped = context.wrap_socket(sock, server_side=True) if context else sock
                _serve(self.serve_line, wrapped)

            with listening(serve) as port:
                yield f"ws{'s' if context else ''}://127.0.0.1:{port}/", certificate

    @contextmanager
    def connect(self, address: Any) -> Iterator[Any]:
        yield self.measure(partial(open_line, *address))


def open_line(url: str, certificate: str | None = None) -> Line:
    """Open a WebSocket."""
    import websocket

    options = {"context": client_context(certificate)} if certificate else None
    client = websocket.create_connection(url, sslopt=options)
    return Line(client.send_binary, lambda size: cast(bytes, client.recv()), client.close)


def request_of(sock: socket.socket) -> dict[str, Any]:
    """Return the environ of the request that arrives on a socket."""
    from wsmux.handshake.http_request import read_request
    from wsmux.runtime.deadline import Deadline

    environ = read_request(sock, Deadline(HANDSHAKE), MAX_HEAD)
    sock.settimeout(None)
    return environ


def _serve(serve: Serve, sock: socket.socket) -> None:
    import simple_websocket

    from wsmux.exceptions import HandshakeError

    # A client that was interrupted may leave at any point.
    with suppress(HandshakeError, simple_websocket.ConnectionClosed):
        server = simple_websocket.Server.accept(request_of(sock))

        def receive(size: int) -> bytes:
            try:
                return cast(bytes, server.receive())
            except simple_websocket.ConnectionClosed:
                return b""

        serve(Line(server.send, receive, server.close))


RAW = Raw("raw", "websocket-client and simple-websocket, a new WebSocket a line, 64 KiB messages")

# Over TLS nothing sends and receives at once, which OpenSSL forbids.
OVER_TLS = ("upload", "download", "ping-64", "ping-1k")
NOT_OVER_TLS = tuple(name for name in MEASURES if name not in OVER_TLS)

PEERS: list[Peer] = [
    RAW,
    Plain("tcp", "plain sockets, one a line: the limit", leaves_out=RAW.leaves_out),
    Plain(
        "tls",
        "TLS sockets, one a line: the limit of Python's OpenSSL",
        needs=AUTHORITY,
        leaves_out=NOT_OVER_TLS,
        on_demand=True,
        tls=True,
    ),
    Raw("raw-wsaccel", "the same with wsaccel", needs=(*RAW.needs, "wsaccel"), hides=()),
    Raw(
        "raw-tls",
        "the same as raw over TLS",
        needs=(*RAW.needs, *AUTHORITY),
        leaves_out=NOT_OVER_TLS,
        on_demand=True,
        tls=True,
    ),
    Raw(
        "raw-calls",
        "websocket-client and simple-websocket, one WebSocket for each call at a time",
        base="raw-calls",
        kind="rpc",
        leaves_out=("idle-server", "idle-client"),
        measure=LineCalls,
    ),
]
