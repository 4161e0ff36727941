"""Keep the rows that match: parse filters, check them against a schema, apply them to batches.

A filter is ``[column, op, value]``; rows must match all of them. The operators are ``=``, ``!=``,
``<``, ``<=``, ``>``, ``>=``, ``in``, ``starts_with``, ``is_null`` and ``not_null``. They mean what
Spark means, so that a row is never lost by pushing a filter down: a null matches only ``is_null``,
NaN equals NaN and is above every number.

Values travel as JSON: what it has no word for as text (``wire_value``), which the column's type
tells how to read.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from ...rpc import RiverError
from ...runtime.lazy_imports import pa, pc
from ..protocol import Code, refusal

__all__ = [
    "OPERATORS",
    "UNARY",
    "Filter",
    "Matcher",
    "is_binary",
    "matcher",
    "parse_filters",
    "wire_value",
]

ORDERED = ("<", "<=", ">", ">=")
UNARY = ("is_null", "not_null")
OPERATORS = ("=", "!=", *ORDERED, "in", "starts_with", *UNARY)

# Filters of one read, and values of one ``in``: far above what a planner makes.
MAX_FILTERS = 1000
MAX_VALUES = 10_000

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Filter(NamedTuple):
    """One filter, checked as far as that goes without a schema."""

    column: str
    op: str
    value: Any = None

    def __str__(self) -> str:
        shown = "" if self.op in UNARY else f" {self.value!r}"[:80]
        return f"{self.column} {self.op}{shown}"


def wire_value(value: Any) -> Any:
    """Return a Python value as a filter carries it; a list's items one by one.

    Raises:
        TypeError: it has no form.
    """
    if isinstance(value, list | tuple | set | frozenset):
        return [wire_value(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    raise TypeError(f"a filter cannot carry a {type(value).__name__}")


def parse_filters(values: object) -> list[Filter]:
    """Return filters as they came in a call or header; ``None`` is none.

    Raises:
        RiverError: BAD_FILTER.
    """
    if values is None:
        return []
    if not isinstance(values, list) or len(values) > MAX_FILTERS:
        raise _bad(f"filters are a list of at most {MAX_FILTERS}")
    return [_parsed(value) for value in values]


def _parsed(value: object) -> Filter:
    shown = repr(value)[:100]
    if not isinstance(value, list | tuple) or not 2 <= len(value) <= 3:
        raise _bad(f"a filter is [column, op, value], not {shown}")
    column, op, operand = (*value, None)[:3]
    if not isinstance(column, str):
        raise _bad(f"a filter names a column, not {column!r:.80}")
    if op not in OPERATORS:
        raise _bad(f"{op!r:.80} is not an operator; use one of: {' '.join(OPERATORS)}")
    if op == "in":
        if not isinstance(operand, list) or len(operand) > MAX_VALUES:
            raise _bad(f"{column} in: the value must be a list of at most {MAX_VALUES}")
    elif op in UNARY:
        operand = None
    elif operand is None or isinstance(operand, list | dict):
        raise _bad(f"{column} {op}: the value must be one value; for nulls there is is_null")
    return Filter(column, op, operand)


class Matcher:
    """Apply bound filters; made by ``matcher``."""

    def __init__(self, tests: Sequence[tuple[str, Callable[[Any], Any]]]) -> None:
        self._tests = tests
        self.columns = list(dict.fromkeys(column for column, _ in tests))
        """What must be read to decide, in the order of the filters."""

    def __bool__(self) -> bool:
        return bool(self._tests)

    def mask(self, batch: Any) -> Any:
        """Return of each row whether it matches, null where that is not known; ``None`` for all."""
        mask = None
        for column, test in self._tests:
            one = test(batch.column(column))
            mask = one if mask is None else pc.and_(mask, one)
        return mask

    def apply(self, batch: Any) -> Any:
        """Return the rows of a record batch that match."""
        mask = self.mask(batch)
        return batch if mask is None else batch.filter(mask)  # what is null does not match


def matcher(filters: Sequence[Filter], schema: Any) -> Matcher:
    """Bind filters to the columns of an Arrow schema.

    Raises:
        RiverError: NO_COLUMN, or BAD_FILTER for a value or operator that its type does not know.
    """
    tests = []
    for each in filters:
        place = schema.get_field_index(each.column)
        if place < 0:
            known = ", ".join(schema.names)
            text = f"there is no column {each.column!r:.140}; there are {known:.1000}"
            raise refusal(Code.NO_COLUMN, text)
        tests.append((each.column, _checked_test(each, schema.field(place).type)))
    return Matcher(tests)


def _checked_test(one: Filter, kind: Any) -> Callable[[Any], Any]:
    """Return what makes a mask of a column, tried on an empty one."""
    wide = _comparable(kind)
    test = _test(one, wide)
    try:
        test(pa.array([], wide))
    except pa.ArrowException as error:
        raise _bad(f"{one}: the column is {kind}: {error}") from error
    return test if wide == kind else lambda column: test(column.cast(wide))


def _comparable(kind: Any) -> Any:
    """Return the type to compare as: Arrow does not compare half floats."""
    return pa.float32() if pa.types.is_float16(kind) else kind


def _test(one: Filter, kind: Any) -> Callable[[Any], Any]:
    """Return what makes a mask of a column."""
    if one.op == "is_null":
        return lambda column: pc.is_null(column)
    if one.op == "not_null":
        return lambda column: pc.is_valid(column)
    types = pa.types
    if one.op == "starts_with":
        if not _is_text(kind) or not isinstance(one.value, str):
            raise _bad(f"{one}: only text starts with text, and the column is {kind}")
        return lambda column: pc.starts_with(column, one.value)
    if one.op in ORDERED and types.is_boolean(kind):
        raise _bad(f"{one}: booleans have no order")
    if one.op == "in":
        return _among(one, kind)
    scalar = _scalar(one, kind, one.value)
    return lambda column: _compare(one.op, column, scalar)


def _among(one: Filter, kind: Any) -> Callable[[Any], Any]:
    """Return what makes the mask of ``in``; what its type cannot hold, no row of it equals."""
    scalars = [_scalar(one, kind, value) for value in one.value if value is not None]
    numbers = [fitting for each in scalars if (fitting := _fitting(each, kind)) is not None]
    plain = [each for each in numbers if not _is_nan(each)]
    if pa.types.is_floating(kind) and any(each.as_py() == 0 for each in plain):
        plain += [pa.scalar(0.0, kind), pa.scalar(-0.0, kind)]  # equal, but looked up apart
    values = pa.array(plain, kind)
    if not any(_is_nan(each) for each in numbers):
        return lambda column: pc.is_in(column, values)
    return lambda column: pc.or_(pc.is_in(column, values), pc.fill_null(pc.is_nan(column), False))


def _fitting(scalar: Any, kind: Any) -> Any:
    """Return a scalar as one of the column's own type, ``None`` if none is equal to it."""
    if scalar.type == kind or _is_nan(scalar):
        return scalar
    try:
        cast = scalar.cast(kind)
    except pa.ArrowException:
        return None
    return cast if cast.as_py() == scalar.as_py() else None


_ARROW = {
    "=": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}


def _compare(op: str, column: Any, scalar: Any) -> Any:
    """Compare as Spark does: NaN equals itself and is above everything else."""
    if not pa.types.is_floating(column.type):
        return getattr(pc, _ARROW[op])(column, scalar)
    nan = pc.is_nan(column)  # null where the column is
    if _is_nan(scalar):
        every = pc.or_(nan, pc.invert(nan))
        none = pc.invert(every)
        table = {"=": nan, "!=": pc.invert(nan), "<": pc.invert(nan), ">": none, ">=": nan}
        return table.get(op, every)
    found = getattr(pc, _ARROW[op])(column, scalar)
    return pc.or_(found, nan) if op in (">", ">=") else found


def _is_nan(scalar: Any) -> bool:
    value = scalar.as_py()
    return isinstance(value, float) and math.isnan(value)


def _is_text(kind: Any) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind))


# Values


def _scalar(one: Filter, kind: Any, value: Any) -> Any:
    """Return a value as an Arrow scalar that compares exactly with a column of a type."""
    try:
        read = _reader(kind)
        if read is None:
            raise _bad(f"{one}: a column of type {kind} can only be tested for nulls")
        return read(value, kind)
    except RiverError:
        raise
    except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException) as error:
        raise _bad(f"{one}: the column is {kind}, and {value!r:.80} is not: {error}") from error


def _reader(kind: Any) -> Callable[[Any, Any], Any] | None:
    types = pa.types
    table: tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], Any]], ...] = (
        (types.is_boolean, _truth),
        (types.is_integer, _integer),
        (types.is_floating, _floating),
        (types.is_decimal, _decimal),
        (_is_text, _text),
        (types.is_date, _date),
        (types.is_timestamp, _timestamp),
        (is_binary, _binary),
    )
    return next((read for is_kind, read in table if is_kind(kind)), None)


def is_binary(kind: Any) -> bool:
    """Return whether a type is one of bytes."""
    types = pa.types
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )


def _truth(value: Any, kind: Any) -> Any:
    return pa.scalar(_of(value, bool), kind)


def _integer(value: Any, kind: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    number = _of(value, int)
    try:
        return pa.scalar(number, kind)
    except (pa.ArrowInvalid, OverflowError):  # beyond the column, but comparable with it
        if pa.types.is_uint64(kind):
            raise
        return pa.scalar(number, pa.int64())


def _floating(value: Any, kind: Any) -> Any:
    number = _SPECIAL.get(value) if isinstance(value, str) else None
    if number is None:
        number = float(_of(value, int, float))
        if not isinstance(value, float) and int(number) != value:
            raise ValueError("no number of the column's kind is exactly that")
    if pa.types.is_float64(kind) or not math.isfinite(number):
        return pa.scalar(number, kind)
    narrow = pa.scalar(number, pa.float32())
    exact = narrow.as_py() == number
    return narrow if exact and pa.types.is_float32(kind) else pa.scalar(number, pa.float64())


def _decimal(value: Any, kind: Any) -> Any:
    number = Decimal(_of(value, int, str))
    if not number.is_finite():
        raise ValueError("a decimal is finite")
    return pa.scalar(number)


def _text(value: Any, kind: Any) -> Any:
    return pa.scalar(_of(value, str), kind)


def _date(value: Any, kind: Any) -> Any:
    return pa.scalar(date.fromisoformat(_of(value, str)), kind)


def _timestamp(value: Any, kind: Any) -> Any:
    moment = datetime.fromisoformat(_of(value, str))
    if (moment.tzinfo is None) != (kind.tz is None):
        raise ValueError("both must have a time zone, or neither")
    naive = moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    micros = (naive - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    return pa.scalar(micros, pa.timestamp("us", kind.tz))


def _binary(value: Any, kind: Any) -> Any:
    try:
        data = base64.b64decode(_of(value, str), validate=True)
    except binascii.Error as error:
        raise ValueError(f"bytes travel in base64: {error}") from error
    return pa.scalar(data, kind)


def _of(value: Any, *kinds: type) -> Any:
    if isinstance(value, bool) and bool not in kinds or not isinstance(value, kinds):
        raise TypeError(f"a {type(value).__name__} does not do")
    return value


def _bad(text: str) -> RiverError:
    return refusal(Code.BAD_FILTER, text)
