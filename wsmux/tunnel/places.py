"""Define the ends of a tunnel: a TCP port of a host, or a Unix socket."""

from __future__ import annotations

import posixpath
import re
from ipaddress import AddressValueError, IPv6Address
from typing import NamedTuple

__all__ = [
    "LOOPBACK",
    "MAX_PORT",
    "Forward",
    "Place",
    "Tcp",
    "Unix",
    "parse_forward",
    "parse_place",
]

LOOPBACK = "127.0.0.1"

MAX_PORT = 65_535

# Maximum bytes of a host name, RFC 1035; and of a path in ``sockaddr_un``, without its final zero.
MAX_HOST = 253
MAX_PATH = 107

# Letters, digits, hyphens, and the underscores used in names within clusters.
_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_PORT = re.compile(r"0|[1-9][0-9]{0,4}")
_PATH = re.compile(r"/[!-~]+")
_TCP_END = re.compile(r"(?P<rest>.+):(?P<to>(\[[^\[\]]*\]|[^:\[\]]*):[^:]*)")


class Tcp(NamedTuple):
    """A port of a host, given by name or by address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Unix(NamedTuple):
    """A Unix socket."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


Place = Tcp | Unix


class Forward(NamedTuple):
    """Two ends: where to listen, and where to connect to."""

    listen: Place
    to: Place

    def __str__(self) -> str:
        return f"{self.listen} to {self.to}"


def parse_place(text: str, *, listening: bool = False) -> Place:
    """Parse ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:/PATH``.

    Args:
        listening: allow port 0, which picks a free port.

    Raises:
        ValueError: it is none of these; the text says why.

    >>> parse_place("[::1]:80")
    Tcp(host='::1', port=80)
    """
    if text.startswith("unix:"):
        return Unix(_path(text.removeprefix("unix:"), text))
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} is not of the form HOST:PORT or unix:/PATH")
    return Tcp(_host(host, text), _port(port, text, listening))


def parse_forward(text: str) -> Forward:
    """Parse ``[BIND:]PORT:HOST:PORT``, with the meaning that it has for ``ssh -L``.

    Either end may be a Unix socket: ``/PATH:HOST:PORT``, ``PORT:unix:/PATH``. The default bind
    address is ``127.0.0.1``.

    Raises:
        ValueError: it has another form; the text says why.

    >>> str(parse_forward("8080:example.org:80"))
    '127.0.0.1:8080 to example.org:80'
    """
    listen, unix, path = text.rpartition(":unix:")
    if unix:
        return Forward(_listening(listen, text), parse_place(f"unix:{path}"))
    match = _TCP_END.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not of the form [BIND:]PORT:HOST:PORT or PATH:unix:/PATH")
    return Forward(_listening(match["rest"], text), parse_place(match["to"]))


def _listening(text: str, whole: str) -> Place:
    if text.startswith("/"):
        return Unix(_path(text, whole))
    if ":" not in text:
        return Tcp(LOOPBACK, _port(text, whole, listening=True))
    return parse_place(text, listening=True)


def _path(path: str, text: str) -> str:
    if not _PATH.fullmatch(path) or posixpath.normpath(path) != path or path.startswith("//"):
        raise ValueError(f"{text!r} names no absolute path without spaces, '.' and '..'")
    if len(path) > MAX_PATH:
        raise ValueError(f"{text!r} is longer than the {MAX_PATH} bytes of a socket's path")
    return path


def _host(host: str, text: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            address = IPv6Address(host[1:-1])
        except AddressValueError:
            raise ValueError(f"{text!r} names no IPv6 address") from None
        if address.scope_id is not None:
            raise ValueError(f"{text!r} names a network interface, which only one machine has")
        return str(address)
    if not _HOST.fullmatch(host) or len(host) > MAX_HOST:
        raise ValueError(f"{text!r} has no host name")
    return host.lower().removesuffix(".")


def _port(port: str, text: str, listening: bool) -> int:
    if not _PORT.fullmatch(port) or int(port) > MAX_PORT or (port == "0" and not listening):
        least = 0 if listening else 1
        raise ValueError(f"{text!r} needs a port from {least} to {MAX_PORT}")
    return int(port)
