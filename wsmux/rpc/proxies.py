"""Let procedures be called by their names: ``client.files.size("a.txt")``.

What a call returns depends on the procedure's kind, which only a schema tells. Without one a call
by name is an rpc, and the other kinds are said: ``client.files.watch.subscribe("a.txt")``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .calls import StreamCall, Subscription, Upload
from .served import ServedProcedure, ServedSchema, ServedService, read_schema, serialize
from .services import Kind, Service

if TYPE_CHECKING:
    from .client import Client

__all__ = ["Offer", "ProcedureProxy", "ServiceProxy", "offer_of"]

Offer = ServedSchema | Mapping[str, Any] | str | bytes | Iterable[Service]


def offer_of(source: Offer | None) -> ServedSchema | None:
    """Return what a schema, or the services themselves, tell.

    Raises:
        ValueError: it is no schema.
    """
    if source is None or isinstance(source, ServedSchema):
        return source
    if isinstance(source, str | bytes | Mapping):
        return read_schema(source)
    return read_schema(serialize(source))


def _named(what: str, name: str, known: Mapping[str, Any]) -> AttributeError:
    names = ", ".join(sorted(known)) or "none"
    return AttributeError(f"the schema has no {what} {name!r}; it has {names}")


class ServiceProxy:
    """Be a service of a client; its attributes and items are its procedures.

    Items serve names that are no Python names, or those of methods.
    """

    # Any name may be a procedure: nothing would ever end a loop over them.
    __iter__ = None
    __contains__ = None

    def __init__(self, client: Client, name: str, schema: ServedSchema | None) -> None:
        known = None if schema is None else schema.services.get(name)
        if schema is not None and known is None:
            raise _named("service", name, schema.services)
        self._client = client
        self._name = name
        self._known: ServedService | None = known

    def __repr__(self) -> str:
        return f"<ServiceProxy {self._name} of {self._client!r}>"

    def __getattr__(self, name: str) -> ProcedureProxy:
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self[name]

    def __getitem__(self, name: str) -> ProcedureProxy:
        procedure: ServedProcedure | None = None
        if self._known is not None:
            procedure = self._known.procedures.get(name)
            if procedure is None:
                raise _named(f"procedure of {self._name}:", name, self._known.procedures)
        return ProcedureProxy(self._client, self._name, name, procedure)

    def __dir__(self) -> Iterable[str]:
        """Return the procedures of the schema too, for those who type in a shell."""
        return [*super().__dir__(), *(() if self._known is None else self._known.procedures)]


class ProcedureProxy:
    """Be a procedure of a client. Its arguments and errors are those of the client's methods."""

    def __init__(
        self, client: Client, service: str, name: str, known: ServedProcedure | None
    ) -> None:
        self._client = client
        self._where = service, name
        self._kind = None if known is None else known.kind
        if known is not None and known.description is not None:
            self.__doc__ = known.description

    def __repr__(self) -> str:
        kind = "procedure of unknown kind" if self._kind is None else str(self._kind)
        return f"<ProcedureProxy {'.'.join(self._where)}: {kind}>"

    def __call__(self, init: Any = None, timeout: float | None = None) -> Any:
        """Call it as its kind is: see ``rpc``, ``subscribe``, ``upload`` and ``stream``."""
        match self._kind:
            case Kind.SUBSCRIPTION:
                return self.subscribe(init, timeout)
            case Kind.UPLOAD:
                return self.upload(init, timeout)
            case Kind.STREAM:
                return self.stream(init, timeout)
            case _:
                return self.rpc(init, timeout)

    def rpc(self, init: Any = None, timeout: float | None = None) -> Any:
        """Call a procedure that answers once; see ``Client.rpc``."""
        return self._client.rpc(*self._where, init, timeout)

    def subscribe(self, init: Any = None, timeout: float | None = None) -> Subscription[Any]:
        """Call a procedure that sends responses; see ``Client.subscribe``."""
        return self._client.subscribe(*self._where, init, timeout)

    def upload(self, init: Any = None, timeout: float | None = None) -> Upload[Any, Any]:
        """Call a procedure that takes requests; see ``Client.upload``."""
        return self._client.upload(*self._where, init, timeout)

    def stream(self, init: Any = None, timeout: float | None = None) -> StreamCall[Any, Any]:
        """Call a procedure that does both; see ``Client.stream``."""
        return self._client.stream(*self._where, init, timeout)
