"""Read one HTTP request head from a socket of ours, and refuse it in HTTP's own words.

``http.client`` parses the headers; here are only the bounds: one deadline and one size for the
whole head, whatever the number of reads. The result is a WSGI environ, which is what
simple-websocket takes.
"""

from __future__ import annotations

import http.client
import io
import socket
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from ..deadline import Deadline
from ..exceptions import HandshakeError

__all__ = ["read_request", "refuse", "refusal_headers", "respond"]

_END = b"\r\n\r\n"


def read_request(sock: socket.socket, deadline: Deadline, max_size: int) -> dict[str, Any]:
    """Return the environ of the request that arrives on ``sock``.

    Raises:
        HandshakeError: no HTTP request, or a head above ``max_size`` bytes; ``status`` says what
            to answer. TimeoutError: it did not come in time. OSError: the socket failed.
    """
    head = bytearray()
    while _END not in head:
        remaining = deadline.remaining()
        if remaining == 0:
            raise TimeoutError("the request did not come in time")
        sock.settimeout(remaining)
        # A client says nothing behind its request before it is answered: no byte is swallowed.
        data = sock.recv(4096)
        if not data:
            raise HandshakeError("the connection ended within the request")
        head += data
        if len(head) > max_size:
            raise HandshakeError(f"request head above {max_size} bytes", 431)
    line, _, rest = bytes(head).partition(b"\r\n")
    try:
        method, target, version = line.decode("latin-1").split(" ")
        headers = http.client.parse_headers(io.BytesIO(rest))
    except (ValueError, http.client.HTTPException) as error:
        raise HandshakeError("this is no HTTP request", 400) from error
    if version not in ("HTTP/1.1", "HTTP/1.0") or not target.startswith("/"):
        raise HandshakeError("this is no HTTP/1.1 request for a path", 400)
    if method != "GET":
        raise HandshakeError("a WebSocket starts with GET", 405)
    path, _, query = target.partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": unquote(path),
        "QUERY_STRING": query,
        "SERVER_SOFTWARE": "wsmux",
        "wsgi.url_scheme": "https" if hasattr(sock, "do_handshake") else "http",
        "werkzeug.socket": sock,
    }
    for name in headers:
        key = "HTTP_" + name.upper().replace("-", "_")
        environ[key] = ", ".join(headers.get_all(name, []))
    return environ


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
