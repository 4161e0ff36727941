"""Put a server far away: answers come later by a round trip, however many are on their way.

Requests pass at once; the way back is as long as both. Time passes for each piece by itself, so
that a line holds as much as it is given: a far server, not a slow one.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from ..sockets import listening
from ..worker import say

__all__ = ["delayed", "main"]

CHUNK = 256 * 1024


def main(address: str, seconds: float) -> None:
    """Run, in a process of its own, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends stdin
    with delayed(address, seconds) as far:
        say(address=far)
        sys.stdin.read()


@contextmanager
def delayed(address: str, seconds: float) -> Iterator[str]:
    """Yield the address at which a server is so far away."""
    parts = urlsplit(address)
    target = (parts.hostname or "", parts.port or 0)

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection(target) as server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Line(server, client, seconds).run()

    with listening(serve) as port:
        yield parts._replace(netloc=f"127.0.0.1:{port}").geturl()


class _Line:
    """Carry one connection."""

    def __init__(self, server: socket.socket, client: socket.socket, seconds: float) -> None:
        self._server = server
        self._client = client
        self._seconds = seconds
        self._held: deque[tuple[float, bytes]] = deque()
        self._some = threading.Semaphore(0)

    def run(self) -> None:
        """Copy both ways until both have ended."""
        works = (self._pass_on, self._take, self._give)
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _pass_on(self) -> None:
        """Copy requests."""
        with suppress(OSError):  # one side is gone, which the other threads see too
            while data := self._client.recv(CHUNK):
                self._server.sendall(data)
            self._server.shutdown(socket.SHUT_WR)

    def _take(self) -> None:
        """Take answers, and note when they are due."""
        data = b"begin"
        while data:
            try:
                data = self._server.recv(CHUNK)
            except OSError:
                data = b""
            self._held.append((time.perf_counter() + self._seconds, data))
            self._some.release()

    def _give(self) -> None:
        """Send answers when they are due."""
        with suppress(OSError):  # the client is gone
            pieces = [b"begin"]
            while pieces[-1]:
                self._some.acquire()
                left = self._held[0][0] - time.perf_counter()
                if left > 0:
                    time.sleep(left)
                pieces = self._due()
                self._client.sendall(b"".join(pieces))
            self._client.shutdown(socket.SHUT_WR)

    def _due(self) -> list[bytes]:
        """Take the oldest piece, and those behind it that are due too."""
        now = time.perf_counter()
        pieces = [self._held.popleft()[1]]
        while pieces[-1] and self._some.acquire(blocking=False):
            if self._held[0][0] > now:
                self._some.release()
                break
            pieces.append(self._held.popleft()[1])
        return pieces
