"""A WebSocket peer by hand: send any bytes, read frames, share no code with the library."""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Queue
from typing import Any, NamedTuple, Self, TypeVar

import wsmux

from .inside import listener_of
from .timeouts import WAIT

__all__ = [
    "ACK",
    "BINARY",
    "CLOSE",
    "CLOSE_FRAME",
    "CONTINUATION",
    "DATA",
    "ERROR",
    "GO_AWAY",
    "PING",
    "PONG",
    "ROLES",
    "TEXT",
    "WAIT",
    "Frame",
    "Meeting",
    "RawPeer",
    "close_payload",
    "in_thread",
    "meet",
    "message",
    "raw_client",
    "read_head",
    "request",
    "response",
    "uint32",
    "varint",
    "wait_for",
]

T = TypeVar("T")

CONTINUATION, TEXT, BINARY, CLOSE_FRAME, PING, PONG = 0, 1, 2, 8, 9, 10
DATA, ACK, ERROR, CLOSE, GO_AWAY = range(5)
READ, WRITE = 0, 1

ROLES = ("client", "server")
SUBPROTOCOLS = {"wsmux": "wsmux.v1", "yamux": "yamux", "bymux": "bymux"}
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
KEY = base64.b64encode(b"sixteen bytes ok").decode()
MASK = b"\x37\xfa\x21\x3d"


def varint(value: int) -> bytes:
    for prefix, size in enumerate((1, 2, 4, 8)):
        if value < 1 << (8 * size - 2):
            return (value | prefix << (8 * size - 2)).to_bytes(size, "big")
    raise ValueError(value)


def uint32(value: int) -> bytes:
    return struct.pack(">I", value)


def message(stream_id: int, kind: int, body: bytes = b"") -> bytes:
    return varint(stream_id) + bytes((kind,)) + body


def close_payload(code: int, reason: bytes = b"") -> bytes:
    return struct.pack(">H", code) + reason


class Frame(NamedTuple):
    opcode: int
    payload: bytes
    fin: bool = True


class RawPeer:
    """Hold one end of a WebSocket whose handshake is done."""

    def __init__(self, sock: socket.socket, masks: bool) -> None:
        self.sock = sock
        self.masks = masks
        sock.settimeout(WAIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    # Sending

    def frame(
        self,
        opcode: int,
        payload: bytes = b"",
        *,
        fin: bool = True,
        reserved: int = 0,
        masked: bool | None = None,
        declared: int | None = None,
        width: int | None = None,
    ) -> bytes:
        """Return a frame whose header claims ``declared`` bytes, in ``width`` bytes."""
        masked = self.masks if masked is None else masked
        size = len(payload) if declared is None else declared
        if width is None:
            width = 0 if size < 126 else 2 if size < 2**16 else 8
        short = {0: size, 2: 126, 8: 127}[width]
        head = bytes((fin << 7 | reserved << 4 | opcode, masked << 7 | short))
        head += size.to_bytes(width, "big") if width else b""
        if not masked:
            return head + payload
        mixed = bytes(byte ^ MASK[i % 4] for i, byte in enumerate(payload))
        return head + MASK + mixed

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def send_frame(self, opcode: int, payload: bytes = b"", **how: Any) -> None:
        self.send(self.frame(opcode, payload, **how))

    def packed(self, stream_id: int, kind: int, body: bytes = b"") -> bytes:
        return self.frame(BINARY, message(stream_id, kind, body))

    def send_message(self, stream_id: int, kind: int, body: bytes = b"") -> None:
        self.send(self.packed(stream_id, kind, body))

    # Receiving

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk = self.sock.recv(count - len(data))
            if not chunk:
                raise EOFError(f"end of file after {len(data)} of {count} bytes")
            data += chunk
        return bytes(data)

    def recv_frame(self) -> Frame:
        first, second = self._exactly(2)
        size = second & 127
        if size >= 126:
            size = int.from_bytes(self._exactly(2 if size == 126 else 8), "big")
        assert bool(second & 128) is not self.masks, "the other side masks where it must not"
        key = self._exactly(4) if second & 128 else b"\0\0\0\0"
        data = self._exactly(size)
        plain = bytes(byte ^ key[i % 4] for i, byte in enumerate(data)) if any(key) else data
        return Frame(first & 15, plain, bool(first & 128))

    def recv_message(self) -> bytes:
        """Return the next binary message; control frames before it are passed over."""
        while (frame := self.recv_frame()).opcode != BINARY:
            assert frame.opcode in (PING, PONG), f"unexpected {frame}"
        return frame.payload

    def recv_close(self) -> tuple[int, str]:
        """Return the code and reason of the Close, passing over what comes before it."""
        while (frame := self.recv_frame()).opcode != CLOSE_FRAME:
            pass
        if not frame.payload:
            return 1005, ""
        return int.from_bytes(frame.payload[:2], "big"), frame.payload[2:].decode()

    def recv_to_end(self) -> bytes:
        """Return the raw bytes that come until the end of file, or a reset."""
        data = bytearray()
        try:
            while chunk := self.sock.recv(65536):
                data += chunk
        except ConnectionResetError:
            pass
        return bytes(data)

    def reset(self) -> None:
        """Vanish with a TCP reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    # The native wire

    def id(self, index: int = 0) -> int:
        """Return the id of the stream that this peer opens as its ``index``-th."""
        return 2 * index + (not self.masks)

    def their_id(self, index: int = 0) -> int:
        return 2 * index + self.masks

    def open(self, index: int = 0, window: int = 1 << 16) -> int:
        """Open a stream and wait for the answer; return its id."""
        stream_id = self.id(index)
        self.send_message(stream_id, ACK, uint32(window))
        answer = self.recv_message()
        assert answer[:-4] == message(stream_id, ACK), answer
        return stream_id


def request(
    host: str,
    headers: Mapping[str, str | None] | None = None,
    line: str = "GET / HTTP/1.1",
) -> bytes:
    """Return an upgrade request; a header of ``None`` is left out."""
    fields: dict[str, str | None] = {
        "Host": host,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "wsmux.v1",
    }
    fields |= headers or {}
    lines = [line, *(f"{name}: {value}" for name, value in fields.items() if value is not None)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def response(key: str, headers: Mapping[str, str | None] | None = None) -> bytes:
    """Return a 101; a header of ``None`` is left out."""
    accept = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
    fields: dict[str, str | None] = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": accept,
        "Sec-WebSocket-Protocol": "wsmux.v1",
    }
    fields |= headers or {}
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join(["HTTP/1.1 101 Switching Protocols", *lines]).encode() + b"\r\n\r\n"


END = b"\r\n\r\n"


def read_head(sock: socket.socket) -> tuple[str, dict[str, str]]:
    """Return the first line and the headers of an HTTP message, and nothing behind it."""
    head = bytearray()
    peeks = not isinstance(sock, ssl.SSLSocket)
    while not head.endswith(END):
        seen = sock.recv(4096, socket.MSG_PEEK) if peeks else b"?"
        if not seen:
            raise EOFError(f"end of file after {bytes(head)!r}")
        # The end may lie across what is here already and what comes now.
        before = bytes(head[-len(END) + 1 :])
        found = (before + seen).find(END)
        size = len(seen) if found < 0 else found + len(END) - len(before)
        head += sock.recv(size)
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    pairs = (line.split(": ", 1) for line in lines)
    return first, {name.lower(): value for name, value in pairs}


def raw_client(
    port: int,
    receive_buffer: int = 0,
    subprotocol: str = SUBPROTOCOLS["wsmux"],
    path: str = "/",
    headers: Mapping[str, str] | None = None,
) -> RawPeer:
    """Shake hands with a server on loopback."""
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(WAIT)
    sock.connect(("127.0.0.1", port))
    asked = {**(headers or {}), "Sec-WebSocket-Protocol": subprotocol}
    sock.sendall(request(f"127.0.0.1:{port}", asked, f"GET {path} HTTP/1.1"))
    first, answered = read_head(sock)
    assert first.startswith("HTTP/1.1 101 "), first
    assert answered["sec-websocket-protocol"] == subprotocol
    return RawPeer(sock, masks=True)


def in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    """Run a call in a thread of its own; the future tells what came of it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def wait_for(condition: Callable[[], object], what: str = "") -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, f"did not come in {WAIT} s: {what or condition}"
        time.sleep(0.002)


@dataclass
class Meeting:
    """Hold a connection under test, the peer by hand at its other end, and two that look on."""

    connection: wsmux.Connection
    peer: RawPeer
    bystanders: tuple[wsmux.Connection, wsmux.Connection]

    def accepted(self, **how: int) -> wsmux.Stream:
        """Open a stream from the peer and take it."""
        self.peer.open(**how)
        stream = self.connection.accept_stream(timeout=WAIT)
        stream.timeout = WAIT
        return stream

    def check_bystanders(self) -> None:
        """Check that another connection of the process carries bytes."""
        ours, theirs = self.bystanders
        with ours.open_stream() as stream:
            stream.timeout = WAIT
            stream.write(b"still here")
            with theirs.accept_stream(timeout=WAIT) as taken:
                taken.timeout = WAIT
                assert taken.read(64) == b"still here"


@contextmanager
def meet(
    role: str, config: wsmux.Config | None = None, buffers: int = 0, protocol: str = "wsmux"
) -> Iterator[Meeting]:
    """Have a connection in ``role`` under test, and a peer by hand as the other one.

    ``buffers`` makes the socket buffers in the peer's direction that small.
    """
    meeting = _meet_server if role == "server" else _meet_client
    with meeting(config or wsmux.Config(), buffers, protocol) as met:
        try:
            yield met
        finally:
            met.peer.sock.close()
            for connection in (met.connection, *met.bystanders):
                connection.abort()
            assert met.connection.wait_closed(WAIT)


@contextmanager
def _meet_server(config: wsmux.Config, buffers: int, protocol: str) -> Iterator[Meeting]:
    arrived: Queue[wsmux.Connection] = Queue()

    def handle(connection: wsmux.Connection) -> None:
        arrived.put(connection)
        connection.wait_closed()

    server = wsmux.serve(handle, config=config, protocols=[protocol])
    if buffers:  # an accepted socket inherits them
        listener_of(server).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)
    try:
        with raw_client(server.port, buffers, SUBPROTOCOLS[protocol]) as peer:
            connection = arrived.get(timeout=WAIT)
            bystander = wsmux.connect(server.url, protocol=protocol)
            yield Meeting(connection, peer, (bystander, arrived.get(timeout=WAIT)))
    finally:
        server.shutdown(timeout=0)


@contextmanager
def _meet_client(config: wsmux.Config, buffers: int, protocol: str) -> Iterator[Meeting]:
    options: dict[str, Any] = {"protocol": protocol}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if buffers:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
            options["sockopt"] = [(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)]
        listener.settimeout(WAIT)
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        connecting = in_thread(wsmux.connect, url, config=config, **options)
        sock, _ = listener.accept()
        sock.settimeout(WAIT)
        chosen = {"Sec-WebSocket-Protocol": SUBPROTOCOLS[protocol]}
        sock.sendall(response(read_head(sock)[1]["sec-websocket-key"], chosen))
        with RawPeer(sock, masks=False) as peer:
            yield Meeting(connecting.result(WAIT), peer, wsmux.pair())
