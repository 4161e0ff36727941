"""Connect a TCP or TLS socket that carries streams without a WebSocket."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

from ..exceptions import HandshakeError
from ..runtime.deadline import Deadline
from ..runtime.hints import not_connected, tls_failed

__all__ = ["SCHEME", "connect_tcp", "is_tcp"]

SCHEME = "tcp"


def is_tcp(url: str) -> bool:
    """Return whether a URL is for a plain socket."""
    return urlsplit(url).scheme == SCHEME


def connect_tcp(url: str, ssl_context: ssl.SSLContext | None, deadline: Deadline) -> socket.socket:
    """Return a socket connected to ``tcp://host:port``.

    Raises:
        ValueError: the URL lacks a host or a port.
        HandshakeError: the host name cannot be resolved, or TLS failed.
        TimeoutError: it took too long.
        OSError: the connection failed.
    """
    parts = urlsplit(url)
    if not parts.hostname or not parts.port or parts.path.strip("/"):
        raise ValueError(f"{url!r} is not of the form tcp://host:port")
    try:
        sock = socket.create_connection((parts.hostname, parts.port), deadline.remaining())
    except socket.gaierror as error:
        raise HandshakeError(f"{url}: the host name cannot be resolved") from error
    except TimeoutError as error:
        raise TimeoutError(f"no answer from {url} in time") from error
    except OSError as error:
        raise not_connected(url, error) from error
    if ssl_context is None:
        return sock
    try:
        sock.settimeout(deadline.remaining())
        return ssl_context.wrap_socket(sock, server_hostname=parts.hostname)
    except TimeoutError as error:
        sock.close()
        raise TimeoutError(f"no answer from {url} in time") from error
    except ssl.SSLError as error:
        sock.close()
        raise HandshakeError(tls_failed(url, error)) from error
    except BaseException:
        sock.close()
        raise
