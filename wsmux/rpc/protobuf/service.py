"""Serve the methods of a protobuf service, like the TypeScript implementation's protobuf router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never, TypeVar

from ..errors import UNCAUGHT_ERROR, RiverError
from ..schema import Schema
from ..services import Handler, Kind, Procedure, Service, check_handler
from ..wire.envelope import is_close
from .methods import Method, error_fields, methods_of, parse

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor
    from google.protobuf.message import Message

    from ..wire.message_size import Packer

__all__ = ["ProtobufService"]

H = TypeVar("H", bound=Handler)


class ProtobufService(Service):
    """A service whose procedures are the methods of a protobuf service.

    Handlers are added by the decorator ``method``, under the names of their methods:

    - unary: ``handler(ctx, request)`` returns the response;
    - server streaming: ``handler(ctx, request, responses)``, or a generator function of ``(ctx,
      request)``;
    - client streaming: ``handler(ctx, requests)`` returns the response;
    - both: ``handler(ctx, requests, responses)``, or a generator function of ``(ctx, requests)``.

    Requests and responses are messages. A handler answers with an error by raising ``RiverError``
    with a gRPC code, such as ``NOT_FOUND``; its ``extra`` may hold ``metadata``, a dict of strings,
    and ``details``, a list of ``{"typeName": ..., "value": bytes}``. Any other exception is sent as
    an error result too, with ``UNCAUGHT_ERROR``. Methods without a handler are refused with
    ``UNIMPLEMENTED``.

    Args:
        service: the descriptor, ``files_pb2.DESCRIPTOR.services_by_name["Files"]``.
        state, dispose, description: as in ``Service``.

    Raises:
        TypeError: ``service`` is not a service descriptor.
        ImportError: protobuf is not installed.
    """

    missing_code = "UNIMPLEMENTED"

    def __init__(
        self,
        service: ServiceDescriptor,
        *,
        state: Any = None,
        dispose: Callable[[Any], object] | None = None,
        description: str | None = None,
    ) -> None:
        self._methods = methods_of(service)
        super().__init__(service.full_name, state=state, dispose=dispose, description=description)

    def method(self, *bare: Never, name: str | None = None) -> Callable[[H], H]:
        """Add the handler of the method that has the function's name, or ``name``.

        Raises:
            ValueError: there is no such method, or the handler's signature does not fit its kind.
            TypeError: the decorator was used without parentheses.
        """
        if bare:
            raise TypeError("write the decorator with parentheses: @service.method()")

        def add(handler: H) -> H:
            chosen = getattr(handler, "__name__", "") if name is None else name
            method = self._methods.get(chosen)
            if method is None:
                known = ", ".join(sorted(self._methods)) or "none"
                raise ValueError(f"{self.name} has no method {chosen!r}; it has {known}")
            place = f"{self.name}.{chosen}"
            if chosen in self._procedures:
                raise ValueError(f"{place} is defined twice")
            kind = method.kind
            generator = check_handler(place, kind, handler, takes_init=not kind.takes_requests)
            self._procedures[chosen] = MethodProcedure(
                service=self.name,
                name=chosen,
                kind=kind,
                init=_MessageSchema(method.request),
                request=_MessageSchema(method.request) if kind.takes_requests else None,
                response=_MessageSchema(method.response),
                errors=(),
                codes=frozenset(),
                handler=handler,
                generator=generator,
                description=None,
                _error=Schema(None),
                method=method,
            )
            return handler

        return add

    def _add(self, kind: Kind, *_: Any) -> Never:
        raise TypeError(f"{self.name} has methods of protobuf: add them with @service.method()")


class _MessageSchema(Schema):
    """Check that a value is a complete message of a class; on the wire it is bytes."""

    __slots__ = ("_message",)

    def __init__(self, message: type[Message]) -> None:
        super().__init__(None)
        self._json = {"type": "Uint8Array"}
        self._message = message

    def check(self, value: Any) -> dict[str, Any] | None:
        if isinstance(value, self._message) and value.IsInitialized():
            return None
        return _wrong(f"must be a message {self._message.DESCRIPTOR.full_name}")


def _wrong(text: str) -> dict[str, Any]:
    """Return an error in a payload, in the form used by schemas."""
    return {"totalErrors": 1, "firstValidationErrors": [{"path": "", "message": text}]}


@dataclass(frozen=True, slots=True, eq=False)
class MethodProcedure(Procedure):
    """A method of a service."""

    method: Method

    @property
    def takes_init(self) -> bool:
        return not self.kind.takes_requests

    @property
    def fails_by_result(self) -> bool:
        return True

    def declares(self, error: RiverError) -> bool:
        return error_fields(error) is not None

    def read_init(self, payload: Any, closed: bool) -> tuple[Any, dict[str, Any] | None]:
        """Return the only request; with client streaming, the first one, if any."""
        if self.kind.takes_requests:
            if payload == b"" or (closed and is_close(payload)):
                return None, None
        elif not closed:
            return None, _wrong("must close the requests")
        return self.read_request(payload)

    def read_request(self, payload: Any) -> tuple[Any, dict[str, Any] | None]:
        request = parse(self.method.request, payload)
        return request, self.init.check(request)

    def write_init(self, value: Any) -> bytes:
        if not self.kind.takes_requests:
            return self.method.pack(value)
        if value is not None:
            raise TypeError(f"{self.name} takes several requests, and no init")
        return b""

    def write_request(self, value: Any) -> bytes:
        return self.method.pack(value)

    def read_response(self, payload: Any) -> Any:
        return self.method.read_response(payload)

    def pack_response(self, packer: Packer, value: Any) -> bytes:
        return packer.pack(value.SerializeToString())

    def pack_error(self, packer: Packer, error: RiverError) -> bytes:
        if error.code == UNCAUGHT_ERROR:
            return packer.pack_error(error)
        return packer.pack({"ok": False, "payload": error_fields(error)})
