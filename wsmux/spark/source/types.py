"""Convert schemas between Arrow and Spark, and record batches to them.

Spark accepts a record batch only if its schema is exactly its own form of the declared one. Arrow
has more types, such as text with long offsets or times in other units. Those are cast if nothing is
lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.pandas import types as spark_types
from pyspark.sql.types import StructType

from ...rpc import RiverError
from ...runtime.lazy_imports import pa
from ..protocol import Code, refusal
from ..store.schemas import first_line, restamp, takes

__all__ = ["WRONG_TYPE", "arrow_schema", "check_fits", "fit", "regrouped", "spark_schema"]

WRONG_TYPE = "WRONG_TYPE"

# Bytes up to which record batches are joined; below, their fixed cost is noticeable.
SMALL = 256 * 1024

# Spark before 4.2 always uses UTC and has no argument for it.
_ZONE = (
    {"timezone": "UTC"}
    if "timezone" in inspect.signature(spark_types.to_arrow_schema).parameters
    else {}
)


def spark_schema(schema: Any) -> StructType:
    """Return an Arrow schema as a Spark schema.

    Raises:
        RiverError: WRONG_TYPE; Spark has no type for a column.
    """
    for field in schema:
        try:
            spark_types.from_arrow_schema(pa.schema([field]))
        except Exception as error:
            text = f"column {field.name!r} is {field.type}, for which Spark has no type"
            raise RiverError(WRONG_TYPE, f"{text}; name others in the option columns") from error
    return spark_types.from_arrow_schema(schema)


def arrow_schema(schema: StructType) -> Any:
    """Return Spark's Arrow form of its schema, with UTC as time zone.

    Raises:
        RiverError: WRONG_TYPE; Arrow has no type for a column.
    """
    for field in schema:
        try:
            spark_types.to_arrow_schema(StructType([field]), **_ZONE)
        except Exception as error:
            text = f"column {field.name!r} is {field.dataType.simpleString()}"
            raise RiverError(WRONG_TYPE, f"{text}, for which Arrow has no type") from error
    return spark_types.to_arrow_schema(schema, **_ZONE)


def check_fits(wanted: Any, stored: Any, what: str) -> Any:
    """Return the columns of a stored schema that Spark declared, in its order.

    Args:
        wanted: the Arrow form of the declared schema.
        stored: the server's schema.
        what: the name of the dataset or topic.

    Raises:
        RiverError: NO_COLUMN, WRONG_TYPE or WRONG_SCHEMA.
    """
    for name in wanted.names:
        if stored.get_field_index(name) < 0:
            known = ", ".join(stored.names)
            raise refusal(
                Code.NO_COLUMN, f"{what} has no column {name!r:.140}; it has {known:.1000}"
            )
    chosen = pa.schema([stored.field(name) for name in wanted.names])
    takes(wanted, arrow_schema(spark_schema(chosen)), f"the schema Spark has of {what}")
    return chosen


def fit(batch: Any, schema: Any) -> Any:
    """Return a record batch with a schema of the same columns, mostly without copying.

    Raises:
        RiverError: WRONG_TYPE; a column's type cannot hold its values.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    try:
        return restamp(batch, schema)
    except (pa.ArrowException, ValueError) as error:
        raise RiverError(WRONG_TYPE, f"values do not fit: {first_line(error)}") from error


def regrouped(batches: Iterable[Any], most_rows: int | None) -> Iterator[Any]:
    """Yield the rows of record batches in batches of a suitable size.

    Small batches are joined, those with too many rows are split, others are passed on uncopied.
    Batches without rows are left out.
    """
    gathered: list[Any] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if gathered and _full(rows + batch.num_rows, size, most_rows):
            yield _joined(gathered)
            gathered, rows, size = [], 0, 0
        if batch.nbytes >= SMALL and not gathered or _full(batch.num_rows, 0, most_rows):
            yield from _cut(batch, most_rows)
            continue
        gathered.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size >= SMALL:
            yield _joined(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield _joined(gathered)


def _full(rows: int, size: int, most_rows: int | None) -> bool:
    return size >= SMALL or (most_rows is not None and rows > most_rows)


def _joined(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _cut(batch: Any, most_rows: int | None) -> Iterator[Any]:
    if most_rows is None or batch.num_rows <= most_rows:
        yield batch
        return
    for start in range(0, batch.num_rows, most_rows):
        yield batch.slice(start, most_rows)
