"""Check values with ``jsonschema``, in bounded time even if a hostile peer sent them.

The library implements the keywords; ordinary values of simple schemas are accepted without it, see
``quick_check``. This module adds River's types, and these bounds:

- Applying a schema to a value costs steps, and a check has ``MAX_STEPS``.
- Whether an array or object matches a referenced schema is remembered for the rest of the check.
  Alternatives that refer to themselves would otherwise take 2**depth steps.
- The library collects all errors of all alternatives; here each alternative stops at its first.
- The library formats the value into its messages, which are not used. So it gets a copy whose large
  parts have a short ``repr``.
- A value so deep that Python's stack overflows is refused. At that depth nothing may use the maps
  of the library's registry or type checker: they are written in Rust, and panic.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, TypeChecker, ValidationError
from jsonschema.validators import create
from referencing import Registry

from ..wire.values import MAX_DIGITS
from .dialect import TOO_DEEP, TOO_LONG, Target, message, pointer, python_pattern, standard
from .quick_check import QuickCheck, quick_check

__all__ = ["FIRST_ERRORS", "MAX_ERRORS", "MAX_STEPS", "Checker"]

# Errors listed in an answer (``firstValidationErrors``), as many as the TypeScript server lists.
FIRST_ERRORS = 5

# TypeBox stops at as many; the rest of a million wrong items would tell the sender nothing new.
MAX_ERRORS = 8

# Up to three seconds. Enough for an array of a million numbers, or of 200,000 small objects.
MAX_STEPS = 1_000_000

# Characters of the longest string that keeps its own repr.
MAX_SHOWN = 64

# Python writes no number with more digits, so it could not be sent: it matches no type.
_BEYOND = 10**MAX_DIGITS

Errors = Iterator[ValidationError]
Keyword = Callable[[Any, Any, Any, Any], Errors]


class _TooLongError(Exception):
    """Report a check that has used up its steps."""


@dataclass(slots=True)
class _Run:
    """The state of one check.

    ``known`` remembers whether an array or object matches a referenced schema, both by ``id()``.
    """

    steps: int
    known: dict[tuple[int, int], bool] = field(default_factory=dict)

    def spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise _TooLongError


# The library calls the functions of keywords without any argument that could carry this.
_run: ContextVar[_Run] = ContextVar("_run")


class Checker:
    """A schema compiled for the library; safe to use from any number of threads.

    Args:
        json_schema: what ``Schema`` takes, as plain JSON data.

    Raises:
        ValueError: it is not a valid schema, or refers to a schema outside itself.
    """

    def __init__(self, json_schema: Any) -> None:
        schema = standard(json_schema)
        self._quick_check = quick_check(schema)
        self._validator = _Validator(schema, registry=Registry())

    def check(self, value: Any) -> dict[str, Any] | None:
        """Return ``None`` for a valid value, and River's ``extras`` for an invalid one."""
        if not self._validator.schema:
            return None
        if self._quick_check is not None and self._accepts(self._quick_check, value):
            return None
        found: list[dict[str, str]] = []
        failure = ""
        token = _run.set(_Run(MAX_STEPS))
        try:
            for error in islice(self._validator.iter_errors(_shy(value)), MAX_ERRORS):
                text = message(error.schema_path, error.validator, error.validator_value)
                found.append({"path": pointer(error.path), "message": text})
        except RecursionError:
            failure = TOO_DEEP
        except _TooLongError:
            failure = TOO_LONG
        finally:
            _run.reset(token)
        if failure and not found:
            found.append({"path": "", "message": failure})
        if not found:
            return None
        return {"totalErrors": len(found), "firstValidationErrors": found[:FIRST_ERRORS]}

    @staticmethod
    def _accepts(quick: QuickCheck, value: Any) -> bool:
        try:
            return quick(value)
        except RecursionError:  # the full check meets it too, and reports it
            return False


# -- values --------------------------------------------------------------------------------------


class _Shy:
    """A value with a short ``repr``; one that is not of a subclass matches no type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "it"


class _Text(_Shy, str):
    __slots__ = ()


class _Array(_Shy, list[Any]):
    __slots__ = ()


class _Object(_Shy, dict[str, Any]):
    __slots__ = ()


class _Bytes(_Shy):
    __slots__ = ("data",)

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = data


_AS_IS = frozenset({bool, float, datetime, type(None)})


def _shy(value: Any) -> Any:
    """Return a copy of a value whose large parts have a short ``repr``."""
    if type(value) in _AS_IS:
        return value
    if isinstance(value, str):
        return value if len(value) <= MAX_SHOWN else _Text(str.__str__(value))
    if isinstance(value, int):
        return value if -_BEYOND < value < _BEYOND else _Shy()
    if isinstance(value, dict):
        copy = _Object()
        for name, item in value.items():
            if not isinstance(name, str):
                return _Shy()
            copy[name] = item if type(item) in _AS_IS else _shy(item)
        return copy
    if isinstance(value, list | tuple):
        return _Array([item if type(item) in _AS_IS else _shy(item) for item in value])
    if isinstance(value, bytes | bytearray | memoryview):
        return _Bytes(value)
    return value if isinstance(value, float | datetime) else _Shy()


# -- types ---------------------------------------------------------------------------------------


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _is_bigint(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Return whether a value is a number in JSON, which ``True`` and ``NaN`` are not."""
    return math.isfinite(value) if isinstance(value, float) else _is_bigint(value)


def _is_integer(value: Any) -> bool:
    return _is_number(value) and value == int(value)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "object": _is(dict),
    "array": _is(list),
    "string": _is(str),
    "number": _is_number,
    "integer": _is_integer,
    "boolean": _is(bool),
    "null": _is(type(None)),
    "undefined": _is(type(None)),
    "void": _is(type(None)),
    "bigint": _is_bigint,
    "Uint8Array": _is(_Bytes),
    "Date": _is(datetime),
}


class _Kinds(TypeChecker):  # type: ignore[misc]
    """Look types up in a ``dict``."""

    def is_type(self, instance: Any, type: str) -> bool:
        return _KINDS[type](instance)


# -- keywords with schemas -----------------------------------------------------------------------

_library: dict[str, Keyword] = dict(Draft202012Validator.VALIDATORS)


def _applied(schema: dict[str, Any]) -> Any:
    """Return the keywords of a schema, and count the step that applies it."""
    run = _run.get(None)  # None while a schema is compiled
    if run is not None:
        run.spend()
    return schema.items()


def _errors(
    validator: Any, schema: Any, value: Any, name: str | int | None = None
) -> Iterable[ValidationError]:
    """Return the errors of a value; ``name`` is its key or index in the value around it.

    Most inner schemas are empty or only name a type. These are checked here, ten times as fast as
    by the library.
    """
    if not schema:
        return ()
    if len(schema) > 1 or not isinstance(kind := schema.get("type"), str):
        errors: Errors = validator.descend(value, schema, path=name)
        return errors
    _run.get().spend()
    if _KINDS[kind](value):
        return ()
    path = () if name is None else (name,)
    return (ValidationError("", validator="type", validator_value=kind, path=path),)


def _ref(validator: Any, target: Target, value: Any, schema: Any) -> Errors:
    errors = validator.descend(value, target.schema)
    if not isinstance(value, dict | list):
        yield from errors
        return
    known = _run.get().known
    key = id(value), id(target.schema)
    fits = known.get(key)
    if fits is None:
        for error in errors:
            known[key] = False
            yield error
        known.setdefault(key, True)
    elif not fits:
        yield ValidationError("")


def _any_of(validator: Any, branches: Any, value: Any, schema: Any) -> Errors:
    firsts = []
    for branch in branches:
        error = next(iter(_errors(validator, branch, value)), None)
        if error is None:
            return
        firsts.append(error)
    yield from firsts
    yield ValidationError("")


def _one_of(validator: Any, branches: Any, value: Any, schema: Any) -> Errors:
    firsts = [next(iter(_errors(validator, branch, value)), None) for branch in branches]
    wrong = [error for error in firsts if error is not None]
    if len(wrong) == len(firsts):
        yield from wrong
    if len(wrong) != len(firsts) - 1:
        yield ValidationError("")


def _contains(validator: Any, wanted: Any, value: Any, schema: Any) -> Errors:
    if isinstance(value, list):
        _run.get().spend(len(value))
        yield from _library["contains"](validator, wanted, value, schema)


def _properties(validator: Any, properties: Any, value: Any, schema: Any) -> Errors:
    if isinstance(value, dict):
        for name, inner in properties.items():
            if name in value:
                yield from _errors(validator, inner, value[name], name)


def _additional_properties(validator: Any, others: Any, value: Any, schema: Any) -> Errors:
    if not isinstance(value, dict):
        return
    named, patterns = schema.get("properties", ()), schema.get("patternProperties", ())
    for name, item in value.items():
        if name not in named and not any(re.search(pattern, name) for pattern in patterns):
            yield from _errors(validator, others, item, name)


def _items(validator: Any, items: Any, value: Any, schema: Any) -> Errors:
    if isinstance(value, list):
        for index in range(len(schema.get("prefixItems", ())), len(value)):
            yield from _errors(validator, items, value[index], index)


# -- keywords without schemas --------------------------------------------------------------------


def _required(validator: Any, names: Any, value: Any, schema: Any) -> Errors:
    if isinstance(value, dict):
        missing = [name for name in names if name not in value]
        for name in missing:
            yield ValidationError("", path=[name], validator_value=missing)


def _enum(validator: Any, values: Any, value: Any, schema: Any) -> Errors:
    """Look a string up in the list; the library compares it with each of what may be hundreds."""
    if not isinstance(value, str):
        yield from _library["enum"](validator, values, value, schema)
    elif value not in values:
        yield ValidationError("")


def _pattern(validator: Any, pattern: Any, value: Any, schema: Any) -> Errors:
    """Search a string unless it is too long for ``maxLength``, see ``Schema``."""
    searched = isinstance(value, str) and len(value) <= schema.get("maxLength", math.inf)
    if searched and python_pattern(pattern).search(value) is None:
        yield ValidationError("")


def _multiple_of(validator: Any, step: Any, value: Any, schema: Any) -> Errors:
    """Divide the decimals as written; in the library, 0.3 is not a multiple of 0.1."""
    if _is_number(value) and _exact(value) % _exact(step):
        yield ValidationError("")


def _exact(number: int | float) -> Fraction:
    return Fraction(repr(number) if isinstance(number, float) else number)


def _unique_items(validator: Any, wanted: Any, value: Any, schema: Any) -> Errors:
    """Compare items by a set of texts; the library compares all pairs of those it cannot sort."""
    if wanted and isinstance(value, list):
        texts = {json.dumps(_plain(item), sort_keys=True) for item in value}
        if len(texts) < len(value):
            yield ValidationError("")


def _plain(value: Any) -> Any:
    """Return JSON data that is equal only for equal values."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, str):
        return f"text {value}"
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, int | float):
        return value
    return bytes(value.data).hex() if isinstance(value, _Bytes) else f"other {value}"


def _bound(
    kind: type, measure: Callable[[Any], float], holds: Callable[[Any, Any], bool]
) -> Keyword:
    def keyword(validator: Any, limit: Any, value: Any, schema: Any) -> Errors:
        if isinstance(value, kind) and not holds(measure(value), limit):
            yield ValidationError("")

    return keyword


def _size(value: _Bytes) -> int:
    return value.data.nbytes if isinstance(value.data, memoryview) else len(value.data)


def _milliseconds(value: datetime) -> float:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return aware.timestamp() * 1000


_OURS: dict[str, Keyword] = {
    "$ref": _ref,
    "additionalProperties": _additional_properties,
    "anyOf": _any_of,
    "contains": _contains,
    "enum": _enum,
    "items": _items,
    "maxByteLength": _bound(_Bytes, _size, operator.le),
    "maximumTimestamp": _bound(datetime, _milliseconds, operator.le),
    "minByteLength": _bound(_Bytes, _size, operator.ge),
    "minimumTimestamp": _bound(datetime, _milliseconds, operator.ge),
    "multipleOf": _multiple_of,
    "oneOf": _one_of,
    "pattern": _pattern,
    "properties": _properties,
    "required": _required,
    "uniqueItems": _unique_items,
}

_Validator: Any = create(
    meta_schema=Draft202012Validator.META_SCHEMA,
    validators=_library | _OURS,
    type_checker=_Kinds(),
    applicable_validators=_applied,
)
