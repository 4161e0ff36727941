"""Give the tests a server of tunnels, and something at the far end of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import wsmux
from wsmux.tunnel import Forwarder, TunnelServer

from .scripted import WAIT
from .waiting import wait_for

__all__ = [
    "Echo",
    "connected",
    "forwarding",
    "listens",
    "receive_all",
    "sending",
    "served_by",
    "tunnels",
]


@contextmanager
def sending(send: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen, and call ``send`` with each that connects, one after the other; yield the port."""

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:  # shut down
                return
            with sock, suppress(ConnectionError):  # it has gone, and knows what it got
                send(sock)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


class Echo:
    """Listen, on a port or at a path, and send everything back until shutdown.

    Attributes:
        place: where, as a tunnel names it.
        served: how many connections came.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen()
            self.place = f"unix:{path}"
        self.served = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # shut down
                return
            self.served += 1
            self._threads.append(threading.Thread(target=self._echo, args=(sock,)))
            self._threads[-1].start()

    def _echo(self, sock: socket.socket) -> None:
        with sock:
            try:
                while data := sock.recv(65_536):
                    sock.sendall(data)
            except ConnectionError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT)
        self._listener.close()

    def __enter__(self) -> Echo:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def tunnels(**allowed: Any) -> Iterator[wsmux.Server]:
    """Serve tunnels; everything on loopback unless told otherwise."""
    offered = TunnelServer(**(allowed or {"connect": ["127.0.0.1:*"], "listen": ["127.0.0.1:*"]}))
    with wsmux.serve(stream_handler=offered.serve, workers=256) as server:
        yield server


@contextmanager
def forwarding(server: wsmux.Server, **wanted: Any) -> Iterator[Forwarder]:
    """Forward through a server."""
    with Forwarder(partial(wsmux.connect, server.url), **wanted) as forwarder:
        yield forwarder


def served_by(server: wsmux.Server) -> wsmux.Connection:
    """Return the server's end of its only connection, which a client may be ahead of."""
    wait_for(lambda: len(server.connections) == 1)
    (connection,) = server.connections
    return connection


def connected(place: object) -> socket.socket:
    """Return a socket connected to a place, which is given up after a while."""
    text = str(place)
    if text.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(WAIT)
        sock.connect(text.removeprefix("unix:"))
        return sock
    host, _, port = text.rpartition(":")
    return socket.create_connection((host, int(port)), WAIT)


def listens(place: str) -> bool:
    """Return whether anybody listens at a place."""
    try:
        connected(place).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:
        return True  # it did when the attempt began
    return True


def receive_all(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65_536), b""))
