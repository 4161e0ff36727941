"""Shake hands as a client with websocket-client, and hand over the socket.

websocket-client resolves names, goes through HTTP and SOCKS proxies, does TLS, follows redirects
and checks the response. It reads the response a byte at a time, so nothing behind it is swallowed.
Its timeout is per read and it takes any number of headers; the socket it reads from is therefore
wrapped for the time of the handshake, to hold one deadline and one size for the whole of it.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import websocket

from ..deadline import Deadline
from ..exceptions import HandshakeError

__all__ = ["shake_hands"]

# What websocket-client takes, beyond what this package sets itself.
OPTIONS = frozenset(
    {
        "cookie",
        "host",
        "http_no_proxy",
        "http_proxy_auth",
        "http_proxy_host",
        "http_proxy_port",
        "http_proxy_timeout",
        "origin",
        "proxy_type",
        "redirect_limit",
        "sockopt",
        "sslopt",
        "suppress_origin",
    }
)


class _Watched:
    """Stand for a socket whose handshake must end in time and in size."""

    def __init__(self, sock: socket.socket, deadline: Deadline, limit: int) -> None:
        self.socket = sock
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
        if self._left < 0:
            raise HandshakeError("the response to the handshake is too long")
        return data


class _Client(websocket.WebSocket):
    """Watch the socket as soon as websocket-client sets it."""

    def __init__(self, deadline: Deadline, limit: int, **options: Any) -> None:
        self._watch = (deadline, limit)
        super().__init__(**options)

    @property
    def sock(self) -> Any:
        return self._sock

    @sock.setter
    def sock(self, sock: Any) -> None:
        self._sock = None if sock is None else _Watched(sock, *self._watch)


def shake_hands(
    url: str,
    *,
    subprotocols: Sequence[str],
    headers: Mapping[str, str] | Sequence[str] | None,
    deadline: Deadline,
    max_size: int,
    options: Mapping[str, Any],
) -> tuple[socket.socket, str | None]:
    """Connect, upgrade, and return the socket with the subprotocol that the server chose.

    Raises:
        HandshakeError: the server, a proxy or TLS refused, or answered what is no upgrade.
        TimeoutError: it took too long. OSError: no connection came about.
        TypeError: an option that websocket-client does not have.
    """
    unknown = set(options) - OPTIONS
    if unknown:
        raise TypeError(f"connect() has no option {', '.join(sorted(unknown))}")
    kept = {name: value for name, value in options.items() if name not in ("sslopt", "sockopt")}
    client = _Client(
        deadline,
        max_size,
        sslopt=options.get("sslopt") or {},
        sockopt=options.get("sockopt"),
        enable_multithread=False,
    )
    with _mapped_errors(url):
        client.connect(  # type: ignore[no-untyped-call]
            url,
            header=headers or [],
            subprotocols=list(subprotocols) or None,
            timeout=deadline.remaining(),
            **kept,
        )
    sock: socket.socket = client.sock.socket
    return sock, client.getsubprotocol()


@contextmanager
def _mapped_errors(url: str) -> Iterator[None]:
    """Turn what websocket-client raises into what this package raises."""
    try:
        yield
    except websocket.WebSocketBadStatusException as error:
        body = (error.resp_body or b"")[:200].decode(errors="replace").strip()
        text = f"{url} answered with status {error.status_code}"
        raise HandshakeError(f"{text}: {body}" if body else text, error.status_code) from error
    except websocket.WebSocketTimeoutException as error:
        raise TimeoutError(f"no answer from {url} in time") from error
    except websocket.WebSocketAddressException as error:
        raise HandshakeError(f"{url}: the host name cannot be resolved") from error
    except websocket.WebSocketProxyException as error:
        raise HandshakeError(f"the proxy refused to connect to {url}: {error}") from error
    except websocket.WebSocketException as error:
        raise HandshakeError(
            f"{url} did not accept the WebSocket: {error}; does that path serve this subprotocol?"
        ) from error
    except ssl.SSLError as error:
        raise HandshakeError(f"TLS with {url} failed: {error}") from error
    except TimeoutError as error:
        raise TimeoutError(f"no answer from {url} in time") from error
