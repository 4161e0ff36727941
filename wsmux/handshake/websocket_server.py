"""Perform the server handshake with simple-websocket, and take over the socket.

The socket is found in the environ of Werkzeug, gunicorn and gevent's pywsgi, and simple-websocket
answers the upgrade over it, using wsproto. Its thread and events are replaced by ones that do
nothing, so it does not touch the socket after the 101. The request is checked here, and
simple-websocket gets one written by us instead: from the client's it contains only the key and the
chosen subprotocol. So nothing else in the request can make it fail, and it cannot accept an
extension.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import select
import socket
import ssl
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import simple_websocket
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from ..exceptions import HandshakeError
from ..protocols.registry import WIRES, is_resumable, protocol_of, resumable, subprotocols
from .http_request import HEADERS, joined
from .origin import origin_allowed
from .request import Request

__all__ = [
    "WANTED_VERSION",
    "Accepted",
    "accept",
    "asks_to_return",
    "check_request",
    "check_upgrade",
    "end_at_server",
    "is_upgrade",
    "leave_server",
    "request_of",
]

# Headers with a single value. Repeated ones are joined with commas in an environ, which none of
# these contains.
_ONE_VALUE = ("Host", "Origin", "Sec-WebSocket-Key", "Sec-WebSocket-Version")

# Keys of the raw target; not all WSGI servers set them.
_TARGETS = ("REQUEST_URI", "RAW_URI", "QUERY_STRING")

# What is left in a socket is discarded in pieces of so many bytes.
_PIECE = 64 * 1024

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_HOST = re.compile(r"(\[[0-9A-Za-z:.%_~-]+\]|[0-9A-Za-z.%_~!$&'()*+;=-]+)(:[0-9]*)?")
_VERSION = re.compile(r"HTTP/1\.[1-9]")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PROTOCOL = re.compile(rf"{_TOKEN.pattern}(/{_TOKEN.pattern})?")
_NO_BODY = re.compile(r"0*")

# The error for another HTTP version; the doctor recognises it by this.
WANTED_VERSION = "a WebSocket starts with HTTP/1.1"

# The js-ws client loses a server stream that arrives in the same segment as the 101; 5 ms later is
# fine.
JS_WS_FIRST_FRAME = 0.05


class Accepted(NamedTuple):
    """Hold the result of a handshake; ``mode`` names the WSGI server."""

    socket: socket.socket
    mode: str


class _NoThread:
    def __init__(self, target: object) -> None:
        self.name = ""

    def start(self) -> None:
        """Do nothing: the socket is ours."""


class _NoEvent:
    def set(self) -> None:
        """Do nothing: no thread waits."""


def is_upgrade(environ: Mapping[str, Any]) -> bool:
    """Return whether a request asks for a WebSocket, even incorrectly."""
    members = environ.get("HTTP_UPGRADE", "").split(",")
    return "websocket" in (member.strip(" \t").lower() for member in members)


def check_upgrade(environ: Mapping[str, Any], origins: Collection[str] | None) -> list[str]:
    """Return the subprotocols offered by a request for a WebSocket.

    Raises:
        HandshakeError: the request is invalid, or comes from a page that may not connect;
            ``status`` is the HTTP status of the refusal.
    """
    offers = _check_handshake(environ)
    origin, host = environ.get("HTTP_ORIGIN"), environ.get("HTTP_HOST")
    secure = environ.get("wsgi.url_scheme") == "https"
    if not origin_allowed(origin, host, secure, origins):
        raise HandshakeError(f"the origin {origin!r} may not connect here", 403)
    return offers


def _check_handshake(environ: Mapping[str, Any]) -> list[str]:
    """Check a handshake except its origin; return the subprotocols it offers."""
    if not is_upgrade(environ):
        raise HandshakeError("this address serves WebSockets only; send an upgrade", 426)
    _check_request_line(environ)
    for key, value in environ.items():
        if key.startswith("HTTP_") and _CONTROL.search(value):
            raise HandshakeError("a header of the request has a control character", 400)
    _words(environ, "HTTP_UPGRADE", _PROTOCOL)
    for name in _ONE_VALUE:
        if "," in environ.get(_key(name), ""):
            raise HandshakeError(f"the request has more than one {name} header", 400)
    if environ.get("CONTENT_LENGTH") and not _NO_BODY.fullmatch(environ["CONTENT_LENGTH"]):
        raise HandshakeError("a request for a WebSocket has no body", 400)
    if "HTTP_TRANSFER_ENCODING" in environ:
        raise HandshakeError("a request for a WebSocket has no body", 400)
    if not _HOST.fullmatch(environ.get("HTTP_HOST", "")):
        raise HandshakeError("the request has no Host header of a host and a port", 400)
    if "upgrade" not in (word.lower() for word in _words(environ, "HTTP_CONNECTION")):
        raise HandshakeError("the Connection header does not say upgrade", 400)
    if environ.get("HTTP_SEC_WEBSOCKET_VERSION") != "13":
        raise HandshakeError("only version 13 of the WebSocket protocol is served", 426)
    if not _is_key(environ.get("HTTP_SEC_WEBSOCKET_KEY", "")):
        raise HandshakeError("the WebSocket key is not 16 bytes in base64", 400)
    return _words(environ, "HTTP_SEC_WEBSOCKET_PROTOCOL")


def _check_request_line(environ: Mapping[str, Any]) -> None:
    if environ.get("REQUEST_METHOD", "GET") != "GET":
        raise HandshakeError("the method of a WebSocket request must be GET", 405)
    version = environ.get("SERVER_PROTOCOL", "HTTP/1.1")
    if not _VERSION.fullmatch(version):
        raise HandshakeError(f"{WANTED_VERSION}, not {version}", 400)
    if not all(environ.get(key, "").isascii() for key in _TARGETS):
        raise HandshakeError("the request target is not ASCII", 400)


def _key(name: str) -> str:
    """Return the key of a header in an environ."""
    return "HTTP_" + name.upper().replace("-", "_")


def _words(environ: Mapping[str, Any], key: str, member: re.Pattern[str] = _TOKEN) -> list[str]:
    """Return the members of a header that is a list."""
    words = [word.strip(" \t") for word in environ.get(key, "").split(",")]
    words = [word for word in words if word]  # RFC 9110 section 5.6.1: ignore empty ones
    if not all(map(member.fullmatch, words)):
        name = key.removeprefix("HTTP_").replace("_", "-").title().replace("socket", "Socket")
        raise HandshakeError(f"the {name} header has a character that is not allowed there", 400)
    return words


def check_request(
    environ: Mapping[str, Any],
    protocols: tuple[str, ...],
    origins: Collection[str] | None,
    resumes: bool = False,
) -> str:
    """Return the wire to use; raise ``HandshakeError`` with the HTTP status of the refusal.

    If the server ``resumes`` connections and the client asks for that, it is the name of the
    subprotocol instead; see ``is_resumable``.

    A client without a subprotocol, like most that use Yamux, gets ``js-ws`` if that is served, or
    else the only wire; with several, none is guessed.
    """
    offered = check_upgrade(environ, origins)
    served = subprotocols(protocols)
    with_sessions = resumable(protocols) if resumes else []
    for offer in offered:
        if offer in with_sessions:
            return offer
        if offer in served:
            return protocol_of(offer, protocols) or protocols[0]
    if not offered and "js-ws" in protocols:
        return "js-ws"
    if not offered and len(set(protocols)) == 1:
        return protocols[0]
    names = ", ".join(served) or "no subprotocol at all"
    raise HandshakeError(f"no common subprotocol; this address serves {names}", 400)


def asks_to_return(environ: Mapping[str, Any]) -> bool:
    """Return whether the client of a checked request may mean a connection that it has already.

    One that returns offers the subprotocol of that connection alone. One that begins a connection
    offers its wire as well, for a server that does not resume; but for ``js-ws``, whose wire has no
    subprotocol.
    """
    offered = _words(environ, "HTTP_SEC_WEBSOCKET_PROTOCOL")
    return bool(offered) and all(map(is_resumable, offered))


def _is_key(key: str) -> bool:
    """Return whether a header is a key as RFC 6455 section 4.2.1 requires."""
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except ValueError:
        return False


def request_of(environ: Mapping[str, Any]) -> Request:
    """Return the client's request."""
    pairs = environ.get(HEADERS)
    if pairs is None:
        pairs = tuple(
            (key[5:].replace("_", "-").lower(), value)
            for key, value in environ.items()
            if key.startswith("HTTP_")
        )
    return Request(
        path=environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "/"),
        query=environ.get("QUERY_STRING", ""),
        headers=joined(pairs),
        remote_address=f"{environ.get('REMOTE_ADDR', '')}:{environ.get('REMOTE_PORT', '')}",
        header_pairs=pairs,
        client_address=environ.get("wsmux.client_address", environ.get("REMOTE_ADDR", "")),
    )


def accept(environ: Mapping[str, Any], protocol: str | None) -> Accepted:
    """Accept the upgrade of a request, for a wire or without a subprotocol.

    Its origin was checked by ``check_upgrade``; everything else is checked again.

    The returned socket is a duplicate, so that it outlives the WSGI server's; a TLS socket cannot
    be duplicated and is the server's own.

    Raises:
        HandshakeError: the WSGI server provides no socket, or there is no descriptor left for
            ours; the request is malformed, the WSGI server has already read bytes after it, or the
            client has disconnected. Nothing was answered.
    """
    if environ.get("SERVER_SOFTWARE", "").startswith("gevent"):
        _check_patched()
    subprotocol = protocol
    if protocol is not None and not is_resumable(protocol):
        subprotocol = WIRES[protocol].subprotocol
    offers = _check_handshake(environ)
    if _came_early(environ):
        raise HandshakeError("bytes followed the request before it was answered", 400)
    found = _server_socket(environ)
    if found is None:
        software = environ.get("SERVER_SOFTWARE", "this WSGI server")
        raise HandshakeError(
            f"{software} gives applications no access to the socket, which WebSockets need; "
            "use Werkzeug (threaded), gunicorn "
            f"(gthread or gevent workers) or gevent's pywsgi, or wsmux.serve on a port of its own",
            500,
        )
    theirs, mode = found
    sock = _duplicate(theirs)  # first: behind the 101 nothing else may fail
    try:
        agreed = subprotocol if subprotocol in offers else None
        _answer(sock, environ["HTTP_SEC_WEBSOCKET_KEY"], agreed)
    except BaseException:
        if sock is not theirs:
            sock.close()
        raise
    if protocol == "js-ws":
        _await_first_bytes(sock)
    return Accepted(sock, mode)


def _server_socket(environ: Mapping[str, Any]) -> tuple[socket.socket, str] | None:
    """Return the socket that a WSGI server has of a request, and which server that is."""
    for mode in ("werkzeug", "gunicorn"):
        sock = environ.get(f"{mode}.socket")
        if sock is not None:
            return sock, mode
    if environ.get("SERVER_SOFTWARE", "").startswith("gevent"):
        body = environ.get("wsgi.input")
        raw = getattr(body, "raw", None) or getattr(getattr(body, "rfile", None), "raw", None)
        if raw is not None:
            return raw._sock, "gevent"
    return None


def _duplicate(sock: socket.socket) -> socket.socket:
    """Return a duplicate of a server's socket, or, with TLS, that socket.

    Raises:
        HandshakeError: there is no descriptor left, with 503, or the socket is closed.
    """
    if isinstance(sock, ssl.SSLSocket):
        return sock
    try:
        ours = socket.fromfd(sock.fileno(), sock.family, sock.type)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise HandshakeError(
                f"this server has no descriptor left for a connection: {error}", 503
            ) from error
        raise _gone(error) from error
    ours.settimeout(sock.gettimeout())
    return ours


def _answer(sock: socket.socket, key: str, subprotocol: str | None) -> None:
    """Send the 101."""
    environ = {
        "werkzeug.socket": sock,
        "HTTP_HOST": "localhost",
        "HTTP_CONNECTION": "Upgrade",
        "HTTP_UPGRADE": "websocket",
        "HTTP_SEC_WEBSOCKET_KEY": key,
        "HTTP_SEC_WEBSOCKET_VERSION": "13",
    }
    if subprotocol is not None:
        environ["HTTP_SEC_WEBSOCKET_PROTOCOL"] = subprotocol
    try:
        simple_websocket.Server(
            environ,
            subprotocols=[subprotocol] if subprotocol else None,
            thread_class=_NoThread,
            event_class=_NoEvent,
        )
    except (LocalProtocolError, RemoteProtocolError, simple_websocket.ConnectionError) as error:
        raise HandshakeError(f"malformed WebSocket handshake: {error}", 400) from error
    except OSError as error:
        raise _gone(error) from error


def _gone(error: OSError) -> HandshakeError:
    return HandshakeError(f"the client disconnected before the answer: {error}", 400)


def end_at_server(environ: Mapping[str, Any]) -> None:
    """End the connection of a request where its WSGI server has it, too; never blocks.

    Of one that was accepted, when serving it has ended, however it did; of one that was refused,
    when the answer was sent. Otherwise the server would go on to read requests where a proxy may
    see a WebSocket, and no rule of the proxy would see them. What has come and was not read goes
    with it, since a server would find that behind a shutdown, too.

    Only for the thread of the request, and not behind ``leave_server``; no other thread may still
    use or close the socket. May be repeated.
    """
    if (unreader := _unreader(environ)) is not None:
        unreader.buf.seek(0)
        unreader.buf.truncate()
    found = _server_socket(environ)
    if found is None:
        return
    sock, _ = found
    with suppress(OSError):  # the client has disconnected
        if isinstance(sock, ssl.SSLSocket):
            # Its own clears its state first: a concurrent send would go out unencrypted.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)  # with TLS, what was decrypted and not read is forgotten
    with suppress(OSError):  # it was reset, or is closed
        while sock.recv(_PIECE):
            pass


def leave_server(environ: Mapping[str, Any]) -> None:
    """Let gunicorn end a request whose connection goes on over the socket of ``accept``.

    Its own socket becomes one whose peer has gone. So it counts and closes that as it does any
    other, and nothing it does reaches the client. Not for TLS, where OpenSSL goes on to use the
    number of the descriptor.
    """
    os.dup2(_dead_socket(), environ["gunicorn.socket"].fileno(), inheritable=False)


@cache
def _dead_socket() -> int:
    """Return the descriptor of a socket whose peer has gone; one for the life of the process."""
    ours, peer = socket.socketpair()
    peer.close()
    return ours.detach()


def _check_patched() -> None:
    """Refuse if blocking calls would stop gevent's only thread, since it was not patched."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        raise HandshakeError(
            "gevent's pywsgi needs gevent.monkey.patch_all() before anything else is imported", 500
        )


def _came_early(environ: Mapping[str, Any]) -> bool:
    """Return whether a WSGI server has read bytes beyond the request, which would be lost.

    A client must wait for the answer (RFC 6455 section 4.1). Bytes that the server does not read
    stay in the socket, and reach the framing.
    """
    if (unreader := _unreader(environ)) is not None:
        return bool(unreader.buf.getvalue())
    body = environ.get("wsgi.input")
    body = getattr(body, "rfile", body)  # gevent's, if it considers the request an ordinary one
    sock = getattr(getattr(body, "raw", None), "_sock", None)
    if body is None or sock is None:  # otherwise Werkzeug's or gevent's file over the socket
        return False
    timeout = sock.gettimeout()
    sock.setblocking(False)  # otherwise a peek into an empty buffer would read the socket
    try:
        return bool(body.peek(1))
    except OSError:
        return False  # TLS has no more bytes, or the socket failed, as the answer will show
    finally:
        sock.settimeout(timeout)


def _unreader(environ: Mapping[str, Any]) -> Any:
    """Return what gunicorn reads requests from, ``None`` elsewhere; ``buf`` is what it has read."""
    unreader = getattr(getattr(environ.get("wsgi.input"), "reader", None), "unreader", None)
    return unreader if hasattr(unreader, "buf") else None


def _await_first_bytes(sock: socket.socket) -> None:
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLIN)
    poller.poll(JS_WS_FIRST_FRAME * 1000)
