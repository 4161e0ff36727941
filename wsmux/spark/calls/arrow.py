"""Convert record batches to rows, results to columns, and batches to bytes and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...runtime.lazy_imports import pa
from ..lossless import UNFIT, Odd, array_of, odd_for
from ..store.schemas import inside
from .values import json_ready

__all__ = ["Misfit", "column_of", "from_ipc", "json_texts", "rows_of", "to_ipc"]

OnMisfit = Callable[[int, "Misfit"], None]


class Misfit(ValueError):
    """Report a value that does not fit the type of its column."""


def rows_of(batch: Any, names: tuple[str, ...], make_plain: Callable[[Any], Any]) -> list[Any]:
    """Return the value to send for each row: that of one column, or an object of several."""
    columns = [_values(batch.column(name), make_plain) for name in names]
    if len(columns) == 1:
        return columns[0]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: Any, make_plain: Callable[[Any], Any]) -> list[Any]:
    values: list[Any] = column.to_pylist()
    kinds, kind = pa.types, column.type
    as_they_are = (
        kinds.is_string(kind)
        or kinds.is_integer(kind)
        or kinds.is_floating(kind)
        or kinds.is_boolean(kind)
        or kinds.is_binary(kind)
        or kinds.is_large_string(kind)
        or kinds.is_large_binary(kind)
    )
    if as_they_are:
        return values
    make_objects = _objects_in(kind)
    if make_objects is not None:
        values = list(map(make_objects, values))
    return [make_plain(value) for value in values]


def _objects_in(kind: Any) -> Callable[[Any], Any] | None:
    """Return what makes objects of the maps in a value of a type, ``None`` if it has no maps.

    A map stays the list of its pairs if its keys are not text, or one of them is there twice.
    """
    kinds = pa.types
    if kinds.is_map(kind):
        named = kinds.is_string(kind.key_type) or kinds.is_large_string(kind.key_type)
        item = _objects_in(kind.item_type)
        return partial(_map, named, item) if named or item is not None else None
    if kinds.is_struct(kind):
        found = {field.name: _objects_in(field.type) for field in inside(kind)}
        fields = {name: make for name, make in found.items() if make is not None}
        return partial(_struct, fields) if fields else None
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        item = _objects_in(kind.value_type)
        return None if item is None else partial(_list, item)
    return None


def _map(named: bool, item: Callable[[Any], Any] | None, pairs: Any) -> Any:
    if pairs is None:
        return None
    if item is not None:
        pairs = [(key, item(value)) for key, value in pairs]
    made = dict(pairs) if named else {}
    return made if named and len(made) == len(pairs) else pairs


def _struct(fields: Mapping[str, Callable[[Any], Any]], value: Any) -> Any:
    if value is None:
        return None
    return value | {name: make(value[name]) for name, make in fields.items()}


def _list(item: Callable[[Any], Any], values: Any) -> Any:
    return None if values is None else list(map(item, values))


def json_texts(values: list[Any], misfit: OnMisfit) -> list[Any]:
    """Return results as text: a string unchanged, anything else as JSON.

    Args:
        values: the results of rows.
        misfit: called with the position of each value that has no JSON, which becomes ``None``.
    """
    return _each(values, _json_text, misfit)


def _json_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        ready = json_ready(value)
        return json.dumps(ready, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Misfit(f"{_shown(value)} has no JSON: {error}") from error


def column_of(values: list[Any], kind: Any, misfit: OnMisfit) -> Any:
    """Return values as an array of a type; none is changed to make it fit.

    What no codec carries may be text, at any depth: dates, times and decimals.

    Args:
        values: the results of rows.
        kind: the type.
        misfit: called with the position of each value that does not fit, which becomes null.
    """
    odd = odd_for(kind, extra_fields=True)
    try:
        if odd is None or not odd.any(values):
            return array_of(values, kind)
    except (*UNFIT, pa.ArrowException):
        pass  # the values one by one will tell
    return pa.array(_each(values, partial(_fitting, kind, odd), misfit), kind)


def _each(values: list[Any], convert: Callable[[Any], Any], misfit: OnMisfit) -> list[Any]:
    """Return converted values, ``None`` for those that do not fit."""
    made = []
    for place, value in enumerate(values):
        try:
            made.append(convert(value))
        except Misfit as error:
            misfit(place, error)
            made.append(None)
    return made


def _fitting(kind: Any, odd: Odd | None, value: Any) -> Any:
    """Return a value as the type, parsed from text if no codec carries the type."""
    try:
        made = _parsed(value, kind)
        if odd is None or not odd(made):
            pa.scalar(made, kind)
            return made
    except (*UNFIT, pa.ArrowException) as error:
        raise _misfit(value, kind) from error
    raise _misfit(value, kind)


def _misfit(value: Any, kind: Any) -> Misfit:
    return Misfit(f"{_shown(value)} does not fit {kind}")


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 100 else f"{shown[:90]}..."


def _parsed(value: Any, kind: Any) -> Any:
    """Return a value in which dates, times and decimals are no longer text, and maps are pairs.

    A number becomes one of the class that the type has if it stays the same: 2.0 and 2 are one to
    JavaScript, and 1e20 has no point in its JSON.

    Raises:
        TypeError, ValueError, OverflowError, ArrowException: it does not fit.
    """
    kinds = pa.types
    if value is None:
        return None
    if kinds.is_list(kind) and isinstance(value, list):
        return [_parsed(each, kind.value_type) for each in value]
    if kinds.is_struct(kind) and isinstance(value, Mapping):
        return {field.name: _parsed(value.get(field.name), field.type) for field in inside(kind)}
    if kinds.is_map(kind) and isinstance(value, Mapping | list):
        pairs = value.items() if isinstance(value, Mapping) else map(_pair, value)
        return [(_parsed(key, kind.key_type), _parsed(item, kind.item_type)) for key, item in pairs]
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        return pa.scalar(value).cast(kind).as_py() if isinstance(value, str) else value
    if isinstance(value, bool):
        return value
    if kinds.is_decimal(kind) and isinstance(value, str | int | float):
        return pa.scalar(str(value)).cast(kind).as_py()
    if kinds.is_integer(kind) and isinstance(value, float) and value.is_integer():
        return int(value)
    if kinds.is_floating(kind) and isinstance(value, int):
        made = pa.scalar(float(value), kind).as_py()
        return made if made == value else value
    return value


def _pair(value: Any) -> tuple[Any, Any]:
    """Return a pair of a map that was sent as the list of its pairs."""
    if not isinstance(value, list):
        raise TypeError("a map is an object, or a list of pairs")
    key, item = value
    return key, item


def to_ipc(batches: Any) -> bytes:
    """Return a record batch, a table or several batches as one Arrow IPC stream."""
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
