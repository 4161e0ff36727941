"""Write the schema of a server's services in River's format, and read such a schema.

The format is ``{handshakeSchema?, services: {NAME: {procedures: {NAME: {init, output, errors, type,
description?, input?}}}}}``, where ``output`` is the response without its result wrapper, ``input``
the request, and ``errors`` a flat union that ends with the four errors of the protocol. The format
of protocol v1 writes ``input`` instead of ``init`` for procedures that take no requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from ..errors import CANCEL, INVALID_REQUEST, RESERVED_CODES, UNCAUGHT_ERROR, UNEXPECTED_DISCONNECT
from ..services import (
    ErrorSchema,
    Kind,
    Procedure,
    Service,
    error_codes,
    flatten_errors,
    service_table,
)
from . import JsonSchema, Schema

__all__ = [
    "PROTOCOL_ERRORS",
    "ServedProcedure",
    "ServedSchema",
    "ServedService",
    "read_schema",
    "serialize",
]

Json = dict[str, Any]


def _object(**properties: Any) -> Json:
    return {"properties": properties, "required": list(properties), "type": "object"}


_TEXT = {"type": "string"}
_INVALID_REQUEST = ErrorSchema(INVALID_REQUEST).json
_INVALID_REQUEST["properties"]["extras"] = _object(
    firstValidationErrors={"items": _object(path=_TEXT, message=_TEXT), "type": "array"},
    totalErrors={"type": "number"},
)

PROTOCOL_ERRORS: tuple[Json, ...] = (
    ErrorSchema(UNCAUGHT_ERROR).json,
    ErrorSchema(UNEXPECTED_DISCONNECT).json,
    _INVALID_REQUEST,
    ErrorSchema(CANCEL).json,
)


def serialize(
    services: Iterable[Service], handshake: JsonSchema | None = None, *, v1: bool = False
) -> Json:
    """Return the schema of services in River's format, as plain JSON data of its own.

    Args:
        services: the services of the server.
        handshake: the schema of the metadata that clients send in their handshake, if any.
        v1: write the format that clients of protocol v1 read.

    Raises:
        ValueError: two services have the same name, or ``handshake`` is not a valid schema.
    """
    schema: Json = {} if handshake is None else {"handshakeSchema": Schema(handshake).json}
    return schema | {
        "services": {
            name: _service(service, v1) for name, service in service_table(services).items()
        }
    }


def _service(service: Service, v1: bool) -> Json:
    procedures = {name: _procedure(each, v1) for name, each in service.procedures.items()}
    return _described(service.description) | {"procedures": procedures}


def _procedure(procedure: Procedure, v1: bool) -> Json:
    init = "input" if v1 and procedure.request is None else "init"
    schema: Json = {
        init: procedure.init.json,
        "output": procedure.response.json,
        "errors": {"anyOf": deepcopy([*procedure.errors, *PROTOCOL_ERRORS])},
        "type": str(procedure.kind),
    }
    if procedure.request is not None:
        schema["input"] = procedure.request.json
    return schema | _described(procedure.description)


def _described(description: str | None) -> Json:
    return {} if description is None else {"description": description}


@dataclass(frozen=True, slots=True)
class ServedProcedure:
    """A procedure as described in a server's schema; its own schemas are plain JSON data."""

    service: str
    name: str
    kind: Kind
    init: JsonSchema
    request: JsonSchema | None
    """``None`` for procedures that take no requests."""
    response: JsonSchema
    errors: tuple[Json, ...] = ()
    """The declared errors, without those of the protocol."""
    description: str | None = None


@dataclass(frozen=True, slots=True)
class ServedService:
    """A service as described in a server's schema."""

    name: str
    procedures: dict[str, ServedProcedure] = field(default_factory=dict)
    description: str | None = None


@dataclass(frozen=True, slots=True)
class ServedSchema:
    """A server's schema, read and checked."""

    services: dict[str, ServedService] = field(default_factory=dict)
    handshake: JsonSchema | None = None


def read_schema(source: str | bytes | Mapping[str, Any]) -> ServedSchema:
    """Read a server's schema from JSON text or data, in the current format or that of v1.

    A missing schema of a value accepts anything; unknown fields are ignored. The schemas of values
    are not checked, because they may use keywords that only the server supports. For the same
    reason errors without a code are left out instead of refused.

    Raises:
        ValueError: it is not in this format; the message names the place.
    """
    try:
        return _read(source if isinstance(source, Mapping) else json.loads(source))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"a served schema must be JSON: {error}") from error
    except RecursionError:
        raise ValueError("a served schema is nested too deeply") from None


def _read(data: Any) -> ServedSchema:
    services = _mapping(_mapping(data, "a served schema").get("services"), "services")
    handshake = data.get("handshakeSchema")
    return ServedSchema(
        services={name: _read_service(name, each) for name, each in services.items()},
        handshake=None if handshake is None else _read_json("handshakeSchema", handshake),
    )


def _read_service(name: str, data: Any) -> ServedService:
    data = _mapping(data, f"service {name}")
    procedures = _mapping(data.get("procedures"), f"procedures of service {name}")
    return ServedService(
        name=name,
        procedures={each: _read_procedure(name, each, procedures[each]) for each in procedures},
        description=_read_description(data),
    )


def _read_procedure(service: str, name: str, data: Any) -> ServedProcedure:
    place = f"{service}.{name}"
    data = _mapping(data, place)
    if data.get("type") not in list(Kind):
        raise ValueError(f"{place} must be of type {', '.join(Kind)}, not {data.get('type')!r}")
    kind = Kind(data["type"])
    init = data.get("init", {} if kind.takes_requests else data.get("input", {}))
    request = data.get("input", {}) if kind.takes_requests else None
    return ServedProcedure(
        service=service,
        name=name,
        kind=kind,
        init=_read_json(f"init of {place}", init),
        request=None if request is None else _read_json(f"input of {place}", request),
        response=_read_json(f"output of {place}", data.get("output", {})),
        errors=_read_errors(place, data.get("errors", False)),
        description=_read_description(data),
    )


def _read_errors(place: str, data: Any) -> tuple[Json, ...]:
    """Return the declared errors, without those of the protocol, which every procedure has.

    A schema without a code is not an error; TypeBox writes "no errors" as ``{"not": {}}``.
    """
    flat = flatten_errors(_read_json(f"errors of {place}", data))
    return tuple(dict(error) for error in flat if _is_declared(error))


def _is_declared(error: Any) -> bool:
    try:
        return not RESERVED_CODES.issuperset(error_codes(error))
    except ValueError:
        return False


def _read_json(place: str, data: Any) -> Any:
    """Return a copy of a schema in JSON data."""
    if not isinstance(data, Mapping | bool):
        raise ValueError(f"{place} must be a schema, but is {data!r}")
    try:
        return json.loads(json.dumps(data))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place} must be JSON: {error}") from error


def _read_description(data: Mapping[str, Any]) -> str | None:
    description = data.get("description")
    return description if isinstance(description, str) else None


def _mapping(data: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ValueError(f"{place} must be an object, but is {data!r}")
    return data
