"""Convert the values of rows to what a River codec carries.

Dates, times of day and datetimes without a zone become ISO 8601 text, decimals their digits, a
``Row`` an object, a tuple a list. A datetime with a zone is kept for msgpack, which has a type for
it, and becomes ISO 8601 text in JSON. Other values are unchanged; the codec may refuse them.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

__all__ = ["json_ready", "plain", "plain_all", "plainer"]

_AS_IS = frozenset({str, int, float, bool, bytes, type(None)})


def plainer(codec: str) -> Callable[[Any], Any]:
    """Return the function that converts values for a codec."""
    return plain if codec == "msgpack" else _plain_json


def plain(value: Any) -> Any:
    """Return a value that msgpack carries."""
    kind = type(value)
    if kind in _AS_IS:
        return value
    if kind is datetime and value.utcoffset() is not None:
        return value
    return _other(value, plain)


def plain_all(values: list[Any], make_plain: Callable[[Any], Any]) -> list[Any]:
    """Return converted values; lists that need no conversion are returned as they are."""
    return values if _AS_IS.issuperset(map(type, values)) else list(map(make_plain, values))


def _plain_json(value: Any) -> Any:
    """Return a value that JSON carries."""
    return value if type(value) in _AS_IS else _other(value, _plain_json)


def json_ready(value: Any) -> Any:
    """Return a value that JSON itself has, as Spark's ``to_json`` writes it.

    Bytes become base64, NaN and infinities ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if type(value) in _AS_IS else _other(value, json_ready)


def _other(value: Any, inner: Callable[[Any], Any]) -> Any:
    match value:
        case Mapping():
            return {key: inner(each) for key, each in value.items()}
        case tuple() if hasattr(value, "__fields__"):  # pyspark's Row
            return {name: inner(each) for name, each in zip(value.__fields__, value, strict=True)}
        case tuple() if hasattr(value, "_fields"):
            return {name: inner(each) for name, each in zip(value._fields, value, strict=True)}
        case list() | tuple() | set() | frozenset():
            return [inner(each) for each in value]
        case date() | time():  # datetime included, as a subclass of date
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal() | UUID():
            return str(value)
        case str() | int() | float() | bytes() | bytearray() | memoryview():
            return value
    if hasattr(value, "item") and hasattr(value, "dtype"):  # a numpy scalar
        return inner(value.item())
    return value
