"""Headers of a client may be made for each attempt to connect."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from wsmux import HandshakeError, rpc

from .offers import WAIT


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


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    made = Refusing()
    yield made
    made.close()


def unwelcome(error: Exception) -> bool:
    return isinstance(error, HandshakeError) and error.status == 401


def test_headers_are_made_for_each_attempt(refusing: Refusing) -> None:
    made = iter(range(100))

    def headers() -> dict[str, str]:
        return {"X-Attempt": str(next(made))}

    with (
        rpc.connect(refusing.url, headers=headers, is_fatal=unwelcome) as client,
        pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT: .* status 401"),
    ):
        client.rpc("test", "same", 1, WAIT)
    assert [f"X-Attempt: {i}" in request for i, request in enumerate(refusing.requests)] == [
        True,
        True,
    ]


def test_headers_that_cannot_be_made_are_told_without_their_secret() -> None:
    def headers() -> dict[str, str]:
        raise LookupError("a secret")

    with (
        rpc.connect("ws://127.0.0.1:1/", headers=headers, is_fatal=lambda error: True) as client,
        pytest.raises(rpc.RiverError, match="the headers could not be made: LookupError$"),
    ):
        client.rpc("test", "same", 1, WAIT)
