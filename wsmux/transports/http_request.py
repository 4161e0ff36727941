"""Read one HTTP request from a socket of ours, and refuse it in HTTP's own words.

``http.client`` parses the headers; here are only the bounds: one deadline and one size for the
whole head, whatever the number of reads, and one of each for a body, which only ``POST`` has. The
result is a WSGI environ, which is what simple-websocket takes.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
from collections.abc import Collection
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from ..deadlines import Deadline
from ..exceptions import HandshakeError

__all__ = ["read_body", "read_request", "refuse", "refusal_headers", "respond"]

_END = b"\r\n\r\n"

# Where the environ keeps the bytes of a body that came in one piece with the head.
_BEGUN = "wsmux.body"

# Bytes of a body read at once.
_PIECE = 64 * 1024

_LENGTH = re.compile(r"[0-9]{1,18}")


def read_request(
    sock: socket.socket,
    deadline: Deadline,
    max_size: int,
    methods: Collection[str] = ("GET",),
) -> dict[str, Any]:
    """Return the environ of the request that arrives on ``sock``.

    Args:
        sock: a connected socket; its timeout is changed.
        deadline: when the head must have come.
        max_size: bytes of the head.
        methods: what may be asked for; the body of a ``POST`` is for ``read_body``.

    Raises:
        HandshakeError: no HTTP request, one for another method, or a head above ``max_size``
            bytes; ``status`` says what to answer. TimeoutError: it did not come in time. OSError:
            the socket failed.
    """
    head = bytearray()
    while _END not in head:
        # A client says nothing behind its request before it is answered: no byte is swallowed. A
        # body is no such thing, and kept.
        head += _receive(sock, deadline, 4096)
        if len(head.partition(_END)[0]) > max_size:
            raise HandshakeError(f"request head above {max_size} bytes", 431)
    head, _, body = head.partition(_END)
    line, _, rest = bytes(head + _END).partition(b"\r\n")
    try:
        method, target, version = line.decode("latin-1").split(" ")
        headers = http.client.parse_headers(io.BytesIO(rest))
    except (ValueError, http.client.HTTPException) as error:
        raise HandshakeError("this is no HTTP request", 400) from error
    if version not in ("HTTP/1.1", "HTTP/1.0") or not target.startswith("/"):
        raise HandshakeError("this is no HTTP/1.1 request for a path", 400)
    if method not in methods:
        text = "a WebSocket starts with GET" if "POST" not in methods else "use GET or POST"
        raise HandshakeError(text, 405)
    path, _, query = target.partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "REQUEST_URI": target,  # as other servers give it; it alone tells an empty query from none
        "PATH_INFO": unquote(path),
        "QUERY_STRING": query,
        "SERVER_SOFTWARE": "wsmux",
        "wsgi.url_scheme": "https" if hasattr(sock, "do_handshake") else "http",
        "werkzeug.socket": sock,
        _BEGUN: bytes(body),
    }
    for name in headers:
        key = "HTTP_" + name.upper().replace("-", "_")
        environ[key] = ", ".join(headers.get_all(name, []))
    return environ


def _receive(sock: socket.socket, deadline: Deadline, size: int) -> bytes:
    remaining = deadline.remaining()
    if remaining == 0:
        raise TimeoutError("the request did not come in time")
    sock.settimeout(remaining)
    data = sock.recv(size)
    if not data:
        raise HandshakeError("the connection ended within the request")
    return data


def read_body(
    sock: socket.socket, environ: dict[str, Any], deadline: Deadline, max_size: int
) -> bytes:
    """Return the body of a request whose head ``read_request`` returned.

    Its length must be told. A client that asks whether it may go on is told so.

    Raises:
        HandshakeError: there is no length, or it is above ``max_size`` bytes, or the body ends
            before it; ``status`` says what to answer. TimeoutError: it did not come in time.
            OSError: the socket failed.
    """
    length = environ.get("HTTP_CONTENT_LENGTH", "")
    if "HTTP_TRANSFER_ENCODING" in environ or not length:
        raise HandshakeError("a body comes with its Content-Length, and in one piece", 411)
    if not _LENGTH.fullmatch(length):
        raise HandshakeError("the Content-Length is no number of bytes", 400)
    size = int(length)
    if size > max_size:
        raise HandshakeError(f"a body of {size} bytes is above the limit of {max_size}", 413)
    body = bytearray(environ[_BEGUN])
    if len(body) > size:
        raise HandshakeError("more came than the Content-Length says", 400)
    if len(body) < size and environ.get("HTTP_EXPECT", "").lower() == "100-continue":
        sock.sendall(b"HTTP/1.1 100 Continue" + _END)
    while len(body) < size:
        body += _receive(sock, deadline, min(_PIECE, size - len(body)))
    return bytes(body)


def refusal_headers(status: int) -> dict[str, str]:
    """Return the headers that go with a refusal (RFC 6455 4.2.2, RFC 9110 15.5.2)."""
    headers = {"Content-Type": "text/plain; charset=utf-8", "Connection": "close"}
    if status == HTTPStatus.UPGRADE_REQUIRED:
        headers |= {"Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    if status == HTTPStatus.UNAUTHORIZED:
        headers |= {"WWW-Authenticate": "Bearer"}
    return headers


def refuse(sock: socket.socket, status: int, text: str, timeout: float) -> None:
    """Answer a request with an error status and one sentence, then end the connection."""
    respond(sock, status, f"{text}\n".encode(), refusal_headers(status), timeout)


def respond(
    sock: socket.socket, status: int, body: bytes, headers: dict[str, str], timeout: float
) -> None:
    """Answer a request, then end the connection."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Length: {len(body)}"]
    headers = {"Connection": "close"} | headers
    lines += [f"{name}: {value}" for name, value in headers.items()]
    sock.settimeout(timeout)
    sock.sendall("\r\n".join(lines).encode() + _END + body)
    sock.shutdown(socket.SHUT_WR)
