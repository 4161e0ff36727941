"""Measure plain sockets, which is the limit: a line is a TCP connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ..blocking import Blocking
from ..peer import IDLE_CONNECTIONS, OURS, Client, Line, Peer, serve_line
from ..sockets import listening

# Bytes asked of the socket at a time, as many as wsmux comes to take.
RECEIVE = 256 * 1024


class Tcp(Peer):
    """Send and receive as much at a time as the others."""

    name = "tcp"
    about = "plain sockets, one a line: the limit"
    leaves_out = (*IDLE_CONNECTIONS, *OURS)

    @contextmanager
    def serve(self) -> Iterator[str]:
        with listening(_serve) as port:
            yield str(port)

    @contextmanager
    def connect(self, address: str) -> Iterator[Client]:
        yield Blocking(partial(_connect, int(address)))


def _serve(sock: socket.socket) -> None:
    with sock:
        serve_line(_line(sock))


def _connect(port: int) -> Line:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _line(sock)


def _line(sock: socket.socket) -> Line:
    return Line(sock.sendall, lambda size: sock.recv(RECEIVE), sock.close)


PEERS: list[Peer] = [Tcp()]
