"""Stand between a program and Redis, and lose replies of commands that were executed."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from ..timeouts import WAIT

__all__ = ["CuttingRedis"]


class CuttingRedis:
    """Pass bytes on; cut a connection instead of passing the reply to some of its commands.

    Attributes:
        url: where it listens, for the same database.
        cut: how many replies were lost.
    """

    def __init__(self, url: str, command: bytes, reply: bytes, times: int) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._command, self._reply, self._times = command, reply, times
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = parts._replace(netloc=f"127.0.0.1:{port}").geturl()
        self.cut = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(WAIT)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, socket.create_connection(self._target) as redis, suppress(OSError):
            asked = b""
            while not self._closing.is_set():
                for each in select.select([sock, redis], [], [], 0.1)[0]:
                    data = each.recv(65536)
                    if not data:
                        return
                    if each is sock:
                        asked = data
                        redis.sendall(data)
                    elif self._is_lost(asked, data):
                        return
                    else:
                        sock.sendall(data)

    def _is_lost(self, asked: bytes, reply: bytes) -> bool:
        with self._lock:
            lost = self.cut < self._times and self._command in asked and self._reply in reply
            self.cut += lost
            return lost
