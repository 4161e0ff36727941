"""Call the methods of a protobuf service, like the TypeScript implementation's protobuf client."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...runtime.deadline import Deadline, deadline_in
from ..abort import Abort
from ..engine.call_defaults import CallDefaults
from ..engine.client_calls import Call, Calls, StreamCall, Subscription, Upload
from ..services import Kind
from ..wire.envelope import CLOSED
from .methods import Method, methods_of

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
        deadline = deadline_in(defaults.timeout_of(timeout), outlives=kind is not Kind.RPC)
        if kind.takes_requests:
            if request is not None:
                raise TypeError(f"{method.name} takes several requests: write them to the call")
            init, flags = b"", 0
        else:
            init, flags = method.pack(request), CLOSED
        name = f"{self._service}.{method.name}"
        chosen = defaults.abort_of(abort)
        call = MethodCall(
            self._engine, self._engine.mutex, name, defaults.raises, deadline, chosen, method
        )
        self._engine.open(call, self._service, method.name, init, flags)
        match kind:
            case Kind.RPC:
                return call.result(deadline)
            case Kind.SUBSCRIPTION:
                return Subscription[Any](call)
            case Kind.UPLOAD:
                return Upload[Any, Any](call)
            case Kind.STREAM:
                return StreamCall[Any, Any](call)


class MethodCall(Call):
    """A call of a method, whose requests and responses are messages."""

    def __init__(
        self,
        client: Calls,
        mutex: threading.Lock,
        name: str,
        raises: bool,
        deadline: Deadline,
        abort: Abort | None,
        method: Method,
    ) -> None:
        super().__init__(client, mutex, name, raises, deadline, abort)
        self._method = method

    def send(self, value: Any, deadline: Deadline) -> None:
        super().send(self._method.pack(value), deadline)

    def read_payload(self, payload: Any) -> Any:
        return self._method.read_response(payload)
