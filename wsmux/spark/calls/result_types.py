"""Derive the Spark type of a procedure's results from its annotation or its schema.

Types that Spark has no word for, or that leave it open what comes, are none: such results are text,
or JSON.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from ...rpc import Err
from ..ddl import Ddl

__all__ = ["annotated_type", "schema_type"]

OF_PYTHON = {
    bool: "boolean",
    int: "bigint",
    float: "double",
    str: "string",
    bytes: "binary",
    datetime: "timestamp",
}
OF_SCHEMA = {
    "boolean": "boolean",
    "integer": "bigint",
    "number": "double",
    "string": "string",
    "Uint8Array": "binary",
    "Date": "timestamp",
}

# What adds nothing to a type: every column of Spark's may be null, and an ``Err`` is no value.
NOTHING = (type(None), Err)


def annotated_type(function: Callable[..., Any], whole: bool = False) -> Ddl | None:
    """Return the type of the results that a function's annotation promises, if Spark has one.

    Args:
        function: the function.
        whole: it returns a list of results.
    """
    holder = types.SimpleNamespace(
        __annotations__={
            name: hint
            for name, hint in getattr(function, "__annotations__", {}).items()
            if name == "return"
        }
    )
    try:
        hint = get_type_hints(holder, getattr(function, "__globals__", {})).get("return")
    except Exception:  # a name that is there for checkers alone, or within another function
        return None
    if not whole:
        return _of_hint(hint)
    inner = get_args(hint)
    return _of_hint(inner[0]) if get_origin(hint) in (list, Sequence) and inner else None


def _of_hint(hint: Any) -> Ddl | None:
    if isinstance(hint, type) and hint in OF_PYTHON:
        return Ddl(OF_PYTHON[hint])
    if is_typeddict(hint):
        return _struct({name: _of_hint(each) for name, each in get_type_hints(hint).items()})
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _only([_of_hint(each) for each in inner if each not in NOTHING])
    if origin is Literal:
        return _only([_of_hint(type(each)) for each in inner if each is not None])
    if origin in (list, Sequence) and len(inner) == 1:
        return _nested("array", _of_hint(inner[0]))
    if origin in (dict, Mapping) and len(inner) == 2 and inner[0] is str:
        return _nested("map", Ddl("string"), _of_hint(inner[1]))
    return None


def schema_type(schema: Any) -> Ddl | None:
    """Return the type of the values that a JSON schema allows, if Spark has one."""
    if not isinstance(schema, Mapping):
        return None
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            options = [each for each in schema[name] if each != {"type": "null"}]
            return _only([schema_type(each) for each in options])
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        return schema_type({**schema, "type": kinds[0]}) if len(kinds) == 1 else None
    if kind == "array":
        return _nested("array", schema_type(schema.get("items")))
    if kind == "object" and schema.get("properties"):
        fields = schema["properties"].items()
        return _struct({name: schema_type(each) for name, each in fields})
    if kind == "object":
        return _nested("map", Ddl("string"), schema_type(schema.get("additionalProperties")))
    return Ddl(OF_SCHEMA[kind]) if kind in OF_SCHEMA else None


def _only(found: list[Ddl | None]) -> Ddl | None:
    """Return the one type that all of these are."""
    return found[0] if found and found.count(found[0]) == len(found) else None


def _nested(name: str, *inner: Ddl | None) -> Ddl | None:
    known = tuple(each for each in inner if each is not None)
    return Ddl(name, known) if len(known) == len(inner) else None


def _struct(fields: Mapping[str, Ddl | None]) -> Ddl | None:
    found = _nested("struct", *fields.values())
    return found and found._replace(fields=tuple(fields))
