"""Say of each row of a topic where it stands and when it came, in columns beside its own.

They are called as in Spark's Kafka source: ``partition``, ``offset`` and ``timestamp``, the time of
the commit in whole milliseconds. Rows of topics have no key, so there is no such column.
"""

from __future__ import annotations

from typing import Any

from ...runtime.lazy_imports import pa, pc

__all__ = ["METADATA", "TIMESTAMP", "add_metadata", "milliseconds", "moments", "with_metadata"]

TIMESTAMP = "timestamp"
METADATA = ("partition", "offset", TIMESTAMP)


def milliseconds(seconds: float) -> int:
    """Return a time in ms since 1970; stores compare times as this rounds them."""
    return int(seconds * 1000 + 0.5)


def moments(seconds: float, count: int) -> Any:
    """Return a column of one time, as often as there are rows; its type is that of Spark."""
    value = pa.scalar(milliseconds(seconds) * 1000, pa.timestamp("us", "UTC"))
    return pa.repeat(value, count)


def with_metadata(schema: Any) -> Any:
    """Return a schema with these columns behind its own, and in the place of such with a name."""
    kinds = pa.int32(), pa.int64(), pa.timestamp("us", "UTC")
    added = [pa.field(*each, False) for each in zip(METADATA, kinds, strict=True)]
    return pa.schema([*(field for field in schema if field.name not in METADATA), *added])


def add_metadata(batch: Any, schema: Any, partition: int, start: int) -> Any:
    """Return the columns of a schema, made of those of a batch that has ``timestamp``.

    Args:
        start: the offset of the first row.
    """
    ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
    columns["offset"] = pc.cumulative_sum(ones, start=start - 1)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
