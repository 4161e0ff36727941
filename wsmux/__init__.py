"""Carry many blocking byte streams over one WebSocket.

A client in three lines, against ``wsmux.serve(handler, host, port)``:

    with wsmux.connect(url) as connection, connection.open_stream() as stream:
        stream.write(b"hi")
        stream.close_write()
        print(stream.read())

Every function and method may be called from any thread. Flask routes are in ``wsmux.flask``, all
errors in ``wsmux.exceptions``, and all limits in ``wsmux.Config``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from .client import connect, from_socket, pair
    from .config import Config, Recording, Resume, UserLimits
    from .diagnostics.stall_watch import Stall, StallWatch
    from .diagnostics.status_socket import LiveSocket
    from .durable.files import FileOffsets
    from .durable.journal import Journal
    from .endpoints.bridge import bridge
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
        ResumeLost,
        StreamError,
        StreamIdError,
        StreamRefused,
        StreamReset,
        StreamsExhausted,
        StreamWriteClosed,
        WriteTimeout,
        WsmuxError,
    )
    from .handshake.request import Request
    from .mux.connection import Connection
    from .mux.stats import Cause, ConnectionStats, Finding, HalfStatus, StreamStats, Wait
    from .mux.stream import Stream
    from .protocols.base import Role
    from .protocols.bymux_state import BymuxState, HalfState, StreamState
    from .runtime.deadline import deadline
    from .server import Server, serve

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
    "FileOffsets",
    "Finding",
    "FlowControlError",
    "ForkedError",
    "FrameError",
    "HalfState",
    "HalfStatus",
    "HandshakeError",
    "Journal",
    "LiveSocket",
    "LocalProtocolError",
    "NoThreadError",
    "ProtocolError",
    "Recording",
    "RemoteProtocolError",
    "Request",
    "Resume",
    "ResumeLost",
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
    "UserLimits",
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

# Importing a client must not import the servers, nor a Spark worker either of them.
__getattr__ = lazy_names(
    __name__,
    {
        "client": ("connect", "from_socket", "pair"),
        "config": ("Config", "Recording", "Resume", "UserLimits"),
        "diagnostics.stall_watch": ("Stall", "StallWatch"),
        "diagnostics.status_socket": ("LiveSocket",),
        "durable.files": ("FileOffsets",),
        "durable.journal": ("Journal",),
        "endpoints.bridge": ("bridge",),
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
            "ResumeLost",
            "StreamError",
            "StreamIdError",
            "StreamRefused",
            "StreamReset",
            "StreamWriteClosed",
            "StreamsExhausted",
            "WriteTimeout",
            "WsmuxError",
        ),
        "handshake.request": ("Request",),
        "mux.connection": ("Connection",),
        "mux.stats": (
            "Cause",
            "ConnectionStats",
            "Finding",
            "HalfStatus",
            "StreamStats",
            "Wait",
        ),
        "mux.stream": ("Stream",),
        "protocols.base": ("Role",),
        "protocols.bymux_state": ("BymuxState", "HalfState", "StreamState"),
        "runtime.deadline": ("deadline",),
        "server": ("Server", "serve"),
    },
)
