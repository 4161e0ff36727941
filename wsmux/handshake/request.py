"""The HTTP request that a connection began with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Request"]


class Request(NamedTuple):
    """What a client asked for when it connected; header names are in lower case.

    Attributes:
        path, query: the target; the path is unquoted.
        headers: a value for each name; those of a header that was sent several times are joined
            with commas, of ``Cookie`` with semicolons. Names with an underscore are left out.
        remote_address: host and port of who connected, maybe a proxy.
        header_pairs: the same headers as they came, in order, repeated ones apart. A WSGI server
            has joined them before.
        client_address: the host alone, behind ``Config.trusted_proxies`` the one they name.
    """

    path: str
    query: str
    headers: Mapping[str, str]
    remote_address: str
    header_pairs: tuple[tuple[str, str], ...] = ()
    client_address: str = ""
