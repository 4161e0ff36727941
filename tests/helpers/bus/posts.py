"""Stand in for the relays that envelopes are posted to."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from wsmux.bus.federation.http_post import Answer

__all__ = ["DONE", "Posts", "relay_answering"]

DONE = Answer(202, "")

Outcome = Answer | Exception


class Posts:
    """Answer posts as told, and remember them.

    Each domain answers with what ``answers`` holds for it, one after the other; the last outcome
    is repeated, and a domain without any accepts.
    """

    def __init__(self, **answers: list[Outcome]) -> None:
        self._lock = threading.Lock()
        self._answers = {
            domain.replace("_", "."): deque(outcomes) for domain, outcomes in answers.items()
        }
        self.posts: list[tuple[str, bytes]] = []
        self.gates: dict[str, threading.Event] = defaultdict(_open_gate)
        self.entered = threading.Semaphore(0)

    def __call__(self, domain: str, data: bytes) -> Answer:
        with self._lock:
            self.posts.append((domain, data))
            outcomes = self._answers.get(domain)
            outcome: Outcome = DONE
            if outcomes:
                outcome = outcomes.popleft() if len(outcomes) > 1 else outcomes[0]
            gate = self.gates[domain]
        self.entered.release()
        gate.wait(20.0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def domains(self) -> list[str]:
        with self._lock:
            return [domain for domain, _ in self.posts]

    def bodies(self) -> list[bytes]:
        with self._lock:
            return [body for _, body in self.posts]


def _open_gate() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


@contextmanager
def relay_answering(
    answer: Callable[[BaseHTTPRequestHandler, bytes], None],
) -> Iterator[str]:
    """Serve POST over real HTTP, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer(self, self.rfile.read(int(self.headers["Content-Length"])))

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
