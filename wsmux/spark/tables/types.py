"""Say what a Delta table keeps of an Arrow schema, and bring batches into that.

What Delta keeps under another type without loss is changed: large and fixed-size types to plain
ones, milliseconds to microseconds. So are nanoseconds, whose last three digits are cut off, as
Spark does. Everything else is refused, with the cast that helps: delta-rs would create some of
these tables and could not read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...config import MIB
from ...runtime.lazy_imports import delta, pa, pc
from ..protocol import Code, refusal
from ..store.schemas import conform, first_line, inside, parts, relaxed, restamp, takes

__all__ = [
    "aligned",
    "arrow_of",
    "delta_schema",
    "fitted",
    "has_naive_timestamps",
    "kept_schema",
    "merged",
]

DAY = 86_400_000  # milliseconds

# What the nulls may take that are added to rows of a narrower schema.
ADDED_BYTES = 16 * MIB

UTC = ("UTC", "Etc/UTC", "Z", "+00:00", "GMT")


def kept_schema(schema: Any) -> Any:
    """Return a schema, as ``stored_schema`` gives it, with the types that a Delta table keeps.

    Raises:
        RiverError: WRONG_SCHEMA, for a type that Delta has not, or names that it takes for one.
    """
    _check_names(schema, "columns")
    return pa.schema([_kept_field(field, field.name) for field in schema])


def _check_names(fields: Iterable[Any], what: str) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        if not field.name:
            raise refusal(Code.WRONG_SCHEMA, f"one of the {what} has no name; give it one")
        other = seen.get(field.name.lower())
        if other is not None:
            text = (
                f"{what} {other!r} and {field.name!r} differ in case at most, which Delta does not"
            )
            raise refusal(Code.WRONG_SCHEMA, f"{text} tell apart; rename one")
        seen[field.name.lower()] = field.name


def _kept_field(field: Any, place: str) -> Any:
    # What Delta asks of writers in metadata is for a table to say, not for what is written to it.
    told = {k: v for k, v in (field.metadata or {}).items() if not k.startswith(b"delta.")}
    return field.with_type(_kept_type(field.type, place)).with_metadata(told or None)


def _kept_type(kind: Any, place: str) -> Any:
    types = pa.types
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        _check_names(fields, f"fields of {place}")
        return pa.struct([_kept_field(each, f"{place}.{each.name}") for each in fields])
    if types.is_map(kind):
        key = _kept_field(kind.key_field, f"{place}.key")
        return pa.map_(key, _kept_field(kind.item_field, f"{place}.value"))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_kept_field(kind.value_field, f"{place}.element"))
    if types.is_timestamp(kind):
        return _kept_timestamp(kind, place)
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_date64(kind):
        return pa.date32()
    if types.is_decimal(kind) and not types.is_decimal256(kind) and kind.scale >= 0:
        return pa.decimal128(kind.precision, kind.scale)
    cast = _cast_for(kind)
    if cast is not None:
        text = f"column {place!r}: Delta has no type {kind}; cast it to {cast}"
        raise refusal(Code.WRONG_SCHEMA, text)
    return kind


def _kept_timestamp(kind: Any, place: str) -> Any:
    if kind.tz is not None and kind.tz not in UTC:
        text = f"column {place!r}: Delta keeps timestamps in UTC or without a zone, not {kind}"
        raise refusal(Code.WRONG_SCHEMA, f"{text}; cast it to timestamp[us, tz=UTC]")
    tz = None if kind.tz is None else "UTC"
    if kind.unit == "s":
        text = f"column {place!r}: Delta has no type {kind}; cast it to {pa.timestamp('us', tz)}"
        raise refusal(Code.WRONG_SCHEMA, text)
    return pa.timestamp("us", tz)


def _cast_for(kind: Any) -> str | None:
    """Return what to cast a type to that Delta has not."""
    types = pa.types
    if types.is_unsigned_integer(kind):
        wider = {8: "int16", 16: "int32", 32: "int64"}
        return wider.get(kind.bit_width, "int64 or decimal128(20, 0)")
    if types.is_float16(kind):
        return "float32"
    if types.is_time(kind) or types.is_duration(kind):
        return "int64 or string"
    if types.is_decimal(kind):
        return "decimal128 of at most 38 digits and a scale of 0 or more"
    return "the type that its values will have" if types.is_null(kind) else None


def has_naive_timestamps(fields: Iterable[Any]) -> bool:
    """Return whether there are timestamps without a zone, however deep, which need a feature."""
    return any(
        (pa.types.is_timestamp(field.type) and field.type.tz is None)
        or has_naive_timestamps(inside(field.type))
        for field in fields
    )


def delta_schema(schema: Any) -> str:
    """Return the JSON of a kept schema as it stands in a Delta log.

    Raises:
        RiverError: WRONG_SCHEMA, for what delta-rs refuses all the same.
    """
    try:
        return str(delta.Schema.from_arrow(schema).to_json())
    except Exception as error:  # delta-rs raises plain ones
        text = f"Delta cannot keep this schema: {first_line(error)}"
        raise refusal(Code.WRONG_SCHEMA, text) from error


def arrow_of(schema_json: str) -> Any:
    """Return the Arrow schema of a Delta schema.

    Raises:
        ValueError: it is none.
    """
    try:
        return pa.schema(delta.Schema.from_json(schema_json).to_arrow())
    except Exception as error:  # delta-rs raises plain ones
        raise ValueError(f"it has a schema that cannot be read: {first_line(error)}") from error


# What is kept as another type of the table without loss, by rewriting the batch.
_WIDER = {"int8": 1, "int16": 2, "int32": 3, "int64": 4, "float": 11, "double": 12}


def merged(current: Any, given: Any, what: str) -> Any:
    """Return the schema of a table that takes data of another schema too, both as kept.

    The order of columns may differ, columns that may be null may be missing, and new ones are added
    at the end, null in what is there. Integers and floating point may be narrower than in the
    table. Fields within columns have to be the same.

    Raises:
        RiverError: WRONG_SCHEMA, with the first difference that cannot be merged.
    """
    for field in current:
        place = given.get_field_index(field.name)
        if place < 0:
            if not field.nullable:
                text = f"column {field.name!r} of {what} is never null, and is missing here"
                raise refusal(Code.WRONG_SCHEMA, text)
        elif not _narrower(given.field(place).type, field.type):
            takes(pa.schema([field]), pa.schema([given.field(place)]), what)
        elif given.field(place).nullable and not field.nullable:
            text = f"column {field.name!r} of {what} is never null, and may be here"
            raise refusal(Code.WRONG_SCHEMA, text)
    new = [field.with_nullable(True) for field in given if field.name not in current.names]
    whole = pa.schema([*current, *new])
    _check_names(whole, "columns")
    return whole


def _narrower(kind: Any, other: Any) -> bool:
    one, two = _WIDER.get(str(kind), 0), _WIDER.get(str(other), 0)
    return 0 < one < two and one // 10 == two // 10


def aligned(batch: Any, schema: Any) -> Iterator[Any]:
    """Yield the rows of a batch under a schema that ``merged`` has made of its own.

    A batch with many rows comes in pieces: a few bits of them may lack many wide columns. One that
    has the schema comes as it is.
    """
    if batch.schema.equals(schema):
        yield batch
        return
    added = [field for field in schema if field.name not in batch.schema.names]
    row = sum(pa.nulls(1, field.type).nbytes for field in added)
    most = max(1, ADDED_BYTES // max(1, row))
    for start in range(0, batch.num_rows, most):
        yield _aligned(batch.slice(start, most), schema)


def _aligned(batch: Any, schema: Any) -> Any:
    columns = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
        elif not _narrower(batch.schema.field(place).type, field.type):
            columns.append(batch.column(place))
        else:
            columns.append(batch.column(place).cast(_open(field.type)))
    return restamp(pa.RecordBatch.from_arrays(columns, names=schema.names), schema)


def fitted(batch: Any, schema: Any) -> Any:
    """Return a batch in the kept form of its schema.

    Raises:
        RiverError: BAD_ARROW, for nulls where the schema says never, and values out of range.
    """
    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        if column.type != field.type and not pa.types.is_dictionary(column.type):
            column = _cast(column, field)
        columns.append(column)
    return conform(pa.RecordBatch.from_arrays(columns, names=schema.names), schema)


def _cast(column: Any, field: Any) -> Any:
    try:
        _check_dates(column)
        # Only digits below a microsecond may be lost.
        options = pc.CastOptions(_open(field.type), allow_time_truncate=True)
        return pc.cast(column, options=options)
    except (pa.ArrowException, ValueError) as error:
        text = f"column {field.name!r} cannot be kept as {field.type}: {first_line(error)}"
        raise refusal(Code.BAD_ARROW, text) from error


def _check_dates(column: Any) -> None:
    """Raise ``ValueError`` for dates too far off for ``date32``: a cast would make others of them.

    How deep they are does not matter.
    """
    if pa.types.is_date64(column.type):
        days = pc.divide(column.cast(pa.int64()), DAY)
        days.cast(pa.int32())
    elif "date64" in str(column.type):
        for part in parts(column):
            _check_dates(part)


def _open(kind: Any) -> Any:
    return relaxed(pa.schema([pa.field("x", kind)])).field(0).type
