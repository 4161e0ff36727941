"""Files that are passed on as they are stored: the rows are those that ``read_file`` has."""

from __future__ import annotations

import io
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from wsmux.config import MIB
from wsmux.rpc import RiverError
from wsmux.spark.store.base import READ_BYTES
from wsmux.spark.tables import parquet_writer, stored_files
from wsmux.spark.tables.actions import DataFile
from wsmux.spark.tables.data_files import NewFile, read_file
from wsmux.spark.tables.folder import LocalFolder
from wsmux.spark.tables.stored_files import (
    StoredGroup,
    pass_file,
    read_group,
)

from ...helpers.programs import package
from ...helpers.spark.arrow_data import SCHEMA, delta_wide, ids, pa, rows

pq: Any = package("pyarrow.parquet", "spark")

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass small files on too."""
    monkeypatch.setattr(stored_files, "LEAST", 0)


def written(root: Path, *batches: Any) -> DataFile:
    file = NewFile(LocalFolder(root, sync=False), "x.parquet", batches[0].schema)
    for batch in batches:
        file.write(batch)
    told = file.close()
    return DataFile("x.parquet", told.size, 0, told.rows, told.stats, {}, 0)


def of_others(root: Path, table: Any, **options: Any) -> DataFile:
    pq.write_table(table, root / "x.parquet", **options)
    size = os.path.getsize(root / "x.parquet")
    return DataFile("x.parquet", size, 0, table.num_rows, None, {}, 0)


def passed(
    root: Path, file: DataFile, schema: Any, columns: Sequence[str], span: range
) -> list[Any]:
    return list(pass_file(LocalFolder(root, sync=False), file, schema, columns, span, "x"))


def joined(group: StoredGroup) -> Any:
    """Return the pieces of a row group as they are sent."""
    return pa.py_buffer(b"".join(map(bytes, group.pieces)))


def decoded(groups: Sequence[Any], wanted: Any) -> Iterator[Any]:
    for group in groups:
        if isinstance(group, pa.RecordBatch):
            yield group
            continue
        told = json.loads(json.dumps(group.told))
        yield from read_group(told, joined(group), wanted)


def both(root: Path, file: DataFile, schema: Any, columns: Sequence[str], span: range) -> None:
    """Check that the rows are the same in both ways."""
    folder, wanted = LocalFolder(root, sync=False), pa.schema([schema.field(c) for c in columns])
    found = list(decoded(passed(root, file, schema, columns, span), wanted))
    expected = list(read_file(folder, file, schema, columns, span, "x"))
    assert all(batch.schema.equals(wanted, check_metadata=True) for batch in found)
    empty = wanted.empty_table()
    one = pa.Table.from_batches(found, wanted) if found else empty
    other = pa.Table.from_batches(expected, wanted) if expected else empty
    assert str(one.to_pylist()) == str(other.to_pylist())  # nan is not equal to itself
    assert one.num_rows == len(span)


def test_any_range_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_writer, "GROUP_ROWS", 10)
    file = written(tmp_path, *(rows(start, 7) for start in range(0, 35, 7)))
    for start in range(0, 36, 5):
        for end in range(start, 36, 5):
            both(tmp_path, file, SCHEMA, ["id", "word"], range(start, end))


def test_columns_in_any_order_are_all_that_is_sent(tmp_path: Path) -> None:
    names = [f"c{place}" for place in range(5)]
    batch = pa.record_batch([pa.array(range(1000))] * 5, names=names)
    file = written(tmp_path, batch)
    sizes = {}
    for chosen in (["c0"], ["c3", "c1"], ["c4", "c3"], names):
        both(tmp_path, file, batch.schema, chosen, range(1000))
        (group,) = passed(tmp_path, file, batch.schema, chosen, range(1000))
        sizes[len(chosen)] = sum(map(len, group.pieces[1:]))
        assert len(group.pieces) == (3 if chosen == ["c3", "c1"] else 2)
    assert sizes[1] * 5 == sizes[5] < file.size


def test_every_flat_type_comes_back(tmp_path: Path) -> None:
    batch = delta_wide()
    for name in batch.schema.names:
        part = batch.select([name])
        file = written(tmp_path, part)
        items = passed(tmp_path, file, part.schema, [name], range(2))
        if isinstance(items[0], StoredGroup):
            both(tmp_path, file, part.schema, [name], range(2))
        else:
            assert "list" in str(part.schema.field(0).type) or "map" in str(part.schema), name
            assert str(pa.Table.from_batches(items).to_pylist()) == str(part.to_pylist())


def test_text_that_repeats_is_bounded(tmp_path: Path) -> None:
    texts = pa.array([("a" if n % 2 else "b") * 20_000 for n in range(2000)])
    batch = pa.record_batch([pa.array(range(2000)), texts], names=["n", "x"])
    items = passed(tmp_path, written(tmp_path, batch), batch.schema, ["n", "x"], range(1, 2000))
    assert sum(len(piece) for group in items for piece in group.pieces) < 2 * MIB
    before, at = pa.total_allocated_bytes(), 1
    for found in decoded(items, batch.schema):
        assert found.nbytes <= READ_BYTES + 2**16
        assert pa.total_allocated_bytes() - before < 8 * READ_BYTES
        assert found.equals(batch.slice(at, found.num_rows))
        at += found.num_rows
    assert at == 2000


def test_what_the_file_has_not_comes_from_the_log(tmp_path: Path) -> None:
    file = written(tmp_path, rows(0, 3))
    file.partition = {"day": "2024-02-29", "hour": None}
    schema = pa.schema([*SCHEMA, ("day", pa.date32()), ("hour", pa.int8()), ("new", pa.string())])
    for columns in (["day", "hour", "new"], ["new", "id", "day"], schema.names):
        both(tmp_path, file, schema, columns, range(1, 3))


def test_what_another_program_wrote_by_arrow_comes_back(tmp_path: Path) -> None:
    words = [f"{number}-{'w' * 100}" for number in range(3000)] + ["same"] * 3000
    table = pa.table({"a.b": words, "a": [{"b": n} for n in range(6000)], "n": range(6000)})
    for options in (
        {"dictionary_pagesize_limit": 10_000},
        {"use_dictionary": False, "compression": "none"},
        {"data_page_version": "2.0"},
        {"row_group_size": 1000},
    ):
        file = of_others(tmp_path, table, **options)
        for span in (range(6000), range(2990, 3010)):
            for columns in (["a.b", "a"], ["n"], ["a"]):
                both(tmp_path, file, table.schema, columns, span)


def test_what_takes_more_care_is_decoded_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = pa.table({"n": range(2000)})
    wide = pa.table({f"c{n}": [0] for n in range(200)})
    monkeypatch.setattr(stored_files, "MAX_TOLD", 3000)
    monkeypatch.setattr(stored_files, "MAX_GROUP", 100_000)
    lists = pa.table({"n": range(2000), "x": [[n] for n in range(2000)]})
    large = pa.table({"n": [bytes(1000)] * 120})
    for table, options in (
        (numbers, {"compression": "zstd"}),
        (numbers, {"use_dictionary": False, "column_encoding": {"n": "DELTA_BINARY_PACKED"}}),
        (lists, {}),
        (wide, {}),
        (large, {"use_dictionary": False}),
        (pa.table({"n": pa.nulls(20_000, pa.int64())}), {}),
        (numbers.schema.empty_table(), {}),
        (pa.table({"s": [{"x": "w"}] * 1000}), {}),
    ):
        file, names = of_others(tmp_path, table, **options), table.schema.names
        found = passed(tmp_path, file, table.schema, names, range(table.num_rows))
        assert all(isinstance(item, pa.RecordBatch) for item in found), options
        assert sum(item.num_rows for item in found) == table.num_rows
    both(tmp_path, of_others(tmp_path, lists), lists.schema, ["n"], range(2000))
    monkeypatch.setattr(stored_files, "LEAST", 10**6)
    file = of_others(tmp_path, numbers)
    (batch,) = passed(tmp_path, file, numbers.schema, ["n"], range(2000))
    assert batch.num_rows == 2000


def test_a_file_that_is_damaged_or_gone_is_told_as_when_it_is_decoded(tmp_path: Path) -> None:
    file = written(tmp_path, rows(0, 1000))
    path = tmp_path / file.path
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) - 3):
        path.write_bytes(whole[:size])
        with pytest.raises(RiverError, match=r"CORRUPT.* x is damaged"):
            passed(tmp_path, file, SCHEMA, ["id"], range(10))
    path.write_bytes(whole)
    file.rows = 999
    with pytest.raises(RiverError, match="it has 1000 rows, not 999"):
        passed(tmp_path, file, SCHEMA, ["id"], range(10))
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"^x$"):
        passed(tmp_path, file, SCHEMA, ["id"], range(10))


# What a server may send


def refused(told: Any, data: bytes, schema: Any = SCHEMA) -> str:
    """Read a row group of 200 rows; return why it is refused, empty if the rows are right."""
    try:
        found = ids(read_group(told, pa.py_buffer(data), schema))
    except RiverError as error:
        return f"{error.code}: {error.message}"
    return "" if found == list(range(200)) else "wrong rows"


def one_group(root: Path) -> tuple[dict[str, Any], bytes]:
    (group,) = passed(root, written(root, rows(0, 200)), SCHEMA, ["id", "word"], range(200))
    return group.told, joined(group).to_pybytes()


def test_bytes_that_were_changed_are_refused(tmp_path: Path) -> None:
    """By the checksum of a page, but for those of headers that nobody looks at."""
    told, good = one_group(tmp_path)
    assert refused(told, good) == ""
    outcomes = Counter()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        outcomes[refused(told, bytes(bad))[:9]] += 1
    assert set(outcomes) == {"", "CORRUPT: "}
    assert outcomes[""] < 0.2 * len(good)
    assert "CORRUPT" in refused(told, b"")
    assert "CORRUPT" in refused(told, good[:-1])


def test_what_is_told_has_to_be_right(tmp_path: Path) -> None:
    """Whatever number stands in place of another one, pyarrow gets none that it cannot stand."""
    told, good = one_group(tmp_path)
    drawn, outcomes = random.Random(5), Counter()
    for _ in range(2000):
        bad = json.loads(json.dumps(told))
        chunk = drawn.choice(bad["chunks"])
        value = drawn.choice([0, 1, 3, 4, 8, 2**31, 2**63 - 1, drawn.randrange(2000)])
        match drawn.randrange(8):
            case 0:
                bad["rows"] = value
            case 1:
                bad["start"], bad["end"] = 0, value
            case 2:
                chunk[4] = [drawn.choice([0, 2, 3, 4, 8]) for _ in range(drawn.randrange(4))]
            case 3:
                chunk[5] = not chunk[5]
            case 4:
                chunk[3] = drawn.randrange(2)
            case field:
                chunk[field - 5] = value
        outcomes[refused(bad, good)[:13]] += 1
    assert set(outcomes) <= {"", "CORRUPT: x is", "BAD_REQUEST: ", "wrong rows"}
    assert outcomes["CORRUPT: x is"] > 500


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("end", value) for value in (0, 201)),
        *((name, None) for name in ("file", "rows", "start", "end", "partition")),
        *(("columns", value) for value in (None, [], ["id", "id"], ["x"], [1])),
        *(("chunks", value) for value in (None, [], [[]], [None], {"a": 1})),
        *(("chunks", [[4, 4, 4, *value]] * 2) for value in ([1, [0], 1], [9, [0], True])),
        *(("chunks", [[4, 4, 4, 1, value, True]] * 2) for value in ([7], [True], "0", None)),
        *(
            ("chunks", [[*value, 1, [0], True]] * 2)
            for value in ([0, 4, 4], [4, True, 4], [4, 4, 2**63 + 100])
        ),
        ("partition", {"a": 1}),
    ],
    ids=str,
)
def test_what_is_told_has_to_be_complete(tmp_path: Path, name: str, value: object) -> None:
    told, good = one_group(tmp_path)
    why = refused(told | {name: value}, good)
    assert why.startswith(("BAD_REQUEST", "CORRUPT")), why


def test_few_bytes_do_not_become_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows that are told of and not there; the pages would have to tell the same."""
    told, good = one_group(tmp_path)
    assert "have 200 values" in refused(told | {"rows": 2**40, "end": 2**40}, good)
    monkeypatch.setattr(stored_files, "MAX_GROUP", 200_000)
    nulls = pa.table({"n": pa.nulls(50_000, pa.int32())})
    sink = io.BytesIO()
    pq.write_table(nulls, sink, row_group_size=1 << 30)
    column = pq.read_metadata(sink).row_group(0).column(0)
    at = column.data_page_offset
    if column.has_dictionary_page:
        at = column.dictionary_page_offset
    data = b"PAR1" + sink.getvalue()[at : at + column.total_compressed_size]
    sizes = [4, column.total_compressed_size, column.total_uncompressed_size]
    chunks = [[*sizes, 1, [0, 3, 8], column.has_dictionary_page]]
    told = {"file": "x", "rows": nulls.num_rows, "start": 0, "end": 1, "partition": {}}
    told |= {"columns": ["n"], "chunks": chunks}
    assert len(list(read_group(told, pa.py_buffer(data), nulls.schema))) == 1
    before, schema = pa.total_allocated_bytes(), pa.schema([("n", pa.int64())])
    with pytest.raises(RiverError, match="has 400000 bytes; up to 200000 are accepted"):
        list(read_group(told, pa.py_buffer(data), schema))
    assert pa.total_allocated_bytes() - before < 200_000
    text = pa.schema([("s", pa.struct([("x", pa.string())]))])
    told |= {"columns": ["s"], "chunks": [[*sizes, 1, [0, 3, 8], False]]}
    assert "has a dictionary" in refused(told, data, text)
    assert "lists" in refused(told, data, pa.schema([("s", pa.list_(pa.int32()))]))


def test_paths_that_are_the_same_are_told_apart(tmp_path: Path) -> None:
    """A path has dots between names, which may have dots themselves."""
    numbers = range(100)
    for table in (
        {"a.b": [{"c": n} for n in numbers], "a": [{"b.c": -n} for n in numbers]},
        {"a.b": list(numbers), "a": [{"b": -n} for n in numbers]},
        {"a": [{"b": -n} for n in numbers], "a.b": list(numbers)},
    ):
        batch = pa.RecordBatch.from_pydict(table)
        file = written(tmp_path, batch)
        for columns in (["a"], ["a.b"], ["a", "a.b"], ["a.b", "a"]):
            both(tmp_path, file, batch.schema, columns, range(100))


def test_nulls_stay_where_they_were(tmp_path: Path) -> None:
    inner = pa.struct([pa.field("a", pa.int64(), False)])
    there = pa.schema([pa.field("s", inner, True)])
    values = pa.array([{"a": 1}, None], inner)
    file = of_others(tmp_path, pa.Table.from_arrays([values], schema=there))
    other = pa.schema([pa.field("s", pa.struct([pa.field("a", pa.int64(), True)]), False)])
    for schema in (there, other):
        both(tmp_path, file, schema, ["s"], range(2))


def test_what_is_not_in_the_file_is_bounded_too(tmp_path: Path) -> None:
    batch = pa.record_batch([pa.nulls(20_000, pa.bool_())], names=["b"])
    (group,) = passed(tmp_path, written(tmp_path, batch), batch.schema, ["b"], range(20_000))
    data = joined(group)
    for kind, partition in (
        (pa.string(), {"x": "y" * 10_000}),
        (pa.binary(10_000), {}),
        (pa.list_(pa.int64(), 1000), {}),
        (pa.struct([("y", pa.list_(pa.int64(), 1000))]), {}),
    ):
        schema = pa.schema([*batch.schema, ("x", kind)])
        found = read_group(group.told | {"partition": partition}, data, schema)
        first = next(found)
        assert first.num_rows < 2000
        assert first.nbytes < 2 * stored_files.AT_ONCE
        found.close()
    schema = pa.schema([*batch.schema, ("x", pa.list_(pa.int64(), 1 << 30))])
    assert "up to" in refused(group.told, data.to_pybytes(), schema)


def test_what_pyarrow_cannot_stand_is_refused(tmp_path: Path) -> None:
    told, good = one_group(tmp_path)
    schema = pa.schema([*SCHEMA, ("x", pa.decimal128(38, 10))])
    bad = told | {"partition": {"x": "1e-999999999"}}
    assert "is no decimal128" in refused(bad, good, schema)
    schema = pa.schema([("id", pa.int64()), ("word", pa.json_())])
    assert "an extension type" in refused(told, good, schema)
    many = pa.schema([*SCHEMA, *((f"c{n}", pa.int8()) for n in range(stored_files.MAX_LEAVES))])
    assert "too many columns" in refused(told | {"columns": many.names}, good, many)
    chunks = told["chunks"] * 2
    assert "4 columns are told of, for 2" in refused(told | {"chunks": chunks}, good)
    chunks = [told["chunks"][0], [*told["chunks"][0][:1], len(good), *told["chunks"][1][2:]]]
    assert "2 columns are told of, for 2 and" in refused(told | {"chunks": chunks}, good)
