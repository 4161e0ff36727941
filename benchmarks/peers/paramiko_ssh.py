"""Measure ``paramiko``: a line is a channel, all of them over one SSH connection, encrypted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..blocking import Blocking
from ..peer import CONNECTIONS, IDLE_CONNECTIONS, OURS, Peer
from ..sockets import connected, listening
from ..words import Line, serve_line

HANDSHAKE = 10.0


class Paramiko(Peer):
    """With what it prefers, and nothing to prove who the client is."""

    @contextmanager
    def serve(self) -> Iterator[int]:
        import paramiko

        key = paramiko.ECDSAKey.generate()
        with listening(lambda sock: _serve(sock, key)) as port:
            yield port

    @contextmanager
    def connect(self, address: int) -> Iterator[Blocking]:
        import paramiko

        with paramiko.Transport(connected(address)) as transport:
            transport.start_client(timeout=HANDSHAKE)
            transport.auth_none("bench")
            yield Blocking(lambda: _line(transport.open_session()))


def _serve(sock: socket.socket, key: Any) -> None:
    import paramiko

    everyone = type(
        "Everyone",
        (paramiko.ServerInterface,),
        {
            "check_auth_none": lambda self, username: paramiko.AUTH_SUCCESSFUL,
            "get_allowed_auths": lambda self, username: "none",
            "check_channel_request": lambda self, kind, number: paramiko.OPEN_SUCCEEDED,
        },
    )
    with paramiko.Transport(sock) as transport:
        transport.add_server_key(key)
        transport.start_server(server=everyone())
        while transport.is_active():
            channel = transport.accept(timeout=HANDSHAKE)
            if channel is not None:
                threading.Thread(target=_serve_channel, args=(channel,), daemon=True).start()


def _serve_channel(channel: Any) -> None:
    with channel:
        serve_line(_line(channel))


def _line(channel: Any) -> Line:
    return Line(channel.sendall, channel.recv, channel.close)


PEERS: list[Peer] = [
    Paramiko(
        "paramiko",
        "paramiko's SSH channels at both ends, encrypted",
        base="wsmux",
        needs=("paramiko",),
        leaves_out=(*CONNECTIONS, *IDLE_CONNECTIONS, *OURS),
        on_demand=True,
    )
]
