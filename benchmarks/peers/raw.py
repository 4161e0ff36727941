"""Measure websocket-client against simple-websocket, without streams: a line is a WebSocket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, cast

from ..blocking import Blocking
from ..calls import LineCalls, serve_calls
from ..measures import MEASURES
from ..peer import IDLE_CONNECTIONS, OURS, Line, Peer, Serve, serve_line
from ..sockets import AUTHORITY, client_context, listening, server_context

HANDSHAKE = 10.0
MAX_HEAD = 64 * 1024


class Raw(Peer):
    """Both as shipped, but for TCP_NODELAY on the server, which simple-websocket leaves off."""

    name = "raw"
    about = "websocket-client and simple-websocket, a new WebSocket a line, 64 KiB messages"
    needs: ClassVar[tuple[str, ...]] = ("websocket", "simple_websocket")
    hides: ClassVar[tuple[str, ...]] = ("wsaccel",)
    leaves_out: ClassVar[tuple[str, ...]] = (*IDLE_CONNECTIONS, *OURS)

    def check(self) -> None:
        from websocket import _abnf

        if hasattr(_abnf, "XorMaskerSimple") is bool(self.hides):
            raise RuntimeError(f"{self.name}: websocket-client does not mask as promised")

    def serve_line(self, line: Line) -> None:
        """Do what the client asks for on one line."""
        serve_line(line)

    @contextmanager
    def serve(self) -> Iterator[str]:
        with listening(partial(_serve, self.serve_line)) as port:
            yield f"ws://127.0.0.1:{port}/"

    @contextmanager
    def connect(self, address: str) -> Iterator[Any]:
        yield Blocking(partial(open_line, address))


class Accelerated(Raw):
    """The same with the C masker that websocket-client takes when it is there."""

    name = "raw-wsaccel"
    about = "the same with wsaccel"
    needs = (*Raw.needs, "wsaccel")
    hides = ()


class RawTls(Raw):
    """The same over TLS; nothing that sends and receives at once, which OpenSSL forbids."""

    name = "raw-tls"
    about = "the same as raw over TLS"
    needs = (*Raw.needs, *AUTHORITY)
    leaves_out = tuple(
        each for each in MEASURES if each not in ("upload", "download", "ping-64", "ping-1k")
    )
    on_demand = True

    @contextmanager
    def serve(self) -> Iterator[str]:
        def serve(sock: socket.socket) -> None:
            _serve(self.serve_line, context.wrap_socket(sock, server_side=True))

        with server_context() as (context, certificate), listening(serve) as port:
            yield f"{certificate} wss://127.0.0.1:{port}/"

    @contextmanager
    def connect(self, address: str) -> Iterator[Any]:
        certificate, _, url = address.partition(" ")
        options = {"context": client_context(certificate)}
        yield Blocking(partial(open_line, url, sslopt=options))


class RawCalls(Raw):
    """The same for calls, each of which is an echo."""

    name = base = "raw-calls"
    about = "websocket-client and simple-websocket, one WebSocket for each call at a time"
    kind = "rpc"
    leaves_out = ("idle-server", "idle-client")

    def serve_line(self, line: Line) -> None:
        serve_calls(line)

    @contextmanager
    def connect(self, address: str) -> Iterator[Any]:
        yield LineCalls(partial(open_line, address))


def open_line(address: str, **options: Any) -> Line:
    """Open a WebSocket."""
    import websocket

    client = websocket.create_connection(address, **options)
    return Line(client.send_binary, lambda size: cast(bytes, client.recv()), client.close)


def _serve(serve: Serve, sock: socket.socket) -> None:
    import simple_websocket

    from wsmux.exceptions import HandshakeError
    from wsmux.handshake.http_request import read_request
    from wsmux.runtime.deadline import Deadline

    # A client that was interrupted may leave at any point.
    with suppress(HandshakeError, simple_websocket.ConnectionClosed):
        environ = read_request(sock, Deadline(HANDSHAKE), MAX_HEAD)
        sock.settimeout(None)
        server = simple_websocket.Server.accept(environ)

        def receive(size: int) -> bytes:
            try:
                return cast(bytes, server.receive())
            except simple_websocket.ConnectionClosed:
                return b""

        serve(Line(server.send, receive, server.close))


PEERS: list[Peer] = [Raw(), Accelerated(), RawTls(), RawCalls()]
