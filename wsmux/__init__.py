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
    from .deadlines import deadline
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
        NoThreadError,
        ProtocolError,
        RemoteProtocolError,
        StreamError,
        StreamIdError,
        StreamRefused,
        StreamReset,
        StreamsExhausted,
        StreamWriteClosed,
        WriteTimeout,
        WsmuxError,
    )
    from .livesocket import LiveSocket
    from .protocols.base import Role
    from .protocols.bymux_state import BymuxState, HalfState, StreamState
    from .recording import Recording
    from .server import Server, serve
    from .snapshots import Cause, ConnectionStats, Finding, HalfStatus, Request, StreamStats, Wait
    from .stream import Stream
    from .watchdog import Stall, StallWatch

__all__ = [
    "BymuxState",
    "Cause",
    "ConcurrencyError",
    "Config",
    "Connection",
    "ConnectionClosed",
    "ConnectionClosedError",
    "ConnectionClosedOK",
    "ConnectionStats",
    "Finding",
    "FlowControlError",
    "ForkedError",
    "FrameError",
    "HalfState",
    "HalfStatus",
    "HandshakeError",
    "LiveSocket",
    "LocalProtocolError",
    "NoThreadError",
    "ProtocolError",
    "Recording",
    "RemoteProtocolError",
    "Request",
    "Role",
    "Server",
    "Stall",
    "StallWatch",
    "Stream",
    "StreamError",
    "StreamIdError",
    "StreamRefused",
    "StreamReset",
    "StreamState",
    "StreamStats",
    "StreamWriteClosed",
    "StreamsExhausted",
    "Wait",
    "WriteTimeout",
    "WsmuxError",
    "bridge",
    "connect",
    "deadline",
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
        "deadlines": ("deadline",),
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
            "NoThreadError",
            "ProtocolError",
            "RemoteProtocolError",
            "StreamError",
            "StreamIdError",
            "StreamRefused",
            "StreamReset",
            "StreamWriteClosed",
            "StreamsExhausted",
            "WriteTimeout",
            "WsmuxError",
        ),
        "livesocket": ("LiveSocket",),
        "protocols.base": ("Role",),
        "protocols.bymux_state": ("BymuxState", "HalfState", "StreamState"),
        "recording": ("Recording",),
        "server": ("Server", "serve"),
        "snapshots": (
            "Cause",
            "ConnectionStats",
            "Finding",
            "HalfStatus",
            "Request",
            "StreamStats",
            "Wait",
        ),
        "stream": ("Stream",),
        "watchdog": ("Stall", "StallWatch"),
    },
)
