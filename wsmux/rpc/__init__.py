"""Speak River v2.0: calls of four kinds over sessions that survive lost connections."""

from __future__ import annotations

from .calls import StreamCall, Subscription, Upload
from .client import Client, connect
from .codec import Codec, EncodeError
from .errors import RiverError
from .options import Options
from .pipes import Err, Ok, Readable, Writable
from .server import RpcServer, serve
from .server_calls import Context
from .server_engine import Rejection
from .services import ErrorSchema, Kind, Procedure, Service

__all__ = [
    "Client",
    "Codec",
    "Context",
    "EncodeError",
    "Err",
    "ErrorSchema",
    "Kind",
    "Ok",
    "Options",
    "Procedure",
    "Readable",
    "Rejection",
    "RiverError",
    "RpcServer",
    "Service",
    "StreamCall",
    "Subscription",
    "Upload",
    "Writable",
    "connect",
    "serve",
]
