"""A Delta table in a directory: followed, committed to beside others, torn, and kept short."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wsmux.exceptions import NoThreadError
from wsmux.rpc import RiverError
from wsmux.spark.store.base import Committed
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.store.filters import parse_filters
from wsmux.spark.tables import table as table_module
from wsmux.spark.tables.actions import MODIFIED
from wsmux.spark.tables.table import DeltaDirectory

from ...helpers.spark.arrow_data import SCHEMA, ids, pa, rows
from ...helpers.spark.engines import deltalake
from ...helpers.spark.inside import table_of
from ...helpers.waiting import wait_for

pytestmark = pytest.mark.spark

# For tests that damage nothing.
compared = pytest.mark.usefixtures("compared")

PATIENCE = 30.0


def store(path: Path, **options: Any) -> DeltaDatasets:
    return DeltaDatasets(path, **{"sync": False, **options})


def staged(datasets: DeltaDatasets, start: int, mode: str = "append", **app: Any) -> Any:
    txn = datasets.begin("d", mode, SCHEMA, **app).txn
    part = datasets.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(start, 10))
    return txn, part.finish(1, 1)


def write(datasets: DeltaDatasets, start: int, mode: str = "append", **app: Any) -> Committed:
    txn, receipt = staged(datasets, start, mode, **app)
    return datasets.commit(txn, [receipt])


def read(datasets: DeltaDatasets) -> list[int]:
    ranges = datasets.describe("d").ranges
    return [each for one in ranges for each in ids(datasets.read(one.token).batches)]


def home(path: Path) -> Path:
    return path / "datasets" / "d"


def entry(path: Path, version: int) -> Path:
    return home(path) / "_delta_log" / f"{version:020d}.json"


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    datasets = store(tmp_path / "store")
    for start in (0, 10, 20):
        write(datasets, start)
    return tmp_path / "store"


# What a power cut leaves


def test_a_last_entry_torn_at_any_byte_is_set_aside(
    filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody was told of it: the table is what it was before, and takes the same again."""
    whole = entry(filled, 2).read_bytes()
    aside = home(filled) / "_wsmux" / "torn"
    for size in range(len(whole) - 1):  # without the newline at its end it is whole
        entry(filled, 2).write_bytes(whole[:size])
        assert store(filled).describe("d").version == 1
        assert not aside.exists(), "who reads changes nothing"
    aged(filled, range(2, 3))
    assert write(store(filled), 30).version == 2
    (torn,) = aside.iterdir()
    assert torn.read_bytes() == whole[:size]
    assert "was torn by a crash" in caplog.text
    assert read(store(filled)) == [*range(20), *range(30, 40)]
    assert deltalake.DeltaTable(str(home(filled))).version() == 2


def test_zeros_in_place_of_an_entry_are_set_aside(filled: Path) -> None:
    entry(filled, 2).write_bytes(bytes(700))
    assert read(store(filled)) == list(range(20))


def test_an_entry_that_is_being_written_is_waited_for(filled: Path) -> None:
    """Another program may write it in place, or copy it: who follows, opens or commits waits."""
    whole, old = entry(filled, 2).read_bytes(), store(filled, lock_timeout=0.05)
    entry(filled, 2).unlink()
    assert read(old) == list(range(20))
    txn, receipt = staged(old, 30)
    entry(filled, 2).write_bytes(whole[:-20])
    assert read(old) == read(store(filled)) == list(range(20))
    with pytest.raises(RiverError) as caught:
        old.commit(txn, [receipt])
    assert caught.value.code == "BUSY"
    entry(filled, 2).write_bytes(whole)
    assert read(old) == list(range(30))
    assert old.commit(txn, [receipt]).version == 3


def test_a_first_entry_that_is_torn_was_no_table(tmp_path: Path) -> None:
    write(store(tmp_path), 0)
    entry(tmp_path, 0).write_bytes(b"{")
    with pytest.raises(RiverError, match="there is no dataset d"):
        store(tmp_path).describe("d")
    aged(tmp_path, range(1))
    assert write(store(tmp_path), 5).version == 0
    assert read(store(tmp_path)) == list(range(5, 15))


def test_an_entry_before_the_last_is_not_set_aside(filled: Path) -> None:
    entry(filled, 1).write_bytes(b"{")
    with pytest.raises(RiverError, match="it is not whole") as caught:
        read(store(filled))
    assert caught.value.code == "CORRUPT"
    assert entry(filled, 1).exists()


def test_an_entry_that_is_no_file_is_not_followed(filled: Path) -> None:
    datasets = store(filled)
    assert read(datasets) == list(range(30))
    outside = filled.parent / "outside"
    outside.write_bytes(entry(filled, 2).read_bytes())
    entry(filled, 3).symlink_to(outside)
    for opened in (datasets, store(filled)):
        with pytest.raises(RiverError, match="3.json.*not a file of the store") as caught:
            read(opened)
        assert caught.value.code == "CORRUPT"


@pytest.mark.parametrize(
    "add",
    [
        {},
        {"path": "x", "size": math.inf, "modificationTime": 1},
        {"path": "x", "size": 1, "modificationTime": 1, "stats": '{"numRecords":Infinity}'},
        {"path": "x", "size": 1, "modificationTime": 1, "stats": "[" * 100_000},
    ],
    ids=["empty", "size", "rows", "deep"],
)
def test_an_entry_that_cannot_be_understood_is_told_until_it_is_gone(
    filled: Path, add: dict[str, Any]
) -> None:
    datasets = store(filled)
    assert read(datasets) == list(range(30))
    entry(filled, 3).write_text(json.dumps({"add": add}) + "\n")
    for opened in (datasets, datasets, store(filled)):
        with pytest.raises(RiverError, match="cannot be used") as caught:
            read(opened)
        assert caught.value.code == "CORRUPT"
    entry(filled, 3).unlink()
    assert read(datasets) == list(range(30))


@pytest.mark.parametrize("stats", [None, '{"numRecords":1}'])
def test_a_file_with_a_name_that_none_has_is_told(filled: Path, stats: str | None) -> None:
    datasets = store(filled)
    made = {"path": "x\0y", "size": 1, "modificationTime": 1, "stats": stats}
    entry(filled, 3).write_text(json.dumps({"add": made}) + "\n")
    for opened in (datasets, store(filled)):
        with pytest.raises(RiverError, match="name of no file") as caught:
            read(opened)
        assert caught.value.code == "CORRUPT"
    write(datasets, 30, mode="overwrite")
    later = time.time() + 9 * 86_400
    datasets.expire(later)
    assert read(datasets) == read(store(filled)) == list(range(30, 40))
    assert len(list(home(filled).glob("*.parquet"))) == 1, "the others are removed"


def test_a_log_without_a_schema_is_no_table(filled: Path) -> None:
    lines = entry(filled, 0).read_text().splitlines(keepends=True)
    entry(filled, 0).write_text("".join(line for line in lines if "metaData" not in line))
    with pytest.raises(RiverError, match="it is not whole|does not tell its schema"):
        read(store(filled))


@compared
def test_an_entry_that_goes_while_it_is_opened_is_read_from_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = store(tmp_path)
    for start in range(0, 60, 10):
        write(datasets, start)
    aged(tmp_path, range(5))
    loaded = DeltaDirectory._loaded

    def too_late(self: DeltaDirectory, numbers: Any) -> Any:
        monkeypatch.setattr(DeltaDirectory, "_loaded", loaded)
        table_of(datasets, "d").checkpoint()
        return loaded(self, numbers)

    monkeypatch.setattr(DeltaDirectory, "_loaded", too_late)
    assert read(store(tmp_path)) == list(range(60))


def test_everything_is_safe_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file and its folder, then the entry, then the folder of the log behind the link."""
    told: list[tuple[str, str]] = []
    fsync, link = os.fsync, os.link

    def note_fsync(descriptor: int) -> None:
        told.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def note_link(source: Any, target: Any) -> None:
        told.append(("link", Path(target).name))
        link(source, target)

    datasets = store(tmp_path, sync=True)
    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "link", note_link)
    write(datasets, 0)
    named = told.index(("link", entry(tmp_path, 0).name))
    assert ("fsync", "datasets") in told[:named], "the folder of a new table"
    txn = datasets.begin("d", "append", SCHEMA).txn
    del told[:]
    part = datasets.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(10, 10))
    receipt = part.finish(1, 1)
    (file,) = (name for name in os.listdir(home(tmp_path)) if receipt.file[-24:-8] in name)
    assert told[:2] == [("fsync", file), ("fsync", "d")]
    del told[:]
    datasets.commit(txn, [receipt])
    kinds = [(what, name if not name.endswith(".tmp") else "entry") for what, name in told]
    assert kinds == [
        ("fsync", "entry"),
        ("link", entry(tmp_path, 1).name),
        ("fsync", "_delta_log"),
    ]


@compared
def test_a_commit_cut_short_is_done_by_the_next(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies when the entry is there, before it could answer or tidy up."""
    datasets = store(filled)
    txn, receipt = staged(datasets, 30)
    link = os.link

    def die(*names: Any) -> None:
        link(*names)
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(os, "link", die)
        with pytest.raises(KeyboardInterrupt):
            datasets.commit(txn, [receipt])
    again = store(filled)
    assert read(again) == list(range(40))
    assert again.commit(txn, [receipt]).version == 3
    assert read(again) == read(datasets) == list(range(40))
    again.expire(time.time())
    assert os.listdir(home(filled) / "_wsmux" / "staged") == []
    assert read(store(filled)) == list(range(40))


# Others who write


def append_elsewhere(path: Path, start: int) -> None:
    """Add ten rows as a program does that knows Delta and nothing of this package."""
    deltalake.write_deltalake(str(home(path)), pa.table(rows(start, 10)), mode="append")


@compared
def test_what_others_write_is_read_and_written_to(filled: Path) -> None:
    datasets = store(filled)
    assert read(datasets) == list(range(30))
    append_elsewhere(filled, 30)
    assert read(datasets) == list(range(40))
    assert write(datasets, 40).version == 4
    append_elsewhere(filled, 50)
    assert read(datasets) == read(store(filled)) == list(range(60))


@compared
def test_what_others_rewrite_is_one_version(filled: Path) -> None:
    datasets = store(filled)
    token = datasets.describe("d", 1).ranges[0].token
    table = deltalake.DeltaTable(str(home(filled)))
    table.optimize.compact()
    assert sorted(read(datasets)) == list(range(30))
    assert len(list(deltalake.DeltaTable(str(home(filled))).file_uris())) == 1
    assert ids(datasets.read(token).batches) == list(range(30)), "of a version before"
    assert ids(store(filled).read(token).batches) == list(range(30))
    table.delete("id < 5")
    assert sorted(read(store(filled))) == list(range(5, 30))
    write(datasets, 30)
    assert sorted(read(datasets)) == list(range(5, 40))


@compared
def test_a_commit_beside_others_is_made_once(filled: Path) -> None:
    """Each of both sides loses races for versions, and none of its rows."""
    failures: list[BaseException] = []

    def others() -> None:
        try:
            for turn in range(12):
                while True:
                    try:
                        append_elsewhere(filled, 1000 + 10 * turn)
                        break
                    except deltalake.exceptions.CommitFailedError:
                        continue  # it has lost as many races as delta-rs allows
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=others)
    thread.start()
    datasets = store(filled)
    for turn in range(30):
        write(datasets, 30 + 10 * turn)
    thread.join(PATIENCE)
    assert not failures
    assert sorted(read(store(filled))) == [*range(330), *range(1000, 1120)]


@compared
def test_an_entry_of_another_writer_in_between_is_looked_at_first(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who holds no lock writes the same version of the app just before the link."""
    datasets = store(filled)
    txn, receipt = staged(datasets, 30, app="etl", app_version=5)
    link = os.link

    def too_late(*names: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        action = {"txn": {"appId": "etl", "version": 5, "lastUpdated": 1}}
        entry(filled, 3).write_text(json.dumps(action) + "\n")
        link(*names)

    monkeypatch.setattr(os, "link", too_late)
    assert datasets.commit(txn, [receipt]) == Committed(3, 0, 0)
    assert read(datasets) == list(range(30))
    assert datasets.begin("d", "append", SCHEMA, "etl", 5).done


def test_a_schema_that_another_writer_has_changed_in_between_is_refused(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = store(filled)
    txn, receipt = staged(datasets, 30)
    link = os.link

    def too_late(*names: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        table = pa.table({"other": pa.array(["x"])})
        deltalake.write_deltalake(
            str(home(filled)), table, mode="overwrite", schema_mode="overwrite"
        )
        link(*names)

    monkeypatch.setattr(os, "link", too_late)
    with pytest.raises(RiverError) as caught:
        datasets.commit(txn, [receipt])
    assert caught.value.code == "WRONG_SCHEMA"


def between(monkeypatch: pytest.MonkeyPatch, others: Callable[[], object]) -> None:
    """Let others write after a commit was planned, before the log is looked at again."""
    commit = DeltaDirectory.commit

    def late(self: DeltaDirectory, planned: Any) -> bool:
        monkeypatch.setattr(DeltaDirectory, "commit", commit)
        others()
        return commit(self, planned)

    monkeypatch.setattr(DeltaDirectory, "commit", late)


@compared
def test_a_column_that_another_writer_adds_in_between_stays(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = rows(50, 1).append_column("w", pa.array([1]))
    datasets = store(filled)
    txn = datasets.begin("d", "append", more.schema, merge_schema=True).txn
    part = datasets.open_part(txn, 0, 0, more.schema)
    part.write(more)
    receipt = part.finish(1, 1)

    def others() -> None:
        table = pa.table(rows(60, 1)).append_column("z", pa.array([2]))
        deltalake.write_deltalake(str(home(filled)), table, mode="append", schema_mode="merge")

    between(monkeypatch, others)
    assert datasets.commit(txn, [receipt]).version == 4
    assert {"w", "z"} <= set(datasets.describe("d").schema.names)


@compared
def test_a_dataset_that_another_writer_makes_in_between_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = store(tmp_path)
    txn, receipt = staged(datasets, 0, "create")

    def others() -> None:
        deltalake.write_deltalake(str(home(tmp_path)), pa.table(rows(10, 10)))

    between(monkeypatch, others)
    with pytest.raises(RiverError) as caught:
        datasets.commit(txn, [receipt])
    assert caught.value.code == "EXISTS"
    assert read(datasets) == list(range(10, 20))


@compared
def test_two_stores_race_for_one_app(filled: Path) -> None:
    """Each version counts once, whoever was first."""
    answers: list[list[Committed]] = [[], []]

    def careful(place: int) -> None:
        mine = store(filled)
        for number in range(15):
            begun = mine.begin("d", "append", SCHEMA, "etl", number)
            if begun.done:
                continue
            part = mine.open_part(begun.txn, 0, 0, SCHEMA)
            part.write(rows(100 + 10 * number, 10))
            answers[place].append(mine.commit(begun.txn, [part.finish(1, 1)]))

    threads = [threading.Thread(target=careful, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(read(store(filled))) == [*range(30), *range(100, 250)]
    assert deltalake.DeltaTable(str(home(filled))).transaction_version("etl") == 14


# Tables of others


def serve_foreign(path: Path, table: Any, **options: Any) -> DeltaDatasets:
    datasets = store(path)
    deltalake.write_deltalake(str(home(path)), table, **options)
    return datasets


def clean_log(path: Path, table: Any) -> None:
    """Put a checkpoint in place of the entry that wrote a table."""
    deltalake.write_deltalake(str(home(path)), table.slice(0, 0), mode="append")
    deltalake.DeltaTable(str(home(path))).create_checkpoint()
    entry(path, 0).unlink()


def rows_of(datasets: DeltaDatasets) -> list[dict[str, Any]]:
    """Return all rows, in the order of their ids."""
    found = [
        row
        for one in datasets.describe("d").ranges
        for batch in datasets.read(one.token).batches
        for row in batch.to_pylist()
    ]
    return sorted(found, key=lambda row: row["id"])


@compared
def test_a_table_of_another_program_is_served(tmp_path: Path) -> None:
    datasets = serve_foreign(tmp_path, pa.table(rows(0, 10)))
    assert read(datasets) == list(range(10))
    assert write(datasets, 10).version == 1
    datasets.expire(time.time())
    assert deltalake.DeltaTable(str(home(tmp_path))).to_pyarrow_table().num_rows == 20


@compared
@pytest.mark.parametrize("cleaned", [False, True], ids=["whole log", "cleaned log"])
def test_files_with_odd_names_are_read_and_replaced(tmp_path: Path, cleaned: bool) -> None:
    """Also for those who compare names as they stand in the log, letter by letter."""
    datasets = store(tmp_path)
    home(tmp_path).mkdir()
    pa.parquet.write_table(pa.table(rows(0, 10)), home(tmp_path) / "a+b (1).parquet")
    deltalake.convert_to_deltalake(str(home(tmp_path)))
    if cleaned:
        append_elsewhere(tmp_path, 10)
        deltalake.DeltaTable(str(home(tmp_path))).create_checkpoint()
        entry(tmp_path, 0).unlink()
    assert sorted(read(datasets)) == list(range(20 if cleaned else 10))
    write(datasets, 50, mode="overwrite")
    assert read(datasets) == read(store(tmp_path)) == list(range(50, 60))
    table = deltalake.DeltaTable(str(home(tmp_path))).to_pyarrow_table()
    assert table["id"].to_pylist() == list(range(50, 60))


@compared
def test_what_another_program_has_replaced_is_kept_as_long_as_its_table_says(
    tmp_path: Path,
) -> None:
    datasets = serve_foreign(tmp_path, pa.table(rows(0, 10)))
    deltalake.write_deltalake(str(home(tmp_path)), pa.table(rows(10, 10)), mode="overwrite")
    datasets.expire(time.time() + 6 * 86_400)
    assert len(list(home(tmp_path).glob("*.parquet"))) == 2
    datasets.expire(time.time() + 8 * 86_400)
    assert len(list(home(tmp_path).glob("*.parquet"))) == 1
    assert read(datasets) == list(range(10, 20))


def test_a_sweep_removes_nothing_outside_of_a_table(filled: Path) -> None:
    datasets = store(filled)
    assert read(datasets) == list(range(30))
    outside = filled.parent / "outside"
    outside.mkdir()
    for folder in (outside, home(filled) / "_delta_log", home(filled) / "_wsmux"):
        (folder / "x.parquet").write_bytes(b"x")
    (home(filled) / "link").symlink_to(outside)
    (home(filled) / "kept.parquet").write_bytes(b"x")
    names = [
        "link/x.parquet",
        "_delta_log/x.parquet",
        "_wsmux/x.parquet",
        "./kept.parquet",
        ".",
    ]
    lines = [
        {"remove": {"path": name, "size": 1, "deletionTimestamp": 1, "tags": {MODIFIED: "1"}}}
        for name in names
    ]
    entry(filled, 3).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    datasets.expire(time.time() + 60 * 86_400)
    assert (outside / "x.parquet").exists()
    assert (home(filled) / "_delta_log" / "x.parquet").exists()
    assert (home(filled) / "_wsmux" / "x.parquet").exists()
    assert (home(filled) / "kept.parquet").exists()
    assert read(datasets) == list(range(30))


def test_a_table_that_can_only_be_read_is_not_swept(tmp_path: Path) -> None:
    table = pa.table({"id": list(range(10)), "number": [1.5, 2.5] * 5})
    datasets = serve_foreign(tmp_path, table, partition_by=["number"])
    before = set(home(tmp_path).rglob("*.parquet"))
    deltalake.write_deltalake(str(home(tmp_path)), table, mode="overwrite")
    with pytest.raises(RiverError, match="it is partitioned by number of type double"):
        datasets.begin("d", "append", table.schema)
    datasets.expire(time.time() + 60 * 86_400)
    assert before <= set(home(tmp_path).rglob("*.parquet"))


@pytest.mark.parametrize("cleaned", [False, True], ids=["whole log", "cleaned log"])
def test_a_partitioned_table_of_another_program_is_read_and_written_to(
    tmp_path: Path, cleaned: bool
) -> None:
    table = pa.table({"id": [1, 2, 3], "word": ["a b", None, "a b"], "n": [True, False, None]})
    datasets = serve_foreign(tmp_path, table, partition_by=["word", "n"])
    if cleaned:
        clean_log(tmp_path, table)
    assert rows_of(datasets) == table.to_pylist()
    token = datasets.describe("d", 1).ranges[0].token
    words = [each for b in datasets.read(token, 0, ["word"]).batches for each in b["word"]]
    assert sorted(str(each) for each in words) == ["None", "a b", "a b"]
    for mode, wanted in (("append", 6), ("overwrite", 3)):
        txn = datasets.begin("d", mode, table.schema).txn
        part = datasets.open_part(txn, 0, 0, table.schema)
        part.write(table.to_batches()[0])
        datasets.commit(txn, [part.finish(1, 1)])
        other = deltalake.DeltaTable(str(home(tmp_path))).to_pyarrow_table().sort_by("id")
        assert other.to_pylist() == sorted(
            table.to_pylist() * (wanted // 3), key=lambda row: row["id"]
        )


@pytest.mark.parametrize("cleaned", [False, True], ids=["whole log", "cleaned log"])
def test_partitions_of_bytes_and_times_are_read(tmp_path: Path, cleaned: bool) -> None:
    times = pa.array([0, 1_600_000_000_123_456, None], pa.timestamp("us", "UTC"))
    table = pa.table({"id": [1, 2, 3], "raw": [b"\x01\xff", b"ab", None], "at": times})
    datasets = serve_foreign(tmp_path, table, partition_by=["raw", "at"])
    if cleaned:
        clean_log(tmp_path, table)
    assert rows_of(datasets) == table.to_pylist()


@pytest.mark.parametrize("cleaned", [False, True], ids=["whole log", "cleaned log"])
def test_no_row_is_lost_to_the_bounds_of_another_program(tmp_path: Path, cleaned: bool) -> None:
    """It cuts times to milliseconds, and rounds decimals to floating point."""
    at, number = 1_600_000_000_123_456, 2**60 + 100
    table = pa.table(
        {
            "at": pa.array([at], pa.timestamp("us", "UTC")),
            "plain": pa.array([at], pa.timestamp("us")),
            "number": pa.array([number], pa.decimal128(38, 0)),
        }
    )
    datasets = serve_foreign(tmp_path, table)
    if cleaned:
        clean_log(tmp_path, table)
    token = datasets.describe("d", 1).ranges[0].token
    for column, value in (
        ("at", "2020-09-13T12:26:40.123456+00:00"),
        ("plain", "2020-09-13T12:26:40.123456"),
        ("number", str(number)),
    ):
        filters = parse_filters([[column, "=", value]])
        found = list(datasets.read(token, filters=filters).batches)
        assert sum(batch.num_rows for batch in found) == 1, column


def test_a_table_with_columns_added_since_is_read(tmp_path: Path) -> None:
    datasets = serve_foreign(tmp_path, pa.table({"id": [1]}))
    more = pa.table({"id": [2], "word": ["x"]})
    deltalake.write_deltalake(str(home(tmp_path)), more, mode="append", schema_mode="merge")
    found = [
        row
        for one in store(tmp_path).describe("d").ranges
        for batch in datasets.read(one.token).batches
        for row in batch.to_pylist()
    ]
    assert sorted(found, key=lambda row: row["id"]) == [
        {"id": 1, "word": None},
        {"id": 2, "word": "x"},
    ]


def test_files_without_statistics_are_looked_into(filled: Path) -> None:
    for version in range(3):
        actions = [json.loads(line) for line in entry(filled, version).read_text().splitlines()]
        for action in actions:
            if "add" in action:
                action["add"]["stats"] = None
        lines = (f"{json.dumps(action)}\n" for action in actions)
        entry(filled, version).write_text("".join(lines))
    old = sorted(home(filled).glob("*.parquet"))
    datasets = store(filled)
    assert [info.rows for info in datasets.list()] == [30]
    token = datasets.describe("d", 1).ranges[0].token
    assert read(datasets) == list(range(30))
    write(datasets, 50, mode="overwrite")
    assert ids(store(filled).read(token).batches) == list(range(30))
    old[0].write_bytes(b"garbage")
    with pytest.raises(RiverError, match="no longer kept"):
        store(filled).read(token)
    assert read(store(filled)) == list(range(50, 60))


def test_a_table_that_asks_for_more_is_refused_by_what_it_asks_for(filled: Path) -> None:
    asked = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    entry(filled, 3).write_text(json.dumps({"protocol": asked}) + "\n")
    with pytest.raises(RiverError, match="deletionVectors, which is not known here") as caught:
        read(store(filled))
    assert caught.value.code == "CORRUPT"


# Checkpoints, and a log that stays short


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "BETWEEN_CHECKPOINTS", 10)


def checkpoints(path: Path) -> list[str]:
    return [name for name in os.listdir(home(path) / "_delta_log") if "checkpoint.parquet" in name]


@pytest.mark.usefixtures("busy")
def test_checkpoints_are_made_in_the_background(tmp_path: Path) -> None:
    datasets = store(tmp_path, sync=True)
    for start in range(0, 250, 10):
        write(datasets, start)
    wait_for(lambda: bool(checkpoints(tmp_path)), PATIENCE)
    wait_for(lambda: not any("checkpoint" in t.name for t in threading.enumerate()), PATIENCE)
    assert read(store(tmp_path)) == list(range(250))
    assert deltalake.DeltaTable(str(home(tmp_path))).version() == 24


def aged(path: Path, versions: range) -> None:
    """Make entries as old as their age in the log allows and more."""
    for version in versions:
        os.utime(entry(path, version), (1e9, 1e9))


def test_old_entries_go_and_everything_is_known_as_before(tmp_path: Path) -> None:
    datasets = store(tmp_path)
    write(datasets, 0, app="etl", app_version=7)
    for start in range(10, 60, 10):
        write(datasets, start)
    before = datasets.describe("d", 1).ranges[0].token
    aged(tmp_path, range(5))
    table_of(datasets, "d").checkpoint()
    assert not entry(tmp_path, 0).exists()
    assert entry(tmp_path, 5).exists()
    for opened in (datasets, store(tmp_path)):
        assert read(opened) == list(range(60))
        assert opened.begin("d", "append", SCHEMA, "etl", 7).done
        assert not opened.begin("d", "append", SCHEMA, "etl", 8).done
        assert ids(opened.read(before).batches) == list(range(60))
    assert write(store(tmp_path), 60).version == 6
    assert write(datasets, 70, mode="overwrite").version == 7
    for opened in (datasets, store(tmp_path)):
        assert read(opened) == list(range(70, 80))
        assert ids(opened.read(before).batches) == list(range(60)), "of a version before"
    table = deltalake.DeltaTable(str(home(tmp_path)))
    assert table.transaction_version("etl") == 7
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == list(range(70, 80))


def test_a_process_that_was_away_for_long_catches_up(tmp_path: Path) -> None:
    away, here = store(tmp_path), store(tmp_path)
    write(here, 0)
    assert read(away) == list(range(10))
    for start in range(10, 60, 10):
        write(here, start)
    aged(tmp_path, range(5))
    table_of(here, "d").checkpoint()
    assert read(away) == list(range(60))
    assert write(away, 60).version == 6


def old_table(path: Path) -> None:
    """Make a table that has a checkpoint and no entries before it."""
    datasets = store(path)
    for start in range(0, 60, 10):
        write(datasets, start)
    aged(path, range(5))
    table_of(datasets, "d").checkpoint()


@pytest.mark.parametrize("left", [0, 0.5])
def test_a_checkpoint_that_a_crash_has_torn_is_set_aside(
    tmp_path: Path, left: float, caplog: pytest.LogCaptureFixture
) -> None:
    """As a power cut does that comes before it was made safe."""
    old_table(tmp_path)
    datasets = store(tmp_path)
    for start in (60, 70):
        write(datasets, start)
    table_of(datasets, "d").checkpoint()
    newest = home(tmp_path) / "_delta_log" / max(checkpoints(tmp_path))
    os.truncate(newest, int(newest.stat().st_size * left))
    os.utime(newest, (1e9, 1e9))
    assert read(store(tmp_path)) == list(range(80))
    assert f"{newest.name} was torn by a crash" in caplog.text
    assert not newest.exists()
    later = store(tmp_path)
    assert write(later, 80, app="new", app_version=1).version == 8
    table_of(later, "d").checkpoint()
    assert read(store(tmp_path)) == list(range(90))


@pytest.mark.parametrize("failure", ["ArrowMemoryError", "ArrowNotImplementedError"])
def test_a_checkpoint_that_cannot_be_looked_at_is_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise getattr(pa, failure)("it is not the file")

    old_table(tmp_path)
    datasets = store(tmp_path)
    write(datasets, 60)
    table_of(datasets, "d").checkpoint()
    newest = home(tmp_path) / "_delta_log" / max(checkpoints(tmp_path))
    os.utime(newest, (1e9, 1e9))
    monkeypatch.setattr(table_module, "delta", SimpleNamespace(DeltaTable=fail))
    monkeypatch.setattr(table_module, "pq", SimpleNamespace(ParquetFile=fail))
    with pytest.raises(RiverError, match="CORRUPT.*it is not the file"):
        store(tmp_path).describe("d")
    assert newest.exists()


def test_apps_are_known_when_what_told_of_them_was_removed(tmp_path: Path) -> None:
    old_table(tmp_path)
    away, here = store(tmp_path), store(tmp_path)
    read(away)
    write(here, 60)
    write(here, 70)
    read(away)  # follows, and has what it knows of apps from the log as it was
    (first,) = checkpoints(tmp_path)
    table_of(here, "d").checkpoint()
    for version in (5, 6):
        entry(tmp_path, version).unlink()
    (home(tmp_path) / "_delta_log" / first).unlink()
    assert not away.begin("d", "append", SCHEMA, "new", 1).done


def test_a_panic_of_the_library_is_an_error_of_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        pass

    def panic(*args: Any, **options: Any) -> Any:
        raise PanicException("it should not be")

    old_table(tmp_path)
    opened = store(tmp_path)
    read(opened)
    monkeypatch.setattr(table_of(opened, "d"), "_old_app", panic)
    monkeypatch.setattr(table_module, "delta", SimpleNamespace(DeltaTable=panic))
    for ask in (
        lambda: store(tmp_path).describe("d"),
        lambda: opened.begin("d", "append", SCHEMA, "new", 1),
    ):
        with pytest.raises(RiverError, match="it should not be") as caught:
            ask()
        assert caught.value.code == "CORRUPT"


def test_a_checkpoint_without_entries_is_not_written_over(tmp_path: Path) -> None:
    old_table(tmp_path)
    datasets = store(tmp_path)
    entry(tmp_path, 5).unlink()
    with pytest.raises(RiverError, match="entries of its log are gone") as caught:
        datasets.begin("d", "append", SCHEMA)
    assert caught.value.code == "CORRUPT"


def test_a_table_may_keep_its_log(tmp_path: Path) -> None:
    datasets = store(tmp_path)
    write(datasets, 0)
    properties = {"delta.enableExpiredLogCleanup": "false"}
    deltalake.DeltaTable(str(home(tmp_path))).alter.set_table_properties(properties)
    for start in range(10, 50, 10):
        write(datasets, start)
    aged(tmp_path, range(5))
    table_of(datasets, "d").checkpoint()
    assert checkpoints(tmp_path)
    assert entry(tmp_path, 0).exists()


def test_a_file_told_of_again_behind_a_checkpoint_hides_no_rows(tmp_path: Path) -> None:
    """Since when it was there is not known, so versions before are not told without it."""
    old_table(tmp_path)
    (action,) = (
        json.loads(line)
        for line in entry(tmp_path, 5).read_text().splitlines()
        if "add" in json.loads(line)
    )
    first = min(home(tmp_path).glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    told = deltalake.DeltaTable(str(home(tmp_path))).get_add_actions()
    (size,) = (row["size_bytes"] for row in pa.table(told).to_pylist() if row["path"] == first.name)
    again = {**action["add"], "path": first.name, "size": size, "dataChange": False}
    entry(tmp_path, 6).write_text(json.dumps({"add": again}) + "\n")
    datasets = store(tmp_path)
    assert sorted(read(datasets)) == list(range(60))
    with pytest.raises(RiverError) as caught:
        datasets.describe("d", version=5)
    assert caught.value.code == "VERSION_GONE"


def test_a_commit_is_told_though_no_thread_can_be_started(
    filled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(thread: Any) -> None:
        raise NoThreadError("no thread can be started")

    monkeypatch.setattr(table_module, "BETWEEN_CHECKPOINTS", 1)
    monkeypatch.setattr(table_module, "start_thread", fail)
    datasets = store(filled)
    assert write(datasets, 30).version == 3
    assert write(datasets, 40).version == 4
    assert "no thread can be started" in caplog.text


def test_a_process_that_was_away_commits_nothing_below_a_checkpoint(tmp_path: Path) -> None:
    """Its newest entry is still there while those behind it are removed."""
    away, here = store(tmp_path), store(tmp_path)
    write(here, 0)
    assert read(away) == list(range(10))
    for start in range(10, 60, 10):
        write(here, start)
    deltalake.DeltaTable(str(home(tmp_path))).create_checkpoint()
    for version in range(1, 5):
        entry(tmp_path, version).unlink()
    assert write(away, 60).version == 6
    assert read(away) == read(store(tmp_path)) == list(range(70))


def test_a_dataset_that_was_removed_and_made_again_is_another_one(filled: Path) -> None:
    datasets = store(filled)
    token = datasets.describe("d").ranges[0].token
    shutil.rmtree(home(filled) / "_delta_log")
    other = store(filled)
    for start in range(70, 150, 10):  # more than there were, so that numbers tell nothing
        write(other, start)
    assert read(datasets) == list(range(70, 150))
    with pytest.raises(RiverError, match="was removed, and made again") as caught:
        datasets.read(token)
    assert caught.value.code == "VERSION_GONE"
    shutil.rmtree(home(filled))
    with pytest.raises(RiverError, match="there is no dataset d"):
        datasets.describe("d")


def test_a_checkpoint_that_fails_is_told_and_tried_again(
    tmp_path: Path, busy: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: DeltaDirectory) -> None:
        raise OSError("no room")

    datasets = store(tmp_path)
    with monkeypatch.context() as failing:
        failing.setattr(DeltaDirectory, "checkpoint", fail)
        for start in range(0, 120, 10):
            write(datasets, start)
        wait_for(lambda: "a checkpoint was not made: no room" in caplog.text, PATIENCE)
    datasets.expire(time.time())
    wait_for(lambda: bool(checkpoints(tmp_path)), PATIENCE)


@pytest.mark.hang_bound(180)
def calls_of(datasets: DeltaDatasets, *numbers: int) -> int:
    """Return how many calls, of Python and of the system, the cheapest of some commits makes."""

    def calls(number: int) -> int:
        count = 0

        def note(*event: Any) -> None:
            nonlocal count
            count += event[1] in ("call", "c_call")

        sys.setprofile(note)
        try:
            write(datasets, number * 10)
        finally:
            sys.setprofile(None)
        return count

    return min(map(calls, numbers))  # one of them may have begun a checkpoint


def test_a_commit_costs_the_same_however_long_the_log_is(tmp_path: Path) -> None:
    """See also ``test_many_commits``."""
    commits = 1000
    datasets = store(tmp_path)
    for number in range(10):
        write(datasets, number * 10)
    early = calls_of(datasets, 10, 11, 12)
    for number in range(13, commits):
        write(datasets, number * 10)
    late = [commits, commits + 1, commits + 2]
    assert calls_of(datasets, *late) <= 1.05 * early


@pytest.mark.parametrize("way", ["checkpoint", "vacuum", "app"])
def test_a_listing_that_misses_an_entry_is_no_damage(filled: Path, way: str) -> None:
    """Who lists a folder may see a file that was added meanwhile, and not the one before it."""
    datasets = store(filled)
    assert len(read(datasets)) == 30
    shutil.copy(entry(filled, 2), entry(filled, 4))
    if way == "checkpoint":
        table_of(datasets, "d").checkpoint()
        assert (home(filled) / "_delta_log" / f"{2:020d}.checkpoint.parquet").exists()
    elif way == "vacuum":
        assert datasets.vacuum("d", dry_run=True).files == []
    else:
        assert datasets.begin("d", "append", SCHEMA, "a", 1).done is False


# Gone or made again between two looks


def test_an_entry_that_goes_while_it_is_looked_at_is_none(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = store(filled)
    assert read(datasets) == list(range(30))
    write(store(filled), 30)

    def gone(data: bytes) -> Any:
        raise FileNotFoundError("it was set aside meanwhile")

    with monkeypatch.context() as going:
        going.setattr(table_module, "parse_entry", gone)
        assert read(datasets) == list(range(30))
    assert read(datasets) == list(range(40))


def test_a_table_made_again_with_as_many_versions_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was allowed by the former one is not committed to it."""
    datasets = store(tmp_path)
    write(datasets, 0)
    txn, receipt = staged(datasets, 10)
    staging = table_of(datasets, "d").staging
    part, made = staging.part, []

    def make_again(key: str, file: str) -> Any:
        if not made:
            made.append(shutil.rmtree(home(tmp_path) / "_delta_log"))
            deltalake.write_deltalake(str(home(tmp_path)), pa.table({"other": [1]}))
        return part(key, file)

    monkeypatch.setattr(staging, "part", make_again)
    with pytest.raises(RiverError) as caught:
        datasets.commit(txn, [receipt])
    assert caught.value.code == "WRONG_SCHEMA"
    assert deltalake.DeltaTable(str(home(tmp_path))).version() == 0


def test_who_looks_does_not_wait_for_ever_for_others(tmp_path: Path) -> None:
    """A store that is far may take long to answer the first of them."""
    datasets = store(tmp_path, lock_timeout=0.05)
    write(datasets, 0)
    looking, over = threading.Event(), threading.Event()

    def look() -> None:
        with table_of(datasets, "d").view():
            looking.set()
            over.wait(PATIENCE)

    first = threading.Thread(target=look)
    first.start()
    try:
        assert looking.wait(PATIENCE)
        with pytest.raises(RiverError, match="is looked at by others: nothing was changed") as told:
            datasets.describe("d")
    finally:
        over.set()
        first.join(PATIENCE)
    assert told.value.code == "BUSY"
    assert read(datasets) == list(range(10))
