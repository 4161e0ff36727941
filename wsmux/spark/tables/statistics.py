"""Make the statistics of files that Delta keeps, and leave out files by them.

Bounds are never too narrow: text is cut with the upper bound moved up, times are rounded outwards
to milliseconds, and a column of floating point with a NaN in it has none, since NaN is above every
number in Spark and is left out of the bounds that Parquet has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from ...rpc import RiverError
from ...runtime.lazy_imports import pa, pc
from ..store.filters import UNARY, Filter, matcher

__all__ = ["Statistics", "may_match", "must_match"]

# Columns, counting fields of structs, that Delta's own writers make statistics of.
MAX_COLUMNS = 32
# Characters of a text.
MAX_TEXT = 32

# No character is above it.
TOP = "\U0010ffff"

# Values of an ``in`` that are looked for one by one.
MAX_VALUES = 100

MILLISECOND = timedelta(milliseconds=1)

# How much other writers may be off, as a part of a decimal that went through floating point, with
# some rounding on the way.
DECIMAL_ERROR = Decimal(2) ** -50

_EXACT = Context(prec=200)


class Statistics:
    """Gather what is known of one file."""

    def __init__(self) -> None:
        self._with_nan: set[str] = set()

    def see(self, batch: Any) -> None:
        """Note which columns have a NaN."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                self._with_nan.add(name)

    def text(self, metadata: Any) -> str:
        """Return the statistics of a file as JSON, by its Parquet metadata."""
        lows: dict[str, Any] = {}
        highs: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        for place in range(metadata.num_columns):
            column = metadata.schema.column(place)
            if len(nulls) == MAX_COLUMNS:
                break
            if column.max_repetition_level or column.path != column.name:
                continue  # lists, maps and structs have no bounds of their own
            groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
            found = [group.column(place).statistics for group in groups]
            if any(each is None for each in found):
                continue
            if all(each.has_null_count for each in found):
                nulls[column.name] = sum(each.null_count for each in found)
            bounds = _bounds(found) if column.name not in self._with_nan else None
            if bounds is not None:
                lows[column.name], highs[column.name] = bounds
        told = {
            "numRecords": metadata.num_rows,
            "minValues": lows,
            "maxValues": highs,
            "nullCount": nulls,
        }
        return json.dumps(told, separators=(",", ":"))


def _bounds(found: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of row groups as JSON has them."""
    try:
        pairs = [(each.min, each.max) for each in found if each.has_min_max]
        with_values = sum(each.num_values > 0 for each in found)
        if not pairs or len(pairs) < with_values:
            return None
        low, high = min(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
        bounds = _told(low, up=False), _told(high, up=True)
    except (ValueError, OverflowError, TypeError):  # such as years that Python has not
        return None
    return None if None in bounds else bounds


def _told(value: Any, up: bool) -> Any:
    if isinstance(value, bool | bytes):
        return None  # Delta's writers keep none of these
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        number = float(value)
        return number if Decimal(repr(number)) == value else None  # as JSON will have it
    if isinstance(value, str):
        cut, rest = value[:MAX_TEXT], value[MAX_TEXT:]
        if not up or not rest:
            return cut
        return None if rest.startswith(TOP) else cut + TOP
    if isinstance(value, datetime):
        whole = value.replace(microsecond=value.microsecond // 1000 * 1000)
        whole += MILLISECOND * (up and whole != value)
        zone = "Z" if value.tzinfo is not None else ""
        return whole.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
    return value.isoformat() if isinstance(value, date) else None


# Leaving out


def may_match(filters: Sequence[Filter], schema: Any, told: Iterable[str | None]) -> Sequence[bool]:
    """Return of each file's statistics whether a row of it may match all filters.

    The filters are ones that ``matcher`` takes for the schema.
    """
    parsed = [_parsed(text) for text in told]
    keep = [True] * len(parsed)
    for one in filters:
        for place, may in enumerate(_may(one, schema, parsed)):
            keep[place] = keep[place] and may
    return keep


def must_match(one: Filter, schema: Any, told: Sequence[str | None]) -> Sequence[bool]:
    """Return of each file's statistics whether all its rows match a filter, for certain.

    The filter is one that ``matcher`` takes for the schema.
    """
    parsed = [_parsed(text) for text in told]
    if one.op in _FAILING:
        failing = [Filter(one.column, op, one.value) for op in _FAILING[one.op]]
        if one.op not in UNARY:
            failing.append(Filter(one.column, "is_null"))  # a null matches nothing
        fails = [_may(each, schema, parsed) for each in failing]
        return [not any(some) for some in zip(*fails, strict=True)]
    every = [False] * len(parsed)
    if one.op == "in" and len(one.value) <= MAX_VALUES:
        for value in (each for each in one.value if each is not None):
            equal = must_match(Filter(one.column, "=", value), schema, told)
            every = [had or has for had, has in zip(every, equal, strict=True)]
    return every


# What some row of a file matches, if not all match an operator.
_FAILING = {
    "=": ("<", ">"),
    "!=": ("=",),
    "<": (">=",),
    "<=": (">",),
    ">": ("<=",),
    ">=": ("<",),
    "is_null": ("not_null",),
    "not_null": ("is_null",),
}


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_float=Decimal) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _may(one: Filter, schema: Any, parsed: Sequence[dict[str, Any]]) -> Sequence[bool]:
    every = [True] * len(parsed)
    if one.op in ("is_null", "not_null"):
        return [_may_null(one, stats) for stats in parsed]
    kind = schema.field(one.column).type
    lows = _values("minValues", one.column, kind, parsed)
    highs = _values("maxValues", one.column, kind, parsed)
    if lows is None or highs is None:
        return every
    if one.op == "in":
        values = [each for each in one.value if each is not None]
        if len(values) > MAX_VALUES:
            return every
        some = [False] * len(parsed)
        for value in values:
            found = _may(Filter(one.column, "=", value), schema, parsed)
            some = [had or has for had, has in zip(some, found, strict=True)]
        return some
    floating = pa.types.is_floating(kind)
    if one.op in ("<", "<="):
        return _masked(one, lows)
    if one.op in (">", ">=") and not floating:  # a NaN may be there that bounds leave out
        return _masked(one, highs)
    if one.op == "=" and not (floating and not isinstance(one.value, int | float)):
        above = _masked(Filter(one.column, "<=", one.value), lows)
        below = _masked(Filter(one.column, ">=", one.value), highs)
        return [a and b for a, b in zip(above, below, strict=True)]
    return every


def _may_null(one: Filter, stats: dict[str, Any]) -> bool:
    nulls, rows = _of(stats, "nullCount", one.column), stats.get("numRecords")
    if not isinstance(nulls, int) or not isinstance(rows, int):
        return True
    return nulls > 0 if one.op == "is_null" else nulls < rows


def _values(which: str, column: str, kind: Any, parsed: Sequence[dict[str, Any]]) -> Any:
    """Return a bound of each file as an array of the column's type, ``None`` if none has it."""
    types = pa.types
    found = [_of(stats, which, column) for stats in parsed]
    if all(each is None for each in found):
        return None
    up = which == "maxValues"
    try:
        if types.is_timestamp(kind):
            values = pa.array(found, pa.string()).cast(kind)
            # Other writers cut off what is below a millisecond.
            more = pa.scalar(MILLISECOND, pa.duration(kind.unit))
            return pc.add_checked(values, more) if up else values
        if types.is_date(kind):
            return pa.array(found, pa.string()).cast(kind)
        if types.is_decimal(kind):
            return pa.array(
                [None if each is None else _decimal(each, kind, up) for each in found], kind
            )
        if types.is_floating(kind):
            return pa.array([None if each is None else float(each) for each in found], kind)
        return pa.array(found, kind)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError):
        return None


def _of(stats: dict[str, Any], which: str, column: str) -> Any:
    """Return what statistics tell of a column."""
    found = stats.get(which)
    return found.get(column) if isinstance(found, dict) else None


def _decimal(told: Any, kind: Any, up: bool) -> Decimal:
    """Return a bound of decimals such that no value is beyond it."""
    value, one = Decimal(told), Decimal(1).scaleb(-kind.scale)
    off = _EXACT.multiply(value.copy_abs(), DECIMAL_ERROR)
    # Rounded inwards, since the values have no more digits than the type.
    if up:
        bound = _EXACT.add(value, off).quantize(one, ROUND_FLOOR, _EXACT)
    else:
        bound = _EXACT.subtract(value, off).quantize(one, ROUND_CEILING, _EXACT)
    most = _EXACT.multiply(10**kind.precision - 1, one)
    return max(-most, min(most, bound))


def _masked(one: Filter, values: Any) -> Sequence[bool]:
    """Return of each value whether a filter takes it, true where there is none."""
    schema = pa.schema([pa.field(one.column, values.type)])
    try:
        test = matcher([one], schema)
    except RiverError:
        return [True] * len(values)
    mask = test.mask(pa.RecordBatch.from_arrays([values], schema=schema))
    found: list[bool] = mask.fill_null(True).to_pylist()
    return found
