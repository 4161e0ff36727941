"""Forward the requests under a path prefix to an application published by a client.

The client connects to a WebSocket route with a token; from then on requests under the prefix are
sent on new streams of its connection. No part of a request is forwarded unparsed: h11 parses and
rewrites it, so that it cannot mean different things here and there. Invalid requests (two lengths,
a length that is not a number, control characters) are answered with 400.
"""

from __future__ import annotations

import hmac
import io
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol
from urllib.parse import quote

import h11

from ..endpoints.http11 import CHUNK, Exchange, Headers, end_to_end
from ..exceptions import CloseCode, WsmuxError
from ..handshake.request import Request
from ..handshake.websocket_server import is_upgrade
from ..mux.connection import Connection
from ..runtime.logs import logger
from .running import Environ, WsgiApp

__all__ = ["Published"]

# Seconds of one wait for the published application; as nginx's ``proxy_read_timeout``.
TIMEOUT = 60.0

# Clients that may publish the same prefix at once; further ones are refused.
MAX_PUBLISHERS = 16

# Headers that only this server may set; the client's own are dropped.
FORWARDED = (b"forwarded", b"x-forwarded-", b"x-real-ip", b"via")

# Characters of a path that are not escaped (RFC 3986 section 3.3).
PATH_SAFE = "/:@!$&'()*+,;=~"

_log = logger("wsmux.wsgi")


class Routes(Protocol):
    """An object that registers handlers for paths, such as ``wsmux.flask.Mux``."""

    def route(self, path: str, **options: Any) -> Callable[[Any], object]:
        """Serve connections at a path with the decorated handler, in a thread of its own.

        Args:
            options: ``endpoint``, and ``detach=True``: the server is to have its thread back.
        """


class _Refused(Exception):
    """Hold the status and sentence of a refusal."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Published:
    """Answer requests for applications published by clients; itself a WSGI application.

    Args:
        routes: a ``wsmux.flask.Mux``, on which the route ``prefix`` is registered; without one,
            call ``take`` with each publisher's connection.
        prefix: the path under which requests are forwarded; the application sees the rest of the
            path, and the prefix in ``X-Forwarded-Prefix``.
        token: required from publishers as ``Authorization: Bearer TOKEN``.
        authorize: decides instead of a token; called with the publisher's ``wsmux.Request``.
        timeout: seconds of one wait for the application, or for a stream to it.

    Requests go to the most recent publisher; when its connection ends, to the previous one. Nothing
    is retried, except on a stream that was refused unprocessed. Errors are 502 if there is no
    publisher or it broke off, 504 if it was too slow, and 400 for a request that may not be
    forwarded.

    Only clients connected to its own process count, so run a single process. A published
    application shares the origin of this server, with its cookies: publish only what you trust.
    Bodies pass in pieces; the body of a request is sent before the answer is read.
    """

    def __init__(
        self,
        routes: Routes | None = None,
        prefix: str = "",
        *,
        token: str | None = None,
        authorize: Callable[[Request], object] | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        if (token is None) == (authorize is None):
            raise ValueError("name who may publish: either a token or authorize")
        if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
            raise ValueError(f"prefix must start with a slash and not end in one, not {prefix!r}")
        if token is not None and not token:
            raise ValueError("the token must not be empty: anybody could publish")
        self._prefix = prefix
        self._token = token
        self._authorize = authorize
        self._timeout = timeout
        self._lock = threading.Lock()
        self._publishers: list[Connection] = []
        if routes is not None:
            name = f"wsmux-published{prefix}"
            routes.route(prefix or "/", endpoint=name, detach=True)(self.take)

    @property
    def publishers(self) -> int:
        """The number of clients that are currently publishing."""
        with self._lock:
            return len(self._publishers)

    def take(self, connection: Connection) -> None:
        """Forward requests to a connection until it ends, if it may publish; blocks until then."""
        request = connection.request
        if request is None or not self._may_publish(request):
            _log.warning("%s may not publish here", connection.name)
            connection.close(code=CloseCode.POLICY_VIOLATION, reason="not allowed to publish here")
            return
        with self._lock:
            full = len(self._publishers) >= MAX_PUBLISHERS
            if not full:
                self._publishers.append(connection)
        if full:
            connection.close(
                code=CloseCode.TRY_AGAIN_LATER, reason="too many applications are published here"
            )
            return
        try:
            connection.wait_closed()
        finally:
            with self._lock:
                self._publishers.remove(connection)

    def _may_publish(self, request: Request) -> bool:
        if self._authorize is not None:
            return bool(self._authorize(request))
        given = request.headers.get("authorization", "")
        wanted = f"Bearer {self._token}"
        return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())

    # Requests

    def wrap(self, app: WsgiApp) -> WsgiApp:
        """Return a WSGI application that forwards requests under the prefix, others to ``app``."""

        def choose(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
            path, prefix = environ.get("PATH_INFO", ""), self._prefix
            inside = path == prefix or path.startswith(f"{prefix}/")
            if not inside or is_upgrade(environ):
                return app(environ, start_response)
            moved = {
                **environ,
                "SCRIPT_NAME": environ.get("SCRIPT_NAME", "") + prefix,
                "PATH_INFO": path[len(prefix) :],
            }
            return self(moved, start_response)

        return choose

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Forward one request; ``SCRIPT_NAME`` is the prefix, ``PATH_INFO`` the rest."""
        try:
            answer, exchange = self._ask(environ)
        except _Refused as error:
            body = f"{error}\n".encode()
            fields = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
            start_response(error.status, fields)
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
        reason = bytes(answer.reason).decode("latin-1") or "-"
        start_response(
            f"{answer.status_code} {reason}",
            [(n.decode("latin-1"), v.decode("latin-1")) for n, v in end_to_end(answer.headers)],
        )
        return _Answer(exchange)

    def _ask(self, environ: Environ) -> tuple[h11.Response, Exchange]:
        head, body = _request(environ), _body(environ)
        exchange = Exchange(self._open(), h11.CLIENT)
        try:
            exchange.send(head)
            exchange.send_body(body)
            return exchange.receive_response(), exchange
        except BaseException as error:
            exchange.end()
            if isinstance(error, TimeoutError) and exchange.failed:
                raise _Refused("504 Gateway Timeout", "no answer in time") from error
            broken = isinstance(error, Exception) and exchange.failed
            if broken or isinstance(error, h11.RemoteProtocolError):
                _log.info("a published application broke off: %s", error)
                raise _Refused("502 Bad Gateway", "the published application broke off") from error
            if isinstance(error, h11.LocalProtocolError):  # fewer bytes than declared
                raise _Refused("400 Bad Request", "the body does not match its length") from error
            raise

    def _open(self) -> Any:
        """Open a stream to the most recent publisher that accepts one."""
        with self._lock:
            candidates = self._publishers[::-1]
        for connection in candidates:
            try:
                stream = connection.open_stream(self._timeout)
            except TimeoutError as error:
                raise _Refused(
                    "504 Gateway Timeout", "no room for another request in time"
                ) from error
            except WsmuxError as error:
                _log.info("%s accepts no requests: %s", connection.name, error)
                continue
            stream.timeout = self._timeout
            return stream
        raise _Refused("502 Bad Gateway", "no application is published here")


def _request(environ: Environ) -> h11.Request:
    """Return the request to forward."""
    path = quote(environ.get("PATH_INFO", "").encode("latin-1"), safe=PATH_SAFE) or "/"
    query = environ.get("QUERY_STRING", "")
    received: Headers = []
    try:
        for key, value in environ.items():
            if key.startswith("HTTP_"):
                name = key[5:].replace("_", "-").lower().encode("latin-1")
                if not name.startswith(FORWARDED):
                    received.append((name, value.encode("latin-1")))
        headers = end_to_end(received)
        if "HTTP_HOST" not in environ:  # optional in HTTP/1.0
            headers.append((b"host", environ["SERVER_NAME"].encode("latin-1")))
        if environ.get("CONTENT_TYPE"):
            headers.append((b"content-type", environ["CONTENT_TYPE"].encode("latin-1")))
        headers += _framing(environ) + _forwarded(environ)
        return h11.Request(
            method=environ["REQUEST_METHOD"],
            target=path + (f"?{query}" if query else ""),
            headers=[*headers, (b"connection", b"close")],
        )
    except (h11.LocalProtocolError, UnicodeEncodeError) as error:
        raise _Refused("400 Bad Request", f"it cannot be forwarded: {error}") from error


def _framing(environ: Environ) -> Headers:
    """Return the header that determines the end of the body."""
    length = environ.get("CONTENT_LENGTH") or ""
    coding = environ.get("HTTP_TRANSFER_ENCODING", "").strip().lower()
    if length and coding:
        raise _Refused("400 Bad Request", "Content-Length beside Transfer-Encoding")
    if length:
        if not (length.isascii() and length.isdigit() and len(length) < 19):
            raise _Refused("400 Bad Request", "Content-Length is not a number")
        return [(b"content-length", length.encode())]
    if not coding:
        return []
    if coding != "chunked" or not environ.get("wsgi.input_terminated"):
        raise _Refused("411 Length Required", "this server cannot read a body without a length")
    return [(b"transfer-encoding", b"chunked")]


def _forwarded(environ: Environ) -> Headers:
    """Return the headers that describe the client to the application, set by this server only."""
    told = {
        b"x-forwarded-for": environ.get("REMOTE_ADDR", ""),
        b"x-forwarded-proto": environ.get("wsgi.url_scheme", "http"),
        b"x-forwarded-host": environ.get("HTTP_HOST", ""),
        b"x-forwarded-prefix": environ.get("SCRIPT_NAME", ""),
        b"via": "1.1 wsmux",
    }
    return [(name, value.encode("latin-1")) for name, value in told.items() if value]


def _body(environ: Environ) -> Iterator[bytes]:
    """Yield the body in pieces; h11 checks that they match the declared length."""
    source: io.BufferedIOBase = environ["wsgi.input"]
    length = environ.get("CONTENT_LENGTH") or ""
    if not length and not environ.get("HTTP_TRANSFER_ENCODING"):
        return
    left = int(length) if length else None
    while left is None or left:
        try:
            piece = source.read(CHUNK if left is None else min(CHUNK, left))
        except OSError as error:
            raise _Refused("400 Bad Request", "the body cannot be read") from error
        if not piece:
            return
        if left is not None:
            left -= len(piece)
        yield piece


class _Answer:
    """The body of an answer; if closed before its end, the stream is reset."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        while not self._exchange.received_all() and (piece := self._exchange.receive_body()):
            yield piece

    def close(self) -> None:
        """End the exchange, as a WSGI server does after the last piece."""
        self._exchange.end()
