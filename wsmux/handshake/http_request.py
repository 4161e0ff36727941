"""Read one HTTP request from a socket, and send HTTP refusals.

The head is parsed strictly by RFC 9112, using h11: anything that two parsers could understand
differently is refused, so that no header escapes a check. The limits are here too: one deadline and
one size for the whole head, however many reads it takes, and likewise for a body, which only
``POST`` has. The result is a WSGI environ, as expected by simple-websocket.

No byte after the head is taken off the socket. Whatever a client sends before it is answered stays
there for the next reader: ``read_body``, or the framing of a WebSocket.
"""

from __future__ import annotations

import math
import re
import socket
import ssl
from collections.abc import Callable, Collection, Iterable
from http import HTTPStatus
from http.client import responses
from typing import Any, NamedTuple
from urllib.parse import unquote

import h11

from ..exceptions import HandshakeError
from ..runtime.deadline import Deadline

__all__ = [
    "HEADERS",
    "MAX_HEADERS",
    "Head",
    "joined",
    "parse_head",
    "read_body",
    "read_request",
    "refusal_headers",
    "refuse",
    "respond",
]

# Maximum number of headers of a request; as http.client, and the default of gunicorn.
MAX_HEADERS = 100

# Key of the environ for the original headers: pairs of a name in lower case and a value.
HEADERS = "wsmux.handshake.headers"

# Seconds after which a client that gets 503 may try again; our own clients do not read it.
RETRY_AFTER = 5

# Headers that must be unique: of two, different readers may use different ones.
SINGLE = (
    "Authorization",
    "Content-Length",
    "Host",
    "Origin",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Version",
)

_END = b"\r\n\r\n"

# Never valid in a head: control characters other than tab, and CR or LF without the other. h11
# accepts some of them (as RFC 9110 section 5.5 and RFC 9112 section 2.2 allow).
_IMPOSSIBLE = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?=[^\n])|(?<!\r)\n")

_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [\x21-\x7e]+ HTTP/[0-9]\.[0-9]")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ABSOLUTE = re.compile(r"https?://([^/?]+)(.*)", re.IGNORECASE)

# Bytes of a head, and of a body, per read.
_GLANCE = 4096
_PIECE = 64 * 1024

# Bytes drained from a refused client, without waiting, before its connection is closed.
_DRAINED = 256 * 1024

_LENGTH = re.compile(r"[0-9]{1,18}")


class Head(NamedTuple):
    """Hold the head of a request.

    Attributes:
        method, target, version: the request line, such as ``GET``, ``/path?query``, ``HTTP/1.1``.
        headers: pairs of a name in lower case and a value, in order; repeated ones are separate.
    """

    method: str
    target: str
    version: str
    headers: tuple[tuple[str, str], ...]


def parse_head(head: bytes) -> Head:
    """Parse the head of a request, including its final empty line.

    Headers whose names have an underscore are dropped: in an environ they would be
    indistinguishable from those with a hyphen.

    Raises:
        HandshakeError: it is not a head of HTTP/1.1 or 1.0, or it is ambiguous; ``status`` is the
            status of the answer.
    """
    _check_characters(head, 0)
    first, *lines = head.removesuffix(_END).split(b"\r\n")
    if len(lines) > MAX_HEADERS:
        raise HandshakeError(f"the request has more than {MAX_HEADERS} headers", 431)
    if any(line.startswith((b" ", b"\t")) for line in lines):
        raise HandshakeError("a header is folded over several lines, or begins with a space", 400)
    judge = h11.Connection(h11.SERVER, max_incomplete_event_size=len(head))
    judge.receive_data(head)
    try:
        event = judge.next_event()
    except h11.RemoteProtocolError as error:
        raise HandshakeError(_what_is_wrong(first, lines), 400) from error
    if not isinstance(event, h11.Request):
        raise HandshakeError("the end of the request head is missing", 400)
    pairs = []
    for line in lines:
        # Not h11's own headers, in which identical Content-Lengths are merged.
        name, _, value = line.decode("latin-1").partition(":")
        pairs.append((name.lower(), value.strip(" \t")))
    _check_single([name for name, _ in pairs])
    return Head(
        event.method.decode("ascii"),
        event.target.decode("ascii"),
        f"HTTP/{event.http_version.decode('ascii')}",
        tuple(pair for pair in pairs if "_" not in pair[0]),
    )


def joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return one value per name, joined by RFC 9110 section 5.3, and RFC 6265 for cookies."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: ("; " if name == "cookie" else ", ").join(values[name]) for name in values}


def _check_characters(head: bytes | bytearray, start: int) -> None:
    if _IMPOSSIBLE.search(head, start):
        raise HandshakeError(
            "the request has a control character, or a line that does not end with CR LF", 400
        )


def _check_single(names: list[str]) -> None:
    for name in SINGLE:
        if names.count(name.lower()) > 1:
            raise HandshakeError(f"the request has more than one {name} header", 400)


def _what_is_wrong(first: bytes, lines: list[bytes]) -> str:
    """Describe why h11 refused a head."""
    if not _REQUEST_LINE.fullmatch(first):
        return "the request line is not a method, a target in ASCII and HTTP/1.1"
    names = []
    for line in lines:
        name, colon, _ = line.partition(b":")
        if not colon:
            return "a header line has no colon"
        if name.endswith((b" ", b"\t")):
            return "a space stands before the colon of a header"
        if not _NAME.fullmatch(name):
            return "the name of a header has a character that no name has"
        names.append(name.decode("ascii").lower())
    if "host" not in names:
        return "the request has no Host header"
    _check_single(names)
    return "the Content-Length or Transfer-Encoding is none of HTTP/1.1"


def read_request(
    sock: socket.socket,
    deadline: Deadline,
    max_size: int,
    methods: Collection[str] = ("GET",),
    *,
    held: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Return the environ of the request that arrives on ``sock``.

    Repeated headers are joined by RFC 9110 section 5.3; the key ``HEADERS`` holds all of them, in
    order.

    Args:
        sock: a connected socket; its timeout is changed. Bytes after the head stay in it.
        deadline: when the head must be complete.
        max_size: the maximum size of the head.
        methods: the allowed methods; the body of a ``POST`` is left to ``read_body``.
        held: called after each read with the number of bytes so far; an exception ends the reading.

    Raises:
        HandshakeError: it is not an HTTP request, or for another method, or its head exceeds
            ``max_size`` bytes; ``status`` is the status of the answer.
        TimeoutError: it did not arrive in time.
        OSError: the socket failed.
    """
    method, target, version, headers = parse_head(_read_head(sock, deadline, max_size, held))
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise HandshakeError(f"this is {version}; use HTTP/1.1", 400)
    path, mark, query = _within(target, headers).partition("?")
    if method not in methods:
        text = (
            "the method of a WebSocket request must be GET"
            if "POST" not in methods
            else "use GET or POST"
        )
        raise HandshakeError(text, 405)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "REQUEST_URI": f"{path}{mark}{query}",  # only this distinguishes an empty query from none
        "PATH_INFO": unquote(path),
        "QUERY_STRING": query,
        "SERVER_PROTOCOL": version,
        "SERVER_SOFTWARE": "wsmux",
        "wsgi.url_scheme": "https" if isinstance(sock, ssl.SSLSocket) else "http",
        "werkzeug.socket": sock,
        HEADERS: headers,
    }
    for name, value in joined(headers).items():
        key = name.upper().replace("-", "_")
        environ[key if key in ("CONTENT_LENGTH", "CONTENT_TYPE") else f"HTTP_{key}"] = value
    return environ


def _within(target: str, headers: tuple[tuple[str, str], ...]) -> str:
    """Return the path and query of a request target.

    A whole URL, as sent to proxies, must be accepted (RFC 9112 section 3.2.2); its host would take
    precedence over the header, so they must agree.
    """
    whole = _ABSOLUTE.fullmatch(target)
    if whole is not None:
        if whole[1].lower() != dict(headers).get("host", "").lower():
            raise HandshakeError("the target and the Host header name different hosts", 400)
        target = whole[2] if whole[2].startswith("/") else f"/{whole[2]}"
    if not target.startswith("/") or "#" in target:
        raise HandshakeError("the request target is not a path", 400)
    return target


def _read_head(
    sock: socket.socket,
    deadline: Deadline,
    max_size: int,
    held: Callable[[int], object] | None,
) -> bytes:
    """Read exactly up to the empty line; refuse invalid input as soon as it arrives."""
    head = bytearray()
    found = -1
    while found < 0:
        checked = len(head)
        head += _receive(sock, deadline, _size_within_head(sock, deadline, head))
        if held is not None:
            held(len(head))
        found = head.find(_END, max(0, checked - len(_END)))
        if (found if found >= 0 else len(head) - len(_END) + 1) > max_size:
            raise HandshakeError(f"request head above {max_size} bytes", 431)
        _check_characters(head, max(0, checked - 1))
    return bytes(head)


def _size_within_head(sock: socket.socket, deadline: Deadline, head: bytearray) -> int:
    """Return how many bytes can be read that certainly belong to the incomplete head."""
    part = next((n for n in (3, 2, 1) if head.endswith(_END[:n])), 0)
    if isinstance(sock, ssl.SSLSocket):
        return len(_END) - part  # TLS cannot be read without consuming
    ahead = head[len(head) - part :] + _receive(sock, deadline, _GLANCE, socket.MSG_PEEK)
    found = ahead.find(_END)
    return len(ahead) - part if found < 0 else found + len(_END) - part


def _receive(sock: socket.socket, deadline: Deadline, size: int, flags: int = 0) -> bytes:
    remaining = deadline.remaining()
    if remaining == 0:
        raise TimeoutError("the request did not arrive in time")
    sock.settimeout(remaining)
    data = sock.recv(size, flags)
    if not data:
        raise HandshakeError("the connection ended within the request")
    return data


def read_body(
    sock: socket.socket,
    environ: dict[str, Any],
    deadline: Deadline,
    max_size: int,
    *,
    held: Callable[[int], object] | None = None,
) -> bytes:
    """Return the body of a request whose head ``read_request`` returned.

    Its length must be declared. A client that expects 100 (Continue) gets it.

    Args:
        held: called after each read with the number of bytes so far; an exception ends the reading.

    Raises:
        HandshakeError: the length is missing or exceeds ``max_size`` bytes, or the body is shorter
            or longer; ``status`` is the status of the answer.
        TimeoutError: it did not arrive in time.
        OSError: the socket failed.
    """
    length = environ.get("CONTENT_LENGTH", "")
    if "HTTP_TRANSFER_ENCODING" in environ or not length:
        raise HandshakeError(
            "a body needs a Content-Length, and chunked bodies are not accepted", 411
        )
    if not _LENGTH.fullmatch(length):
        raise HandshakeError("the Content-Length is not a number of bytes", 400)
    size = int(length)
    if size > max_size:
        raise HandshakeError(f"a body of {size} bytes is above the limit of {max_size}", 413)
    if size and environ.get("HTTP_EXPECT", "").lower() == "100-continue":
        sock.sendall(b"HTTP/1.1 100 Continue" + _END)
    body = bytearray()
    while len(body) < size:
        body += _receive(sock, deadline, min(_PIECE, size - len(body)))
        if held is not None:
            held(len(body))
    if _more_came(sock):
        raise HandshakeError("the body is longer than its Content-Length", 400)
    return bytes(body)


def _more_came(sock: socket.socket) -> bool:
    """Return whether more bytes have arrived, without consuming or awaiting any."""
    if isinstance(sock, ssl.SSLSocket):
        return sock.pending() > 0
    sock.setblocking(False)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def refusal_headers(status: int, retry_after: float | None = None) -> dict[str, str]:
    """Return the headers of a refusal (RFC 6455 4.2.2, RFC 9110 15.5.2, 15.6.4).

    Args:
        retry_after: seconds, of which those that are no number or never end are not told; with 503
            there is a default.
    """
    headers = {"Content-Type": "text/plain; charset=utf-8", "Connection": "close"}
    if status == HTTPStatus.UPGRADE_REQUIRED:
        headers |= {"Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    if status == HTTPStatus.UNAUTHORIZED:
        headers |= {"WWW-Authenticate": "Bearer"}
    if retry_after is None and status == HTTPStatus.SERVICE_UNAVAILABLE:
        retry_after = RETRY_AFTER
    if retry_after is not None and math.isfinite(retry_after):
        headers |= {"Retry-After": str(max(0, math.ceil(retry_after)))}
    return headers


def refuse(
    sock: socket.socket, status: int, text: str, timeout: float, retry_after: float | None = None
) -> None:
    """Answer a request with an error status and a sentence, then close the connection."""
    body = f"{text}\n".encode(errors="backslashreplace")
    respond(sock, status, body, refusal_headers(status, retry_after), timeout)


def respond(
    sock: socket.socket, status: int, body: bytes, headers: dict[str, str], timeout: float
) -> None:
    """Answer a request, then close the connection."""
    # An application may refuse with a status that has no name here.
    lines = [f"HTTP/1.1 {status} {responses.get(status, '')}", f"Content-Length: {len(body)}"]
    headers = {"Connection": "close"} | headers
    lines += [f"{name}: {value}" for name, value in headers.items()]
    sock.settimeout(timeout)
    sock.sendall("\r\n".join(lines).encode() + _END + body)
    sock.shutdown(socket.SHUT_WR)
    _drain(sock)


def _drain(sock: socket.socket) -> None:
    """Discard bytes that have arrived unread; never blocks.

    Closing a socket with unread bytes resets its connection, and the client may lose the answer.
    """
    sock.setblocking(False)
    drained = 0
    try:
        while drained < _DRAINED and (data := sock.recv(_PIECE)):
            drained += len(data)
    except OSError:
        return  # no more bytes, or the client has disconnected
