"""Call the methods of a protobuf service, as the TypeScript implementation's protobuf client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...runtime.deadline import Deadline
from ..abort import Abort, checked
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

    ``Client.protobuf`` makes it. Items serve names that begin with an underscore.

    What a call returns goes by the method's kind: the response, a ``Subscription``, an ``Upload``
    or a ``StreamCall``, of messages. An error's ``extra`` holds the ``metadata`` and ``details``
    that came with it.
    """

    # Any name may be asked for: nothing would ever end a loop over them.
    __iter__ = None
    __contains__ = None

    def __init__(
        self,
        engine: ClientEngine,
        service: ServiceDescriptor,
        raises: bool,
        time: Callable[[float | None], float | None],
    ) -> None:
        self._engine = engine
        self._methods = methods_of(service)
        self._name = service.full_name
        self._raises = raises
        self._time = time

    def __repr__(self) -> str:
        return f"<ProtobufStub {self._name}>"

    def __getattr__(self, name: str) -> MethodProxy:
        if name.startswith("_"):  # none of ours, and not yet made while it is being made
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self[name]

    def __getitem__(self, name: str) -> MethodProxy:
        method = self._methods.get(name)
        if method is None:
            known = ", ".join(sorted(self._methods)) or "none"
            raise AttributeError(f"{self._name} has no method {name!r}; it has {known}")
        return MethodProxy(self._engine, self._name, method, self._raises, self._time)

    def __dir__(self) -> Iterable[str]:
        """Return the methods too, for completion in a shell."""
        return [*super().__dir__(), *self._methods]


class MethodProxy:
    """A method of a client's protobuf service."""

    def __init__(
        self,
        engine: ClientEngine,
        service: str,
        method: Method,
        raises: bool,
        time: Callable[[float | None], float | None],
    ) -> None:
        self._engine = engine
        self._service = service
        self._method = method
        self._raises = raises
        self._time = time

    def __repr__(self) -> str:
        return f"<MethodProxy {self._service}.{self._method.name}: {self._method.kind}>"

    def __call__(
        self,
        request: Message | None = None,
        timeout: float | None = None,
        *,
        abort: Abort | None = None,
    ) -> Any:
        """Call it with a request; one that takes several is called without, and written to.

        Raises:
            TypeError: the request is no message of the method's, or should not be given.
            RiverError, TimeoutError, EncodeError: as by ``Client.rpc``.
        """
        method, kind = self._method, self._method.kind
        deadline = Deadline(self._time(timeout), outlives=True)
        if kind.takes_requests:
            if request is not None:
                raise TypeError(f"{method.name} takes several requests: write them to the call")
            init, flags = b"", 0
        else:
            init, flags = _packed(method, request), CLOSED
        name = f"{self._service}.{method.name}"
        call = MethodCall(
            self._engine, self._engine.mutex, name, self._raises, checked(abort), method
        )
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
    """One call of a method, whose requests and responses are messages."""

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
