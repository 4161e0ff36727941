"""The Parquet files of tables: exact sizes, any range read back, and files of other writers."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.source.ranges import Group
from wsmux.spark.store.base import READ_BYTES
from wsmux.spark.tables import parquet_writer
from wsmux.spark.tables.actions import DataFile
from wsmux.spark.tables.data_files import (
    GROUP_BYTES,
    NewFile,
    groups_of,
    read_file,
    rows_in,
)
from wsmux.spark.tables.folder import LocalFolder

from ...helpers.programs import package
from ...helpers.spark.arrow_data import SCHEMA, delta_wide, ids, pa, rows

pq: Any = package("pyarrow.parquet", "spark")

pytestmark = pytest.mark.spark


def written(root: Path, *batches: Any, name: str = "x.parquet") -> DataFile:
    file = NewFile(LocalFolder(root, sync=True), name, batches[0].schema)
    for batch in batches:
        file.write(batch)
    told = file.close()
    assert told.size == os.path.getsize(root / name)
    return DataFile(name, told.size, 0, told.rows, told.stats, {}, 0)


def read(root: Path, file: DataFile, schema: Any, columns: Any, span: range) -> list[Any]:
    return list(read_file(LocalFolder(root, sync=True), file, schema, columns, span, file.path))


def test_any_range_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_writer, "GROUP_ROWS", 10)
    file = written(tmp_path, *(rows(start, 7) for start in range(0, 35, 7)))
    for start in range(0, 36, 5):
        for end in range(start, 36, 5):
            span = range(start, end)
            assert ids(read(tmp_path, file, SCHEMA, ["id", "word"], span)) == list(span)


def test_every_type_comes_back(tmp_path: Path) -> None:
    batch = delta_wide()
    schema = pa.schema([field for field in batch.schema if "fixed list" not in field.name])
    part = batch.select(schema.names)
    file = written(tmp_path, part)
    (found,) = read(tmp_path, file, part.schema, part.schema.names, range(2))
    assert found.schema.equals(part.schema, check_metadata=True)
    assert str(found.to_pylist()) == str(part.to_pylist())


def test_batches_are_bounded(tmp_path: Path) -> None:
    large = pa.record_batch([pa.array([b"x" * 1000] * 10_000)], names=["x"])
    found = read(tmp_path, written(tmp_path, large), large.schema, ["x"], range(10_000))
    assert sum(batch.num_rows for batch in found) == 10_000
    assert max(batch.nbytes for batch in found) < 2 * READ_BYTES


def of_others(root: Path, table: Any, **options: Any) -> DataFile:
    """Return a file as another program writes it, with all rows in one group."""
    pq.write_table(table, root / "x.parquet", row_group_size=1 << 30, **options)
    size = os.path.getsize(root / "x.parquet")
    return DataFile("x.parquet", size, 0, table.num_rows, None, {}, 0)


@pytest.mark.parametrize("known", [False, True], ids=["plain", "dictionaries"])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
def test_text_that_repeats_needs_no_more_memory(tmp_path: Path, kind: Any, known: bool) -> None:
    """40 MB of two texts, which take 40 kB in the file; the nulls before them tell nothing."""
    values = pa.array(["a" * 20_000, "b" * 20_000, ""], kind)
    places = [None] * 1000 + [0, 1, None, 2] * 1000
    texts = pa.DictionaryArray.from_arrays(pa.array(places, pa.int8()), values)
    table = pa.table({"n": pa.array(range(5000)), "x": texts})
    file = of_others(tmp_path, table, store_schema=known)
    schema = pa.schema([("n", pa.int64()), ("x", kind)])
    folder, before, at = LocalFolder(tmp_path, sync=False), pa.total_allocated_bytes(), 1
    for batch in read_file(folder, file, schema, ["n", "x"], range(1, 5000), "x"):
        assert batch.schema == schema
        assert batch.nbytes <= READ_BYTES + 2**16
        assert pa.total_allocated_bytes() - before < 4 * READ_BYTES
        end = at + batch.num_rows
        assert batch.column(0).to_pylist() == list(range(at, end))
        lengths = [None if x is None else len(values[x].as_py()) for x in places[at:end]]
        assert [x if x is None else len(x) for x in batch.column(1).to_pylist()] == lengths
        at = end
    assert at == 5000


def test_text_within_lists_and_numbers_that_repeat_are_bounded_too(tmp_path: Path) -> None:
    texts = pa.array([["x" * 4000]] * 2000, pa.list_(pa.string()))
    numbers = {f"n{place}": pa.array([7] * 2000) for place in range(500)}
    for table in (pa.table({"x": texts}), pa.table(numbers)):
        file = of_others(tmp_path, table)
        assert file.size < READ_BYTES < table.nbytes / 3
        found = read(tmp_path, file, table.schema, table.schema.names, range(2000))
        assert max(batch.nbytes for batch in found) < READ_BYTES + 2**16
        assert pa.Table.from_batches(found).equals(table)
    (narrow, *more) = read(tmp_path, file, table.schema, ["n1"], range(2000))
    assert (narrow.num_rows, more) == (2000, []), "what is not read does not count"


def test_text_of_others_comes_back_however_it_is_encoded(tmp_path: Path) -> None:
    """A dictionary that grew too large is followed by plain pages."""
    words = [f"{number}-{'w' * 100}" for number in range(3000)] + ["same"] * 3000
    table = pa.table({"a.b": words, "a": [{"b": word} for word in words]})
    for options in (
        {"dictionary_pagesize_limit": 10_000},
        {"use_dictionary": False},
        {"data_page_version": "2.0", "compression": "zstd"},
    ):
        file = of_others(tmp_path, table, **options)
        for span in (range(6000), range(2990, 3010)):
            found = read(tmp_path, file, table.schema, ["a.b", "a"], span)
            expected = table.slice(span.start, len(span))
            assert pa.Table.from_batches(found).equals(expected)


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_text_of_others_need_have_no_dictionary(tmp_path: Path, encoding: str) -> None:
    table = pa.table({"x": [f"{number % 7}-{'w' * 100}" for number in range(2000)]})
    file = of_others(tmp_path, table, use_dictionary=False, column_encoding={"x": encoding})
    found = read(tmp_path, file, table.schema, ["x"], range(2000))
    assert pa.Table.from_batches(found).equals(table)


def test_text_may_have_a_dictionary_in_some_row_groups_alone(tmp_path: Path) -> None:
    """As DuckDB writes it, by encodings of which pyarrow makes no dictionaries."""
    duckdb: Any = package("duckdb", "spark-test")
    text = "CASE WHEN i < 3000 THEN 'same' ELSE 'word ' || i END AS x FROM range(9000) t(i)"
    path = tmp_path / "x.parquet"
    with duckdb.connect(config={"threads": 1}) as db:
        options = "FORMAT parquet, PARQUET_VERSION v2, ROW_GROUP_SIZE 2048"
        db.execute(f"COPY (SELECT {text} ORDER BY i) TO '{path}' ({options})")
    metadata = pq.read_metadata(path)
    encodings = [metadata.row_group(n).column(0).encodings for n in range(metadata.num_row_groups)]
    assert {each for some in encodings for each in some} > {"RLE_DICTIONARY"}
    file = DataFile("x.parquet", os.path.getsize(path), 0, 9000, None, {}, 0)
    found = read(tmp_path, file, pa.schema([("x", pa.string())]), ["x"], range(9000))
    values = pa.Table.from_batches(found).column(0).to_pylist()
    assert values == [f"word {n}" if n >= 3000 else "same" for n in range(9000)]


def test_names_with_dots_do_not_lead_into_columns(tmp_path: Path) -> None:
    batch = pa.record_batch(
        [pa.array([1]), pa.array([2]), pa.array([{"b": 3}])], names=["a.b", "a", "c"]
    )
    file = written(tmp_path, batch)
    for name in batch.schema.names:
        (found,) = read(tmp_path, file, batch.schema, [name], range(1))
        assert found.to_pydict() == batch.select([name]).to_pydict()


def test_columns_that_the_file_has_not(tmp_path: Path) -> None:
    file = written(tmp_path, rows(0, 3))
    file.partition = {"day": "2024-02-29", "hour": None}
    schema = pa.schema(
        [*SCHEMA, pa.field("day", pa.date32()), ("hour", pa.int8()), ("new", pa.string())]
    )
    (found,) = read(tmp_path, file, schema, ["day", "hour", "new"], range(1, 3))
    assert [str(row) for row in found.to_pylist()] == [
        "{'day': datetime.date(2024, 2, 29), 'hour': None, 'new': None}"
    ] * 2
    assert found.schema == schema.empty_table().select(["day", "hour", "new"]).schema


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("2020-01-01 00:00:00.000000", pa.timestamp("us", "UTC"), datetime(2020, 1, 1, tzinfo=UTC)),
        ("2020-01-01T00:00:00.0Z", pa.timestamp("us", "UTC"), datetime(2020, 1, 1, tzinfo=UTC)),
        ("2020-01-01 00:00:00+00:00", pa.timestamp("us", "UTC"), datetime(2020, 1, 1, tzinfo=UTC)),
        ("2020-01-01 00:00:00", pa.timestamp("us"), datetime(2020, 1, 1)),
        ("\\u0001\\u00FF\\u0061", pa.binary(), b"\x01\xffa"),
        ("\\u20ac", pa.binary(), b"\\u20ac"),
        ("é", pa.binary(), "é".encode()),
        ("", pa.string(), None),
        ("", pa.int64(), None),
    ],
    ids=str,
)
def test_what_the_log_tells_of_a_partition(
    tmp_path: Path, text: str, kind: Any, value: Any
) -> None:
    file = written(tmp_path, rows(0, 1))
    file.partition = {"p": text}
    schema = pa.schema([*SCHEMA, pa.field("p", kind)])
    (found,) = read(tmp_path, file, schema, ["p"], range(1))
    assert found.column(0).to_pylist() == [value]


def test_nanoseconds_of_another_writer_are_read(tmp_path: Path) -> None:
    nanos = pa.record_batch([pa.array([1_999], pa.timestamp("ns"))], names=["at"])
    file = written(tmp_path, nanos)
    schema = pa.schema([("at", pa.timestamp("us"))])
    (found,) = read(tmp_path, file, schema, ["at"], range(1))
    assert found.column(0).cast(pa.int64()).to_pylist() == [1]


def test_what_is_abandoned_is_removed(tmp_path: Path) -> None:
    file = NewFile(LocalFolder(tmp_path, sync=False), "x.parquet", SCHEMA)
    file.write(rows(0, 5))
    file.abandon()
    assert os.listdir(tmp_path) == []


def test_large_files_are_cut_without_a_look_into_them() -> None:
    def groups(size: int, count: int) -> list[Group]:
        return list(groups_of(DataFile("x", size, 0, count, None, {}, 0)))

    assert groups(100, 10) == [Group(10, 100.0)]
    assert groups(100, 0) == []
    cut = groups(5 * GROUP_BYTES, 11)
    assert [group.rows for group in cut] == [2, 2, 2, 2, 3]
    assert sum(group.bytes for group in cut) == 5 * GROUP_BYTES
    assert [group.rows for group in groups(5 * GROUP_BYTES, 2)] == [1, 1]


def test_rows_are_counted_where_no_statistics_tell(tmp_path: Path) -> None:
    written(tmp_path, rows(0, 7))
    assert rows_in(LocalFolder(tmp_path, sync=False), "x.parquet", "x") == 7
    (tmp_path / "x.parquet").write_bytes(b"garbage")
    with pytest.raises(RiverError, match="x is damaged"):
        rows_in(LocalFolder(tmp_path, sync=False), "x.parquet", "x")
    with pytest.raises(FileNotFoundError):
        rows_in(LocalFolder(tmp_path, sync=False), "y.parquet", "y")
