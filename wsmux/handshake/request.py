"""Define the HTTP request with which a connection began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Request"]


class Request(NamedTuple):
    """Hold the request of a client; header names are in lower case.

    Attributes:
        path, query: the target; the path is unquoted.
        headers: one value per name; repeated headers are joined with commas, ``Cookie`` with
            semicolons. Names with an underscore are dropped.
        remote_address: host and port of the peer of the socket, which may be a proxy.
        header_pairs: the original headers in order, with repeated ones separate. A WSGI server has
            already joined them.
        client_address: the host of the client; behind ``Config.trusted_proxies`` the one they
            report.
        user: the name that ``authorize=`` of the server has given the client, if any.
    """

    path: str
    query: str
    headers: Mapping[str, str]
    remote_address: str
    header_pairs: tuple[tuple[str, str], ...] = ()
    client_address: str = ""
    user: str | None = None
