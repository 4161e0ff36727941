"""Measure the threaded half of the ``websockets`` package, without streams: a line is a WebSocket.

It sets TCP_NODELAY itself, at both ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..blocking import Blocking
from ..peer import IDLE_CONNECTIONS, OURS, Peer
from ..words import Line, serve_line


class WebsocketsSync(Peer):
    """Without compression, as all the others."""

    @contextmanager
    def serve(self) -> Iterator[str]:
        from websockets.sync.server import serve

        with serve(_serve, "127.0.0.1", 0, compression=None) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            host, port = server.socket.getsockname()
            yield f"ws://{host}:{port}/"
            server.shutdown()
            thread.join()

    @contextmanager
    def connect(self, address: str) -> Iterator[Blocking]:
        yield Blocking(partial(_open_line, address))


def _serve(connection: Any) -> None:
    serve_line(_line(connection))


def _open_line(address: str) -> Line:
    from websockets.sync.client import connect

    return _line(connect(address, compression=None))


def _line(connection: Any) -> Line:
    from websockets.exceptions import ConnectionClosed

    def receive(size: int) -> bytes:
        try:
            data: bytes = connection.recv()
        except ConnectionClosed:
            return b""
        return data

    return Line(connection.send, receive, connection.close)


PEERS: list[Peer] = [
    WebsocketsSync(
        "websockets",
        "websockets.sync at both ends, one WebSocket a line, 64 KiB messages",
        needs=("websockets",),
        # An echo of bulk stands still: who sends holds the lock that who receives needs.
        leaves_out=(*IDLE_CONNECTIONS, *OURS, "echo"),
        on_demand=True,
    )
]
