"""Hold the protobuf messages of the bus, described here and built when this module is imported.

No compiler writes these classes, so none has to match the version of the library. Fields are those
of the network's ``types.proto``; ``Address`` is called ``AddressMessage`` here, since the bus has
an ``Address`` of its own. Parsing and serialising keep the fields that nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ...runtime.hints import how_to_install

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
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

_PACKAGE = "types"
_KINDS = descriptor_pb2.FieldDescriptorProto


class _Field(NamedTuple):
    """Describe a field: its ``type`` is a scalar of protobuf or one of the messages here."""

    number: int
    name: str
    type: str
    optional: bool = False
    oneof: str = ""
    repeated: bool = False


_MESSAGES: dict[str, tuple[_Field, ...]] = {
    "Address": (_Field(1, "twin", "uint32"), _Field(2, "connection", "string", optional=True)),
    "Request": (_Field(1, "command", "string"),),
    "Response": (),
    "Error": (_Field(1, "code", "uint32"), _Field(2, "message", "string")),
    "Ping": (),
    "Pong": (),
    "Envelope": (
        _Field(1, "uid", "string"),
        _Field(2, "tags", "string", optional=True),
        _Field(3, "timestamp", "uint64"),
        _Field(4, "expiration", "uint64"),
        _Field(5, "source", "Address"),
        _Field(6, "destination", "Address"),
        _Field(7, "request", "Request", oneof="message"),
        _Field(8, "response", "Response", oneof="message"),
        _Field(9, "signature", "bytes", optional=True),
        _Field(10, "schema", "string", optional=True),
        _Field(11, "federation", "string", optional=True),
        _Field(12, "error", "Error", oneof="message"),
        _Field(13, "plain", "bytes", oneof="payload"),
        _Field(14, "cipher", "bytes", oneof="payload"),
        _Field(15, "ping", "Ping", oneof="message"),
        _Field(16, "pong", "Pong", oneof="message"),
        _Field(17, "relays", "string", repeated=True),
    ),
    "Backlog": (
        _Field(1, "uid", "string"),
        _Field(2, "reference", "string", optional=True),
        _Field(3, "reply_to", "string"),
        _Field(4, "module", "string", optional=True),
        _Field(5, "ttl", "uint64"),
    ),
}


def _describe(
    message: descriptor_pb2.DescriptorProto, fields: Iterable[_Field], oneofs: list[str]
) -> None:
    """Add fields to a message; an optional one is alone in a oneof, as proto3 has it."""
    for name in oneofs:
        message.oneof_decl.add(name=name)
    for field in fields:
        label = _KINDS.LABEL_REPEATED if field.repeated else _KINDS.LABEL_OPTIONAL
        added = message.field.add(name=field.name, number=field.number, label=label)
        if field.type in _MESSAGES:
            added.type = _KINDS.TYPE_MESSAGE
            added.type_name = f".{_PACKAGE}.{field.type}"
        else:
            added.type = _KINDS.Type.Value(f"TYPE_{field.type.upper()}")
        if field.oneof:
            added.oneof_index = oneofs.index(field.oneof)
        if field.optional:
            added.proto3_optional = True
            added.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def _build() -> dict[str, Any]:
    """Return the class of each message; their pool is their own, so no other can clash."""
    file = descriptor_pb2.FileDescriptorProto(
        name="wsmux/bus/types.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        oneofs = list(dict.fromkeys(field.oneof for field in fields if field.oneof))
        _describe(file.message_type.add(name=name), fields, oneofs)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


if TYPE_CHECKING:
    from google.protobuf.message import Message

    class AddressMessage(Message):
        """Name a twin, and maybe one of its sessions."""

        twin: int
        connection: str

    class Request(Message):
        """Ask for a command."""

        command: str

    class Response(Message):
        """Answer a request; the payload is the envelope's."""

    class Error(Message):
        """Answer a request that failed."""

        code: int
        message: str

    class Ping(Message):
        """Ask a relay for a sign of life."""

    class Pong(Message):
        """Answer a ping."""

    class Envelope(Message):
        """Carry one message from a twin to a twin; times are seconds."""

        uid: str
        tags: str
        timestamp: int
        expiration: int
        source: AddressMessage
        destination: AddressMessage
        request: Request
        response: Response
        signature: bytes
        schema: str
        federation: str
        error: Error
        plain: bytes
        cipher: bytes
        ping: Ping
        pong: Pong
        relays: list[str]

    class Backlog(Message):
        """Remember on behalf of whom a gateway asked; ``ttl`` is seconds."""

        uid: str
        reference: str
        reply_to: str
        module: str
        ttl: int

else:
    _classes = _build()
    AddressMessage = _classes["Address"]
    Backlog = _classes["Backlog"]
    Envelope = _classes["Envelope"]
    Error = _classes["Error"]
    Ping = _classes["Ping"]
    Pong = _classes["Pong"]
    Request = _classes["Request"]
    Response = _classes["Response"]
