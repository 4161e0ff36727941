"""Multiplex as first comes to mind, to be measured against: nobody may make this any worse.

A thread and a queue for each stream, a lock around sending, 1 MiB of credit given back by halves.
A line is a stream, all of them over one WebSocket.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any

from ..blocking import Blocking, Dialled
from ..peer import OURS, Peer
from ..words import CHUNK, Line, Serve, serve_line
from .raw import Raw, open_line

OPEN, DATA, ACK, END = range(4)
HEAD, WINDOW = struct.Struct(">BI"), 1024 * 1024


class Stream:
    def __init__(self, mux: Mux, number: int) -> None:
        self.mux, self.number, self.credit, self.taken = mux, number, WINDOW, 0
        self.inbox, self.changed = SimpleQueue[bytes](), threading.Condition()
        self.line = Line(self.write, self.read, self.close)

    def write(self, data: bytes) -> None:
        for chunk in (data[at : at + CHUNK] for at in range(0, len(data), CHUNK)):
            with self.changed:
                while self.credit < len(chunk):
                    self.changed.wait()
                self.credit -= len(chunk)
            self.mux.send(DATA, self.number, chunk)

    def read(self, size: int) -> bytes:
        self.taken += len(data := self.inbox.get())
        if self.taken >= WINDOW // 2:
            self.mux.send(ACK, self.number, self.taken.to_bytes(4, "big"))
            self.taken = 0
        return data

    def close(self) -> None:
        self.mux.send(END, self.number)
        self.mux.streams.pop(self.number, None)

    def grant(self, credit: int) -> None:
        with self.changed:
            self.credit += credit
            self.changed.notify()


class Mux:
    def __init__(self, socket: Line, serve: Serve) -> None:
        self.socket, self.serve, self.ids = socket, serve, count()
        self.lock, self.streams = threading.Lock(), dict[int, Stream]()

    def send(self, kind: int, number: int, data: bytes = b"") -> None:
        with self.lock:
            self.socket.send(HEAD.pack(kind, number) + data)

    def open(self) -> Line:
        stream = Stream(self, next(self.ids))
        self.streams[stream.number] = stream
        self.send(OPEN, stream.number)
        return stream.line

    def run(self) -> None:
        while message := self.socket.receive(0):
            (kind, number), data = HEAD.unpack_from(message), message[HEAD.size :]
            if kind == OPEN:
                stream = self.streams[number] = Stream(self, number)
                threading.Thread(target=self.serve, args=(stream.line,), daemon=True).start()
            elif kind == ACK and number in self.streams:
                self.streams[number].grant(int.from_bytes(data, "big"))
            elif kind == DATA and number in self.streams:
                self.streams[number].inbox.put(data)
            elif kind == END and (ended := self.streams.pop(number, None)):
                ended.inbox.put(b"")


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
