"""Perform the client handshake with websocket-client, and take over the socket.

websocket-client resolves names, connects through HTTP and SOCKS proxies, does TLS and checks the
response. It reads the response byte by byte, so it consumes nothing after it. What it does not
cover is done here:

- Its timeout is per read, and it accepts any number of headers. During the handshake its socket is
  wrapped, to enforce one deadline and one size for the whole handshake. (An HTTP proxy's own answer
  to CONNECT is read before that; there the timeout is per read.)
- It follows redirects with all headers, wherever they lead. Here, credentials are sent only to the
  host they were meant for.
- It reports "Invalid WebSocket Header" for any wrong header, and accepts extensions it did not
  offer, and a subprotocol where none was offered.
- It lets errors of the standard library through, such as for a redirect that cannot be read. Here
  they are handshake errors: it depends on the server alone whether they occur.
- It keeps cookies with a domain for the whole process, whichever server set them for whichever
  domain, as many as there are, and sends them along with later requests, of other users too. It
  sees none here.
- It does not show a socket before that is connected, so nobody could end the wait, and gives TCP
  and TLS the whole time each. The socket is made here, unless it goes through a proxy.
- It sends ``Origin`` as if it were a browser, which a server behind a proxy may mistake for that of
  a foreign page. Here it is sent only on request.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin, urlsplit

import websocket
from websocket._http import _ssl_socket
from websocket._socket import DEFAULT_SOCKET_OPTION
from websocket._url import get_proxy_info, parse_url

from ..exceptions import HandshakeError, WsmuxError
from ..protocols.registry import check_subprotocol
from ..runtime.deadline import Deadline
from ..runtime.hints import check_characters, check_url, not_connected, tls_failed
from ..runtime.logs import printable
from .headers import check_options, header_lines
from .tcp import Watch, open_watched

__all__ = ["shake_hands"]

REDIRECT_LIMIT = 3

# Headers sent only to the host they were given for.
CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization"})

# Statuses for a path that serves something else, or nothing; Werkzeug answers 400 there.
ELSEWHERE = frozenset({200, 204, 404, 405})

# Characters of a refusal's body shown in an error.
MAX_TOLD = 200

_SCHEMES = {"http": "ws", "https": "wss"}

_SECONDS = re.compile(r"[0-9]{1,9}")


class _Watched:
    """Limit the time and size of a handshake on a socket."""

    def __init__(self, sock: socket.socket, deadline: Deadline, limit: int) -> None:
        self.socket = sock
        self.head = bytearray()
        self._deadline = deadline
        self._left = limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)

    def recv(self, size: int) -> bytes:
        remaining = self._deadline.remaining()
        if remaining == 0:
            raise TimeoutError("the handshake took too long")
        self.socket.settimeout(remaining)
        data = self.socket.recv(size)
        self._left -= len(data)
        if size == 1:  # the head is read this way, a body in larger pieces
            self.head += data
            if data == b":" and _sets_cookie(self.head):
                data = b"-ignored:"  # is another header to websocket-client
        if self._left < 0:
            raise HandshakeError("the response to the handshake is too long", self.status())
        return data

    def status(self) -> int | None:
        """Return the status of the response, as far as it has arrived."""
        parts = bytes(self.head[:64]).split(None, 2)
        return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None

    def headers(self) -> dict[str, str]:
        """Return the headers of the response, for error messages."""
        lines = self.head.decode("latin-1").split("\n")[1:]
        pairs = (line.partition(":") for line in lines if ":" in line)
        return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _sets_cookie(head: bytearray) -> bool:
    """Return whether websocket-client takes the name that has just ended for ``Set-Cookie``.

    It strips and lowers a line as Python does, which knows more blanks than those of ASCII, and
    another letter that becomes a ``k``. A line that cannot be decoded ends the handshake.
    """
    name = head[head.rfind(b"\n") + 1 : -1]
    if b":" in name:  # it had ended before
        return False
    return name.decode(errors="replace").strip().lower() == "set-cookie"


class _Client(websocket.WebSocket):
    """Wrap the socket as soon as websocket-client sets it."""

    watched: _Watched | None = None

    def __init__(self, deadline: Deadline, limit: int, watch: Watch | None, **options: Any) -> None:
        self._limits = (deadline, limit)
        self.watch = watch
        super().__init__(**options)
        # It would read frames, which never happens here, through a bound method of this object: a
        # reference cycle that would keep the socket until garbage collection.
        self.frame_buffer: Any = None

    @property
    def sock(self) -> Any:
        return self._sock

    @sock.setter
    def sock(self, sock: Any) -> None:
        if sock is not None and self.watch is not None:
            try:
                self.watch(sock)
            except BaseException:
                sock.close()
                raise
        self._sock = None if sock is None else _Watched(sock, *self._limits)
        self.watched = self._sock or self.watched


def shake_hands(
    url: str,
    *,
    subprotocols: Sequence[str],
    headers: Mapping[str, str] | Sequence[str] | None,
    deadline: Deadline,
    max_size: int,
    options: Mapping[str, Any],
    watch: Watch | None = None,
) -> tuple[socket.socket, str | None]:
    """Connect, upgrade, and return the socket and the subprotocol that the server chose.

    Args:
        watch: called with each socket on which an answer is awaited next; to a proxy, only once it
            has connected.

    Raises:
        HandshakeError: the server, a proxy or TLS refused, or the answer is not an upgrade, or
            websocket-client failed in any other way.
        TimeoutError: it took too long.
        OSError: the connection failed.
        ValueError, TypeError: the URL is invalid, websocket-client has no such option, or a value
            cannot be sent in a request. Raised before connecting.
    """
    url = check_url(url, "ws", "wss")
    check_options(options)
    for subprotocol in subprotocols:
        check_subprotocol(subprotocol)
    kept = dict(options)
    lines = header_lines(headers)
    if hosts := [line for line in lines if _name(line) == "host"]:
        # websocket-client would send it in addition to its own, and readers differ in which one
        # they use.
        lines = [line for line in lines if _name(line) != "host"]
        kept.setdefault("host", hosts[-1].partition(":")[2].strip())
    for _ in range(kept.pop("redirect_limit", REDIRECT_LIMIT) + 1):
        client = _Client(
            deadline,
            max_size,
            watch,
            sslopt=kept.get("sslopt") or {},
            sockopt=kept.get("sockopt"),
        )
        location = _connect(client, url, lines, subprotocols, deadline, kept)
        if location is None:
            _check_unasked(url, client, subprotocols)
            sock: socket.socket = client.sock.socket
            return sock, client.getsubprotocol()
        target = _redirect_target(url, location)
        if _origin(target) != _origin(url):
            lines = [line for line in lines if _name(line) not in CREDENTIALS]
            for own in ("cookie", "host"):
                kept.pop(own, None)
        url = target
    raise HandshakeError(f"too many redirects, the last one to {url}")


def _name(line: str) -> str:
    return line.partition(":")[0].strip().lower()


def _connect(
    client: _Client,
    url: str,
    lines: list[str],
    subprotocols: Sequence[str],
    deadline: Deadline,
    options: Mapping[str, Any],
) -> str | None:
    """Make one attempt; return the redirect location, ``None`` if the handshake is done."""
    if deadline.expired():  # such as in a function that returns the headers
        raise TimeoutError(f"there was no time left to connect to {url}")
    passed = {name: value for name, value in options.items() if name not in ("sslopt", "sockopt")}
    passed.setdefault("http_proxy_timeout", deadline.remaining())
    passed.setdefault("suppress_origin", passed.get("origin") is None)
    with _mapped_errors(url, client, subprotocols):
        own = None if _proxied(url, passed) else _open(client, url, deadline)
        try:
            client.connect(  # type: ignore[no-untyped-call]
                url,
                header=lines,
                subprotocols=list(subprotocols) or None,
                timeout=deadline.remaining(),
                redirect_limit=0,
                socket=own,
                **passed,
            )
        except BaseException as error:
            if own is not None:
                own.close()
            response = client.handshake_response
            if (
                not isinstance(error, websocket.WebSocketException)
                or response is None
                or response.status not in (301, 302, 303, 307, 308)
            ):
                raise
            return str(response.headers.get("location", ""))
    return None


def _proxied(url: str, options: Mapping[str, Any]) -> bool:
    hostname, _, _, secure = parse_url(url)
    own = ("http_proxy_host", "http_proxy_port", "http_proxy_auth", "http_no_proxy")
    given: list[Any] = [options.get(name) for name in own]
    return bool(get_proxy_info(hostname, secure, *given)[0])


def _open(client: _Client, url: str, deadline: Deadline) -> socket.socket:
    """Return a socket that is connected, with TLS if the URL says so, and watched meanwhile.

    websocket-client would give TCP and TLS the whole time each, and show nobody the socket before.
    """
    watch = client.watch
    hostname, port, _, secure = parse_url(url)
    socket_options = (*DEFAULT_SOCKET_OPTION, *client.sock_opt.sockopt)
    try:
        sock = open_watched(hostname, port, watch, deadline, socket_options)
    except socket.gaierror as error:
        raise websocket.WebSocketAddressException(error) from error
    try:
        if secure:
            options = {**client.sock_opt.sslopt, "do_handshake_on_connect": False}
            wrapped = sock = _ssl_socket(sock, options, hostname)
            if watch is not None:
                watch(sock)
            sock.settimeout(deadline.remaining())
            wrapped.do_handshake()
    except BaseException:
        sock.close()
        raise
    return sock


def _redirect_target(url: str, location: str) -> str:
    text = f"{url} redirects to {location!r}, where a WebSocket cannot follow"
    try:
        check_characters(location)
        parts = urlsplit(urljoin(url, location))
        _ = parts.port
    except ValueError as error:
        raise HandshakeError(text) from error
    target = parts._replace(scheme=_SCHEMES.get(parts.scheme, parts.scheme))
    downgrade = urlsplit(url).scheme == "wss" and target.scheme != "wss"
    if not location or not target.hostname or target.scheme not in _SCHEMES.values() or downgrade:
        raise HandshakeError(text)
    return target.geturl()


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _check_unasked(url: str, client: _Client, offered: Sequence[str]) -> None:
    """Refuse a response that chooses something not offered (RFC 6455 section 4.1)."""
    assert client.handshake_response is not None
    headers = client.handshake_response.headers
    chosen = headers.get("sec-websocket-extensions")
    what = "extension"
    if not chosen and not offered:
        chosen = headers.get("sec-websocket-protocol")
        what = "subprotocol"
    if chosen:
        client.sock.socket.close()
        raise HandshakeError(f"{url} chose the {what} {chosen!r}, which was not offered")


def _what_is_wrong(client: _Client, offered: Sequence[str]) -> str:
    """Name the header because of which websocket-client refused a response."""
    headers = client.watched.headers() if client.watched else {}
    if headers.get("upgrade", "").lower() != "websocket":
        return "its Upgrade header does not say websocket"
    if "upgrade" not in headers.get("connection", "").lower():
        return "its Connection header does not say Upgrade"
    chosen = headers.get("sec-websocket-protocol", "")
    if offered and not chosen:
        return (
            f"it chose no subprotocol of {', '.join(offered)}; does that path serve it? "
            "If so, but under no name, connect with subprotocol=None"
        )
    if offered and chosen.lower() not in [name.lower() for name in offered]:
        return (
            f"it chose the subprotocol {chosen!r} of {', '.join(offered)}; does that path serve it?"
        )
    return "its Sec-WebSocket-Accept header does not fit the key that was sent"


def _answered(url: str, status: int, headers: Mapping[str, str], body: bytes) -> str:
    """Describe a response that is not an upgrade, with its body unless that is a page."""
    try:
        answer = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        answer = str(status)
    text = f"{url} answered {answer} instead of switching to WebSocket"
    page = "html" in headers.get("content-type", "").lower() or body.lstrip().startswith(b"<")
    told = "" if page else " ".join(body.decode(errors="replace").split())
    if told:
        text += f": {printable(told, MAX_TOLD)}"
    if status in ELSEWHERE or (status == HTTPStatus.BAD_REQUEST and page):
        text += "; is this path a WebSocket route?" if told else ": is this path a WebSocket route?"
    return text


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks for; a date is not understood."""
    told = headers.get("retry-after", "")
    return float(told) if _SECONDS.fullmatch(told) else None


@contextmanager
def _mapped_errors(url: str, client: _Client, offered: Sequence[str]) -> Iterator[None]:
    """Convert exceptions of websocket-client and python-socks into those of this package."""
    try:
        yield
    except websocket.WebSocketBadStatusException as error:
        headers, body = error.resp_headers or {}, error.resp_body or b""
        text = _answered(url, error.status_code, headers, body)
        raise HandshakeError(text, error.status_code, _retry_after(headers)) from error
    except websocket.WebSocketTimeoutException as error:
        raise TimeoutError(f"no answer from {url} in time") from error
    except websocket.WebSocketAddressException as error:
        raise HandshakeError(f"{url}: the host name cannot be resolved") from error
    except websocket.WebSocketProxyException as error:
        raise HandshakeError(f"the proxy refused to connect to {url}: {error}") from error
    except websocket.WebSocketException as error:
        invalid = str(error) == "Invalid WebSocket Header"
        why = _what_is_wrong(client, offered) if invalid else str(error)
        raise HandshakeError(f"{url} refused the WebSocket: {why}") from error
    except ssl.SSLError as error:
        raise HandshakeError(tls_failed(url, error)) from error
    except TimeoutError as error:
        raise TimeoutError(f"no answer from {url} in time") from error
    except WsmuxError:
        raise
    except Exception as error:
        kind = type(error)
        if kind.__module__.startswith("python_socks"):
            if "Timeout" in kind.__name__:
                raise TimeoutError(f"the proxy did not answer in time for {url}") from error
            raise HandshakeError(f"the proxy did not connect to {url}: {error}") from error
        if not isinstance(error, OSError):
            text = f"{kind.__name__}: {printable(str(error), MAX_TOLD)}"
            raise HandshakeError(f"the handshake with {url} failed: {text}") from error
        # websocket-client adds the address it tried to errors of connecting.
        if isinstance(error, ConnectionError) or hasattr(error, "remote_ip"):
            raise not_connected(url, error) from error
        raise
