"""Speak River v2.0: calls of four kinds over sessions that survive lost connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..naming import lazy_names

if TYPE_CHECKING:
    from .calls import StreamCall, Subscription, Upload
    from .client import Client, connect
    from .codec import Codec, EncodeError
    from .errors import RiverError
    from .flask_route import flask
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

# A client must not pay for servers, and nobody for Flask who does not use it.
__getattr__ = lazy_names(
    __name__,
    {
        "calls": ("StreamCall", "Subscription", "Upload"),
        "client": ("Client", "connect"),
        "codec": ("Codec", "EncodeError"),
        "errors": ("RiverError",),
        "greeting": ("Rejection",),
        "options": ("Options",),
        "pending": ("Completions", "PendingCall"),
        "pipes": ("Err", "Ok", "Readable", "Writable"),
        "server": ("RpcServer", "serve"),
        "server_calls": ("Context",),
        "services": ("ErrorSchema", "Kind", "Procedure", "Service"),
        "serving": ("RpcHandler", "Serving", "handler"),
        "flask_route": ("flask",),
    },
)
