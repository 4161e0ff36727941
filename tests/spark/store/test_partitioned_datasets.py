"""Datasets with partition columns: written by value, read by any engine, within bounds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store.base import Committed
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.store.filters import parse_filters, wire_value
from wsmux.spark.tables import staging as staging_module
from wsmux.spark.tables.folder import Folder, LocalFolder

from ...helpers.spark.arrow_data import pa
from ...helpers.spark.engines import ENGINES, deltalake, read_by
from ...helpers.spark.inside import table_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compared")]

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("word", pa.string())])
HOUR = 3600.0
DAYS = [date(2024, 2, 29), date(2024, 3, 1), None]

# Values of each type that a table can be partitioned by.
VALUES = {
    "text": (
        pa.string(),
        ["a/b c%20ü=.'\"{}*?:\\~", "日本 語", "12", "../..", "__", " x ", "\n", "null"],
    ),
    "tiny": (pa.int8(), [-128, 0, 127]),
    "long": (pa.int64(), [-(2**63), 7]),
    "flag": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [date(1, 1, 1), date(2024, 2, 29), date(9999, 12, 31)]),
    "at": (
        pa.timestamp("us", "UTC"),
        [datetime(2024, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 1, UTC)],
    ),
    "local": (pa.timestamp("us"), [datetime(2024, 1, 1, 12, 30, 0, 123456), datetime(1, 1, 1)]),
    "money": (pa.decimal128(5, 2), [Decimal("1.50"), Decimal("0.00"), Decimal("-2.00")]),
    "grain": (pa.decimal128(38, 10), [Decimal("0"), Decimal("0.0000000001")]),
}


def batch_of(start: int, count: int) -> Any:
    ids = list(range(start, start + count))
    days = [DAYS[each % 3] for each in ids]
    return pa.record_batch([ids, days, [f"w{each % 2}" for each in ids]], schema=SCHEMA)


def staged(store: DeltaDatasets, txn: str, *batches: Any) -> Any:
    part = store.open_part(txn, 0, 0, batches[0].schema)
    for batch in batches:
        part.write(batch)
    return part.finish(1, 1)


def written(store: DeltaDatasets, *batches: Any, mode: str = "append", **options: Any) -> Committed:
    txn = store.begin("d", mode, batches[0].schema, **options).txn
    return store.commit(txn, [staged(store, txn, *batches)])


def read(store: DeltaDatasets, *filters: list[Any], **when: Any) -> list[dict[str, Any]]:
    told = store.describe("d", **when)
    found = [
        row
        for one in told.ranges
        for batch in store.read(one.token, filters=parse_filters([*filters])).batches
        for row in batch.to_pylist()
    ]
    return sorted(found, key=lambda row: row["id"])


def home(path: Path) -> Path:
    return path / "datasets" / "d"


def files(path: Path) -> list[str]:
    return sorted(str(each.relative_to(home(path))) for each in home(path).rglob("part-*.parquet"))


def folders(path: Path) -> list[str]:
    return sorted(each.name for each in home(path).glob("*=*"))


def refused(code: str, store: DeltaDatasets, *batches: Any, **options: Any) -> str:
    with pytest.raises(RiverError) as caught:
        written(store, *batches, **options)
    assert caught.value.code == code
    return caught.value.message


@pytest.fixture
def store(tmp_path: Path) -> DeltaDatasets:
    return DeltaDatasets(tmp_path, sync=False)


def rows_by(engine: str, path: Path) -> list[dict[str, Any]]:
    return sorted(read_by(engine, str(home(path))).to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("cleaned", [False, True], ids=["whole log", "cleaned log"])
@pytest.mark.parametrize("name", VALUES)
def test_engines_agree_on_values_of_every_type(
    store: DeltaDatasets, tmp_path: Path, name: str, cleaned: bool
) -> None:
    kind, values = VALUES[name]
    held = [*values, None, *reversed(values)]
    batch = pa.record_batch([list(range(len(held))), pa.array(held, kind)], names=["id", name])
    written(store, batch, partition_by=[name])
    written(store, batch.slice(0, 0), batch.slice(0, 0))
    if cleaned:
        os.utime(home(tmp_path) / "_delta_log" / f"{0:020d}.json", (1e9, 1e9))
        table_of(store, "d").checkpoint()
        assert not (home(tmp_path) / "_delta_log" / f"{0:020d}.json").exists()
        store = DeltaDatasets(tmp_path, sync=False)
    wanted = batch.to_pylist()
    assert len(files(tmp_path)) == len(values) + 1
    assert read(store) == wanted
    for value in values:
        found = [each["id"] for each in read(store, [name, "=", wire_value(value)])]
        assert found == [place for place, each in enumerate(held) if each == value]
    assert [each["id"] for each in read(store, [name, "is_null"])] == [len(values)]
    for engine in ENGINES:
        assert rows_by(engine, tmp_path) == wanted, engine


def test_several_columns_and_several_writes(store: DeltaDatasets, tmp_path: Path) -> None:
    written(store, batch_of(0, 6), batch_of(6, 6), partition_by=["day", "word"])
    written(store, batch_of(12, 6), partition_by=["day", "word"])
    written(store, batch_of(18, 6))
    wanted = batch_of(0, 24).to_pylist()
    assert read(store) == rows_by("deltalake", tmp_path) == rows_by("polars", tmp_path) == wanted
    assert len(files(tmp_path)) == 3 * 6
    assert files(tmp_path)[0].startswith("day=2024-02-29/word=w0/part-00000-0-")
    assert read(store, version=0) == batch_of(0, 12).to_pylist()
    told = deltalake.DeltaTable(str(home(tmp_path)))
    assert told.metadata().partition_columns == ["day", "word"]
    inside = pa.parquet.read_schema(home(tmp_path) / files(tmp_path)[0])
    assert inside.names == ["id"], "the log tells the rest"
    written(store, batch_of(50, 3), mode="overwrite")
    assert read(store) == rows_by("deltalake", tmp_path) == batch_of(50, 3).to_pylist()
    assert read(store, version=2) == wanted


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([["day", "=", "2024-02-29"]], {"2024-02-29"}),
        ([["day", ">", "2024-02-29"]], {"2024-03-01"}),
        ([["day", "in", ["2024-03-01", "2030-01-01"]]], {"2024-03-01"}),
        ([["day", "is_null"]], {None}),
        ([["day", "not_null"], ["day", "!=", "2024-03-01"]], {"2024-02-29"}),
    ],
)
def test_filters_on_partition_columns_leave_out_files(
    store: DeltaDatasets, tmp_path: Path, filters: list[list[Any]], left: set[str | None]
) -> None:
    written(store, batch_of(0, 30), partition_by=["day"])
    for name in files(tmp_path):
        value = name.partition("/")[0].removeprefix("day=")
        if (None if value.startswith("__") else value) not in left:
            (home(tmp_path) / name).write_bytes(b"not looked at")
    found = read(store, *filters)
    assert {None if row["day"] is None else str(row["day"]) for row in found} == left
    assert len(found) == 10


def test_columns_are_added_to_a_partitioned_dataset(store: DeltaDatasets, tmp_path: Path) -> None:
    written(store, batch_of(0, 3), partition_by=["day"])
    more = pa.record_batch([["x"], pa.array([7], pa.int32())], names=["extra", "id"])
    written(store, more, merge_schema=True)
    found = read(store)
    assert [(row["id"], row["day"], row["extra"]) for row in found] == [
        *((each, DAYS[each], None) for each in range(3)),
        (7, None, "x"),
    ]
    assert rows_by("deltalake", tmp_path) == rows_by("polars", tmp_path) == found


# What is refused


@pytest.mark.parametrize(
    ("columns", "code", "words"),
    [
        (["none"], "WRONG_SCHEMA", "there is no column 'none' to partition by; there are id, day"),
        (["day", "day"], "BAD_REQUEST", "by a column once: day, day"),
        (["id", "day", "word"], "WRONG_SCHEMA", "a column beside those that it is partitioned by"),
    ],
)
def test_columns_that_no_table_is_partitioned_by(
    store: DeltaDatasets, columns: Sequence[str], code: str, words: str
) -> None:
    assert words in refused(code, store, batch_of(0, 1), partition_by=columns)


@pytest.mark.parametrize(
    "column", [pa.array([1.5]), pa.array([b"x"]), pa.array([[1]]), pa.array([{"a": 1}])], ids=str
)
def test_types_that_no_table_is_partitioned_by(store: DeltaDatasets, column: Any) -> None:
    batch = pa.record_batch([[1], column], names=["id", "x"])
    words = refused("WRONG_SCHEMA", store, batch, partition_by=["x"])
    assert "cannot be partitioned by column 'x'" in words
    assert "partition by text, whole numbers" in words


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([""]), "an empty text, which Delta would read as null"),
        (pa.array(["x" * 300]), "too long for the name of a folder of 255 bytes"),
        (pa.array([Decimal("-1.50")]), "deltalake cannot read fractions below 0"),
        (pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), "the log of a Delta table cannot"),
        (pa.array([2**62], pa.timestamp("us")), "the log of a Delta table cannot tell"),
    ],
    ids=["empty", "long", "negative", "date", "time"],
)
def test_values_that_no_partition_has(
    store: DeltaDatasets, tmp_path: Path, column: Any, words: str
) -> None:
    batch = pa.record_batch([[1], column], names=["id", "x"])
    assert words in refused("BAD_ARROW", store, batch, partition_by=["x"])


def test_another_partitioning_is_refused(store: DeltaDatasets) -> None:
    written(store, batch_of(0, 3), partition_by=["day"])
    for mode in ("append", "overwrite"):
        for columns, shown in ((["word"], "word"), ([], "none")):
            options = {"mode": mode, "partition_by": columns}
            words = refused("WRONG_SCHEMA", store, batch_of(0, 3), **options)
            assert f"is partitioned by day, and not by {shown}: leave out partitionBy" in words
    assert len(read(store)) == 3


def test_a_partitioning_that_came_meanwhile_is_kept(store: DeltaDatasets, tmp_path: Path) -> None:
    first, late = (
        store.begin("d", "append", SCHEMA, partition_by=columns).txn for columns in (["day"], [])
    )
    receipts = [staged(store, txn, batch_of(0, 3)) for txn in (first, late)]
    store.commit(first, [receipts[0]])
    with pytest.raises(RiverError, match="is partitioned by day, and not by none"):
        store.commit(late, [receipts[1]])
    assert store.abort(late) is False
    assert rows_by("deltalake", tmp_path) == read(store) == batch_of(0, 3).to_pylist()
    assert len(files(tmp_path)) == 3


# Replacing the schema


def test_an_overwrite_replaces_schema_and_partitioning(
    store: DeltaDatasets, tmp_path: Path
) -> None:
    written(store, batch_of(0, 6), partition_by=["day"])
    other = pa.record_batch([[1, 2], ["a", "b"], [True, None]], names=["id", "day", "flag"])
    assert "set overwriteSchema" in refused("WRONG_SCHEMA", store, other, mode="overwrite")
    written(store, other, mode="overwrite", overwrite_schema=True, partition_by=["flag"])
    assert read(store) == rows_by("deltalake", tmp_path) == other.to_pylist()
    assert rows_by("polars", tmp_path) == other.to_pylist()
    written(store, other, mode="overwrite", overwrite_schema=True)
    assert deltalake.DeltaTable(str(home(tmp_path))).metadata().partition_columns == []
    assert read(store) == rows_by("polars", tmp_path) == other.to_pylist()
    assert store.describe("d").version == 2
    for version, wanted in ((0, batch_of(0, 6)), (1, other)):
        assert read(store, version=version) == wanted.to_pylist()
        told = deltalake.DeltaTable(str(home(tmp_path)), version=version).to_pyarrow_table()
        assert told.sort_by("id").to_pylist() == wanted.to_pylist()
    day = ["day", "=", "2024-03-01"]
    assert [row["id"] for row in read(store, day, version=0)] == [1, 4]


def test_the_same_schema_can_be_partitioned_anew(store: DeltaDatasets, tmp_path: Path) -> None:
    written(store, batch_of(0, 6))
    options: dict[str, Any] = {"overwrite_schema": True, "partition_by": ["word"]}
    written(store, batch_of(0, 6), mode="overwrite", **options)
    assert read(store) == rows_by("polars", tmp_path) == batch_of(0, 6).to_pylist()
    assert read(store, ["word", "=", "w1"], version=0) == read(store, ["word", "=", "w1"])


# Bounds and what is left behind


def test_open_files_are_bound_and_rows_of_a_value_go_on_in_another(
    store: DeltaDatasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFolder, "open_files", 4)
    ids = list(range(60))
    batch = pa.record_batch([ids, [each % 6 for each in ids]], names=["id", "value"])
    schema = batch.schema
    txn = store.begin("d", "append", schema, partition_by=["value"]).txn
    part = store.open_part(txn, 0, 0, schema)
    before = _open_files(tmp_path)
    for start in range(0, 60, 20):
        part.write(batch.slice(start, 20))
        assert len(_open_files(tmp_path) - before) <= 4
    store.commit(txn, [part.finish(1, 1)])
    assert read(store) == rows_by("deltalake", tmp_path) == batch.to_pylist()
    assert 6 < len(files(tmp_path)) <= 18


def _open_files(path: Path) -> set[str]:
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(each)
        except FileNotFoundError:
            continue  # that of the listing itself
        if target.startswith(str(path)) and target.endswith(".parquet"):
            found.add(target)
    return found


def test_rows_in_memory_are_bound_whatever_the_number_of_values(
    store: DeltaDatasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "HELD_BYTES", 4096)
    ids = list(range(4000))
    batch = pa.record_batch([ids, [each % 20 for each in ids]], names=["id", "value"])
    txn = store.begin("d", "append", batch.schema, partition_by=["value"]).txn
    part = store.open_part(txn, 0, 0, batch.schema)
    for start in range(0, 4000, 1000):
        part.write(batch.slice(start, 1000))
    store.commit(txn, [part.finish(1, 1)])
    assert read(store) == batch.to_pylist()
    assert len(files(tmp_path)) == 20
    groups = pa.parquet.read_metadata(home(tmp_path) / files(tmp_path)[0]).num_row_groups
    assert groups > 1, "rows were written before the file was ended"


def test_too_many_files_are_refused_with_what_helps(
    store: DeltaDatasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "MAX_FILES", 5)
    batch = pa.record_batch([list(range(6)), list(range(6))], names=["id", "value"])
    txn = store.begin("d", "append", batch.schema, partition_by=["value"]).txn
    part = store.open_part(txn, 0, 0, batch.schema)
    with pytest.raises(RiverError) as caught:
        part.write(batch)
    assert caught.value.code == "TOO_LARGE"
    assert "df.repartition('value').sortWithinPartitions('value')" in caught.value.message
    part.discard()
    assert files(tmp_path) == []
    assert os.listdir(home(tmp_path) / "_wsmux/staged" / txn[-32:]) == ["txn.json"]


@pytest.mark.parametrize("end", ["abort", "expire", "another attempt"])
def test_what_was_not_committed_is_removed(store: DeltaDatasets, tmp_path: Path, end: str) -> None:
    txn = store.begin("d", "append", SCHEMA, partition_by=["day"]).txn
    receipt = staged(store, txn, batch_of(0, 6))
    cut_short = store.open_part(txn, 0, 1, SCHEMA)
    cut_short.write(batch_of(0, 6))
    assert len(files(tmp_path)) == 6
    if end == "abort":
        store.abort(txn)
    elif end == "expire":
        store.expire(time.time() + 10 * 86_400)
    else:
        store.commit(txn, [receipt])
    assert len(files(tmp_path)) == (3 if end == "another attempt" else 0)
    assert len(folders(tmp_path)) == (3 if end == "another attempt" else 0)
    with pytest.raises(RiverError, match="was aborted, or has expired"):
        cut_short.finish(1, 1)
    cut_short.discard()


def test_a_note_that_leads_outside_removes_nothing(store: DeltaDatasets, tmp_path: Path) -> None:
    txn = store.begin("d", "append", SCHEMA, partition_by=["day"]).txn
    staged(store, txn, batch_of(0, 3))
    notes = home(tmp_path) / "_wsmux/staged" / txn[-32:]
    for note in notes.glob("p*.json"):
        note.write_text(json.dumps({"folder": "day=x/../../../outside"}))
    name = files(tmp_path)[0].rpartition("/")[2]
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / name).write_bytes(b"x")
    store.abort(txn)
    assert (tmp_path / "outside" / name).exists()


def test_a_folder_that_is_a_link_is_not_written_to(store: DeltaDatasets, tmp_path: Path) -> None:
    written(store, batch_of(0, 1), partition_by=["day"])
    (tmp_path / "outside").mkdir()
    (home(tmp_path) / "day=2024-03-01").symlink_to(tmp_path / "outside")
    assert "is a symbolic link" in refused("CORRUPT", store, batch_of(1, 1))
    assert os.listdir(tmp_path / "outside") == []


def test_what_was_overwritten_is_swept_from_its_folders(tmp_path: Path) -> None:
    store = DeltaDatasets(tmp_path, sync=True)
    written(store, batch_of(0, 6), partition_by=["day"])
    written(store, batch_of(10, 1), mode="overwrite")
    assert len(files(tmp_path)) == 4
    store.expire(time.time() + 2 * 86_400)
    assert len(files(tmp_path)) == 1
    assert folders(tmp_path) == ["day=2024-03-01"], "the others are empty"
    assert read(store) == batch_of(10, 1).to_pylist()


def test_a_folder_that_is_swept_before_a_file_is_in_it_is_made_again(
    store: DeltaDatasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_file, left = staging_module.NewFile, 3

    def swept(folder: Folder, name: str, schema: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            folder.remove_empty([os.path.dirname(name)])
            assert not (home(tmp_path) / "day=2024-02-29").exists()
        return new_file(folder, name, schema)

    monkeypatch.setattr(staging_module, "NewFile", swept)
    written(store, batch_of(0, 1), partition_by=["day", "word"])
    assert read(store) == batch_of(0, 1).to_pylist()
    assert left == 0


def test_vacuum_removes_empty_folders_of_partitions_alone(
    store: DeltaDatasets, tmp_path: Path
) -> None:
    written(store, batch_of(0, 3), partition_by=["day"])
    kept = folders(tmp_path)
    for name in ("day=2030-01-01/word=a", "day=2030-01-02", "other", "other/day=1"):
        (home(tmp_path) / name).mkdir(parents=True)
    (tmp_path / "outside" / "word=b").mkdir(parents=True)
    (home(tmp_path) / "day=2030-01-03").symlink_to(tmp_path / "outside")
    store.vacuum("d", dry_run=True)
    assert (home(tmp_path) / "day=2030-01-02").exists()
    store.vacuum("d")
    assert folders(tmp_path) == [*kept[:2], "day=2030-01-03", *kept[2:]]
    assert (home(tmp_path) / "other" / "day=1").exists()
    assert (tmp_path / "outside" / "word=b").exists()


@pytest.mark.parametrize("name", VALUES)
def test_small_files_are_joined_within_their_partition(
    name: str, store: DeltaDatasets, tmp_path: Path
) -> None:
    kind, values = VALUES[name]
    schema = pa.schema([("id", pa.int64()), ("key", kind)])
    keys = [*values, None]
    for start in range(0, 3 * len(keys), len(keys)):
        batch = pa.record_batch(
            [list(range(start, start + len(keys))), pa.array(keys, kind)], schema=schema
        )
        written(store, batch, partition_by=["key"])
    before = read(store)
    folders = {os.path.dirname(each) for each in files(tmp_path)}
    done = store.optimize("d")
    assert (done.files_removed, done.files_added) == (3 * len(keys), len(keys))
    then = time.time() - 200 * HOUR
    orphan = home(tmp_path) / min(folders) / "orphan.parquet"
    orphan.write_bytes(b"12345")
    for each in home(tmp_path).rglob("*.parquet"):
        os.utime(each, (then, then))
    assert store.vacuum("d").bytes == 5
    assert not orphan.exists()
    store.expire(time.time() + 25 * HOUR)  # what was replaced goes with a sweep
    assert len(files(tmp_path)) == len(keys)
    assert {os.path.dirname(each) for each in files(tmp_path)} == folders
    assert read(store) == before
    assert rows_by("deltalake", tmp_path) == before
    assert rows_by("polars", tmp_path) == before
