"""Accept sockets for a server, near or far, and make what both ends need for TLS."""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from urllib.parse import urlsplit

BACKLOG = 256

PIECE = 256 * 1024

# When pieces are due, and what they are; the last is empty.
Held = SimpleQueue[tuple[float, bytes]]

# What must be installed for TLS.
AUTHORITY = ("trustme",)


@contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """Call ``serve`` with each socket, which does not wait to send; yield the port."""

    def served(sock: socket.socket) -> None:
        with suppress(OSError):  # the client has gone
            serve(sock)

    def accept() -> None:
        with suppress(OSError):  # the measurement is over
            while True:
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=served, args=(sock,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread, as closing does not
            thread.join()


def connected(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Return a socket that does not wait to send."""
    sock = socket.create_connection((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@contextmanager
def delayed(address: str, seconds: float) -> Iterator[str]:
    """Put a server far away; yield the address at which it is.

    Answers come later by a round trip, however many are on their way: requests pass at once, and
    the way back is as long as both. Time passes for each piece by itself, so that a line holds as
    much as it is given: a far server, not a slow one.
    """
    parts = urlsplit(address)

    def serve(client: socket.socket) -> None:
        with client, connected(parts.port or 0, parts.hostname or "") as server:
            held: Held = SimpleQueue()
            works = ((_pass_on, client, server), (_take, server, held, seconds))
            threads = [
                threading.Thread(target=work, args=args, daemon=True) for work, *args in works
            ]
            for thread in threads:
                thread.start()
            _give(client, held)
            for thread in threads:
                thread.join()

    with listening(serve) as port:
        yield parts._replace(netloc=f"127.0.0.1:{port}").geturl()


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    """Copy requests."""
    with suppress(OSError):  # one side is gone, which the other threads see too
        while data := client.recv(PIECE):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)


def _take(server: socket.socket, held: Held, seconds: float) -> None:
    """Take answers, and note when they are due."""
    data = b"begin"
    while data:
        try:
            data = server.recv(PIECE)
        except OSError:
            data = b""
        held.put((time.perf_counter() + seconds, data))


def _give(client: socket.socket, held: Held) -> None:
    """Send answers when they are due, those together that are."""
    due, data = held.get()
    with suppress(OSError):  # the client is gone
        while data:
            time.sleep(max(0.0, due - time.perf_counter()))
            pieces, now = [], time.perf_counter()
            while data and due <= now:
                pieces.append(data)
                if held.empty():
                    client.sendall(b"".join(pieces))
                    pieces.clear()
                due, data = held.get()
            client.sendall(b"".join(pieces))
        time.sleep(max(0.0, due - time.perf_counter()))
        client.shutdown(socket.SHUT_WR)


@contextmanager
def server_context(wanted: bool) -> Iterator[tuple[ssl.SSLContext | None, str | None]]:
    """Yield a server's settings, and the file of the authority that its clients must trust."""
    if not wanted:
        yield None, None
        return
    import trustme

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "authority.pem")
        authority.cert_pem.write_to_path(str(path))
        yield context, str(path)


def client_context(certificate: str | None) -> ssl.SSLContext | None:
    """Return the settings of a client that trusts that authority alone."""
    return ssl.create_default_context(cafile=certificate) if certificate else None
