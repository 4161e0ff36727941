"""Carry TCP connections to a server, and cut them, or lose what they carry, when told to."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

__all__ = ["CutProxy"]

HOST = "127.0.0.1"
CHUNK = 64 * 1024
WAIT = 20.0


class CutProxy:
    """Listen on loopback until closed; used as a context manager.

    Nothing happens by itself: connections end when one of their ends does, or when told to.

    Attributes:
        port: where it listens.
        target: the port that connections made from now on are carried to.
        accepted: connections carried so far.
        refusing: end new connections at once.
        losing: directions, ``"up"`` to the server or ``"down"``, whose bytes are dropped unseen.
        lost: bytes dropped in each direction.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.accepted = 0
        self.refusing = False
        self.losing: set[str] = set()
        self.lost = {"up": 0, "down": 0}
        self._left: list[int] = []  # bytes to go down before each cut
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """End all connections, in the middle of whatever they carry."""
        with self._lock:
            self.losing.clear()
            for sock in self._sockets:
                end(sock)

    def cut_after(self, *counts: int) -> None:
        """End all connections once so many more bytes have gone down, and so on."""
        with self._lock:
            self._left = [*counts]

    @property
    def cutting(self) -> bool:
        """Whether a cut is still to come."""
        return bool(self._left)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self.refusing:
                client.close()
                continue
            server = socket.create_connection((HOST, self.target), WAIT)
            server.settimeout(None)
            with self._lock:
                self._sockets |= {client, server}
                self.accepted += 1
            ways = [(client, server, "up"), (server, client, "down")]
            for source, sink, way in ways:
                thread = threading.Thread(target=self._carry, args=(source, sink, way), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(CHUNK):
                data, over = self._passed(data, way)
                sink.sendall(data)
                if over:
                    self.cut()
                    return  # what the system still holds must not pass for more
        except OSError:
            end(source)  # the other thread learns of it
        finally:
            end(sink)
            source.close()
            with self._lock:
                self._sockets.discard(source)

    def _passed(self, data: bytes, way: str) -> tuple[bytes, bool]:
        """Return what is to be passed on, and whether that was the last."""
        with self._lock:
            if way in self.losing:
                self.lost[way] += len(data)
                return b"", False
            if way == "up" or not self._left:
                return data, False
            passed = data[: self._left[0]]
            self._left[0] -= len(data)
            over = self._left[0] <= 0
            if over:
                del self._left[0]
            return passed, over

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end(self._listener)
        self._threads[0].join(WAIT)
        self._listener.close()
        self.cut()
        for thread in self._threads[1:]:
            thread.join(WAIT)


def end(sock: socket.socket) -> None:
    """Shut a socket down, which wakes who waits for it."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already
