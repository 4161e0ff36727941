"""Read the methods of a protobuf service, for its servers and clients.

On the wire, the service has its full name, and a procedure the name of its method. Requests and
responses are serialized messages, with nothing around them, whatever the codec. An error has
River's form, with a gRPC code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...runtime.hints import how_to_install

try:
    from google.protobuf.descriptor import ServiceDescriptor
    from google.protobuf.message import DecodeError, Message
    from google.protobuf.message_factory import GetMessageClass
except ImportError as error:
    raise ImportError(
        f"protobuf services of wsmux.rpc need protobuf: {how_to_install('rpc')}"
    ) from error

from ..errors import INVALID_REQUEST, RiverError
from ..services import Kind
from ..wire.envelope import NotAResult, read_result

__all__ = ["CODES", "Method", "error_fields", "methods_of", "parse", "with_fields"]

# The codes of gRPC, except OK, which is not an error.
CODES = frozenset(
    {
        "CANCELED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    }
)

# The optional fields of an error, besides its code and message.
_FIELDS = ("metadata", "details")


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service: its kind, and the classes of its messages."""

    name: str
    kind: Kind
    request: type[Message]
    response: type[Message]

    def pack(self, request: Any) -> bytes:
        """Return a request as sent.

        Raises:
            TypeError: it is not a message of the method's type.
        """
        if not isinstance(request, self.request):
            wanted = self.request.DESCRIPTOR.full_name
            raise TypeError(f"{self.name} takes a message {wanted}, not {type(request).__name__}")
        data: bytes = request.SerializeToString()
        return data

    def read_response(self, payload: Any) -> Message | RiverError:
        """Return the response or the error in a payload."""
        response = parse(self.response, payload)
        if response is not None:
            return response
        try:
            found = read_result(payload)
        except NotAResult:
            found = None
        if isinstance(found, RiverError):
            return with_fields(found, payload["payload"])
        wanted = self.response.DESCRIPTOR.full_name
        return RiverError(INVALID_REQUEST, f"a response is no message {wanted}")


_KINDS = {
    (False, False): Kind.RPC,
    (True, False): Kind.UPLOAD,
    (False, True): Kind.SUBSCRIPTION,
    (True, True): Kind.STREAM,
}


def methods_of(service: ServiceDescriptor) -> dict[str, Method]:
    """Return the methods of a service by name.

    Raises:
        TypeError: ``service`` is not a service descriptor.
    """
    if not isinstance(service, ServiceDescriptor):
        raise TypeError(
            "a protobuf service is given as its descriptor, such as "
            f'files_pb2.DESCRIPTOR.services_by_name["Files"], not as {type(service).__name__}'
        )
    return {
        each.name: Method(
            each.name,
            _KINDS[each.client_streaming, each.server_streaming],
            GetMessageClass(each.input_type),
            GetMessageClass(each.output_type),
        )
        for each in service.methods
    }


def parse(message: type[Message], payload: Any) -> Message | None:
    """Return the message in a payload, or ``None`` if it is invalid."""
    if not isinstance(payload, bytes):
        return None
    try:
        return message.FromString(payload)
    except (DecodeError, ValueError, RecursionError):
        return None


def error_fields(error: RiverError) -> dict[str, Any] | None:
    """Return an error as sent, or ``None`` if a method cannot answer with it."""
    if error.code not in CODES:
        return None
    extra = {} if error.extra is None else error.extra
    if not isinstance(extra, Mapping) or not set(extra) <= set(_FIELDS):
        return None
    return {"code": error.code, "message": error.message, **extra}


def with_fields(error: RiverError, fields: Mapping[str, Any]) -> RiverError:
    """Return an error whose ``extra`` holds the received fields."""
    found = {name: fields[name] for name in _FIELDS if name in fields}
    return RiverError(error.code, error.message, found) if found else error
