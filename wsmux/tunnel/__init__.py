"""Carry TCP connections, Unix sockets and commands through a connection.

``TunnelServer`` offers what it allows explicitly; ``Forwarder`` and ``RemoteProcess`` use it. See
the README in this folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from .allow import AllowList
    from .errors import TunnelError
    from .forwarding import Forwarder
    from .places import Forward, Tcp, Unix, parse_forward, parse_place
    from .remote import RemoteProcess
    from .serving import TunnelServer

__all__ = [
    "AllowList",
    "Forward",
    "Forwarder",
    "RemoteProcess",
    "Tcp",
    "TunnelError",
    "TunnelServer",
    "Unix",
    "parse_forward",
    "parse_place",
]

__getattr__ = lazy_names(
    __name__,
    {
        "allow": ("AllowList",),
        "errors": ("TunnelError",),
        "forwarding": ("Forwarder",),
        "places": ("Forward", "Tcp", "Unix", "parse_forward", "parse_place"),
        "remote": ("RemoteProcess",),
        "serving": ("TunnelServer",),
    },
)
