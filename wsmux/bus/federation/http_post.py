"""Offer an envelope to another relay with one HTTP POST.

Two deadlines hold for all of it: one for the connection with TLS, one for the whole. A relay that
sends its answer a byte at a time gains nothing by it. (The system's look-up of a host name has time
limits of its own.) Each POST is a connection of its own, and redirects are not followed.
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

# Seconds for the connection, and for all. As the founding relay.
CONNECT = 2.0
TOTAL = 3.0

# Bytes of an answer that are looked at.
MAX_ANSWER = 512

SCHEMES = {"http": 80, "https": 443}


class Answer(NamedTuple):
    """What a relay answered; the text is for people."""

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
        """Return what ``http.client`` reads its answer from."""
        return io.BufferedReader(self)


class Poster:
    """Post envelopes to relays; for any number of threads.

    Args:
        routes: the URL of each domain that is not at ``https://DOMAIN/``.
        connect: seconds for a connection. total: seconds for all.
        ssl_context: what checks the certificates of https; the system's authorities by default.

    Raises:
        ValueError: a route leads from no domain, or to no URL of http or https.
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
        """Post an envelope and return the answer; blocks for the seconds of ``total`` at most.

        Raises:
            ValueError: the domain has no host name.
            OSError: no answer came, or none that is HTTP; ``TimeoutError`` when time ran out.
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
        raise ValueError(f"a route is of the form http://host:port/ or https://host/, not {url!r}")
    return parts


def _left(deadline: Deadline) -> float:
    remaining = deadline.remaining()
    if not remaining:
        raise TimeoutError("the relay did not answer in time")
    return remaining


def _dial(host: str, port: int, deadline: Deadline) -> socket.socket:
    """Connect to one of a host's addresses, each of which gets its share of the time."""
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
        if response.status == HTTPStatus.ACCEPTED:  # a body that breaks off takes nothing back
            return Answer(response.status, "")
        text = response.read(MAX_ANSWER).decode("utf-8", "replace")
    finally:
        response.close()
    shown = " ".join(text.split()) or response.reason
    return Answer(response.status, shown)
