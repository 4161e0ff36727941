"""Measure the multiplexing of ``naive.py``: a line is a stream, all of them over one WebSocket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from ..blocking import Blocking, Dialled
from ..naive import Mux
from ..peer import OURS, Peer
from ..words import Line, serve_line
from .raw import Raw, open_line


class Naive(Raw):
    """Over the raw pair."""

    def serve_line(self, line: Line) -> None:
        Mux(line, serve_line).run()

    @contextmanager
    def connect(self, address: Any) -> Iterator[Blocking]:
        dialled = _dial(*address)
        yield Blocking(dialled.open, dial=partial(_dial, *address))
        dialled.close()


def _dial(url: str, certificate: str | None = None) -> Dialled:
    import websocket

    socket = open_line(url, certificate)
    mux = Mux(socket, serve_line)

    def run() -> None:
        with suppress(websocket.WebSocketException, OSError):  # it was closed here
            mux.run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return Dialled(mux.open, socket.close)


PEERS: list[Peer] = [
    Naive(
        "naive", "a simple mux over the same pair, a thread and a queue a stream", leaves_out=OURS
    )
]
