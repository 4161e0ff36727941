"""The pages of columns as Arrow writes them, and whatever else may be there instead."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.spark.tables.parquet_format import (
    DATA,
    DATA_V2,
    DICTIONARY,
    ENCODINGS,
    MAX_DEPTH,
    Chunk,
    Shape,
    check_pages,
    pages,
)

from ...helpers.programs import package
from ...helpers.spark.arrow_data import pa

pq: Any = package("pyarrow.parquet", "spark")

pytestmark = pytest.mark.spark

COUNT = 3000
TABLE = pa.table(
    {
        "number": pa.array(range(COUNT)),
        "text": [f"{n}-{'w' * 50}" for n in range(COUNT)],
        "again": [f"w{n % 5}" for n in range(COUNT)],
        "null": pa.nulls(COUNT, pa.float64()),
        "true": [n % 3 == 0 for n in range(COUNT)],
        "within": [{"a": n, "b": None} for n in range(COUNT)],
    }
)


class Column(NamedTuple):
    """What a file has of a column of a row group, and what its footer tells of it."""

    data: bytes
    values: int
    size: int
    encodings: list[int]
    name: str
    coded: bool


def columns(**options: Any) -> Iterator[Column]:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, row_group_size=COUNT // 2, **options)
    footer = pq.read_metadata(sink)
    for group in range(footer.num_row_groups):
        for place in range(footer.num_columns):
            told = footer.row_group(group).column(place)
            at = told.data_page_offset
            if told.has_dictionary_page:
                at = min(at, told.dictionary_page_offset)
            data = sink.getvalue()[at : at + told.total_compressed_size]
            yield Column(
                data,
                told.num_values,
                told.total_uncompressed_size,
                [ENCODINGS.get(each, -1) for each in told.encodings],
                told.path_in_schema,
                told.has_dictionary_page,
            )


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["snappy", "none"])
@pytest.mark.parametrize("coded", [True, False])
def test_what_arrow_writes_is_as_its_footer_tells(
    version: str, compression: str, coded: bool
) -> None:
    options = {"use_dictionary": coded, "write_page_checksum": True, "write_batch_size": 100}
    options["data_page_size"] = 1000
    seen = 0
    for column in columns(data_page_version=version, compression=compression, **options):
        check_pages(*column[:4])
        found = list(pages(column.data))
        seen += len(found)
        kinds = {page.kind for page in found}
        assert kinds - {DICTIONARY} == {DATA if version == "1.0" else DATA_V2}
        assert sum(page.values for page in found if page.kind != DICTIONARY) == column.values
        assert (DICTIONARY in kinds) == column.coded
    assert seen > 2 * 2 * TABLE.num_columns, "a column has several pages"


def column(name: str, **options: Any) -> Column:
    return next(each for each in columns(**options) if each.name == name)


def refused(one: Column) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        check_pages(*one[:4])
    return str(caught.value)


def test_pages_may_not_have_more_than_the_footer_tells() -> None:
    plain, coded = column("text", use_dictionary=False), column("again")
    assert "1500 values; the footer tells of 1501" in refused(plain._replace(values=1501))
    assert "values and" in refused(plain._replace(values=1499))
    assert "bytes or more" in refused(plain._replace(size=1500))
    assert "in encoding 0" in refused(plain._replace(encodings=[3]))
    empty = b"\x15\x00\x15\x00\x15\x00\x2c\x15\x00\x15\x00\0\0"
    assert "a page has 0 values" in refused(plain._replace(data=empty + plain.data))
    many = b"\x15\x04\x15\x04\x15\x04\x4c\x15\x06\x15\x00\0\0ab"
    text = "a dictionary has 3 values in 2 bytes"
    assert text in refused(coded._replace(data=many))
    assert "dictionary" in refused(coded._replace(encodings=[0, 3]))
    assert "dictionary" in refused(coded._replace(data=coded.data * 2, size=10**6, values=3000))
    odd = column("text", use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    assert "in encoding 7" in refused(odd)
    assert refused(plain._replace(data=b"")) == "its pages have 0 values; the footer tells of 1500"


def test_a_column_may_end_nowhere_but_behind_a_page() -> None:
    whole = column("again")
    ends = 0
    for size in range(len(whole.data) + 1):
        with suppress(ValueError):
            list(pages(whole.data[:size]))
            ends += 1
    assert ends == 1 + len(list(pages(whole.data)))


@given(st.data())
def test_bytes_that_were_changed_are_refused_or_are_pages(data: Any) -> None:
    changed = bytearray(CODED.data[:200])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 1))
        changed[place] = data.draw(st.integers(0, 255))
    try:
        found = list(pages(changed))
    except ValueError:
        return
    assert all(isinstance(number, int) and number >= 0 for page in found for number in page)


CODED = column("again")


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_are_pages(data: bytes) -> None:
    with suppress(ValueError):
        list(pages(data))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x1c" * 2 * MAX_DEPTH, "are in each other"),
        (b"\x15" + b"\xff" * 11 + b"\0", "more than 64 bits"),
        (b"\x1a\0\0", "a field of type 10"),
        (b"\x19" * 2 + b"\x99" * 40, "a list of 9 of type 9"),
        (b"\x19\xf5\xff\xff\xff\xff\x0f\0", "a list of 4294967295"),
        (b"\x19\x21\1\1\0", "a list of 2 of type 1"),
        (b"\x15\x02\0", "of kind 1"),
        (b"\x15\x00\0", "has no details"),
        (b"\x15\x00\x15\x02\x15\x02\x2c\x15\x02\0\0", "not all its numbers"),
        (b"\x15\x00\x15\x01\x15\x02\x2c\x15\x02\x15\x00\0\0", "not all its numbers"),
        (b"\x18\xff\xff\x03", "more than 32768 bytes"),
        (b"\x1c\0\0ab", "of kind {}"),
        (b"\x15\x00\x05\x02\x02\0", "a field of number 1, or there are two"),
        (b"\x15\x00\x05\x84\x80\x08\x02\0", "a field of number 65538"),
        (b"\x15\x00\x16\x02\x15\x02\x2c\x15\x02\x15\x00\0\0ab", "not all its numbers"),
    ],
)
def test_malformed_headers_are_told_apart(data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        list(pages(data))


def test_a_field_may_have_any_number_and_kind() -> None:
    """As later versions of the format may have them."""
    header = b"\x15\x00\x15\x06\x15\x04\x11\x27" + b"\0" * 8 + b"\x03\x64\x07\x18\x02ab"
    more = b"\x19\x15\x02\x0c\x0a" + b"\x15\x06\x15\x00\0" + b"\0"
    ((kind, size, values, encoding),) = pages(header + more + b"xy")
    assert (kind, size, values, encoding) == (DATA, 3, 3, 0)


def test_a_row_group_without_its_file_is_read_by_a_footer_of_its_own() -> None:
    for options in ({}, {"use_dictionary": False, "compression": "none"}):
        chunks, data = [], b"PAR1"
        half = list(columns(**options))[: TABLE.num_columns + 1]
        for one in half:
            codec = 0 if options else 1
            chunks.append(
                Chunk(len(data), len(one.data), one.size, codec, one.encodings, one.coded)
            )
            data += one.data
        empty = io.BytesIO()
        pq.write_table(TABLE.schema.empty_table(), empty)
        kinds = pq.read_metadata(empty).schema
        shape = Shape(
            empty.getvalue(), [kinds.column(place).physical_type for place in range(len(kinds))]
        )
        footer = pq.read_metadata(pa.BufferReader(shape.footer(COUNT // 2, chunks)))
        file = pq.ParquetFile(pa.BufferReader(data), metadata=footer)
        assert file.read().equals(TABLE.slice(0, COUNT // 2))
        with pytest.raises(ValueError, match="shorter"):
            shape.footer(COUNT // 2, chunks[1:])
