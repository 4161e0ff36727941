"""Put a server far away: answers come later by a round trip, however many are on their way.

Requests pass at once; the way back is as long as both. Time passes for each piece by itself, so
that a line holds as much as it is given: a far server, not a slow one.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from urllib.parse import urlsplit

from ..sockets import connected, listening

CHUNK = 256 * 1024

# When pieces are due, and what they are; the last is empty.
Held = SimpleQueue[tuple[float, bytes]]


@contextmanager
def delayed(address: str, seconds: float) -> Iterator[str]:
    """Yield the address at which a server is so far away."""
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
        while data := client.recv(CHUNK):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)


def _take(server: socket.socket, held: Held, seconds: float) -> None:
    """Take answers, and note when they are due."""
    data = b"begin"
    while data:
        try:
            data = server.recv(CHUNK)
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
