"""Measure plain sockets, which is the limit: a line is a TCP connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from ..blocking import Blocking
from ..peer import IDLE_CONNECTIONS, OURS, Peer
from ..sockets import connected, listening
from ..words import Line, serve_line

# Bytes asked of the socket at a time, as many as wsmux comes to take.
RECEIVE = 256 * 1024


class Tcp(Peer):
    """Send and receive as much at a time as the others."""

    @contextmanager
    def serve(self) -> Iterator[int]:
        with listening(_serve) as port:
            yield port

    @contextmanager
    def connect(self, address: int) -> Iterator[Blocking]:
        yield Blocking(lambda: _line(connected(address)))


def _serve(sock: socket.socket) -> None:
    with sock:
        serve_line(_line(sock))


def _line(sock: socket.socket) -> Line:
    return Line(sock.sendall, lambda size: sock.recv(RECEIVE), sock.close)


PEERS: list[Peer] = [
    Tcp("tcp", "plain sockets, one a line: the limit", leaves_out=(*IDLE_CONNECTIONS, *OURS))
]
