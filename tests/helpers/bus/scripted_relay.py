"""A relay that does what a test tells it, and keeps what it was sent.

It hands each envelope to who it is for, if that session is connected, and queues it otherwise. A
test may look at what passes, change it, hold it back, or end connections.
"""

from __future__ import annotations

import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from wsmux.bus.session.link import Link
from wsmux.bus.wire import envelope as envelopes
from wsmux.bus.wire.address import Address, address_of
from wsmux.bus.wire.messages import Envelope
from wsmux.bus.wire.tokens import Claims, read_token
from wsmux.exceptions import ConnectionClosed, WsmuxError
from wsmux.handshake.http_request import read_request, refuse
from wsmux.handshake.websocket_server import accept
from wsmux.protocols.base import Role
from wsmux.runtime.deadline import Deadline

from ..timeouts import WAIT

__all__ = ["Change", "StageRelay"]

# Returns what is to be delivered instead of an envelope.
Change = Callable[[Envelope], list[Envelope]]


def _as_it_is(envelope: Envelope) -> list[Envelope]:
    return [envelope]


class StageRelay:
    """Listen on a free port; ``port`` starts one again where another one was."""

    def __init__(self, port: int = 0) -> None:
        self.change: Change = _as_it_is
        self.refusal: tuple[int, str] | None = None
        self.passed: list[Envelope] = []
        self.tokens: list[Claims] = []
        self._lock = threading.RLock()
        self.links: dict[Address, Link] = {}
        self._queues: dict[Address, list[bytes]] = defaultdict(list)
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._stopped = False
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}"
        self._thread(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def connected(self) -> list[Address]:
        with self._lock:
            return list(self.links)

    def cut(self) -> None:
        """Cut every connection; clients may come again."""
        with self._lock:
            links = list(self.links.values())
        for link in links:
            link.abort()

    def stop(self) -> None:
        """End for good, as a relay that is killed."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            sockets, self._sockets = self._sockets, []
        self._listener.shutdown(socket.SHUT_RDWR)
        for sock in sockets:
            sock.close()
        self.cut()
        for thread in self._threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        self._listener.close()

    def deliver(self, envelope: Envelope) -> None:
        """Hand an envelope to who it is for."""
        destination = address_of(envelope.destination)
        assert destination is not None
        data = envelope.SerializeToString()
        with self._lock:
            link = self.links.get(destination)
            if link is not None:
                with suppress(ConnectionClosed):
                    link.send_nowait(data)
                    return
            self._queues[destination].append(data)  # as a relay keeps what no connection took

    def _thread(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="stage-relay", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._sockets.append(sock)
                self._thread(lambda sock=sock: self._serve(sock))  # type: ignore[misc]

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                environ = read_request(sock, Deadline(WAIT), 65536)
                if self.refusal is not None:
                    refuse(sock, *self.refusal, 1.0)
                    return
                claims = read_token(environ["QUERY_STRING"])
                self.tokens.append(claims)
                link = Link(accept(environ, None).socket, Role.SERVER)
            except (OSError, WsmuxError):
                return
        address = Address(claims.twin, claims.session)
        with self._lock:
            if self._stopped:
                link.abort()
            self.links[address] = link
            queued = self._queues.pop(address, [])
        with suppress(ConnectionClosed):
            for data in queued:
                link.send_nowait(data)
        for data in link.messages():
            self._take(data)
        with self._lock:
            if self.links.get(address) is link:
                del self.links[address]

    def _take(self, data: bytes) -> None:
        envelope = envelopes.parse(data)
        self.passed.append(envelope)
        for changed in self.change(envelope):
            self.deliver(changed)
