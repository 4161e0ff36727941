"""Call the methods of a protobuf service, like the TypeScript implementation's protobuf client."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...runtime.deadline import Deadline
from ..abort import Abort
from ..engine.call_defaults import CallDefaults
from ..engine.client_calls import Call, Calls, StreamCall, Subscription, Upload
from ..errors import INVALID_REQUEST, RiverError
from ..services import Kind
from ..wire.envelope import CLOSED, NotAResult, read_result
from .methods import Method, methods_of, parse, with_fields

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor
    from google.protobuf.message import Message

    from ..engine.client_engine import ClientEngine

__all__ = ["MethodProxy", "ProtobufStub"]


class ProtobufStub:
    """A protobuf service of a client; its attributes and items are its methods.

    Made by ``Client.protobuf``. Use items for names that begin with an underscore.

    A call returns what the kind of its method requires: the response, a ``Subscription``, an
    ``Upload`` or a ``StreamCall``, all of messages. The ``extra`` of an error holds the received
    ``metadata`` and ``details``.
    """

    # Any name may be looked up, so a loop over them would never end.
    __iter__ = None
    __contains__ = None

    def __init__(
        self,
        engine: ClientEngine,
        service: ServiceDescriptor,
        defaults: CallDefaults,
    ) -> None:
        self._engine = engine
        self._methods = methods_of(service)
        self._name = service.full_name
        self._defaults = defaults

    def __repr__(self) -> str:
        return f"<ProtobufStub {self._name}>"

    def __getattr__(self, name: str) -> MethodProxy:
        if name.startswith("_"):  # a private attribute, missing or not set yet
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self[name]

    def __getitem__(self, name: str) -> MethodProxy:
        method = self._methods.get(name)
        if method is None:
            known = ", ".join(sorted(self._methods)) or "none"
            raise AttributeError(f"{self._name} has no method {name!r}; it has {known}")
        return MethodProxy(self._engine, self._name, method, self._defaults)

    def __dir__(self) -> Iterable[str]:
        """Include the methods, for completion in a shell."""
        return [*super().__dir__(), *self._methods]


class MethodProxy:
    """A method of a client's protobuf service."""

    def __init__(
        self,
        engine: ClientEngine,
        service: str,
        method: Method,
        defaults: CallDefaults,
    ) -> None:
        self._engine = engine
        self._service = service
        self._method = method
        self._defaults = defaults

    def __repr__(self) -> str:
        return f"<MethodProxy {self._service}.{self._method.name}: {self._method.kind}>"

    def __call__(
        self,
        request: Message | None = None,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> Any:
        """Call the method with a request; with client streaming, omit it and write requests.

        Raises:
            TypeError: the request is not the method's message type, or must be omitted.
            RiverError, TimeoutError, EncodeError: as ``Client.rpc``.
        """
        method, kind, defaults = self._method, self._method.kind, self._defaults
        deadline = Deadline(defaults.timeout_of(timeout), outlives=True)
        if kind.takes_requests:
            if request is not None:
                raise TypeError(f"{method.name} takes several requests: write them to the call")
            init, flags = b"", 0
        else:
            init, flags = _packed(method, request), CLOSED
        name = f"{self._service}.{method.name}"
        chosen = defaults.abort_of(abort)
        call = MethodCall(self._engine, self._engine.mutex, name, defaults.raises, chosen, method)
        self._engine.open(call, self._service, method.name, init, flags)
        match kind:
            case Kind.RPC:
                return call.result(deadline)
            case Kind.SUBSCRIPTION:
                return Subscription[Any](call, deadline)
            case Kind.UPLOAD:
                return Upload[Any, Any](call, deadline)
            case Kind.STREAM:
                return StreamCall[Any, Any](call, deadline)


class MethodCall(Call):
    """A call of a method, whose requests and responses are messages."""

    def __init__(
        self,
        client: Calls,
        mutex: threading.Lock,
        name: str,
        raises: bool,
        abort: Abort | None,
        method: Method,
    ) -> None:
        super().__init__(client, mutex, name, raises, abort)
        self._method = method

    def send(self, value: Any, deadline: Deadline) -> None:
        super().send(_packed(self._method, value), deadline)

    def read_payload(self, payload: Any) -> Any:
        response = parse(self._method.response, payload)
        if response is not None:
            return response
        try:
            found = read_result(payload)
        except NotAResult:
            found = None
        if isinstance(found, RiverError):
            return with_fields(found, payload["payload"])
        wanted = self._method.response.DESCRIPTOR.full_name
        return RiverError(INVALID_REQUEST, f"a response is no message {wanted}")


def _packed(method: Method, request: Any) -> bytes:
    if not isinstance(request, method.request):
        wanted = method.request.DESCRIPTOR.full_name
        raise TypeError(f"{method.name} takes a message {wanted}, not {type(request).__name__}")
    data: bytes = request.SerializeToString()
    return data
