"""Make connections over every carrier, in every wire.

``join`` makes both ends in this process; ``WsgiServers`` runs the scripted handler under a WSGI
server in another one.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import wsmux

from .certificates import Certificates
from .marking import wide
from .scripted import WAIT
from .wires import NAMES, WIRES, Wire

__all__ = [
    "EVERYWHERE",
    "IN_PROCESS",
    "ONE_SERVER",
    "ON_SOME",
    "SERVERS",
    "SOME",
    "Carrier",
    "Certificates",
    "Ends",
    "WsgiServers",
    "join",
]

Options = dict[str, Any]

# Seconds for the closing handshake at the end of a test.
CLOSE = 5.0

SERVERS = ("werkzeug", "gunicorn-gthread", "gunicorn-gevent", "gevent-pywsgi")

# Each takes half a second to start, in each worker of a run.
ONE_SERVER = ["gunicorn-gthread", *wide(*(name for name in SERVERS if name != "gunicorn-gthread"))]

CHECKOUT = Path(__file__).parent.parent.parent


class Carrier(NamedTuple):
    """What carries a connection, and the wire spoken over it."""

    name: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.name}-{self.protocol}"

    @property
    def wire(self) -> Wire:
        """What the wire promises."""
        return WIRES[self.protocol]

    @property
    def websocket(self) -> bool:
        """Whether it is a WebSocket, with pings and a Close of its own."""
        return self.name in ("ws", "wss", *SERVERS)

    @property
    def answers_a_close(self) -> bool:
        """Whether there is a Close that is answered; else the end of the bytes is all."""
        return self.websocket or self.protocol in ("wsmux", "js-ws")

    @property
    def usual(self) -> bool:
        """Whether plain runs have it: every wire over one carrier, one wire over each kind."""
        others = ("ws", "wss", "gunicorn-gthread", "gevent-pywsgi")
        return self.name == "socketpair" or (self.protocol == "wsmux" and self.name in others)


IN_PROCESS = [
    Carrier(name, protocol)
    for protocol in NAMES
    for name in ("socketpair", "tcp", "unix", "ws", "wss")
]

# Every wire over two carriers, and every carrier in one wire.
SOME = [
    carrier
    for carrier in IN_PROCESS
    if carrier.name in ("socketpair", "ws") or carrier.protocol == "wsmux"
]
ON_SOME = pytest.mark.parametrize("carrier", SOME, ids=str)

EVERYWHERE = IN_PROCESS + [Carrier(name, protocol) for protocol in NAMES for name in SERVERS]


class Ends(NamedTuple):
    """Both ends of one connection."""

    client: wsmux.Connection
    server: wsmux.Connection


@contextmanager
def join(
    carrier: Carrier,
    client: Options,
    server: Options,
    certificates: Certificates,
    directory: Path,
) -> Iterator[Ends]:
    """Connect two ends in this process with the options of each; close both afterwards."""
    if carrier.name in ("ws", "wss"):
        with _over_websocket(carrier, client, server, certificates) as ends:
            yield ends
        return
    if carrier.name == "socketpair" and not client and not server:
        ends = Ends(*wsmux.pair(protocol=carrier.protocol))
    else:
        ours, theirs = _sockets(carrier, directory)
        ends = Ends(
            wsmux.from_socket(ours, role="client", protocol=carrier.protocol, **client),
            wsmux.from_socket(theirs, role="server", protocol=carrier.protocol, **server),
        )
    yield ends
    close(ends)


def close(ends: Ends) -> None:
    ends.client.close(CLOSE)
    ends.server.close(CLOSE)


def _sockets(carrier: Carrier, directory: Path) -> tuple[socket.socket, socket.socket]:
    if carrier.name == "socketpair":
        return socket.socketpair()
    if carrier.name == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            return client, listener.accept()[0]
    path = str(directory / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)
        return client, listener.accept()[0]


@contextmanager
def _over_websocket(
    carrier: Carrier,
    client: Options,
    server: Options,
    certificates: Certificates,
) -> Iterator[Ends]:
    accepted: queue.Queue[wsmux.Connection] = queue.Queue()

    def handler(connection: wsmux.Connection) -> None:
        accepted.put(connection)
        connection.wait_closed()

    if carrier.name == "wss":
        server = {**server, "ssl_context": certificates.server}
        client = {**client, "ssl_context": certificates.client}
    with wsmux.serve(handler, protocols=[carrier.protocol], **server) as listening:
        ours = wsmux.connect(listening.url, protocol=carrier.protocol, timeout=WAIT, **client)
        ends = Ends(ours, accepted.get(timeout=WAIT))
        yield ends
        close(ends)


class WsgiServers:
    """Start each WSGI server when it is first asked for; hold no descriptors of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, tuple[subprocess.Popen[bytes], str]] = {}

    def url(self, name: str) -> str:
        if name not in self._running:
            self._start(name)
        return self._running[name][1]

    def log(self, name: str) -> str:
        """Return what the server has written to its standard output and error."""
        return (self._directory / name).read_text()

    def _start(self, name: str) -> None:
        with (
            socket.create_server(("127.0.0.1", 0), backlog=128) as listener,
            (self._directory / name).open("wb") as log,
        ):
            numbers = [str(listener.fileno()), str(os.getpid())]
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.wsgi_server", name, *numbers],
                cwd=CHECKOUT,
                env=_environment(),
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            port = listener.getsockname()[1]
        self._running[name] = process, f"ws://127.0.0.1:{port}/"
        with closing(HTTPConnection("127.0.0.1", port, timeout=WAIT)) as plain:
            plain.request("GET", "/no-such-route")  # the answer comes when all is imported
            assert plain.getresponse().status == 404

    def stop(self) -> None:
        for process, _ in self._running.values():
            process.terminate()
        for process, _ in self._running.values():
            try:
                process.wait(WAIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(CHECKOUT)}
