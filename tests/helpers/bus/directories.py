"""Stand in for directories of twins, and serve one over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from wsmux.bus.errors import TwinsUnavailable
from wsmux.bus.twins.records import Twin, TwinDirectory
from wsmux.bus.wire.keys import Identity
from wsmux.runtime.deadline import Deadline

__all__ = ["Listed", "Registrar", "registrar"]


class Listed(TwinDirectory):
    """Know some twins, count the questions, and fail when told to."""

    def __init__(self, name: str, twins: dict[int, Twin] | None = None) -> None:
        self.name = name
        self.twins = {} if twins is None else twins
        self.failing = False
        self.writable = False
        self.asked: list[int | bytes] = []
        self.written: list[tuple[str, ...]] = []
        self.limits: list[float | None] = []
        self.closed = False

    def _ask(self, question: int | bytes, deadline: Deadline) -> None:
        self.asked.append(question)
        self.limits.append(deadline.remaining())
        if self.failing:
            raise TwinsUnavailable(f"{self.name} is down")

    def get(self, twin_id: int, deadline: Deadline) -> Twin | None:
        self._ask(twin_id, deadline)
        return self.twins.get(twin_id)

    def find(self, account: bytes, deadline: Deadline) -> Twin | None:
        self._ask(account, deadline)
        return next((twin for twin in self.twins.values() if twin.account == account), None)

    def update(
        self, identity: Identity, relays: Iterable[str], pk: bytes | None, deadline: Deadline
    ) -> bool:
        self._ask(identity.account, deadline)
        self.written.append(tuple(relays))
        return self.writable

    def close(self) -> None:
        self.closed = True


class Registrar:
    """Answer requests for paths as it is told to; ``requests`` are those that came."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.answer: Callable[[BaseHTTPRequestHandler], None] | None = None

    def put(self, path: str, value: Any, status: int = 200) -> None:
        """Answer a path with JSON, or with bytes as they are."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.answers[path] = (status, data)

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append(request.path)
        if self.answer is not None:
            return self.answer(request)
        status, data = self.answers.get(request.path, (404, b"not found"))
        request.send_response(status)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)


@contextmanager
def registrar() -> Iterator[Registrar]:
    """Serve a registrar on a free port of loopback."""
    told = Registrar()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            told.handle(self)

        def log_message(self, *arguments: Any) -> None:
            """Keep the output of the tests clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield told
        finally:
            server.shutdown()
            thread.join()
