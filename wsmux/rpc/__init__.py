"""Make and serve River v2.0 calls, of four kinds, over sessions that survive lost connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from .abort import Abort
    from .client import Client, connect
    from .engine.call_streams import Err, Ok, Readable, Writable
    from .engine.client_calls import Completions, PendingCall, StreamCall, Subscription, Upload
    from .engine.server_calls import Context
    from .engine.signals import Signal
    from .errors import RiverError
    from .flask_route import flask
    from .options import Options
    from .protobuf.service import ProtobufService
    from .protobuf.stub import ProtobufStub
    from .server import RpcHandler, RpcServer, Serving, handler, serve
    from .services import ErrorSchema, Kind, Procedure, Service
    from .session.metadata_validation import Rejection
    from .session.session_info import SessionInfo
    from .wire.codec import Codec, EncodeError
    from .wire.values import BigInt

__all__ = [
    "Abort",
    "BigInt",
    "Client",
    "Codec",
    "Completions",
    "Context",
    "EncodeError",
    "Err",
    "ErrorSchema",
    "Kind",
    "Ok",
    "Options",
    "PendingCall",
    "Procedure",
    "ProtobufService",
    "Readable",
    "Rejection",
    "RiverError",
    "RpcHandler",
    "RpcServer",
    "Service",
    "Serving",
    "SessionInfo",
    "Signal",
    "StreamCall",
    "ProtobufStub",
    "Subscription",
    "Upload",
    "Writable",
    "connect",
    "flask",
    "handler",
    "serve",
]

# A client should not import the server, nor a program without Flask import Flask.
__getattr__ = lazy_names(
    __name__,
    {
        "abort": ("Abort",),
        "client": ("Client", "connect"),
        "engine.call_streams": ("Err", "Ok", "Readable", "Writable"),
        "engine.client_calls": (
            "Completions",
            "PendingCall",
            "StreamCall",
            "Subscription",
            "Upload",
        ),
        "engine.server_calls": ("Context",),
        "engine.signals": ("Signal",),
        "errors": ("RiverError",),
        "flask_route": ("flask",),
        "options": ("Options",),
        "protobuf.service": ("ProtobufService",),
        "protobuf.stub": ("ProtobufStub",),
        "server": ("RpcHandler", "RpcServer", "Serving", "handler", "serve"),
        "services": ("ErrorSchema", "Kind", "Procedure", "Service"),
        "session.metadata_validation": ("Rejection",),
        "session.session_info": ("SessionInfo",),
        "wire.codec": ("Codec", "EncodeError"),
        "wire.values": ("BigInt",),
    },
)
