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
from contextlib import contextmanager
from urllib.parse import urlsplit

from ..worker import say

__all__ = ["delayed", "main"]

CHUNK = 256 * 1024


@contextmanager
def delayed(address: str, seconds: float) -> Iterator[str]:
    """Yield the address at which a server is so far away."""
    parts = urlsplit(address)
    target = (parts.hostname or "", parts.port or 0)
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        threading.Thread(target=_accept, args=(listener, target, seconds), daemon=True).start()
        try:
            yield parts._replace(netloc=f"127.0.0.1:{listener.getsockname()[1]}").geturl()
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # which wakes who accepts


def main(address: str, seconds: float) -> None:
    """Run, in a process of its own, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends stdin
    with delayed(address, seconds) as far:
        say(address=far)
        sys.stdin.read()


def _accept(listener: socket.socket, target: tuple[str, int], seconds: float) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return  # closed: the measurements are over
        try:
            server = socket.create_connection(target)
        except OSError:
            client.close()
            continue
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = _Line(server, client, seconds)
        for work in (line.take, line.give, line.pass_on):
            threading.Thread(target=work, daemon=True).start()


class _Line:
    """Carry one connection; it is closed by the last of its three threads."""

    def __init__(self, server: socket.socket, client: socket.socket, seconds: float) -> None:
        self._server = server
        self._client = client
        self._seconds = seconds
        self._held: deque[tuple[float, bytes]] = deque()
        self._some = threading.Semaphore(0)
        self._left = 3
        self._lock = threading.Lock()

    def pass_on(self) -> None:
        """Copy requests."""
        try:
            while data := self._client.recv(CHUNK):
                self._server.sendall(data)
            self._server.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one side is gone, which the other threads see too
        self._leave()

    def take(self) -> None:
        """Take answers, and note when they are due."""
        data = b"begin"
        while data:
            try:
                data = self._server.recv(CHUNK)
            except OSError:
                data = b""
            self._held.append((time.perf_counter() + self._seconds, data))
            self._some.release()
        self._leave()

    def give(self) -> None:
        """Send answers when they are due."""
        try:
            while True:
                self._some.acquire()
                left = self._held[0][0] - time.perf_counter()
                if left > 0:
                    time.sleep(left)
                pieces = self._due()
                self._client.sendall(b"".join(pieces))
                if not pieces[-1]:
                    break
            self._client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the client is gone
        self._leave()

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

    def _leave(self) -> None:
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._client.close()
            self._server.close()
