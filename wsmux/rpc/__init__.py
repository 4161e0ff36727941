"""Speak River v2.0: calls of four kinds over sessions that survive lost connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .calls import StreamCall, Subscription, Upload
from .client import Client, connect
from .codec import Codec, EncodeError
from .errors import RiverError
from .greeting import Rejection
from .options import Options
from .pending import Completions, PendingCall
from .pipes import Err, Ok, Readable, Writable
from .server import RpcServer, serve
from .server_calls import Context
from .services import ErrorSchema, Kind, Procedure, Service
from .serving import RpcHandler, Serving, handler

__all__ = [
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
    "Readable",
    "Rejection",
    "RiverError",
    "RpcHandler",
    "RpcServer",
    "Service",
    "Serving",
    "StreamCall",
    "Subscription",
    "Upload",
    "Writable",
    "connect",
    "flask",
    "handler",
    "serve",
]

if TYPE_CHECKING:
    from .flask_route import flask


def __getattr__(name: str) -> Any:
    """Import what needs Flask when it is asked for."""
    if name == "flask":
        from .flask_route import flask

        return flask
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
