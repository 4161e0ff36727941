"""Bring the values of rows into what a River codec carries.

Dates, times of day and datetimes without a zone go as ISO 8601 text, decimals as their digits, a
``Row`` as an object, a tuple as a list. A datetime with a zone stays one in msgpack, which has a
form for it, and is ISO 8601 text in JSON. Anything else goes as it is, for the codec to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

__all__ = ["plain", "plain_all", "plainer"]

_AS_IS = frozenset({str, int, float, bool, bytes, type(None)})


def plainer(codec: str) -> Callable[[Any], Any]:
    """Return what makes values plain for a codec."""
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
    """Return values made plain; most lists hold nothing that has to be changed."""
    return values if _AS_IS.issuperset(map(type, values)) else list(map(make_plain, values))


def _plain_json(value: Any) -> Any:
    """Return a value that JSON carries."""
    return value if type(value) in _AS_IS else _other(value, _plain_json)


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
        case date() | time():  # a datetime is a date
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal() | UUID():
            return str(value)
        case str() | int() | float() | bytes() | bytearray() | memoryview():
            return value
    if hasattr(value, "item") and hasattr(value, "dtype"):  # a number of numpy's
        return inner(value.item())
    return value
