"""Say which Arrow schemas are stored, whether data fit them, and bring batches into them.

A stored schema has its dictionaries decoded and no metadata of its own; its fields keep theirs,
since Spark tells a variant by them. What a file format or Arrow itself may change on the way,
nullability inside of columns above all, is put back when a batch is read (``restamp``).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...rpc import RiverError
from ...runtime.arguments import strings
from ...runtime.lazy_imports import pa, pc
from ..protocol import Code, refusal

__all__ = [
    "bound_columns",
    "check_text",
    "conform",
    "decoded_size",
    "first_line",
    "forbids_nulls",
    "inside",
    "parts",
    "reading",
    "relaxed",
    "restamp",
    "schema_bytes",
    "schema_from_text",
    "schema_of",
    "schema_text",
    "stored_schema",
    "takes",
]

# Differences that one message tells.
MAX_TOLD = 5


def schema_bytes(schema: Any) -> bytes:
    """Return a schema as it travels: an Arrow IPC message."""
    return bytes(schema.serialize())


def schema_of(data: bytes) -> Any:
    """Return the schema that bytes hold.

    Raises:
        RiverError: BAD_REQUEST.
    """
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        check_text(schema)
        return schema
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        text = f"a schema must be an Arrow IPC schema: {first_line(error)}"
        raise refusal(Code.BAD_REQUEST, text) from error


def schema_text(schema: Any) -> str:
    """Return a schema as text, as stores keep it."""
    return base64.b64encode(schema_bytes(schema)).decode()


def schema_from_text(text: str) -> Any:
    """Return the schema that a store has kept as text.

    Raises:
        RiverError: CORRUPT.
    """
    try:
        return schema_of(base64.b64decode(text, validate=True))
    except (ValueError, RiverError) as error:
        raise refusal(Code.CORRUPT, f"a schema that was kept is damaged: {error}") from error


def check_text(fields: Iterable[Any]) -> None:
    """Raise ``UnicodeDecodeError`` for names, of columns and within, that are no UTF-8."""
    for field in fields:
        _ = field.name, getattr(field.type, "tz", None)
        check_text(inside(field.type))


@contextmanager
def reading(shown: str) -> Iterator[None]:
    """Raise CORRUPT for what pyarrow says of a file, but ``FileNotFoundError`` as it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise refusal(Code.CORRUPT, f"{shown} is damaged: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Return what an error of Arrow says, without its details."""
    return str(error).partition("\n")[0][:300]


def stored_schema(schema: Any) -> Any:
    """Return a schema as it is stored.

    Raises:
        RiverError: WRONG_SCHEMA, for what no store can keep.
    """
    if not len(schema):
        raise refusal(Code.WRONG_SCHEMA, "a schema must have a column")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise refusal(Code.WRONG_SCHEMA, f"several columns are named {', '.join(twice):.200}")
    return pa.schema([_stored_field(field, field.name, top=True) for field in schema])


def _stored_field(field: Any, place: str, top: bool = False) -> Any:
    """Return a field with its dictionaries decoded, however deep."""
    kind, types = field.type, pa.types
    if "\0" in field.name or "\0" in (getattr(kind, "tz", None) or ""):  # it ends a name in C
        raise refusal(Code.WRONG_SCHEMA, f"{place!r}: a name has no NUL in it")
    if types.is_fixed_size_list(kind) and kind.list_size < 1:
        raise refusal(Code.WRONG_SCHEMA, f"{place}: a list of a fixed size must have an item")
    if types.is_dictionary(kind):
        kind = kind.value_type
        fixed = types.is_primitive(kind) or types.is_decimal(kind) or types.is_null(kind)
        if not (fixed or _is_bytes(kind)):
            raise refusal(Code.WRONG_SCHEMA, f"{place}: a dictionary of {kind} is not decoded")
    if _is_view(kind) or any(
        is_kind(kind) for is_kind in (types.is_union, types.is_run_end_encoded, types.is_interval)
    ):
        raise refusal(Code.WRONG_SCHEMA, f"{place}: the type {kind} is not stored")
    if types.is_null(kind) and not top:
        raise refusal(Code.WRONG_SCHEMA, f"{place}: a column of nulls within another is not stored")
    if types.is_struct(kind) and not kind.num_fields:
        raise refusal(Code.WRONG_SCHEMA, f"{place}: a struct must have a field")
    decoded = _rebuilt(kind, lambda inner: _stored_field(inner, f"{place}.{inner.name}"))
    return field.with_type(decoded)


def _is_bytes(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def _is_view(kind: Any) -> bool:
    """Return whether a type is a view, which Arrow itself cannot filter."""
    types = pa.types
    return kind in (pa.string_view(), pa.binary_view()) or bool(
        types.is_list_view(kind) or types.is_large_list_view(kind)
    )


def _rebuilt(kind: Any, change: Any) -> Any:
    """Return a nested type with its fields changed; any other as it is."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([change(kind.field(place)) for place in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(change(kind.key_field), change(kind.item_field), kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_field), kind.list_size)
    if types.is_list(kind):
        return pa.list_(change(kind.value_field))
    return pa.large_list(change(kind.value_field)) if types.is_large_list(kind) else kind


def relaxed(schema: Any, *, fixed: bool = True) -> Any:
    """Return a schema with everything inside of columns nullable, as files are written.

    A null struct has nulls in its fields, even in those that are declared to have none; writers of
    Parquet refuse that.

    Args:
        fixed: false makes lists of a fixed size ordinary ones, since readers of Parquet fail at
            nulls among the former (pyarrow below 24 at least).
    """
    return pa.schema([field.with_type(_relaxed_type(field.type, fixed)) for field in schema])


def _relaxed_type(kind: Any, fixed: bool = True) -> Any:
    def relax(field: Any) -> Any:
        return field.with_type(_relaxed_type(field.type, fixed)).with_nullable(True)

    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_relaxed_type(kind.key_type, fixed))
        return pa.map_(key, relax(kind.item_field), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind) and not fixed:
        return pa.list_(relax(kind.value_field))
    return _rebuilt(kind, relax)


# Comparing


def takes(ours: Any, theirs: Any, what: str) -> None:
    """Check that data of a schema may be added to what has another one, both as stored.

    Names, order and types must be the same. What is never null may be added to what may be, not
    the other way round.

    Raises:
        RiverError: WRONG_SCHEMA, with the differences.
    """
    told = list(_differences(ours, theirs))
    if told:
        rest = f", and {len(told) - MAX_TOLD} more" if len(told) > MAX_TOLD else ""
        text = f"these data do not fit {what}: {'; '.join(told[:MAX_TOLD])}{rest}"
        raise refusal(Code.WRONG_SCHEMA, text[:4000])


def _differences(ours: Any, theirs: Any) -> Iterable[str]:
    names, others = ours.names, theirs.names
    for name in others:
        if name not in names:
            yield f"column {name!r} is not there"
    for name in names:
        if name not in others:
            yield f"column {name!r} is missing here"
    if sorted(names) == sorted(others) and names != others:
        yield f"the order is {', '.join(names)}, here {', '.join(others)}"
    for field in ours:
        if field.name in others:
            yield from _field_differences(field, theirs.field(field.name))


def _field_differences(ours: Any, theirs: Any) -> Iterable[str]:
    if _bare(ours.type) != _bare(theirs.type):
        yield f"column {ours.name!r} is {ours.type}, here {theirs.type}"
    elif not _fits_nulls(ours, theirs):
        yield f"column {ours.name!r} is never null ({ours}), here it may be ({theirs})"


def _bare(kind: Any) -> Any:
    """Return a type without the nullability and the metadata inside."""

    def strip(field: Any) -> Any:
        return pa.field(field.name, _bare(field.type))

    if pa.types.is_map(kind):
        return pa.map_(_bare(kind.key_type), strip(kind.item_field), kind.keys_sorted)
    if pa.types.is_struct(kind):
        return _rebuilt(kind, strip)
    # Names of list items differ between writers, and tell nothing.
    return _rebuilt(kind, lambda field: pa.field("item", _bare(field.type)))


def _fits_nulls(ours: Any, theirs: Any) -> bool:
    if theirs.nullable and not ours.nullable:
        return False
    return all(
        _fits_nulls(mine, other)
        for mine, other in zip(inside(ours.type), inside(theirs.type), strict=True)
    )


def inside(kind: Any) -> list[Any]:
    """Return the fields within a type."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(place) for place in range(kind.num_fields)]


# Batches


def conform(batch: Any, schema: Any) -> Any:
    """Return a checked batch with the columns of a stored schema that ``takes`` its own.

    Raises:
        RiverError: BAD_ARROW, for nulls where the stored schema says never.
    """
    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        if _bare(column.type) != _bare(field.type):  # a dictionary
            column = column.cast(_relaxed_type(field.type))
        if _breaks(field, column):
            text = f"column {field.name!r} holds nulls where its schema says never: {field}"
            raise refusal(Code.BAD_ARROW, text)
        columns.append(column)
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    return _stamped(columns, schema)


def _breaks(field: Any, column: Any) -> bool:
    """Whether a column has nulls that its field forbids; those within a null do not count."""
    if not field.nullable and column.null_count:
        return True
    if not forbids_nulls(field.type):
        return False
    inner = zip(inside(field.type), parts(column), strict=True)
    return any(_breaks(*each) for each in inner)


def forbids_nulls(kind: Any) -> bool:
    """Return whether something within a type is never null, so that there is something to check."""
    return any(not field.nullable or forbids_nulls(field.type) for field in inside(kind))


def parts(column: Any) -> list[Any]:
    """Return what is inside of a nested column, less what belongs to its nulls."""
    kind, types = column.type, pa.types
    if not inside(kind):
        return []
    whole = column.drop_null()
    if types.is_struct(kind):
        return list(whole.flatten())
    if not types.is_map(kind):
        return [whole.flatten()]
    if not len(whole):
        return [whole.keys.slice(0, 0), whole.items.slice(0, 0)]
    start, end = whole.offsets[0].as_py(), whole.offsets[len(whole)].as_py()
    return [whole.keys.slice(start, end - start), whole.items.slice(start, end - start)]


class _Stamped:
    """Offer the arrays of a batch under another schema, by Arrow's C data interface."""

    def __init__(self, batch: Any, schema: Any) -> None:
        self._batch = batch
        self._schema = schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


def restamp(batch: Any, schema: Any) -> Any:
    """Return a batch under a schema that differs in nullability, metadata or names inside only.

    Nothing is copied, but for types that a file format has widened, such as seconds to
    milliseconds, which are cast back.
    """
    columns = batch.columns
    for place, (column, field) in enumerate(zip(columns, schema, strict=True)):
        if _bare(column.type) != _bare(field.type):
            columns[place] = column.cast(_relaxed_type(field.type))
    return _stamped(columns, schema)


def _stamped(columns: list[Any], schema: Any) -> Any:
    names = [pa.field(f.name, c.type) for f, c in zip(schema, columns, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(names))
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    return pa.record_batch(_Stamped(batch, schema))


def decoded_size(column: Any) -> int:
    """Return about how many bytes a column takes with its dictionaries decoded."""
    if not pa.types.is_dictionary(column.type):
        within = parts(column)
        return sum(decoded_size(each) for each in within) if within else int(column.nbytes)
    values = column.dictionary
    if not _is_bytes(values.type):
        return int(len(column) * max(1, values.nbytes // max(1, len(values))))
    lengths = pc.take(pc.fill_null(pc.binary_length(values), 0), column.indices)
    return int(pc.sum(pc.cast(lengths, pa.int64())).as_py() or 0) + len(column) * 4


def bound_columns(columns: Sequence[str] | None, schema: Any) -> Any:
    """Return the schema of some columns, in the order asked for; of all without a list.

    Raises:
        RiverError: NO_COLUMN; BAD_REQUEST for a column named twice, or none at all. TypeError: they
            are no collection of strings.
    """
    if columns is None:
        return schema
    strings("columns", columns, "id")
    if not columns or len(set(columns)) < len(columns):
        raise refusal(Code.BAD_REQUEST, "columns must name one column or more, each once")
    for name in columns:
        if schema.get_field_index(name) < 0:
            known = ", ".join(schema.names)
            text = f"there is no column {name!r:.140}; there are {known:.1000}"
            raise refusal(Code.NO_COLUMN, text)
    return pa.schema([schema.field(name) for name in columns])
