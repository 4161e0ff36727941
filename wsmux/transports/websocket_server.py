"""Shake hands as a server with simple-websocket, and hand over the socket.

simple-websocket finds the socket in the environ of Werkzeug, gunicorn and gevent's pywsgi, and
answers the upgrade with wsproto. Its thread and events are replaced by ones that do nothing, so
nothing of it touches the socket after the 101. Extensions are stripped from the request, since it
would accept permessage-deflate whenever that is offered.
"""

from __future__ import annotations

import base64
import os
import select
import socket
import ssl
import sys
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import simple_websocket
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from ..exceptions import HandshakeError
from ..snapshots import Request
from .origin import origin_allowed
from .wires import WIRES, protocol_of, subprotocols

__all__ = [
    "Accepted",
    "accept",
    "check_request",
    "check_upgrade",
    "is_upgrade",
    "request_of",
]

# A server stream sent in the segment of the 101 is lost by the js-ws client; 5 ms later is fine.
JS_WS_FIRST_FRAME = 0.05


class Accepted(NamedTuple):
    """Hold what came of a handshake; ``mode`` names the WSGI server."""

    socket: socket.socket
    mode: str


class _NoThread:
    def __init__(self, target: object) -> None:
        self.name = ""

    def start(self) -> None:
        """Start nothing: the socket is ours."""


class _NoEvent:
    def set(self) -> None:
        """Wake nobody: nobody waits."""


def is_upgrade(environ: Mapping[str, Any]) -> bool:
    """Tell whether a request is for a WebSocket, be it a good one or not."""
    upgrade: str = environ.get("HTTP_UPGRADE", "")
    return upgrade.lower() == "websocket"


def check_upgrade(environ: Mapping[str, Any], origins: Collection[str] | None) -> list[str]:
    """Return the subprotocols that a request for a WebSocket offers.

    Raises:
        HandshakeError: it is no such request, or from a page that may not connect; ``status`` is
            the HTTP status that refuses.
    """
    if not is_upgrade(environ):
        raise HandshakeError("this address serves WebSockets only; send an upgrade", 426)
    if environ.get("HTTP_SEC_WEBSOCKET_VERSION") != "13":
        raise HandshakeError("only version 13 of the WebSocket protocol is served", 426)
    if not _is_key(environ.get("HTTP_SEC_WEBSOCKET_KEY", "")):
        raise HandshakeError("the WebSocket key is not 16 bytes in base64", 400)
    origin, host = environ.get("HTTP_ORIGIN"), environ.get("HTTP_HOST")
    secure = environ.get("wsgi.url_scheme") == "https"
    if not origin_allowed(origin, host, secure, origins):
        raise HandshakeError(f"the origin {origin!r} may not connect here", 403)
    offers = environ.get("HTTP_SEC_WEBSOCKET_PROTOCOL", "").split(",")
    return [offer.strip() for offer in offers if offer.strip()]


def check_request(
    environ: Mapping[str, Any], protocols: tuple[str, ...], origins: Collection[str] | None
) -> str:
    """Return the wire to speak; raise ``HandshakeError`` with the HTTP status that refuses."""
    offered = check_upgrade(environ, origins)
    served = subprotocols(protocols)
    for offer in offered:
        if offer in served:
            return protocol_of(offer, protocols) or protocols[0]
    if not offered and "js-ws" in protocols:
        return "js-ws"
    names = ", ".join(served) or "no subprotocol at all"
    raise HandshakeError(f"no common subprotocol; this address serves {names}", 400)


def _is_key(key: str) -> bool:
    """Tell whether a header is what RFC 6455 section 4.2.1 wants of a key."""
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except ValueError:
        return False


def request_of(environ: Mapping[str, Any]) -> Request:
    """Return what the client asked for."""
    headers = {
        key[5:].replace("_", "-").lower(): value
        for key, value in environ.items()
        if key.startswith("HTTP_")
    }
    return Request(
        path=environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "/"),
        query=environ.get("QUERY_STRING", ""),
        headers=headers,
        remote_address=f"{environ.get('REMOTE_ADDR', '')}:{environ.get('REMOTE_PORT', '')}",
    )


def accept(environ: Mapping[str, Any], protocol: str | None) -> Accepted:
    """Answer the upgrade of a checked request, for a wire or without a subprotocol.

    The socket is a duplicate, so that it outlives the WSGI server's; a TLS socket cannot be
    duplicated and is the server's own.

    Raises:
        HandshakeError: the WSGI server gives no socket, the request is malformed, or the client
            has left.
    """
    if environ.get("SERVER_SOFTWARE", "").startswith("gevent"):
        _check_patched()
    stripped = {k: v for k, v in environ.items() if k != "HTTP_SEC_WEBSOCKET_EXTENSIONS"}
    subprotocol = None if protocol is None else WIRES[protocol].subprotocol
    try:
        server = simple_websocket.Server(
            stripped,
            subprotocols=[subprotocol] if subprotocol else None,
            thread_class=_NoThread,
            event_class=_NoEvent,
        )
    except RuntimeError as error:
        software = environ.get("SERVER_SOFTWARE", "this WSGI server")
        raise HandshakeError(
            f"{software} offers no socket to WebSockets; use Werkzeug (threaded), gunicorn "
            f"(gthread or gevent workers) or gevent's pywsgi, or wsmux.serve on a port of its own",
            500,
        ) from error
    except (LocalProtocolError, RemoteProtocolError, simple_websocket.ConnectionError) as error:
        raise HandshakeError(f"malformed WebSocket handshake: {error}", 400) from error
    except OSError as error:
        raise HandshakeError(f"the client left before the answer: {error}", 400) from error
    sock = server.sock
    if not isinstance(sock, ssl.SSLSocket):
        # simple-websocket has duplicated gevent's already.
        fd = sock.detach() if server.mode == "gevent" else os.dup(sock.fileno())
        sock = socket.socket(fileno=fd)
    if protocol == "js-ws":
        _await_first_bytes(sock)
    return Accepted(sock, server.mode)


def _check_patched() -> None:
    """Refuse to block the one thread of gevent's pywsgi with calls that gevent does not know."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        raise HandshakeError(
            "gevent's pywsgi needs gevent.monkey.patch_all() before anything else is imported", 500
        )


def _await_first_bytes(sock: socket.socket) -> None:
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLIN)
    poller.poll(JS_WS_FIRST_FRAME * 1000)
