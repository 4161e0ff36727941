"""Serve everything that takes a WebSocket, for attacks that are the same on all of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from flask import Flask

import wsmux
from wsmux import rpc
from wsmux.bus.wire.tokens import make_token
from wsmux.endpoints.acceptor import Acceptor
from wsmux.flask import Mux

from .bus.relays import identity, relay, served
from .raw_peer import WAIT, RawPeer, read_head, request, wait_for
from .rpc.procedures import Gate, offered
from .waiting import threads_of
from .werkzeug_server import serving

__all__ = ["KINDS", "NO_SUBPROTOCOL", "Kind", "Place", "memory", "under_wsgi"]

NO_SUBPROTOCOL: dict[str, str | None] = {"Sec-WebSocket-Protocol": None}


class Place(NamedTuple):
    """Say where to ask for an upgrade, and what to say with it."""

    port: int
    target: str = "/"
    headers: dict[str, str | None] = {}
    patience: float = WAIT  # seconds; a server in a process of its own has to start first

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def asked(
        self, headers: dict[str, str | None]
    ) -> Iterator[tuple[socket.socket, str, dict[str, str]]]:
        """Ask for an upgrade; yield the socket, and the first line and headers of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), self.patience) as sock:
            text = request(self.host, {**self.headers, **headers}, f"GET {self.target} HTTP/1.1")
            sock.sendall(text)
            yield sock, *read_head(sock)

    def status(self, origin: str | None) -> int:
        """Return the status that answers an upgrade from a page of this origin."""
        with self.asked({"Origin": origin}) as (_, first, _headers):
            return int(first.split()[1])

    @contextmanager
    def peer(self) -> Iterator[RawPeer]:
        """Connect by hand."""
        with self.asked({}) as (sock, first, _):
            assert first.startswith("HTTP/1.1 101 "), first
            yield RawPeer(sock, masks=True)


def under_wsgi(url: str, target: str) -> Place:
    """Return the place of a WSGI server that is about to start."""
    port = urlsplit(url).port
    assert port is not None
    return Place(port, target, NO_SUBPROTOCOL if target == "/river" else {}, 60.0)


@contextmanager
def kept(server: Acceptor) -> Iterator[Acceptor]:
    """Check that no thread of a connection is left."""
    before = threading.active_count()
    yield server
    wait_for(lambda: not threads_of(server), "the threads of clients to end")
    wait_for(lambda: threading.active_count() <= before, "further threads to end")


@contextmanager
def mux_server(origins: list[str] | None) -> Iterator[Place]:
    with wsmux.serve(wsmux.Connection.wait_closed, origins=origins) as server, kept(server):
        yield Place(server.port)


@contextmanager
def rpc_server(origins: list[str] | None) -> Iterator[Place]:
    with rpc.serve([offered(Gate())], origins=origins) as server, kept(server):
        yield Place(server.port, headers=NO_SUBPROTOCOL)


@contextmanager
def relay_server(origins: list[str] | None) -> Iterator[Place]:
    with served(relay(), origins=origins) as server, kept(server):
        token = make_token(identity(1), 1, None, int(time.time()))
        yield Place(server.port, f"/?{token}", NO_SUBPROTOCOL)


@contextmanager
def flask_server(origins: list[str] | None, target: str) -> Iterator[Place]:
    app = Flask("app")
    ours, river = (origins, None) if target == "/mux" else (None, origins)
    Mux(app, origins=ours).route("/mux")(wsmux.Connection.wait_closed)
    with rpc.flask(app, "/river", [offered(Gate())], origins=river), serving(app) as port:
        before = threading.active_count()
        yield Place(port, target, NO_SUBPROTOCOL if target == "/river" else {})
        wait_for(lambda: threading.active_count() <= before, "the threads of requests to end")


# Serves while it is entered; given the origins that are listed, ``None`` for the same one only.
Kind = Callable[[list[str] | None], AbstractContextManager[Place]]

KINDS: dict[str, Kind] = {
    "mux": mux_server,
    "rpc": rpc_server,
    "relay": relay_server,
    "flask-mux": lambda origins: flask_server(origins, "/mux"),
    "flask-rpc": lambda origins: flask_server(origins, "/river"),
}


def memory() -> int:
    """Return the bytes of the resident set of this process."""
    with open("/proc/self/smaps_rollup") as rollup:
        line = next(line for line in rollup if line.startswith("Rss:"))
    return int(line.split()[1]) * 1024
