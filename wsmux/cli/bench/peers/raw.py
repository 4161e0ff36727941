"""Measure websocket-client against simple-websocket, without streams: a line is a WebSocket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import ClassVar, cast

from ..blocking import Blocking
from ..calls import Calls, LineCalls, serve_calls
from ..peer import Client, Line, Peer, serve_line

HANDSHAKE = 10.0
MAX_HEAD = 64 * 1024


class Raw(Peer):
    """Both as shipped, but for TCP_NODELAY on the server, which simple-websocket leaves off."""

    name = "raw"
    about = "websocket-client and simple-websocket, one WebSocket a line, 64 KiB messages"
    needs: ClassVar[tuple[str, ...]] = ("websocket", "simple_websocket")
    hides: ClassVar[tuple[str, ...]] = ("wsaccel",)

    def check(self) -> None:
        from websocket import _abnf

        if hasattr(_abnf, "XorMaskerSimple") is bool(self.hides):
            raise RuntimeError(f"{self.name}: websocket-client does not mask as promised")

    def serve_line(self, line: Line) -> None:
        """Do what the client asks for on one line."""
        serve_line(line)

    @contextmanager
    def serve(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            threading.Thread(target=_accept, args=(listener, self.serve_line), daemon=True).start()
            yield f"ws://127.0.0.1:{listener.getsockname()[1]}/"

    @contextmanager
    def connect(self, address: str) -> Iterator[Client | Calls]:
        yield Blocking(partial(open_line, address))


class Accelerated(Raw):
    """The same with the C masker that websocket-client takes when it is there."""

    name = "raw-wsaccel"
    about = "the same with wsaccel"
    needs = (*Raw.needs, "wsaccel")
    hides = ()


class RawCalls(Raw):
    """The same for calls, each of which is an echo."""

    name = base = "raw-calls"
    about = "websocket-client and simple-websocket, one WebSocket for each call at a time"
    rpc = True
    leaves_out = ("idle-server", "idle-client")

    def serve_line(self, line: Line) -> None:
        serve_calls(line)

    @contextmanager
    def connect(self, address: str) -> Iterator[Client | Calls]:
        yield LineCalls(partial(open_line, address))


def open_line(address: str) -> Line:
    """Open a WebSocket."""
    import websocket

    client = websocket.create_connection(address)
    return Line(client.send_binary, lambda size: cast(bytes, client.recv()), client.close)


def _accept(listener: socket.socket, serve: Callable[[Line], None]) -> None:
    with suppress(OSError):  # closed: the measurement is over
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=_serve, args=(sock, serve), daemon=True).start()


def _serve(sock: socket.socket, serve: Callable[[Line], None]) -> None:
    import simple_websocket

    from wsmux.deadline import Deadline
    from wsmux.transports.http_request import read_request

    environ = read_request(sock, Deadline(HANDSHAKE), MAX_HEAD)
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = simple_websocket.Server.accept(environ)

    def receive(size: int) -> bytes:
        try:
            return cast(bytes, server.receive())
        except simple_websocket.ConnectionClosed:
            return b""

    with suppress(simple_websocket.ConnectionClosed, OSError):
        serve(Line(server.send, receive, server.close))


PEERS: list[Peer] = [Raw(), Accelerated(), RawCalls()]
