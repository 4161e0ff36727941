"""Write the partition columns of Delta tables: which types, how the log tells a value, and splits.

A partition column is in no file: the log tells the value that all rows of a file have. Files lie in
folders such as ``day=2024-02-29/region=a%2Fb`` all the same, since Polars reads the values from
there and not from the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import quote

from ...runtime.lazy_imports import pa, pc
from ..protocol import Code, refusal
from ..store.filters import Filter, Matcher, matcher
from .actions import DataFile

__all__ = [
    "Piece",
    "check_partitions",
    "matching",
    "partition_value",
    "split",
    "value_text",
]

# What Spark and delta-rs call the folder of a null.
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"

# Bytes of the name of a folder that file systems take.
MAX_FOLDER = 255

_ESCAPED = re.compile(r"(\\u00[0-9A-Fa-f]{2})+")
# pyarrow 26 crashes at exponents such as -999999999.
_DECIMAL = re.compile(r"[+-]?[0-9]{0,80}(\.[0-9]{0,80})?([eE][+-]?[0-9]{1,3})?")
_ZONED = re.compile(r"(Z|[+-][0-9]{2}:?[0-9]{2})$")


class Piece(NamedTuple):
    """Rows of one combination of partition values: as the log tells them, as a folder, as a batch.

    The batch is without the partition columns.
    """

    values: Mapping[str, str | None]
    folder: str
    batch: Any


def check_partitions(names: Sequence[str], schema: Any) -> None:
    """Check that a new table can have these partition columns.

    Raises:
        RiverError: BAD_REQUEST or WRONG_SCHEMA.
    """
    if len(set(names)) < len(names):
        raise refusal(Code.BAD_REQUEST, f"a table is partitioned by a column once: {_told(names)}")
    for name in names:
        place = schema.get_field_index(name)
        if place < 0:
            text = f"there is no column {name!r:.140} to partition by; there are"
            raise refusal(Code.WRONG_SCHEMA, f"{text} {', '.join(schema.names):.1000}")
        if not _can_partition(schema.field(place).type):
            text = f"a table cannot be partitioned by column {name!r:.140} of type"
            wanted = "partition by text, whole numbers, decimals, booleans, dates or timestamps"
            raise refusal(Code.WRONG_SCHEMA, f"{text} {schema.field(place).type}; {wanted}")
    if names and len(names) == len(schema):
        text = "a table needs a column beside those that it is partitioned by"
        raise refusal(Code.WRONG_SCHEMA, f"{text} ({_told(names)})")


def _told(names: Sequence[str]) -> str:
    return f"{', '.join(names):.1000}"


def _can_partition(kind: Any) -> bool:
    # Floats have values that text does not tell apart, or twice; engines escape bytes differently.
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
    )


# Values


def value_text(value: Any) -> str | None:
    """Return a Python value as the log of a table tells it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(" ", timespec="microseconds")
        # Without a zone Spark would take it for a time in that of its session.
        return text if value.tzinfo is None else f"{text.replace(' ', 'T')}Z"
    return value.isoformat() if isinstance(value, date) else str(value)


def partition_value(text: str | None, kind: Any) -> Any:
    """Return a value as the log tells it, whose bytes are escaped and whose times are in UTC.

    An empty text is null too.

    Raises:
        pa.ArrowException: it is no value of the type.
    """
    if not text:
        return pa.scalar(None, kind)
    if pa.types.is_binary(kind):
        if _ESCAPED.fullmatch(text):
            found = bytes(int(each, 16) for each in text.split("\\u00")[1:])
        else:
            found = text.encode()  # as Spark has them
        return pa.scalar(found, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None and not _ZONED.search(text):
        text += "Z"
    if pa.types.is_decimal(kind) and not _DECIMAL.fullmatch(text):
        raise pa.ArrowInvalid(f"{text!r:.60} is no {kind}")
    return pa.scalar(text, pa.string()).cast(kind)


def _checked_text(name: str, scalar: Any) -> str | None:
    """Return how the log tells a value of a column.

    Raises:
        RiverError: BAD_ARROW, for one that it cannot tell, or that engines would read as another.
    """
    try:
        value = scalar.as_py()
        text = value_text(value)
        same = partition_value(text, scalar.type).equals(scalar)
    except (pa.ArrowException, ValueError, OverflowError) as error:  # a year that nothing tells
        why = f"holds a {scalar.type} that the log of a Delta table cannot tell: {error}"
        raise _bad(name, why) from error
    if text == "":
        raise _bad(name, "holds an empty text, which Delta would read as null; write null, or text")
    if isinstance(value, Decimal) and value < 0 and value != int(value):
        # delta-rs 1.6 takes -1.50 for '-1.-50', and reads nothing of the table any more.
        raise _bad(name, f"holds {text}: deltalake cannot read fractions below 0 there")
    if not same:
        raise _bad(name, f"holds {text!r:.100}, which would be read as another value")
    if len(_folder(name, scalar, text).encode()) > MAX_FOLDER:
        text = f"holds {text!r:.60}..., too long for the name of a folder of {MAX_FOLDER} bytes"
        raise _bad(name, text)
    return text


def _bad(name: str, why: str) -> Exception:
    return refusal(Code.BAD_ARROW, f"partition column {name!r:.140} {why}")


def _folder(name: str, scalar: Any, text: str | None) -> str:
    if text is None:
        shown = NULL_FOLDER
    elif pa.types.is_timestamp(scalar.type):
        # The only form that Polars reads, as UTC where the column is in UTC.
        shown = text.removesuffix("Z").replace("T", " ")
    else:
        shown = text
    return f"{quote(name, safe='')}={quote(shown, safe='')}"


# Splitting


def split(batch: Any, names: Sequence[str]) -> Iterator[Piece]:
    """Yield the rows of a batch by their partition values, each batch with memory of its own.

    Raises:
        RiverError: BAD_ARROW, for a value that no partition can have.
    """
    columns: list[tuple[Any, list[tuple[str | None, str]]]] = []
    codes: Any = None
    for name in names:
        column = batch.column(name).dictionary_encode(null_encoding="encode")
        told = []
        for each in column.dictionary:
            text = _checked_text(name, each)
            told.append((text, _folder(name, each, text)))
        places = column.indices.cast(pa.int64())
        columns.append((places, told))
        if codes is None:
            codes = places
        else:  # numbered anew after each column, so that no product gets too large
            joined = pc.add(pc.multiply(codes, len(told)), places).dictionary_encode()
            codes = joined.indices.cast(pa.int64())
    rest = batch.select([name for name in batch.schema.names if name not in names])
    order = pc.array_sort_indices(codes)  # those of one value keep their order
    first = 0
    for end in pc.run_end_encode(codes.take(order)).run_ends.to_pylist():
        rows = order.slice(first, end - first)
        at = rows[0].as_py()
        found = [told[places[at].as_py()] for places, told in columns]
        values = {name: text for name, (text, _) in zip(names, found, strict=True)}
        yield Piece(values, "/".join(folder for _, folder in found), rest.take(rows))
        first = end


# Leaving out


def matching(
    filters: Sequence[Filter], schema: Any, files: Sequence[DataFile]
) -> Sequence[bool | None]:
    """Return of each file whether its rows match all filters, by its partition values alone.

    ``None``: a filter names a column that its partition values do not tell, or one of these is no
    value. The filters are ones that ``matcher`` takes for the schema.
    """
    found: list[bool | None] = [True] * len(files)
    for one in filters:
        test, kind = matcher([one], schema), schema.field(one.column).type
        known = {file.partition[one.column] for file in files if one.column in file.partition}
        verdicts = {text: _matches(test, one.column, text, kind) for text in known}
        for place, file in enumerate(files):
            verdict = (
                verdicts.get(file.partition[one.column]) if one.column in file.partition else None
            )
            if verdict is None:
                found[place] = None if found[place] else found[place]
            elif not verdict:
                found[place] = False
    return found


def _matches(test: Matcher, column: str, text: str | None, kind: Any) -> bool | None:
    try:
        values = pa.repeat(partition_value(text, kind), 1)
    except pa.ArrowException:
        return None  # who reads the file says what is wrong with it
    return bool(test.apply(pa.RecordBatch.from_arrays([values], names=[column])).num_rows)
