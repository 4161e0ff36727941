"""Connect a TCP or TLS socket that carries streams without a WebSocket."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..exceptions import HandshakeError
from ..runtime.deadline import Deadline
from ..runtime.hints import not_connected, tls_failed

__all__ = ["SCHEME", "Watch", "connect_tcp", "is_tcp", "open_watched"]

SCHEME = "tcp"

# Notes a socket before something is awaited on it; raises ``OSError`` if nobody wants it any more.
Watch = Callable[[socket.socket], None]


def is_tcp(url: str) -> bool:
    """Return whether a URL is for a plain socket."""
    return urlsplit(url).scheme == SCHEME


def connect_tcp(
    url: str,
    ssl_context: ssl.SSLContext | None,
    deadline: Deadline,
    watch: Watch | None = None,
) -> socket.socket:
    """Return a socket connected to ``tcp://host:port``; without TLS, ``watch`` sees it before.

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
        sock = open_watched(parts.hostname, parts.port, watch, deadline)
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


def open_watched(
    host: str,
    port: int,
    watch: Watch | None,
    deadline: Deadline,
    options: Sequence[tuple[Any, ...]] = (),
) -> socket.socket:
    """Return a socket connected to one of a host's addresses; ``watch`` sees each one before.

    Each address gets an equal share of the time that is left: what is sent to one of them may
    vanish, as over IPv6 in many networks. The socket's own timeout is all that was left before.

    Raises:
        OSError: none of them could be connected; the error is of the last one, which it names.
    """
    failure: OSError | None = None
    found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    for tried, (family, kind, number, _, address) in enumerate(found):
        remaining = deadline.remaining()
        if remaining == 0:
            raise TimeoutError("there was no time left to connect")
        sock = socket.socket(family, kind, number)
        try:
            sock.settimeout(None if remaining is None else remaining / (len(found) - tried))
            for option in options:
                sock.setsockopt(*option)
            if watch is not None:
                watch(sock)
            sock.connect(address)
            sock.settimeout(remaining)
        except OSError as error:
            sock.close()
            error.remote_ip = str(address[0])  # type: ignore[attr-defined]  # for ``not_connected``
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    assert failure is not None  # getaddrinfo returns one address at least
    raise failure
