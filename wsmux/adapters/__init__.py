"""Use HTTP clients over streams: ``requests`` and the standard library's ``http.client``.

Opening a stream costs no round trip, so each request of ``requests`` gets its own: there is no
stale keep-alive, and none that occupies a worker at the other end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from .http_client import StreamHTTPConnection, http_connection
    from .requests_adapter import MuxAdapter

__all__ = ["MuxAdapter", "StreamHTTPConnection", "http_connection"]

# Importing the adapter for the standard library must not import requests.
__getattr__ = lazy_names(
    __name__,
    {
        "http_client": ("StreamHTTPConnection", "http_connection"),
        "requests_adapter": ("MuxAdapter",),
    },
)
