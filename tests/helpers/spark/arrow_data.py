"""Make Arrow data for tests. Whoever imports this is skipped without pyarrow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from ..programs import package

pa: Any = package("pyarrow", "spark")
# Loaded before the guards measure memory.
package("pyarrow.parquet", "spark")
package("pyarrow.compute", "spark")

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("word", pa.string())])


def rows(start: int, count: int) -> Any:
    """Return a batch of the schema above, told apart by its ids."""
    ids = range(start, start + count)
    words = [None if each % 7 == 3 else f"w{each % 5}" for each in ids]
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array(words)], schema=SCHEMA)


def ipc(schema: Any, batches: Sequence[Any], **options: Any) -> bytes:
    """Return one IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def ids(batches: Any) -> list[int]:
    """Return the ids of batches, in their order."""
    return [value for batch in batches for value in batch.column("id").to_pylist()]


def null_struct(kind: Any) -> Any:
    """Return two structs, the second null, with a null in its field that is never null."""
    child = pa.array([1, None], kind.field(0).type)
    return pa.Array.from_buffers(kind, 2, [pa.array([True, False]).buffers()[1]], children=[child])


_NEVER = pa.struct([pa.field("n", pa.int32(), False)])
_STRICT_MAP = pa.map_(pa.string(), pa.field("value", pa.int32(), False))
_PAIR = pa.struct([("a", pa.int8()), ("b", pa.string())])
_DEEP = pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.int64())))]))

# Every type that is stored, with values, a null among them.
COLUMNS: dict[str, Any] = {
    "bool": pa.array([True, None]),
    "int8": pa.array([-128, None], pa.int8()),
    "uint64": pa.array([2**64 - 1, None], pa.uint64()),
    "float16": pa.array([1.5, None], pa.float32()).cast(pa.float16()),
    "float32": pa.array([float("nan"), None], pa.float32()),
    "float64": pa.array([-0.0, None]),
    "string": pa.array(["é\0", None]),
    "large_string": pa.array(["x", None], pa.large_string()),
    "binary": pa.array([b"\xff", None]),
    "fixed binary": pa.array([b"1234", None], pa.binary(4)),
    "date32": pa.array([date(1, 1, 1), None]),
    "date64": pa.array([date(9999, 12, 31), None], pa.date64()),
    "time32": pa.array([5, None], pa.int32()).cast(pa.time32("s")),
    "time64": pa.array([10**9, None], pa.int64()).cast(pa.time64("ns")),
    "seconds": pa.array([-(10**9), None], pa.timestamp("s")),
    "seconds in a zone": pa.array([10**9, None], pa.timestamp("s", "Europe/Berlin")),
    "micros": pa.array([datetime(2024, 2, 29, 1, 2, 3, 4), None], pa.timestamp("us")),
    "micros in UTC": pa.array([1, None], pa.timestamp("us", "UTC")),
    "nanos": pa.array([2**60 + 1, None], pa.timestamp("ns", "+02:00")),
    "duration": pa.array([5, None], pa.duration("us")),
    "decimal": pa.array([Decimal("-1.50"), None], pa.decimal128(38, 10)),
    "decimal256": pa.array([Decimal("1.5"), None], pa.decimal256(60, 3)),
    "null": pa.array([None, None]),
    "list": pa.array([[1, None], None], pa.list_(pa.int32())),
    "strict list": pa.array([[1, 2], None], pa.list_(pa.field("element", pa.int32(), False))),
    "large list": pa.array([["a"], None], pa.large_list(pa.string())),
    "fixed list": pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
    "fixed list within": pa.array([[[1, 2], None], None], pa.list_(pa.list_(pa.int32(), 2))),
    "map": pa.array([[("k", 1), ("l", None)], None], pa.map_(pa.string(), pa.int32())),
    "strict map": pa.array([[("k", 1)], None], _STRICT_MAP),
    "struct": pa.array([{"a": 1, "b": None}, None], _PAIR),
    "strict struct": null_struct(_NEVER),
    "seconds within": pa.array([[{"t": 5}], None], pa.list_(pa.struct([("t", pa.timestamp("s"))]))),
    "deep": pa.array([[{"m": [("k", [1])]}], None], _DEEP),
}


def wide() -> Any:
    """Return a batch with a column of every type, one of them with metadata of its own."""
    fields = [pa.field(name, column.type) for name, column in COLUMNS.items()]
    fields[0] = fields[0].with_metadata({"variant": "true"})
    return pa.record_batch(list(COLUMNS.values()), schema=pa.schema(fields))


# Those of the above that a Delta table keeps, and the types that it makes of some.
REFUSED = {
    *("uint64", "float16", "time32", "time64", "seconds", "seconds in a zone", "nanos"),
    *("duration", "decimal256", "null", "seconds within"),
}
CHANGED = {
    "large_string": pa.string(),
    "fixed binary": pa.binary(),
    "date64": pa.date32(),
    "large list": pa.list_(pa.string()),
    "fixed list": pa.list_(pa.int32()),
    "fixed list within": pa.list_(pa.list_(pa.int32())),
}


def delta_wide() -> Any:
    """Return a batch with a column of every type that a Delta table takes."""
    batch = wide()
    return batch.select([name for name in batch.schema.names if name not in REFUSED])
