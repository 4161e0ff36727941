"""Define what a server offers: services of procedures, declared with decorators.

River specification, "Clients, servers, and RPCs": a procedure has a kind, the schemas of its init,
its requests and its responses, the errors it declares, and a handler. Definitions are checked at
once.

>>> files = Service("files", state=lambda context: {})
>>> @files.rpc(init={"type": "string"}, response={"type": "number"})
... def size(ctx, init):
...     return len(ctx.state[init])
>>> files.procedures["size"].kind
<Kind.RPC: 'rpc'>
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Never, TypeVar

from .errors import INVALID_REQUEST, RESERVED_CODES, RiverError
from .schema import JsonSchema, Schema
from .wire.envelope import read_result

if TYPE_CHECKING:
    from .wire.message_size import Packer

__all__ = [
    "ErrorSchema",
    "Kind",
    "Procedure",
    "Service",
    "check_handler",
    "error_codes",
    "flatten_errors",
    "service_table",
]

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)


class Kind(StrEnum):
    """Name the four kinds of procedures, as written in River's schema."""

    RPC = "rpc"
    UPLOAD = "upload"
    SUBSCRIPTION = "subscription"
    STREAM = "stream"

    @property
    def takes_requests(self) -> bool:
        """Whether the client sends requests after the init."""
        return self is _UPLOAD or self is _STREAM

    @property
    def writes_responses(self) -> bool:
        """Whether the server sends any number of responses instead of one."""
        return self is _SUBSCRIPTION or self is _STREAM


# Looking up an enum member through its class is too slow for every call.
_UPLOAD = Kind.UPLOAD
_SUBSCRIPTION, _STREAM = Kind.SUBSCRIPTION, Kind.STREAM


@dataclass(frozen=True, slots=True)
class ErrorSchema:
    """Declare an error of a procedure.

    Args:
        code: identifies the error; must not be one of the protocol's codes.
        extras: the schema of ``extras``, which is then required; without one, ``extras`` is
            optional.
        description: a sentence for people.
    """

    code: str
    extras: JsonSchema | None = None
    description: str | None = None

    @property
    def json(self) -> dict[str, Any]:
        """Return the JSON Schema, as River writes it."""
        properties: dict[str, Any] = {
            "code": {"const": self.code, "type": "string"},
            "message": {"type": "string"},
        }
        if self.extras is not None:
            properties["extras"] = self.extras
        schema = {"properties": properties, "required": list(properties), "type": "object"}
        return schema if self.description is None else schema | {"description": self.description}


@dataclass(frozen=True, slots=True, eq=False)
class Procedure:
    """A procedure of a service."""

    service: str
    name: str
    kind: Kind
    init: Schema
    request: Schema | None
    """The schema of a request; ``None`` for kinds without requests."""
    response: Schema
    errors: tuple[dict[str, Any], ...]
    """The schemas of the declared errors."""
    codes: frozenset[str]
    """The codes of the declared errors."""
    handler: Handler
    generator: bool
    """Whether the handler is a generator, which yields responses instead of writing them."""
    description: str | None
    _error: Schema

    def declares(self, error: RiverError) -> bool:
        """Return whether a handler may answer with this error."""
        return error.code in self.codes and self._error.check(error.payload()) is None

    # How values are encoded; other kinds of services, such as protobuf, override this.

    @property
    def takes_init(self) -> bool:
        """Whether the handler takes an init; if not, such a payload is the first request."""
        return True

    @property
    def fails_by_result(self) -> bool:
        """Whether a failing handler sends an error result; if not, its call is cancelled."""
        return False

    def read_init(self, payload: Any, closed: bool) -> tuple[Any, dict[str, Any] | None]:
        """Return the init in a payload, and the violation found by ``Schema.check``, if any.

        Args:
            payload: of the message that opens the call.
            closed: whether that message also ends the requests.
        """
        return payload, self.init.check(payload)

    def read_request(self, payload: Any) -> tuple[Any, dict[str, Any] | None]:
        """Return the request in a payload, and the violation found, if any."""
        return payload, None if self.request is None else self.request.check(payload)

    def pack_response(self, packer: Packer, value: Any) -> bytes:
        """Return the encoded payload of a response."""
        return packer.pack_result(value)

    def pack_error(self, packer: Packer, error: RiverError) -> bytes:
        """Return the encoded payload of an error."""
        return packer.pack_error(error)

    # What a client does with the same values, for ``rpc.testing``.

    def write_init(self, value: Any) -> Any:
        """Return the payload that opens a call."""
        return value

    def write_request(self, value: Any) -> Any:
        """Return the payload of a request."""
        return value

    def read_response(self, payload: Any) -> Any:
        """Return the response in a payload, or its ``RiverError``."""
        return read_result(payload)


class Service:
    """A named set of procedures that share a state.

    Procedures are added by decorators, from any number of modules that import the service.

    Args:
        name: the name on the wire.
        state: the state shared by the handlers: a value, or a function that takes the server's
            context when the server starts, and returns the state.
        dispose: a function called with the state when the server has closed.
        description: a sentence for people.

    Raises:
        ValueError: the name cannot be sent.
    """

    missing_code: ClassVar[str] = INVALID_REQUEST
    """The error code for a procedure that the service does not have."""

    def __init__(
        self,
        name: str,
        *,
        state: Any = None,
        dispose: Callable[[Any], object] | None = None,
        description: str | None = None,
    ) -> None:
        self.name: str = _checked("service", name)
        self.description = description
        self._state = state
        self._dispose = dispose
        self._procedures: dict[str, Procedure] = {}
        # A view. Procedures are looked up only here, so even "__class__" is a valid name.
        self.procedures: Mapping[str, Procedure] = MappingProxyType(self._procedures)
        self.asides: dict[str, Procedure] = {}
        """Procedures that decorators of handlers add, which are in no schema and no client."""

    def __repr__(self) -> str:
        return f"Service({self.name!r})"

    def make_state(self, context: Any) -> Any:
        """Return the state for a server that starts."""
        return self._state(context) if callable(self._state) else self._state

    def dispose_state(self, state: Any) -> None:
        """Dispose of a state returned by ``make_state()``."""
        if self._dispose is not None:
            self._dispose(state)

    def rpc(
        self,
        *bare: Never,
        init: JsonSchema | None = None,
        response: JsonSchema | None = None,
        errors: Iterable[ErrorSchema | Mapping[str, Any]] = (),
        name: str | None = None,
        description: str | None = None,
    ) -> Callable[[H], H]:
        """Add a procedure that answers one init with one response: ``handler(ctx, init)``.

        An omitted schema accepts anything. The procedure has the name of the function, unless
        ``name`` is given. The decorator returns the function unchanged.

        Raises:
            ValueError: a name, a schema, an error or the handler is invalid.
            TypeError: the decorator was used without parentheses.
        """
        _refuse_bare(Kind.RPC, bare)
        return self._add(Kind.RPC, name, (init, None, response), errors, description)

    def upload(
        self,
        *bare: Never,
        init: JsonSchema | None = None,
        request: JsonSchema | None = None,
        response: JsonSchema | None = None,
        errors: Iterable[ErrorSchema | Mapping[str, Any]] = (),
        name: str | None = None,
        description: str | None = None,
    ) -> Callable[[H], H]:
        """Add a procedure that answers many requests once: ``handler(ctx, init, requests)``.

        Arguments and errors are those of ``rpc()``.
        """
        _refuse_bare(Kind.UPLOAD, bare)
        return self._add(Kind.UPLOAD, name, (init, request, response), errors, description)

    def subscription(
        self,
        *bare: Never,
        init: JsonSchema | None = None,
        response: JsonSchema | None = None,
        errors: Iterable[ErrorSchema | Mapping[str, Any]] = (),
        name: str | None = None,
        description: str | None = None,
    ) -> Callable[[H], H]:
        """Add a procedure that sends many responses: ``handler(ctx, init, responses)``.

        The handler may also be a generator function of ``(ctx, init)`` that yields the responses.
        The responses end when the handler returns. Arguments and errors are those of ``rpc()``.
        """
        _refuse_bare(Kind.SUBSCRIPTION, bare)
        return self._add(Kind.SUBSCRIPTION, name, (init, None, response), errors, description)

    def stream(
        self,
        *bare: Never,
        init: JsonSchema | None = None,
        request: JsonSchema | None = None,
        response: JsonSchema | None = None,
        errors: Iterable[ErrorSchema | Mapping[str, Any]] = (),
        name: str | None = None,
        description: str | None = None,
    ) -> Callable[[H], H]:
        """Add a procedure with both: ``handler(ctx, init, requests, responses)``.

        The handler may also be a generator function of ``(ctx, init, requests)``. The responses end
        when it returns. Arguments and errors are those of ``rpc()``.
        """
        _refuse_bare(Kind.STREAM, bare)
        return self._add(Kind.STREAM, name, (init, request, response), errors, description)

    def _add(
        self,
        kind: Kind,
        name: str | None,
        schemas: tuple[JsonSchema | None, JsonSchema | None, JsonSchema | None],
        errors: Iterable[ErrorSchema | Mapping[str, Any]],
        description: str | None,
    ) -> Callable[[H], H]:
        def add(handler: H) -> H:
            chosen = getattr(handler, "__name__", None) if name is None else name
            place = f"{self.name}.{_checked('procedure', chosen)}"
            if chosen in self._procedures:
                raise ValueError(f"{place} is defined twice")
            generator = check_handler(place, kind, handler)
            try:
                init, request, response = (Schema(schema) for schema in schemas)
                declared = _declared(errors)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error
            # A decorator may let messages pass of which these schemas describe a part.
            if (adapt := getattr(handler, "adapt_schemas", None)) is not None:
                init, response = adapt(self.name, str(chosen), init, response)
            self._procedures[str(chosen)] = made = Procedure(
                service=self.name,
                name=str(chosen),
                kind=kind,
                init=init,
                request=request if kind.takes_requests else None,
                response=response,
                errors=declared,
                codes=frozenset(code for error in declared for code in error_codes(error)),
                handler=handler,
                generator=generator,
                description=description,
                _error=Schema({"anyOf": list(declared)} if declared else None),
            )
            for suffix, tell in getattr(handler, "asides", {}).items():
                self.asides[f"{chosen}{suffix}"] = _aside(made, f"{chosen}{suffix}", tell)
            return handler

        return add


def _aside(of: Procedure, name: str, handler: Handler) -> Procedure:
    """Return a procedure beside another one, an rpc without schemas or errors."""
    bare: dict[str, Any] = {"init": Schema(), "request": None, "response": Schema()}
    bare |= {"errors": (), "codes": frozenset(), "generator": False, "_error": Schema()}
    return replace(of, name=name, kind=Kind.RPC, handler=handler, description=None, **bare)


def _refuse_bare(kind: Kind, given: tuple[Any, ...]) -> None:
    """Raise ``TypeError`` if a decorator was not called, or got a positional argument."""
    if given:
        what = "with parentheses" if callable(given[0]) else "with a name for each schema"
        forms = f"@service.{kind}() or @service.{kind}(init=..., response=...)"
        raise TypeError(f"write the decorator {what}: {forms}")


def service_list(services: Iterable[Service]) -> list[Service]:
    """Return the services of a collection as a list.

    Raises:
        TypeError: it is not a collection of services, for example a single service.
    """
    form = "services must be a collection of wsmux.rpc.Service, such as [Service('files')]"
    if isinstance(services, str | bytes) or not isinstance(services, Iterable):
        hint = ": put it in a list" if isinstance(services, Service) else ""
        raise TypeError(f"{form}, not a single {type(services).__name__}{hint}")
    held = list(services)
    for each in held:
        if not isinstance(each, Service):
            raise TypeError(f"{form}, and one of them is of type {type(each).__name__}")
    return held


def service_table(services: Iterable[Service]) -> dict[str, Service]:
    """Return the services by name.

    Raises:
        ValueError: two have the same name.
        TypeError: it is not a collection of services.
    """
    table: dict[str, Service] = {}
    for service in service_list(services):
        if service.name in table:
            raise ValueError(f"two services are named {service.name!r}")
        table[service.name] = service
    return table


def flatten_errors(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the error schemas of arbitrarily nested unions as a flat list.

    Annotations of the inner unions, such as descriptions, are lost.
    """
    if not isinstance(schema, Mapping) or not isinstance(schema.get("anyOf"), list):
        return [schema]
    return [flat for inner in schema["anyOf"] for flat in flatten_errors(inner)]


def error_codes(schema: Mapping[str, Any]) -> list[str]:
    """Return the codes that the schema of one error allows.

    Raises:
        ValueError: it is not an object with a literal ``code`` and a ``message``.
    """
    fields = schema if isinstance(schema, Mapping) else {}
    properties, needed = fields.get("properties"), fields.get("required")
    if not isinstance(properties, Mapping) or not isinstance(needed, list):
        raise ValueError("an error must be an object with a code and a message, both required")
    for name in ("code", "message"):
        if name not in needed or not isinstance(properties.get(name), Mapping):
            raise ValueError(f"an error must have a {name}, and must require it")
    message = properties["message"]
    if message.get("type") != "string" and not isinstance(message.get("const"), str):
        raise ValueError("the message of an error must be a string")
    codes = _literals(properties["code"])
    if not codes or not all(isinstance(code, str) for code in codes):
        raise ValueError("the code of an error must be a literal string, or several")
    return codes


def _literals(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values of a schema of literals: a constant, an enum or a union of constants."""
    if "const" in schema:
        return [schema["const"]]
    branches = schema.get("anyOf")
    if isinstance(branches, list) and all(isinstance(branch, Mapping) for branch in branches):
        return [branch.get("const") for branch in branches]
    values = schema.get("enum")
    return values if isinstance(values, list) else []


def _declared(errors: Iterable[ErrorSchema | Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the error schemas of a procedure, with unions flattened."""
    if isinstance(errors, Mapping):
        errors = [errors]
    flat: list[dict[str, Any]] = []
    for error in errors:
        schemas: Mapping[str, Any] = error.json if isinstance(error, ErrorSchema) else error
        union = flatten_errors(schemas)
        if union != [schemas] and union != schemas["anyOf"]:
            raise ValueError("a union of errors holds a union: use flatten_errors()")
        for schema in union:
            for code in error_codes(schema):
                if code in RESERVED_CODES:
                    raise ValueError(f"the error code {code} belongs to the protocol")
            copy = Schema(schema).json
            assert isinstance(copy, dict)
            flat.append(copy)
    return tuple(flat)


def _checked(what: str, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"a {what} must be named by a string, but is named {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name of a {what} cannot be sent as UTF-8: {name!r}") from None
    return name


def check_handler(place: str, kind: Kind, handler: Any, *, takes_init: bool = True) -> bool:
    """Return whether a handler is a generator function.

    Raises:
        ValueError: its signature does not fit its kind.
    """
    if not callable(handler):
        raise ValueError(f"{place} is handled by {handler!r}, which cannot be called")
    called = [handler, getattr(handler, "__call__", None)]  # noqa: B004 - the method itself
    if any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in called):
        raise ValueError(f"{place} is handled by a coroutine; handlers run in threads")
    generator = any(inspect.isgeneratorfunction(function) for function in called)
    if generator and not kind.writes_responses:
        raise ValueError(f"{place} is of kind {kind}: its handler returns a response, never yields")
    wanted = ["ctx", "init"] if takes_init else ["ctx"]
    wanted += ["requests"] if kind.takes_requests else []
    wanted += ["responses"] if kind.writes_responses and not generator else []
    try:
        inspect.signature(handler).bind(*wanted)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{place} is of kind {kind}: its handler must take ({', '.join(wanted)}): {error}"
        ) from error
    return generator
