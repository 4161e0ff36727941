"""The broken set-ups that the doctor has to name: real servers and proxies on loopback."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import wsmux
from wsmux.doctor import Plan, Report, Status, Step, examine

from .proxies import Script, cut, splice
from .raw_peer import (
    ACK,
    BINARY,
    CLOSE_FRAME,
    PING,
    PONG,
    TEXT,
    WAIT,
    Frame,
    RawPeer,
    close_payload,
    message,
    read_head,
    uint32,
)
from .raw_peer import response as upgraded

__all__ = [
    "SHORT",
    "aged",
    "answering",
    "bad",
    "black_hole",
    "echo",
    "echoing",
    "examined",
    "failing",
    "idle_cutting",
    "idle_swallowing",
    "local",
    "nagling",
    "only",
    "plain_websocket",
    "slow_link",
    "small_messages",
    "stripping",
    "upgrading",
]

# Seconds for an answer that does not come.
SHORT = 1.0

MAGIC_WIRE = {"Sec-WebSocket-Protocol": "wsmux.v1"}


def echo(stream: wsmux.Stream) -> None:
    while data := stream.read(65536):
        stream.write(data)


@contextmanager
def echoing(**options: object) -> Iterator[wsmux.Server]:
    """A server with nothing wrong."""
    with wsmux.serve(stream_handler=echo, **options) as server:  # type: ignore[arg-type]
        try:
            yield server
        finally:
            server.shutdown(0)


def answering(answer: bytes) -> Script:
    """Return a server that answers each request with the same bytes."""

    def script(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(answer)

    return script


def black_hole(sock: socket.socket) -> None:
    """Take everything and never answer."""
    while sock.recv(65536):
        pass


def upgrading(serve: Callable[[RawPeer], None]) -> Script:
    """Return a server that upgrades, and goes on by hand."""

    def script(sock: socket.socket) -> None:
        headers = read_head(sock)[1]
        sock.sendall(upgraded(headers["sec-websocket-key"], MAGIC_WIRE))
        serve(RawPeer(sock, masks=False))

    return script


def take_stream(peer: RawPeer, frame: Frame) -> None:
    """Answer the opening of the first stream, as a peer of the native wire does."""
    if frame.opcode == BINARY and frame.payload.startswith(message(0, ACK)):
        peer.send_message(0, ACK, uint32(1 << 16))


def plain_websocket(answer: Callable[[RawPeer, Frame], None], named: bool = False) -> Script:
    """Return a server that knows WebSockets and no multiplexing.

    Args:
        answer: called with each message.
        named: agree to the first subprotocol that is offered, whatever it is; else name none.
    """

    def script(sock: socket.socket) -> None:
        headers = read_head(sock)[1]
        offer = headers.get("sec-websocket-protocol", "").split(",")[0]
        chosen = {"Sec-WebSocket-Protocol": offer if named and offer else None}
        sock.sendall(upgraded(headers["sec-websocket-key"], chosen))
        peer = RawPeer(sock, masks=False)
        while (frame := peer.recv_frame()).opcode != CLOSE_FRAME:
            if frame.opcode == PING:
                peer.send_frame(PONG, frame.payload)
            elif frame.opcode in (TEXT, BINARY):
                answer(peer, frame)
        peer.send_frame(CLOSE_FRAME, frame.payload)

    return script


def stripping(port: int, *names: str) -> Script:
    """Return a proxy that leaves out headers of the request, as one that was told nothing does."""

    def relay(client: socket.socket, server: socket.socket) -> None:
        line, headers = read_head(client)
        kept = [f"{name}: {value}" for name, value in headers.items() if name not in names]
        server.sendall("\r\n".join([line, *kept, "", ""]).encode())
        splice(client, server)

    return through(port, relay)


def aged(port: int) -> Script:
    """Return a proxy that speaks HTTP/1.0 to the server, as nginx does where nobody tells it."""

    def relay(client: socket.socket, server: socket.socket) -> None:
        line, headers = read_head(client)
        lines = [line.replace("HTTP/1.1", "HTTP/1.0")]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        server.sendall("\r\n".join([*lines, "", ""]).encode())
        splice(client, server)

    return through(port, relay)


def failing(pings: int) -> Script:
    """Return a server that ends the connection behind so many pings."""

    def serve(peer: RawPeer) -> None:
        for _ in range(pings):
            while (frame := peer.recv_frame()).opcode != PING:
                take_stream(peer, frame)
            peer.send_frame(PONG, frame.payload)
        peer.send_frame(CLOSE_FRAME, close_payload(1011, b"out of order"))
        peer.recv_close()

    return upgrading(serve)


def nagling(sock: socket.socket) -> None:
    """Answer each ping in two writes, with Nagle's algorithm on."""

    def serve(peer: RawPeer) -> None:
        while (frame := peer.recv_frame()).opcode != CLOSE_FRAME:
            if frame.opcode == PING:
                pong = peer.frame(PONG, frame.payload)
                peer.send(pong[:2])
                peer.send(pong[2:])
            take_stream(peer, frame)
        peer.send_frame(CLOSE_FRAME, frame.payload)

    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    upgrading(serve)(sock)


def through(port: int, relay: Callable[[socket.socket, socket.socket], None]) -> Script:
    """Return a proxy in front of a port."""

    def script(sock: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", port), WAIT) as upstream:
            relay(sock, upstream)

    return script


def idle_cutting(port: int, silence: float) -> Script:
    """Return a proxy that resets a connection that was silent for so long."""

    def relay(client: socket.socket, server: socket.socket) -> None:
        heard = [time.monotonic()]
        over = threading.Event()

        def watch() -> None:
            while not over.wait(silence / 10):
                if time.monotonic() - heard[0] > silence:
                    for sock in (client, server):
                        linger = struct.pack("ii", 1, 0)
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                        cut(sock)
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        _copy(client, server, lambda data: heard.__setitem__(0, time.monotonic()))
        over.set()
        watcher.join(WAIT)

    return through(port, relay)


def idle_swallowing(port: int, silence: float, released: threading.Event) -> Script:
    """Return a proxy that swallows what comes behind such a silence, until it is released."""

    def relay(client: socket.socket, server: socket.socket) -> None:
        heard = [time.monotonic()]

        def note(data: bytes) -> None:
            if time.monotonic() - heard[0] > silence:
                released.wait(WAIT)
                raise ConnectionAbortedError("forgotten")
            heard[0] = time.monotonic()

        _copy(client, server, note)

    return through(port, relay)


def slow_link(port: int, rate: float) -> Script:
    """Return a proxy that passes so many bytes per second each way."""
    return through(
        port,
        lambda client, server: _copy(client, server, lambda data: time.sleep(len(data) / rate)),
    )


def _copy(one: socket.socket, other: socket.socket, note: Callable[[bytes], object]) -> None:
    for sock in (one, other):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(4096):
                note(data)
                target.sendall(data)
        except OSError:
            pass  # the other direction ends by the cut below
        cut(target)

    back = threading.Thread(target=copy, args=(other, one), daemon=True)
    back.start()
    copy(one, other)
    back.join(WAIT)


def small_messages(port: int, limit: int) -> Script:
    """Return a proxy that closes with 1009 at a message above ``limit`` bytes from the client."""

    def relay(client: socket.socket, server: socket.socket) -> None:
        peer = RawPeer(client, masks=False)
        line, headers = read_head(client)
        lines = [line, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        server.sendall("\r\n".join(lines).encode())
        onward = RawPeer(server, masks=True)
        back = threading.Thread(target=_pass, args=(server, client), daemon=True)
        back.start()
        try:
            while True:
                frame = peer.recv_frame()
                if len(frame.payload) > limit:
                    peer.send_frame(CLOSE_FRAME, close_payload(1009, b"too big"))
                    return
                onward.send_frame(frame.opcode, frame.payload)
        finally:
            cut(server)
            back.join(WAIT)

    return through(port, relay)


def _pass(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass  # the other direction has ended
    cut(target)


def examined(url: str, **options: Any) -> Report:
    return examine(Plan(url=url, **({"timeout": WAIT, "idle": 0.05} | options)))


def bad(report: Report) -> list[Step]:
    """Return the steps with something wrong."""
    return [step for step in report.steps if step.status in (Status.FAILED, Status.WARNING)]


def local(port: int, scheme: str = "ws", path: str = "/") -> str:
    return f"{scheme}://127.0.0.1:{port}{path}"


def only(report: Report, name: str) -> Step:
    return next(step for step in report.steps if step.name == name)
