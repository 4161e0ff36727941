"""Read one HTTP request from a socket of ours, and refuse it in HTTP's own words.

The head is read strictly by RFC 9112, with h11 as the judge: what two parsers could understand
differently is refused, so that no header is hidden from a check. Here are the bounds, too: one
deadline and one size for the whole head, whatever the number of reads, and one of each for a body,
which only ``POST`` has. The result is a WSGI environ, which is what simple-websocket takes.

No byte after the head is taken off the socket. What a client sends before it is answered waits
there for whoever reads the socket next: ``read_body``, or the framing of a WebSocket.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Collection, Iterable
from http import HTTPStatus
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

# Headers of one request: as many as http.client takes, and gunicorn by default.
MAX_HEADERS = 100

# Where the environ keeps the headers as they came: pairs of a name in lower case and a value.
HEADERS = "wsmux.handshake.headers"

# Headers that decide something by their one value: of two, another reader may take the other.
SINGLE = (
    "Authorization",
    "Content-Length",
    "Host",
    "Origin",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Version",
)

_END = b"\r\n\r\n"

# What no head contains: control characters other than a tab, a CR or LF without the other. h11
# lets some of them pass (RFC 9110 section 5.5 and RFC 9112 section 2.2 allow it to).
_IMPOSSIBLE = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?=[^\n])|(?<!\r)\n")

_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [\x21-\x7e]+ HTTP/[0-9]\.[0-9]")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ABSOLUTE = re.compile(r"https?://([^/?]+)(.*)", re.IGNORECASE)

# Bytes of a head, and of a body, read at once.
_GLANCE = 4096
_PIECE = 64 * 1024

# Bytes of a refused client that are read without waiting before its connection is closed.
_DRAINED = 256 * 1024

_LENGTH = re.compile(r"[0-9]{1,18}")


class Head(NamedTuple):
    """Hold a request's head.

    Attributes:
        method, target, version: the request line, such as ``GET``, ``/path?query``, ``HTTP/1.1``.
        headers: pairs of a name in lower case and a value, in order; repeated ones stay apart.
    """

    method: str
    target: str
    version: str
    headers: tuple[tuple[str, str], ...]


def parse_head(head: bytes) -> Head:
    """Return what a request's head says, its last empty line included.

    Headers whose names have an underscore are left out: in an environ they could not be told from
    those with a hyphen.

    Raises:
        HandshakeError: it is no head of HTTP/1.1 or 1.0, or could be understood in two ways;
            ``status`` says what to answer.
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
        # Not h11's own headers, in which equal Content-Lengths are one.
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
    """Return one value for each name, as RFC 9110 section 5.3 has it, and RFC 6265 for cookies."""
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
    """Name what h11 refused in a head."""
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

    Repeated headers are joined there as RFC 9110 section 5.3 has it; ``HEADERS`` names the key
    under which all of them are, in order.

    Args:
        sock: a connected socket; its timeout is changed. What comes after the head stays in it.
        deadline: when the head must have come.
        max_size: bytes of the head.
        methods: what may be asked for; the body of a ``POST`` is for ``read_body``.
        held: called with how many bytes have come, after each read; what it raises ends the wait.

    Raises:
        HandshakeError: no HTTP request, one for another method, or a head above ``max_size``
            bytes; ``status`` says what to answer. TimeoutError: it did not come in time. OSError:
            the socket failed.
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
        "REQUEST_URI": f"{path}{mark}{query}",  # it alone tells an empty query from none
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
    """Return the path and query of a target.

    That of a proxy, a whole URL, must be taken (RFC 9112 section 3.2.2); its host would count in
    place of the header's, so they have to agree.
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
    """Read up to the empty line and no further; what cannot be a head is refused as it comes."""
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
    """Return how many bytes can be read of a head that is not whole yet, and none after it."""
    part = next((n for n in (3, 2, 1) if head.endswith(_END[:n])), 0)
    if isinstance(sock, ssl.SSLSocket):
        return len(_END) - part  # which has no way to look without taking
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

    Its length must be told. A client that asks whether it may go on is told so.

    Args:
        held: called with the number of bytes that have come, after each piece; what it raises
            ends the reading.

    Raises:
        HandshakeError: there is no length, or it is above ``max_size`` bytes, or the body ends
            before it, or more has come already; ``status`` says what to answer. TimeoutError: it
            did not come in time. OSError: the socket failed.
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
    """Return whether bytes are there already, without taking or awaiting any."""
    if isinstance(sock, ssl.SSLSocket):
        return sock.pending() > 0
    sock.setblocking(False)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


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
    _drain(sock)


def _drain(sock: socket.socket) -> None:
    """Read what has come and nobody asked for; never waits.

    A socket that is closed over unread bytes resets its connection, which can cost the client the
    answer.
    """
    sock.setblocking(False)
    drained = 0
    try:
        while drained < _DRAINED and (data := sock.recv(_PIECE)):
            drained += len(data)
    except OSError:
        return  # nothing more is there, or the client has left
