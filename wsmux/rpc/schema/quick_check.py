"""Accept ordinary values of simple schemas quickly, without the ``jsonschema`` library.

Most messages are small objects of numbers and strings, and most of them are valid. The library
needs ten times as long to confirm that as everything else in ``Schema`` together. A quick check
never reports a value as invalid: it accepts the value, or leaves it to the library, which alone
finds errors.

A quick check covers objects with properties, arrays of anything but arrays, the plain types, listed
strings, and alternatives of these. A schema with any other keyword gets no quick check. Unusual
values go to the library too: instances of subclasses, integers beyond 64 bits, integers written as
floats, long arrays, and objects in properties that the schema does not describe.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

__all__ = ["QuickCheck", "quick_check"]

QuickCheck = Callable[[Any], bool]

# The longest array that is checked here. As arrays are not nested, a check does far less work than
# the library is allowed to do.
MAX_ITEMS = 1000

_LARGEST_INT = 2**63

_PLAIN = frozenset({str, int, float, bool, type(None)})


def _is_integer(value: Any) -> bool:
    return type(value) is int and -_LARGEST_INT <= value < _LARGEST_INT


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (type(value) is float and isfinite(value))


def _is_none(value: Any) -> bool:
    return value is None


def _is_plain(value: Any) -> bool:
    """Return whether a value contains no others, so that a schema without keywords accepts it."""
    return type(value) in _PLAIN


_KINDS: dict[str, QuickCheck] = {
    "string": lambda value: type(value) is str,
    "number": _is_number,
    "integer": _is_integer,
    "boolean": lambda value: type(value) is bool,
    "null": _is_none,
    "undefined": _is_none,
    "void": _is_none,
    "Uint8Array": lambda value: type(value) is bytes,
}


def quick_check(schema: dict[str, Any]) -> QuickCheck | None:
    """Return a quick check for a schema in standard form, or ``None`` if it is not simple."""
    return _made(schema, arrays=True)


def _made(schema: dict[str, Any], *, arrays: bool) -> QuickCheck | None:
    keywords, kind = schema.keys() - {"$defs"}, schema.get("type")
    if not keywords:
        return _is_plain
    if keywords == {"anyOf"}:
        return _any_of(schema["anyOf"], arrays)
    if keywords <= {"const", "type"} and "const" in keywords:
        return _listed([schema["const"]], kind)
    if keywords <= {"enum", "type"} and "enum" in keywords:
        return _listed(schema["enum"], kind)
    if kind == "object" and keywords <= {"type", "properties", "required", "additionalProperties"}:
        return _object(schema, arrays)
    if kind == "array" and keywords <= {"type", "items"} and arrays:
        return _array(_made(schema.get("items", {}), arrays=False))
    return _KINDS.get(kind) if keywords == {"type"} and isinstance(kind, str) else None


def _any_of(branches: list[dict[str, Any]], arrays: bool) -> QuickCheck | None:
    made = [_made(branch, arrays=arrays) for branch in branches]
    accepts = [each for each in made if each is not None]
    if len(accepts) < len(made):
        return None
    return lambda value: any(each(value) for each in accepts)


def _listed(values: list[Any], kind: Any) -> QuickCheck | None:
    if kind not in (None, "string") or not all(type(value) is str for value in values):
        return None
    texts = frozenset(values)
    return lambda value: type(value) is str and value in texts


def _object(schema: dict[str, Any], arrays: bool) -> QuickCheck | None:
    known: dict[str, QuickCheck] = {}
    for name, inner in schema.get("properties", {}).items():
        made = _made(inner, arrays=arrays)
        if made is None:
            return None
        known[name] = made
    required = tuple(schema.get("required", ()))
    open_ended = not schema.get("additionalProperties")

    def accepts(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for name in required:
            if name not in value:
                return False
        for name, item in value.items():
            check = known.get(name)
            if check is None:
                if not (open_ended and type(name) is str and type(item) in _PLAIN):
                    return False
            elif not check(item):
                return False
        return True

    return accepts


def _array(item: QuickCheck | None) -> QuickCheck | None:
    if item is None:
        return None
    return lambda value: type(value) is list and len(value) <= MAX_ITEMS and all(map(item, value))
