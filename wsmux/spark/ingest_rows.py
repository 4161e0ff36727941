"""Turn rows of Python and Arrow data into record batches of a dataset's schema, or say what is odd.

Nothing is guessed: every column is to be there, and a value that does not fit is an error that
names it. Text stands for dates, times and decimals too, as in JSON.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from ..rpc import RiverError
from ..runtime.lazy_imports import pa, pc
from .protocol import Code
from .store.schemas import conform, first_line, inside

__all__ = ["WRONG_TYPE", "batches_of"]

WRONG_TYPE = "WRONG_TYPE"

# What pyarrow raises for values that do not fit.
_UNFIT = (TypeError, ValueError, OverflowError, ArithmeticError)  # ``ArrowInvalid`` is a ValueError


def batches_of(data: Any, schema: Any) -> Iterator[Any]:
    """Yield batches of a schema: of a row (a mapping), several, a record batch or a table.

    Raises:
        RiverError: NO_COLUMN or WRONG_TYPE; it is no such data, or does not fit the schema.
    """
    if isinstance(data, Mapping):
        data = [data]
    if isinstance(data, pa.Table):
        for batch in data.to_batches():
            yield _arrow_batch(batch, schema)
    elif isinstance(data, pa.RecordBatch):
        yield _arrow_batch(data, schema)
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray | memoryview):
        yield _row_batch(data, schema)
    else:
        text = f"rows must be a dict, a list of dicts, a RecordBatch or a Table, not {_told(data)}"
        raise RiverError(WRONG_TYPE, text)


def _told(value: object) -> str:
    return f"{type(value).__name__} {value!r:.80}"


def _check_names(names: Sequence[str], schema: Any, place: str) -> None:
    if sorted(names) == sorted(schema.names):
        return
    for name in schema.names:
        if name not in names:
            text = f"{place} has no column {name!r}, which is {schema.field(name).type}"
            raise RiverError(Code.NO_COLUMN, f"{text}; give None where there is no value")
    (odd, *_) = [name for name in names if names.count(name) > 1 or name not in schema.names]
    text = f"{place} has a column {odd!r:.140} that the dataset has not, or has it twice"
    raise RiverError(Code.NO_COLUMN, f"{text}; there are {', '.join(schema.names):.1000}")


# Rows


def _row_batch(rows: Sequence[Any], schema: Any) -> Any:
    names = schema.names
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RiverError(WRONG_TYPE, f"row {place} must be a dict, not {_told(row)}")
        if len(row) != len(names) or not all(name in row for name in names):
            _check_names([*row], schema, f"row {place}")
    columns = [_column([row[field.name] for row in rows], field) for field in schema]
    return _conformed(pa.RecordBatch.from_arrays(columns, names=names), schema)


def _column(values: list[Any], field: Any) -> Any:
    try:
        column = _array(values, field.type)
    except _UNFIT as error:
        for place, value in enumerate(values):
            try:
                _array([value], field.type)
            except _UNFIT as reason:
                text = f"row {place}: column {field.name!r} is {field.type}, and not"
                raise RiverError(WRONG_TYPE, f"{text} {_told(value)}") from reason
        raise RiverError(WRONG_TYPE, f"column {field.name!r}: {first_line(error)}") from error
    if column.null_count and not field.nullable:
        place = next(place for place, value in enumerate(column.is_valid()) if not value.as_py())
        text = f"row {place}: column {field.name!r} is {field.type} and never null, and not None"
        raise RiverError(WRONG_TYPE, text)
    return column


def _array(values: list[Any], kind: Any) -> Any:
    """Return values as an array.

    Raises:
        TypeError, ValueError, OverflowError, ArithmeticError: they do not fit.
    """
    types = pa.types
    odd = _odd_for(kind)
    if odd is not None:
        for value in values:
            if value is not None and odd(value):
                raise TypeError(f"{value!r:.80} is no {kind}")
    try:
        return pa.array(values, kind)
    except _UNFIT:
        if not (types.is_date(kind) or types.is_timestamp(kind) or types.is_decimal(kind)):
            raise
        texts = [
            value if value is None or isinstance(value, str) else str(value) for value in values
        ]
        return pa.array(texts, pa.string()).cast(kind)


@functools.cache
def _odd_for(kind: Any) -> Callable[[Any], bool] | None:
    """Return what tells values that pyarrow would take and change; ``None`` if it changes none."""
    types = pa.types
    if types.is_integer(kind):
        return lambda value: isinstance(value, float | Decimal)
    if types.is_date(kind):
        return lambda value: isinstance(value, int | datetime)
    if types.is_timestamp(kind):
        return lambda value: isinstance(value, int)
    if types.is_struct(kind):
        fields = {field.name: _odd_for(field.type) for field in inside(kind)}
        return lambda value: (
            isinstance(value, Mapping)
            and any(
                name not in fields or _is_odd(fields[name], each) for name, each in value.items()
            )
        )
    if types.is_map(kind):
        key, item = _odd_for(kind.key_type), _odd_for(kind.item_type)
        return lambda value: any(
            _is_odd(key, one) or _is_odd(item, other)
            for one, other in (value.items() if isinstance(value, Mapping) else value)
        )
    if types.is_list(kind):
        each_odd = _odd_for(kind.value_type)
        return each_odd and (lambda value: any(_is_odd(each_odd, each) for each in value))
    return None


def _is_odd(odd: Callable[[Any], bool] | None, value: Any) -> bool:
    return odd is not None and value is not None and odd(value)


# Arrow data


def _arrow_batch(batch: Any, schema: Any) -> Any:
    _check_names(batch.schema.names, schema, "the data")
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if column.type != field.type:
            try:
                column = pc.cast(column, field.type)
            except _UNFIT as error:
                text = f"column {field.name!r} is {field.type}, and not {column.type}"
                raise RiverError(WRONG_TYPE, f"{text}: {first_line(error)}") from error
        columns.append(column)
    return _conformed(pa.RecordBatch.from_arrays(columns, names=schema.names), schema)


def _conformed(batch: Any, schema: Any) -> Any:
    try:
        return conform(batch, schema)
    except RiverError as error:  # nulls where there are none
        raise RiverError(WRONG_TYPE, error.message) from error
