"""An HTTP CONNECT proxy and a SOCKS5 proxy on loopback, well-behaved or not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .raw_peer import WAIT, read_head

__all__ = ["Script", "http_proxy", "playing", "socks5_proxy"]

Script = Callable[[socket.socket], None]


@contextmanager
def playing(script: Script) -> Iterator[int]:
    """Run a script for each connection to a loopback port, which is returned."""
    stopping = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []
    socks: list[socket.socket] = []

    def play(sock: socket.socket) -> None:
        with sock:
            try:
                script(sock)
            except (OSError, EOFError):
                return  # the client under test has left

    def accept() -> None:
        while not stopping.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.settimeout(WAIT)
            socks.append(sock)
            threads.append(threading.Thread(target=play, args=(sock,), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stopping.set()
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join(WAIT)
        listener.close()
        for sock in socks:
            cut(sock)
        for thread in threads:
            thread.join(WAIT)


def cut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # closed already


def splice(one: socket.socket, other: socket.socket) -> None:
    """Copy both ways until both have ended."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            cut(target)

    back = threading.Thread(target=copy, args=(other, one), daemon=True)
    back.start()
    copy(one, other)
    back.join(WAIT)


def http_proxy(seen: list[dict[str, str]], credentials: str | None = None) -> Script:
    """Return a CONNECT proxy that notes the headers, and wants Basic credentials if given."""

    def script(sock: socket.socket) -> None:
        line, headers = read_head(sock)
        seen.append({"line": line, **headers})
        if headers.get("proxy-authorization") != credentials:
            sock.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        host, port = line.split()[1].rsplit(":", 1)
        with socket.create_connection((host, int(port)), WAIT) as upstream:
            sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            splice(sock, upstream)

    return script


def exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def socks5_proxy(credentials: tuple[bytes, bytes] | None = None, refuse: int = 0) -> Script:
    """Return a SOCKS5 proxy (RFC 1928); ``refuse`` is the reply to every CONNECT."""

    def script(sock: socket.socket) -> None:
        _, methods = exactly(sock, 2)
        offered = exactly(sock, methods)
        wanted = 0 if credentials is None else 2
        if wanted not in offered:
            sock.sendall(b"\x05\xff")
            return
        sock.sendall(bytes((5, wanted)))
        if credentials is not None:
            name = exactly(sock, exactly(sock, 2)[1])
            word = exactly(sock, exactly(sock, 1)[0])
            sock.sendall(bytes((1, (name, word) != credentials)))
            if (name, word) != credentials:
                return
        kind = exactly(sock, 4)[3]
        if kind == 1:
            host = socket.inet_ntoa(exactly(sock, 4))
        else:
            host = exactly(sock, exactly(sock, 1)[0]).decode()
        port = int.from_bytes(exactly(sock, 2), "big")
        tail = b"\0\1" + bytes(6)
        if refuse:
            sock.sendall(bytes((5, refuse)) + tail)
            return
        with socket.create_connection((host, port), WAIT) as upstream:
            sock.sendall(b"\x05\0" + tail)
            splice(sock, upstream)

    return script
