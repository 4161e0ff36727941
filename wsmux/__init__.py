"""Carry many blocking byte streams over one WebSocket.

Three lines of a client, against ``wsmux.serve(handler, host, port)``::

    with wsmux.connect(url) as connection, connection.open_stream() as stream:
        stream.write(b"hi")
        stream.close_write()
        print(stream.read())

Everything may be called from any thread. Flask routes are in ``wsmux.flask``; every error is drawn
in ``wsmux.exceptions``, every limit in ``wsmux.Config``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .naming import lazy_names

if TYPE_CHECKING:
    from .bridging import bridge
    from .client import connect, from_socket, pair
    from .config import Config
    from .connection import Connection
    from .exceptions import (
        ConcurrencyError,
        ConnectionClosed,
        ConnectionClosedError,
        ConnectionClosedOK,
        FlowControlError,
        ForkedError,
        FrameError,
        HandshakeError,
        LocalProtocolError,
        ProtocolError,
        RemoteProtocolError,
        StreamError,
        StreamIdError,
        StreamRefused,
        StreamReset,
        StreamWriteClosed,
        WriteTimeout,
        WsmuxError,
    )
    from .protocols.base import Role
    from .protocols.bymux_state import BymuxState, HalfState, StreamState
    from .server import Server, serve
    from .snapshots import ConnectionStats, Request
    from .stream import Stream

__all__ = [
    "BymuxState",
    "ConcurrencyError",
    "Config",
    "Connection",
    "ConnectionClosed",
    "ConnectionClosedError",
    "ConnectionClosedOK",
    "ConnectionStats",
    "FlowControlError",
    "ForkedError",
    "FrameError",
    "HalfState",
    "HandshakeError",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "Request",
    "Role",
    "Server",
    "Stream",
    "StreamError",
    "StreamIdError",
    "StreamRefused",
    "StreamReset",
    "StreamState",
    "StreamWriteClosed",
    "WriteTimeout",
    "WsmuxError",
    "bridge",
    "connect",
    "from_socket",
    "pair",
    "serve",
]

__version__ = "0.1.0"

# A client must not pay for servers, nor a Spark worker for either before its first task.
__getattr__ = lazy_names(
    __name__,
    {
        "bridging": ("bridge",),
        "client": ("connect", "from_socket", "pair"),
        "config": ("Config",),
        "connection": ("Connection",),
        "exceptions": (
            "ConcurrencyError",
            "ConnectionClosed",
            "ConnectionClosedError",
            "ConnectionClosedOK",
            "FlowControlError",
            "ForkedError",
            "FrameError",
            "HandshakeError",
            "LocalProtocolError",
            "ProtocolError",
            "RemoteProtocolError",
            "StreamError",
            "StreamIdError",
            "StreamRefused",
            "StreamReset",
            "StreamWriteClosed",
            "WriteTimeout",
            "WsmuxError",
        ),
        "protocols.base": ("Role",),
        "protocols.bymux_state": ("BymuxState", "HalfState", "StreamState"),
        "server": ("Server", "serve"),
        "snapshots": ("ConnectionStats", "Request"),
        "stream": ("Stream",),
    },
)
