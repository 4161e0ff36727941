"""Implement the function that ``mapInArrow`` runs to add a column of results."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...rpc import RiverError
from ..connection_settings import Link
from ..ddl import Ddl, from_arrow
from .arrow import Misfit, column_of, json_texts, rows_of
from .batches import TYPE, rows_message
from .pipeline import Plan
from .task_calls import Target, TaskCalls, of_nulls
from .values import plainer

__all__ = ["ColumnCalls"]

WRONG_TYPE = "WRONG_TYPE"

TEXT = Ddl("string")


class _Held:
    """Hold a batch whose rows await results; ``first`` is the number of its first row."""

    def __init__(self, batch: Any, first: int) -> None:
        self.batch = batch
        self.first = first
        self.left = batch.num_rows
        self.values: list[Any] = [None] * batch.num_rows
        self.errors: dict[int, RiverError] = {}


class _Part(NamedTuple):
    """Identify the rows of one message."""

    held: _Held
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class ColumnCalls:
    """Add a column of results; made by ``Procedure.columns``."""

    target: Target
    plan: Plan
    timeout: float
    batch_rows: int
    columns: tuple[str, ...]
    into: str
    into_type: Ddl | None
    error_col: str | None
    key: str | None
    asks: bool
    """Whether the server was not yet asked for the type of results."""

    def on(self, df: Any) -> Any:
        """Return a DataFrame with the column; the same as ``df.transform(call.on)``.

        Without ``into_type``, blocks while it asks the server for it, as ``schema`` does.
        """
        self._check(df.columns)
        typed = self._asked()
        return df.mapInArrow(typed, typed.schema(df.schema))

    def schema(self, schema: Any) -> Any:
        """Return the schema of the result, given that of the DataFrame (``StructType``).

        Without ``into_type``, blocks while it asks the server, on a connection of its own.

        Raises:
            ValueError: a column is missing, or a new one already exists.
            SparkError: the server was not reached, or did not answer in time.
        """
        from pyspark.sql.types import StructField, StructType

        self._check(schema.names)
        added = [(self.into, self._asked().into_type or TEXT)]
        added += [] if self.error_col is None else [(self.error_col, TEXT)]
        return StructType(
            [
                *schema.fields,
                *(StructField(name, from_arrow(kind.arrow())) for name, kind in added),
            ]
        )

    def _asked(self) -> ColumnCalls:
        """Do what ``_typed`` does on the driver, which keeps no connection."""
        with self.target.recipe.once() as link:
            return self._typed(link)

    def _typed(self, link: Link) -> ColumnCalls:
        """Return what knows the type of the results, if the procedure tells one."""
        if self.into_type is not None or not self.asks:
            return self
        target = self.target
        if self.batch_rows == 1 and self.key is None:  # it may not be for messages of rows
            target = replace(target, procedure=f"{target.procedure}{TYPE}")
        kind = TaskCalls(target, self.plan, self.timeout, link).result_type()
        return replace(self, into_type=kind, asks=False)

    def __call__(self, batches: Iterable[Any]) -> Generator[Any]:
        """Yield each record batch with the results of its rows."""
        asking = TaskCalls(self.target, self.plan, self.timeout)
        yield from self._typed(asking.link)._results(batches, asking)

    def _results(self, batches: Iterable[Any], asking: TaskCalls) -> Generator[Any]:
        many = self.batch_rows > 1 or self.key is not None
        held: deque[_Held] = deque()  # not yielded yet, in order
        with closing(asking.ask(self._messages(batches, held, many))) as outcomes:
            for part, value, error in outcomes:
                values, errors = asking.answers(value, error, part.rows, many)
                part.held.values[part.start : part.start + part.rows] = values
                for row, failed in errors.items():
                    part.held.errors[part.start + row] = self._told(failed, part, row)
                part.held.left -= part.rows
                yield from self._whole(held, asking)
        yield from self._whole(held, asking)

    def _told(self, error: RiverError, part: _Part, row: int) -> RiverError:
        """Return the error of a row, with the columns that are null there if they may be why."""
        batch = part.held.batch
        sent = self.columns or tuple(batch.schema.names)
        at = part.start + row
        return of_nulls(error, [name for name in sent if not batch.column(name)[at].is_valid])

    def _messages(
        self, batches: Iterable[Any], held: deque[_Held], many: bool
    ) -> Iterator[tuple[_Part, Any]]:
        make_plain = plainer(self.target.recipe.codec)
        first = 0
        for batch in batches:
            names = tuple(batch.schema.names)
            if not first:
                self._check(names)
            rows = rows_of(batch, self.columns or names, make_plain)
            keys = None if self.key is None else rows_of(batch, (self.key,), make_plain)
            here = _Held(batch, first)
            first += batch.num_rows
            held.append(here)
            for start in range(0, len(rows), self.batch_rows):
                some = rows[start : start + self.batch_rows]
                part = _Part(here, start, len(some))
                some_keys = None if keys is None else keys[start : start + self.batch_rows]
                yield part, rows_message(some, some_keys) if many else some[0]

    def _whole(self, held: deque[_Held], asking: TaskCalls) -> Iterator[Any]:
        """Yield complete batches: only from the front if ordered, else any."""
        if self.plan.ordered:
            while held and not held[0].left:
                yield self._finished(held.popleft(), asking)
            return
        for each in [each for each in held if not each.left]:
            held.remove(each)
            yield self._finished(each, asking)

    def _finished(self, held: _Held, asking: TaskCalls) -> Any:
        import pyarrow as pa

        values, kind = held.values, self.into_type or TEXT

        def misfit(row: int, error: Misfit) -> None:
            held.errors[row] = RiverError(WRONG_TYPE, f"the result {error}")

        if kind == TEXT:
            values = json_texts(values, misfit)
        column = column_of(values, kind.arrow(), misfit)
        fields = [pa.field(self.into, column.type)]
        columns = [column]
        if self.error_col is not None:
            texts = [None] * len(values) if not held.errors else self._texts(held)
            fields.append(pa.field(self.error_col, pa.string()))
            columns.append(pa.array(texts, pa.string()))
        elif held.errors:
            row = min(held.errors)
            raise asking.error(held.errors[row], row=held.first + row)
        schema = pa.schema([*held.batch.schema, *fields], held.batch.schema.metadata)
        return pa.RecordBatch.from_arrays([*held.batch.columns, *columns], schema=schema)

    def _texts(self, held: _Held) -> list[str | None]:
        errors = held.errors
        rows = range(len(held.values))
        return [f"[{errors[r].code}] {errors[r].message}" if r in errors else None for r in rows]

    def _check(self, names: Iterable[str]) -> None:
        known = set(names)
        for name in (*self.columns, *(() if self.key is None else (self.key,))):
            if name not in known:
                raise ValueError(f"there is no column {name!r}; there are {', '.join(names)}")
        for name in (self.into, self.error_col):
            if name in known:
                raise ValueError(f"there is a column {name!r} already")
