"""Decide whether a browser page may connect.

Browsers send ``Origin`` with every WebSocket handshake, but do not apply the same-origin policy to
it, so any page could use a visitor's cookies. Other clients send none, and are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from urllib.parse import urlsplit

from ..runtime.arguments import strings
from .access import is_loopback

__all__ = ["allowed_origins", "origin_allowed"]

_DEFAULT_PORTS = {"http": 80, "https": 443}

# Host names as browsers write them: in punycode if not ASCII. Underscores are common in intranets.
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")

# A host whose last label matches is an IPv4 address to browsers, which write it in dotted form.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def allowed_origins(origins: Iterable[str] | None) -> frozenset[str] | None:
    """Return the origins that a user lists, validated; ``None`` is returned unchanged.

    Raises:
        TypeError: they are not a collection of strings.
        ValueError: one is not an origin that browsers send.
    """
    if origins is None:
        return None
    listed = strings("origins", origins, "https://example.org")
    for origin in listed:
        if origin not in ("*", "loopback"):
            _check(origin)
    return frozenset(listed)


def _check(origin: str) -> None:
    form = (
        "an origin is a scheme, a host and a port unless it is the usual one, such as "
        "https://example.org or http://localhost:8080; '*' alone accepts every page"
    )
    found = _normal(origin)
    if found is None:
        raise ValueError(f"{origin[:200]!r} cannot be the origin of a page: {form}")
    host = found[1]
    if "*" in host:
        text = f"{origin[:200]!r}: origins are compared whole, so list each host by its name"
        raise ValueError(f"{text}; {form}")
    if not _as_browsers_write(host):
        text = f"{origin[:200]!r}: no browser writes this host so"
        raise ValueError(f"{text} (a name is in ASCII, as xn--..., an address is short); {form}")


def _as_browsers_write(host: str) -> bool:
    if ":" in host:
        try:
            address = IPv6Address(host)
        except AddressValueError:
            return False
        if address.ipv4_mapped is None:
            return host == str(address) and "%" not in host
        high, low = divmod(int(address.ipv4_mapped), 1 << 16)
        return host == f"::ffff:{high:x}:{low:x}"
    if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        try:
            return host == str(IPv4Address(host))
        except AddressValueError:
            return False
    return _NAME.fullmatch(host) is not None


def origin_allowed(
    origin: str | None, host: str | None, secure: bool, allowed: Collection[str] | None
) -> bool:
    """Return whether a request with this ``Origin`` and ``Host`` may be accepted.

    Args:
        origin: the ``Origin`` header, ``None`` if there is none.
        host: the ``Host`` header.
        secure: whether the request came over TLS.
        allowed: the only origins to accept, from ``allowed_origins``, compared as a whole; ``"*"``
            accepts all, ``"loopback"`` the same origin if its host is ``localhost`` or a loopback
            address. ``None`` accepts the same origin: scheme, host and port.
    """
    if origin is None or (allowed is not None and "*" in allowed):
        return True
    ours, given = _same_origin(host, secure), _normal(origin)
    if given is None:
        return False
    if allowed is None:
        return given == ours
    # The owner of a domain could make it resolve to this machine, and would then be same-origin.
    local = "loopback" in allowed and given == ours and is_loopback(given[1])
    return local or given in {_normal(entry) for entry in allowed}


def _same_origin(host: str | None, secure: bool) -> tuple[str, str, int] | None:
    scheme = "https" if secure else "http"
    return None if host is None else _normal(f"{scheme}://{host}")


def _normal(origin: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port; ``None`` if it is not an origin, such as ``null``."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    scheme = parts.scheme
    # urlsplit drops empty parts, tabs and line breaks, none of which an origin has.
    whole = origin.lower() == f"{scheme}://{parts.netloc.lower()}"
    if not whole or "@" in parts.netloc or parts.netloc.endswith(":"):
        return None
    if port is not None and not parts.netloc.endswith(f":{port}"):
        return None  # such as 080, never written by browsers
    if scheme not in _DEFAULT_PORTS or not parts.hostname:
        return None
    return scheme, parts.hostname.lower(), _DEFAULT_PORTS[scheme] if port is None else port
