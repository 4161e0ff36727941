"""Offer an envelope to another relay with one HTTP POST.

Two deadlines apply: one for connecting, TLS included, and one for the whole exchange, so a relay
that answers one byte at a time cannot extend it. (The system's host name look-up has time limits of
its own.) Each POST uses a new connection, and redirects are not followed.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from ...runtime.deadline import Deadline
from ...runtime.hints import check_characters
from ..twins.records import parse_domain

__all__ = ["CONNECT", "TOTAL", "Answer", "Poster"]

# Seconds for connecting, and for the whole exchange; as the reference relay.
CONNECT = 2.0
TOTAL = 3.0

# Bytes of a response body that are read.
MAX_ANSWER = 512

SCHEMES = {"http": 80, "https": 443}


class Answer(NamedTuple):
    """Hold the status that a relay answered with, and a text for people."""

    status: int
    text: str


class _Timed(io.RawIOBase):
    """Read from a socket until a deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._deadline))
        return self._sock.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the file from which ``http.client`` reads the response."""
        return io.BufferedReader(self)


class Poster:
    """Post envelopes to relays; may be used by any number of threads.

    Args:
        routes: the URLs of domains that are not at ``https://DOMAIN/``.
        connect: seconds for connecting, TLS included.
        total: seconds for the whole exchange.
        ssl_context: verifies the certificates of https; the system's authorities by default.

    Raises:
        ValueError: the domain of a route is invalid, or its URL is not http or https.
    """

    def __init__(
        self,
        routes: Mapping[str, str] | None = None,
        *,
        connect: float = CONNECT,
        total: float = TOTAL,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._routes = {parse_domain(name): _split(url) for name, url in (routes or {}).items()}
        self._connect = connect
        self._total = total
        self._ssl_context = ssl_context or ssl.create_default_context()

    def __call__(self, domain: str, data: bytes) -> Answer:
        """Post an envelope and return the answer; blocks for at most ``total`` seconds.

        Raises:
            ValueError: the domain is not a valid host name.
            OSError: there was no valid HTTP response; ``TimeoutError`` if time ran out.
        """
        target = self._routes.get(domain)
        if target is None:
            target = _split(f"https://{parse_domain(domain)}/")
        deadline = Deadline(self._total)
        connection = self._connection(target)
        try:
            connection.sock = self._dial(target, deadline)
            connection.sock.settimeout(_left(deadline))
            connection.request(
                "POST",
                target.path or "/",
                body=data,
                headers={"Content-Type": "application/octet-stream", "Connection": "close"},
            )
            return _answer(_Timed(connection.sock, deadline))
        except http.client.HTTPException as error:
            raise ConnectionError(f"{domain} did not answer in HTTP: {error!r}") from error
        finally:
            connection.close()

    def _connection(self, target: SplitResult) -> http.client.HTTPConnection:
        host = target.hostname or ""
        if target.scheme == "https":
            return http.client.HTTPSConnection(host, target.port, context=self._ssl_context)
        return http.client.HTTPConnection(host, target.port)

    def _dial(self, target: SplitResult, whole: Deadline) -> socket.socket:
        deadline = Deadline(min(self._connect, _left(whole)))
        host = target.hostname or ""
        sock = _dial(host, target.port or SCHEMES[target.scheme], deadline)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.scheme == "https":
                sock.settimeout(_left(deadline))
                return self._ssl_context.wrap_socket(sock, server_hostname=host)
        except BaseException:
            sock.close()
            raise
        return sock


def _split(url: str) -> SplitResult:
    check_characters(url)
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.hostname or parts.port == 0 or parts.query:
        raise ValueError(f"expected a route http://host:port/ or https://host/, got {url!r}")
    return parts


def _left(deadline: Deadline) -> float:
    remaining = deadline.remaining()
    if not remaining:
        raise TimeoutError("the relay did not answer in time")
    return remaining


def _dial(host: str, port: int, deadline: Deadline) -> socket.socket:
    """Connect to one of a host's addresses, giving each an equal share of the remaining time."""
    failure: OSError = ConnectionError(f"{host} has no address")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(found):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(deadline) / (len(found) - number))
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


def _answer(source: _Timed) -> Answer:
    response = http.client.HTTPResponse(source, method="POST")  # type: ignore[arg-type]
    try:
        response.begin()
        if response.status == HTTPStatus.ACCEPTED:  # accepted even if the body is cut short
            return Answer(response.status, "")
        text = response.read(MAX_ANSWER).decode("utf-8", "replace")
    finally:
        response.close()
    shown = " ".join(text.split()) or response.reason
    return Answer(response.status, shown)
