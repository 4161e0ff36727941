"""Decide whether a browser page may connect.

Browsers send ``Origin`` with every WebSocket handshake and do not apply the same-origin policy to
it, so that any page could use a visitor's cookies. Other clients send none, and pass.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

__all__ = ["origin_allowed"]

_DEFAULT_PORTS = {"http": 80, "https": 443}


def origin_allowed(
    origin: str | None, host: str | None, secure: bool, allowed: Collection[str] | None
) -> bool:
    """Tell whether a request with this ``Origin`` and ``Host`` may be accepted.

    Args:
        origin: the header, ``None`` when there is none.
        host: the ``Host`` header.
        secure: whether the request came over TLS.
        allowed: the only origins to accept, compared whole; ``"*"`` accepts all. ``None``
            accepts the same origin: scheme, host and port.
    """
    if origin is None or (allowed is not None and "*" in allowed):
        return True
    if allowed is not None:
        wanted = {_normal(entry) for entry in allowed} - {None}
        return _normal(origin) in wanted
    scheme = "https" if secure else "http"
    return host is not None and _normal(origin) == _normal(f"{scheme}://{host}") is not None


def _normal(origin: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port; ``None`` for what is no origin, such as ``null``."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    scheme = parts.scheme
    # urlsplit drops empty parts, tabs and line ends, which no origin has.
    whole = origin.lower() == f"{scheme}://{parts.netloc.lower()}"
    if not whole or "@" in parts.netloc or parts.netloc.endswith(":"):
        return None
    if port is not None and not parts.netloc.endswith(f":{port}"):
        return None  # such as 080, which no browser writes
    if scheme not in _DEFAULT_PORTS or not parts.hostname:
        return None
    return scheme, parts.hostname.lower(), _DEFAULT_PORTS[scheme] if port is None else port
