"""Serve a relay on a port: WebSockets of twins, posts of other relays, metrics and health.

- an upgrade on any path, with a token as the whole query or as ``Authorization: Bearer``;
- ``POST /`` takes an envelope from another relay;
- ``GET /metrics`` is for Prometheus, ``GET /healthz`` for a supervisor that restarts the relay;
- anything else is 404 "page not found".
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from ...config import Config
from ...endpoints.acceptor import DRAIN, REFUSAL, Acceptor
from ...exceptions import HandshakeError
from ...handshake.http_request import respond
from ...handshake.origin import allowed_origins
from ...handshake.websocket_server import check_upgrade, is_upgrade
from ...protocols.base import Role
from ...runtime.deadline import Deadline
from ..errors import TokenRefused
from ..session.link import Link
from ..wire.envelope import MAX_ENVELOPE
from .metrics import CONTENT_TYPE
from .relay import Relay

__all__ = ["ANY_ORIGIN", "MAX_CONNECTIONS", "Input", "RelayServer"]

# Any origin may connect: access depends on a token, not on cookies that a page could misuse.
ANY_ORIGIN = frozenset({"*"})

# Connections at once, including those in their handshake; each has a thread.
MAX_CONNECTIONS = 4096

# Posts of other relays handled at once, and seconds that one waits for its turn: other relays give
# up after 3. A post takes its place when its body is complete, so a slow sender cannot delay the
# others.
MAX_POSTS = 16
POST_WAIT = 1.0

# TCP keepalive: seconds of silence before the first probe, seconds between probes, and their
# number. Reference clients send no pings, so without it a lost connection would stay forever.
KEEPALIVE_IDLE, KEEPALIVE_PAUSE, KEEPALIVE_COUNT = 60, 15, 4

PLAIN = {"Content-Type": "text/plain; charset=utf-8"}

# Takes an envelope of another relay, and returns the status and the text of the response.
Input = Callable[[bytes], tuple[int, str]]


class RelayServer(Acceptor):
    """Serve a relay until ``shutdown``; made and started by ``serve_relay``.

    Attributes:
        host, port: the listening address; the port is the actual one even if 0 was asked for.
        url: the ``ws://`` or ``wss://`` address for twins.
        relay: the relay that routes.
    """

    def __init__(
        self,
        relay: Relay,
        listener: socket.socket,
        *,
        take_in: Input | None = None,
        origins: Iterable[str] | None = ANY_ORIGIN,
        ssl_context: ssl.SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
        config: Config | None = None,
    ) -> None:
        self.relay = relay
        self._take_in = take_in
        self._origins = allowed_origins(origins)
        self._posts = threading.BoundedSemaphore(MAX_POSTS)
        super().__init__(
            listener,
            config or Config(),
            scheme="ws" if ssl_context is None else "wss",
            http=True,
            ssl_context=ssl_context,
            max_connections=max_connections,
        )

    def __repr__(self) -> str:
        return f"<RelayServer {self.url} sessions={len(self.relay.sessions)}>"

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """Stop accepting, close every connection with 1001, wait at most ``timeout`` seconds."""
        self._shut_down_once(timeout)

    def _end(self, deadline: Deadline) -> None:
        self.relay.hang_up()
        self._join_threads(deadline)
        self.relay.close(deadline)

    def _serve(self, sock: socket.socket, address: Any) -> None:
        deadline = Deadline(self._config.handshake_timeout)
        try:
            sock = self._secure(sock, deadline)
            environ = self._request(sock, address, deadline, ("GET", "POST"))
            if environ["REQUEST_METHOD"] == "GET" and is_upgrade(environ):
                twin = self._admit(environ)
                sock = self._upgrade(sock, environ, None)
                _keep_alive(sock)
                self.relay.serve(Link(sock, Role.SERVER), twin)
            else:
                self._answer(sock, environ, deadline)
        except TokenRefused as error:
            self._refused(sock, address, HandshakeError(error.reason, error.status))
        except (HandshakeError, OSError) as error:
            self._refused(sock, address, error)

    def _admit(self, environ: dict[str, Any]) -> Any:
        check_upgrade(environ, self._origins)
        scheme, _, bearer = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        token = environ["QUERY_STRING"] or (bearer.strip() if scheme.lower() == "bearer" else "")
        return self.relay.admit(token if token or "?" in environ["REQUEST_URI"] else None)

    def _answer(self, sock: socket.socket, environ: dict[str, Any], deadline: Deadline) -> None:
        match environ["REQUEST_METHOD"], environ["PATH_INFO"]:
            case "GET", "/metrics":
                text = self.relay.metrics.text()
                within = self._config.handshake_timeout  # it may be long
                respond(sock, 200, text, {"Content-Type": CONTENT_TYPE}, within)
            case "GET", "/healthz":
                health = self.relay.health()
                status = 200 if health["trouble"] is None else 503
                body = json.dumps(health).encode() + b"\n"
                respond(sock, status, body, {"Content-Type": "application/json"}, REFUSAL)
            case "POST", "/" if self._take_in is not None:
                status, sentence = self._taken_in(self._take_in, sock, environ, deadline)
                respond(sock, status, f"{sentence}\n".encode(), PLAIN, REFUSAL)
            case _:
                raise HandshakeError("page not found", 404)
        sock.close()

    def _taken_in(
        self, take_in: Input, sock: socket.socket, environ: dict[str, Any], deadline: Deadline
    ) -> tuple[int, str]:
        with self._body(sock, environ, deadline, MAX_ENVELOPE) as body:
            if not self._posts.acquire(timeout=POST_WAIT):
                return HTTPStatus.SERVICE_UNAVAILABLE, "too many posts at once; try again"
            try:
                return take_in(body)
            finally:
                self._posts.release()


def _keep_alive(sock: socket.socket) -> None:
    """Enable TCP keepalive, to detect a twin that disappeared without closing."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
        ("TCP_KEEPINTVL", KEEPALIVE_PAUSE),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
    ):
        if hasattr(socket, name):  # Linux has them all
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
