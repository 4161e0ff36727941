"""Provide the protobuf messages of the bus, which ``types.proto`` describes.

The classes are made from its descriptors, ``types.binpb``, on import, in a descriptor pool of their
own. So any version of the library will do, and other packages may define the network's messages
too. ``Address`` is named ``AddressMessage`` here, since the bus has an ``Address`` of its own.
Unknown fields are kept by parsing and serialising.
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
