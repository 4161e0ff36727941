"""Convert record batches to rows, results to columns, and batches to bytes and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .values import plain

__all__ = ["Misfit", "column_of", "from_ipc", "json_text", "rows_of", "to_ipc"]


class Misfit(ValueError):
    """Report a value that does not fit the type of its column."""


def rows_of(batch: Any, names: tuple[str, ...], make_plain: Callable[[Any], Any]) -> list[Any]:
    """Return the value to send for each row: that of one column, or an object of several."""
    columns = [_values(batch.column(name), make_plain) for name in names]
    if len(columns) == 1:
        return columns[0]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: Any, make_plain: Callable[[Any], Any]) -> list[Any]:
    import pyarrow.types as kinds

    values: list[Any] = column.to_pylist()
    kind = column.type
    as_they_are = (
        kinds.is_string(kind)
        or kinds.is_integer(kind)
        or kinds.is_floating(kind)
        or kinds.is_boolean(kind)
        or kinds.is_binary(kind)
        or kinds.is_large_string(kind)
        or kinds.is_large_binary(kind)
    )
    return values if as_they_are else [make_plain(value) for value in values]


def json_text(value: Any) -> str | None:
    """Return a result as text: a string unchanged, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), default=str)


def column_of(values: list[Any], kind: Any, misfit: Callable[[int, Misfit], None]) -> Any:
    """Return values as an array of a type.

    Args:
        values: the results of rows.
        kind: the type.
        misfit: called with the position of each value that does not fit, which becomes null.
    """
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        fitting = []
        for place, value in enumerate(values):
            try:
                fitting.append(_fitting(value, kind))
            except Misfit as error:
                misfit(place, error)
                fitting.append(None)
        return pa.array(fitting, kind)


def _fitting(value: Any, kind: Any) -> Any:
    """Return a value as the type, parsed from text if no codec carries the type."""
    import pyarrow as pa
    import pyarrow.types as kinds

    failures = (pa.ArrowException, TypeError, ValueError, OverflowError)
    if value is None:
        return None
    try:
        pa.scalar(value, kind)
        return value
    except failures as error:
        readable = kinds.is_temporal(kind) or kinds.is_decimal(kind)
        if readable and isinstance(value, str | int | float):
            try:
                return pa.scalar(str(value)).cast(kind).as_py()
            except failures:
                pass
        shown = repr(value)
        shown = shown if len(shown) <= 100 else f"{shown[:90]}..."
        raise Misfit(f"{shown} does not fit {kind}") from error


def to_ipc(batches: Any) -> bytes:
    """Return a record batch, a table or several batches as one Arrow IPC stream."""
    import pyarrow as pa

    if isinstance(batches, pa.RecordBatch):
        batches = [batches]
    elif isinstance(batches, pa.Table):
        batches = batches.to_batches() or [pa.RecordBatch.from_pylist([], schema=batches.schema)]
    listed = list(batches)
    if not listed:
        raise ValueError("without a record batch there is no schema")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, listed[0].schema) as writer:
        for batch in listed:
            writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def from_ipc(data: Any) -> list[Any]:
    """Return the record batches of an Arrow IPC stream, fully validated.

    Raises:
        ValueError: the data is not an Arrow IPC stream.
    """
    import pyarrow as pa

    if not isinstance(data, bytes):
        raise ValueError(f"an Arrow IPC stream must be bytes, not {type(data).__name__}")
    try:
        with pa.ipc.open_stream(data) as reader:
            batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
    except pa.ArrowException as error:
        raise ValueError(f"not an Arrow IPC stream: {error}") from error
    return batches
