"""Hold the protobuf messages of the bus; ``types.proto``, beside this, describes them.

They are made from its descriptors, ``types.binpb``, when this module is imported, in a pool of
their own: whatever the version of the library, and whoever else has messages of the network.
``Address`` is called ``AddressMessage`` here, since the bus has an ``Address`` of its own. Parsing
and serialising keep the fields that nobody knows.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from ...runtime.hints import how_to_install

try:
    from google.protobuf import descriptor_pb2, message_factory
    from google.protobuf.message import DecodeError
except ImportError as error:
    raise ImportError(f"wsmux.bus needs protobuf: {how_to_install('bus')}") from error

__all__ = [
    "AddressMessage",
    "Backlog",
    "DecodeError",
    "Envelope",
    "Error",
    "Ping",
    "Pong",
    "Request",
    "Response",
]

if TYPE_CHECKING:
    from .types_pb2 import Address as AddressMessage
    from .types_pb2 import Backlog, Envelope, Error, Ping, Pong, Request, Response
else:
    _described = files(__package__).joinpath("types.binpb").read_bytes()
    _classes = message_factory.GetMessages(
        descriptor_pb2.FileDescriptorSet.FromString(_described).file
    )
    AddressMessage = _classes["types.Address"]
    Backlog = _classes["types.Backlog"]
    Envelope = _classes["types.Envelope"]
    Error = _classes["types.Error"]
    Ping = _classes["types.Ping"]
    Pong = _classes["types.Pong"]
    Request = _classes["types.Request"]
    Response = _classes["types.Response"]
