"""Turn rows of Python and Arrow data into record batches of a dataset's schema.

Nothing is guessed: every column must be present, and a value that does not fit is an error that
names it. Dates, times and decimals may be given as text, as in JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..rpc import RiverError
from ..runtime.lazy_imports import pa, pc
from .lossless import UNFIT, Odd, array_of, check_kept, odd_for
from .protocol import Code
from .store.schemas import conform, first_line, forbids_nulls

__all__ = ["WRONG_TYPE", "RowConverter"]

WRONG_TYPE = "WRONG_TYPE"


class _Column(NamedTuple):
    name: str
    type: Any
    nullable: bool
    odd: Odd | None
    """Recognises values that pyarrow would accept and change."""
    inner: bool
    """Whether there is something inside that is never null."""


class RowConverter:
    """Convert to one schema."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._columns = [
            _Column(f.name, f.type, f.nullable, odd_for(f.type), forbids_nulls(f.type))
            for f in schema
        ]
        self._names = frozenset(schema.names)
        self._odd = [(each.name, each.odd) for each in self._columns if each.odd is not None]
        self._struct = pa.struct(list(schema))

    def batches(self, data: Any) -> Iterator[Any]:
        """Yield batches made of a row (a mapping), a list of rows, a record batch or a table.

        Raises:
            RiverError: NO_COLUMN or WRONG_TYPE; it is none of these, or does not fit the schema.
        """
        if isinstance(data, Mapping):
            data = [data]
        if isinstance(data, pa.Table):
            for batch in data.to_batches():
                yield self._arrow(batch)
        elif isinstance(data, pa.RecordBatch):
            yield self._arrow(data)
        elif isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray):
            yield self._rows(data)
        else:
            text = "rows must be a dict, a list of dicts, a RecordBatch or a Table, got"
            raise RiverError(WRONG_TYPE, f"{text} {_told(data)}")

    def _rows(self, rows: Sequence[Any]) -> Any:
        for place, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise RiverError(WRONG_TYPE, f"row {place} must be a dict, got {_told(row)}")
            if row.keys() != self._names:
                self._check_names([*row], f"row {place}")
        batch = self._at_once(rows)
        if batch is not None:
            return batch
        return self._batch(
            [_array_of([row[each.name] for row in rows], each) for each in self._columns]
        )

    def _at_once(self, rows: Sequence[Any]) -> Any:
        """Return rows as a batch by one call of pyarrow, ``None`` for what takes a closer look."""
        try:
            for name, odd in self._odd:
                if odd.any([row[name] for row in rows]):
                    return None
            batch = pa.RecordBatch.from_struct_array(pa.array(rows, self._struct))
        except UNFIT:
            return None
        same = batch.schema.equals(self._schema, check_metadata=True)
        return batch if same and not self._has_nulls(batch.columns) else None

    def _arrow(self, batch: Any) -> Any:
        self._check_names(batch.schema.names, "the data")
        columns = []
        for each in self._columns:
            column = batch.column(each.name)
            if column.type != each.type:
                try:
                    given = column
                    if pa.types.is_decimal(given.type) and pa.types.is_floating(each.type):
                        column = pc.cast(column, pa.string())  # pyarrow misses the nearest ones
                    column = pc.cast(column, each.type)
                    check_kept(given, column)
                except UNFIT as error:
                    there = batch.column(each.name).type
                    text = f"column {each.name!r} takes {each.type}, got {there}"
                    raise RiverError(WRONG_TYPE, f"{text}: {first_line(error)}") from error
            columns.append(column)
        return self._batch(columns)

    def _batch(self, columns: Sequence[Any]) -> Any:
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if not self._has_nulls(columns):
            return batch
        try:
            return conform(batch, self._schema)
        except RiverError as error:  # nulls where there are none
            raise RiverError(WRONG_TYPE, error.message) from error

    def _has_nulls(self, columns: Sequence[Any]) -> bool:
        """Return whether there may be nulls where there are to be none."""
        for each, column in zip(self._columns, columns, strict=True):
            if each.inner or (not each.nullable and column.null_count):
                return True
        return False

    def _check_names(self, names: Sequence[str], place: str) -> None:
        known = [each.name for each in self._columns]
        for each in self._columns:
            if each.name not in names:
                text = f"{place} has no column {each.name!r}, which is {each.type}"
                raise RiverError(Code.NO_COLUMN, f"{text}; give None where there is no value")
        for name in names:
            if name not in known or names.count(name) > 1:
                text = f"{place} has a column {name!r:.140} that the dataset has not, or has twice"
                raise RiverError(Code.NO_COLUMN, f"{text}; there are {', '.join(known):.1000}")


def _told(value: object) -> str:
    return f"{type(value).__name__} {value!r:.80}"


def _array_of(values: list[Any], column: _Column) -> Any:
    try:
        made = _array(values, column)
    except UNFIT:  # one does not fit, or some are text and others are not
        each: list[Any] = []
        for place, value in enumerate(values):
            try:
                each.append(_array([value], column))
            except UNFIT as reason:
                text = f"row {place}: column {column.name!r} takes {column.type}, got"
                raise RiverError(WRONG_TYPE, f"{text} {_told(value)}") from reason
        made = pa.concat_arrays(each)
    if made.null_count and not column.nullable:
        place = next(place for place, value in enumerate(values) if value is None)
        text = f"row {place}: column {column.name!r} takes {column.type}, never null, got None"
        raise RiverError(WRONG_TYPE, text)
    return made


def _array(values: list[Any], column: _Column) -> Any:
    """Return values as an array.

    Raises:
        TypeError, ValueError, OverflowError, ArithmeticError: they do not fit.
    """
    if column.odd is not None:
        for value in filter(column.odd, values):
            raise TypeError(f"{value!r:.80} is no {column.type}")
    return array_of(values, column.type)
