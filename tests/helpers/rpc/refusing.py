"""Refuse whoever wants a WebSocket."""

from __future__ import annotations

import socket
import threading

from .procedures import WAIT

__all__ = ["Refusing"]


class Refusing:
    """Refuse each request for a WebSocket, the first with status 503, the others with 401."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._address = self._listener.getsockname()
        self.url = f"ws://127.0.0.1:{self._address[1]}/"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            with sock:
                sock.settimeout(WAIT)
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    data = sock.recv(4096)
                    if not data:
                        return
                    head += data
                status = b"401" if self.requests else b"503"
                self.requests.append(head.decode())
                sock.sendall(b"HTTP/1.1 %s No\r\nContent-Length: 0\r\n\r\n" % status)

    def close(self) -> None:
        socket.create_connection(self._address).close()
        self._thread.join(WAIT)
        self._listener.close()
