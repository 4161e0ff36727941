"""Small files are joined: no row is lost, doubled or moved, whoever writes meanwhile."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.protocol import Code, refusal
from wsmux.spark.store.base import Optimized, Span
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.tables import compaction
from wsmux.spark.tables.actions import DataFile
from wsmux.spark.tables.compaction import AutoOptimizer, Stopped, bins, optimize
from wsmux.spark.tables.table import DeltaDirectory

from ...helpers.spark.arrow_data import SCHEMA, ids, pa, rows
from ...helpers.spark.engines import by_polars, deltalake
from ...helpers.spark.inside import table_of
from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compared")]


def store(path: Path, **options: Any) -> DeltaDatasets:
    return DeltaDatasets(path, **{"sync": False, "auto_optimize": None, **options})


def write(
    datasets: DeltaDatasets, *starts: int, mode: str = "append", count: int = 10, **app: Any
) -> None:
    """Commit a part of ten rows from each start."""
    txn = datasets.begin("d", mode, SCHEMA, **app).txn
    receipts = []
    for place, start in enumerate(starts):
        part = datasets.open_part(txn, place, 0, SCHEMA)
        part.write(rows(start, count))
        receipts.append(part.finish(1, 1))
    datasets.commit(txn, receipts)


def read(datasets: DeltaDatasets, version: int | None = None) -> list[int]:
    ranges = datasets.describe("d", version=version).ranges
    return [each for one in ranges for each in ids(datasets.read(one.token).batches)]


def home(path: Path) -> Path:
    return path / "datasets" / "d"


def actions_of(path: Path, version: int) -> list[dict[str, Any]]:
    text = (home(path) / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def left(path: Path) -> list[str]:
    return os.listdir(home(path) / "_wsmux" / "staged")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    datasets = store(tmp_path / "store")
    for start in range(0, 60, 20):
        write(datasets, start, start + 10)
    return tmp_path / "store"


# What is joined


def file(path: str, size: int, **partition: str | None) -> DataFile:
    return DataFile(path, size, 0, 1, None, partition, 0)


def packed(files: list[DataFile], target: int, **options: Any) -> list[str]:
    return ["".join(each.path for each in held) for held in bins(files, target, **options)]


def test_small_files_are_packed_in_their_order() -> None:
    files = [file(name, size) for name, size in zip("abcdefg", (4, 4, 9, 3, 5, 2, 1), strict=True)]
    assert packed(files, 10) == ["ab", "def"]
    assert packed(files, 4) == ["fg"]
    assert packed(files[:1], 10) == []


def test_partitions_are_not_mixed() -> None:
    files = [file("a", 1, p="1"), file("b", 1, p=None), file("c", 1, p="1"), file("d", 1, p="2")]
    assert packed(files, 10) == ["ac"]


def test_what_is_joined_again_and_again_is_seldom_rewritten() -> None:
    """Each byte is written once more each time that what it stands in has doubled."""
    held, written, appended = [file("a", 0)], 0, 0
    for number in range(4000):
        held.append(file("b", 100))
        appended += 100
        if number % 50 == 49:
            for joined in bins(held, 10**9, thrifty=True):
                size = sum(each.size for each in joined)
                held = [each for each in held if each not in joined] + [file("c", size)]
                written += size
    assert sum(each.size for each in held) == appended
    assert written < 8 * appended
    assert len(held) < 64


def test_every_row_stays_where_it_was(filled: Path) -> None:
    datasets = store(filled)
    done = datasets.optimize("d")
    assert (done.version, done.files_removed, done.files_added) == (3, 6, 1)
    assert done.bytes_removed > done.bytes_added > 0
    assert read(datasets) == read(store(filled)) == list(range(60))
    assert len(datasets.describe("d", 1).ranges) == 1
    write(datasets, 60)
    assert read(datasets) == list(range(70))
    path = str(home(filled))
    assert sorted(ids(deltalake.DeltaTable(path).to_pyarrow_table().to_batches())) == read(datasets)
    assert sorted(ids(by_polars(path).to_batches())) == read(datasets)


def test_rows_stay_behind_those_before_them_where_files_end_within_a_commit(
    tmp_path: Path,
) -> None:
    datasets = store(tmp_path)
    write(datasets, *range(0, 120, 10))
    size = datasets.describe("d").bytes // 12
    done = datasets.optimize("d", 5 * size)
    assert 2 < done.files_added < 5
    assert read(datasets) == list(range(120))


def test_no_data_changes_and_it_is_told_so(filled: Path) -> None:
    done = store(filled).optimize("d")
    info, *actions = actions_of(filled, 3)
    told = info["commitInfo"]
    assert told["operation"] == "OPTIMIZE"
    assert told["operationMetrics"]["numRemovedFiles"] == "6"
    assert told["operationMetrics"]["numAddedBytes"] == str(done.bytes_added)
    assert [next(iter(each)) for each in actions] == ["remove"] * 6 + ["add"]
    assert not any(next(iter(each.values()))["dataChange"] for each in actions)
    assert json.loads(actions[-1]["add"]["stats"])["numRecords"] == 60


def test_what_is_joined_is_not_joined_again(filled: Path) -> None:
    datasets = store(filled)
    datasets.optimize("d")
    assert datasets.optimize("d") == Optimized(3, 0, 0, 0, 0)
    assert not (home(filled) / "_delta_log" / f"{4:020d}.json").exists()
    assert left(filled) == []


def test_older_versions_stay_readable(filled: Path) -> None:
    datasets = store(filled)
    token = datasets.describe("d", 1).ranges[0].token
    datasets.optimize("d")
    for each in (datasets, store(filled)):
        assert ids(each.read(token).batches) == list(range(60))
        assert read(each, 1) == list(range(40))


def test_older_versions_stay_readable_without_the_oldest_entries(filled: Path) -> None:
    """A running job goes on after a restart, though a checkpoint does not tell of its version."""
    datasets = store(filled)
    for version in range(2):
        name = f"{version:020d}.json"
        os.utime(home(filled) / "_delta_log" / name, (1e9, 1e9))
    table_of(datasets, "d").checkpoint()
    assert not (home(filled) / "_delta_log" / f"{0:020d}.json").exists()
    token = datasets.describe("d", 1).ranges[0].token
    datasets.optimize("d")
    assert ids(store(filled).read(token).batches) == list(range(60))


def test_columns_since_are_null(filled: Path) -> None:
    datasets = store(filled)
    more = pa.schema([*SCHEMA, pa.field("more", pa.int32())])
    txn = datasets.begin("d", "append", more, merge_schema=True).txn
    part = datasets.open_part(txn, 0, 0, more)
    part.write(rows(60, 10).append_column("more", pa.array(range(10), pa.int32())))
    datasets.commit(txn, [part.finish(1, 1)])
    datasets.optimize("d")
    (one,) = datasets.describe("d", 1).ranges
    found = pa.Table.from_batches(datasets.read(one.token).batches, more)
    assert found["more"].to_pylist() == [None] * 60 + list(range(10))


def test_it_takes_the_memory_of_a_few_row_groups(tmp_path: Path) -> None:
    """However large the files are together: what Arrow holds is looked at on the way."""
    datasets = store(tmp_path)
    schema = pa.schema([("data", pa.binary())])
    txn = datasets.begin("d", "append", schema).txn
    receipts = []
    for number in range(24):
        part = datasets.open_part(txn, number, 0, schema)
        for _ in range(4):
            part.write(pa.record_batch([pa.array([os.urandom(1 << 20)])], schema=schema))
        receipts.append(part.finish(1, 1))
    datasets.commit(txn, receipts)
    before, most = pa.total_allocated_bytes(), [0]

    def look() -> bool:
        most[0] = max(most[0], pa.total_allocated_bytes() - before)
        return False

    done = optimize(table_of(datasets, "d"), timeout=1, stop=look)
    assert done.files_added == 1
    assert done.bytes_added > 96 << 20
    assert 0 < most[0] < 64 << 20


# Others at work


class Once:
    """Do something at the first call, in the middle of joining; never ask it to stop."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._acts = [act]

    def __call__(self) -> bool:
        if self._acts:
            self._acts.pop()()
        return False


def optimized_while(path: Path, act: Callable[[], object]) -> Optimized:
    return optimize(table_of(store(path), "d"), timeout=1, stop=Once(act))


def test_what_is_appended_meanwhile_stays(filled: Path) -> None:
    done = optimized_while(filled, lambda: write(store(filled), 60))
    assert (done.version, done.files_removed) == (4, 6)
    assert read(store(filled)) == list(range(70))


def test_what_another_program_appends_meanwhile_stays(filled: Path) -> None:
    batch = pa.Table.from_batches([rows(60, 10)])
    path = str(home(filled))
    done = optimized_while(filled, lambda: deltalake.write_deltalake(path, batch, mode="append"))
    assert (done.version, done.files_removed) == (4, 6)
    assert read(store(filled)) == list(range(70))


def test_what_was_overwritten_meanwhile_does_not_come_back(filled: Path) -> None:
    done = optimized_while(filled, lambda: write(store(filled), 70, mode="overwrite"))
    assert done == Optimized(3, 0, 0, 0, 0)
    assert read(store(filled)) == list(range(70, 80))
    assert left(filled) == []


def test_what_was_deleted_from_some_files_meanwhile_does_not_come_back(filled: Path) -> None:
    """The rest is kept, and what it cannot go with is joined anew."""
    size = store(filled).describe("d").bytes // 6

    def delete() -> None:
        deltalake.DeltaTable(str(home(filled))).delete("id < 5")

    table = table_of(store(filled), "d")
    done = optimize(table, 3 * size + size // 2, timeout=1, stop=Once(delete))
    assert done.files_removed >= 5
    assert sorted(read(store(filled))) == list(range(5, 60))


def test_a_table_made_again_meanwhile_is_joined_by_itself(filled: Path) -> None:
    def again() -> None:
        for each in (*home(filled).glob("*.parquet"), *(home(filled) / "_delta_log").iterdir()):
            each.unlink()
        for start in range(3):
            write(store(filled), 100 + 10 * start)

    done = optimized_while(filled, again)
    assert (done.version, done.files_removed) == (3, 3)
    assert read(store(filled)) == list(range(100, 130))


def test_it_gives_up_where_everything_is_replaced_all_the_time(filled: Path) -> None:
    other = store(filled)

    def replace() -> bool:
        write(other, 70, 80, mode="overwrite")
        return False

    with pytest.raises(RiverError, match="nothing was changed; ask again") as caught:
        optimize(table_of(store(filled), "d"), timeout=1, stop=replace)
    assert caught.value.code == "BUSY"
    assert read(store(filled)) == list(range(70, 90))
    assert left(filled) == []


def test_what_a_sweep_has_removed_replaces_nothing(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = DeltaDirectory.locked

    def sweep_first(table: DeltaDirectory) -> Any:
        if left(filled):  # what was joined is staged
            monkeypatch.setattr(DeltaDirectory, "locked", locked)
            store(filled).expire(time.time() + 2 * 86_400.0)
        return locked(table)

    monkeypatch.setattr(DeltaDirectory, "locked", sweep_first)
    with pytest.raises(RiverError, match="^BUSY: datasets/d has lost what was joined .* ask again"):
        store(filled).optimize("d")
    assert read(store(filled)) == list(range(60))
    assert store(filled).optimize("d").files_removed == 6
    assert read(store(filled)) == list(range(60))


def test_two_at_once_do_not_do_the_same(filled: Path) -> None:
    refused: list[str] = []

    def second() -> None:
        with pytest.raises(RiverError, match="_wsmux/optimize was held") as caught:
            optimize(table_of(store(filled), "d"), timeout=0)
        refused.append(caught.value.code)

    assert optimized_while(filled, second).files_removed == 6
    assert refused == ["BUSY"]


def test_what_is_stopped_leaves_nothing(filled: Path) -> None:
    with pytest.raises(Stopped):
        optimize(table_of(store(filled), "d"), timeout=1, stop=lambda: True)
    assert left(filled) == []
    assert len(list(home(filled).glob("*.parquet"))) == 6
    assert store(filled).describe("d").version == 2


def test_what_a_kill_leaves_is_swept(
    filled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    datasets = store(filled)
    table = table_of(datasets, "d")

    def die(*arguments: Any) -> None:
        raise OSError("no more")

    with monkeypatch.context() as dying:
        dying.setattr(table.staging, "drop", die)
        calls = iter([False, False, True])
        with pytest.raises(Stopped):
            optimize(table, timeout=1, stop=lambda: next(calls))
    assert "no more" in caplog.text
    assert len(left(filled)) == 1
    datasets.expire(time.time() + 10**6)
    assert left(filled) == []
    assert read(datasets) == list(range(60))


# What cannot be done


def test_errors_have_codes(filled: Path) -> None:
    datasets = store(filled)
    for name, target, code in (
        ("e", 1, "NO_DATASET"),
        ("/", 1, "BAD_NAME"),
        ("d", 0, "BAD_REQUEST"),
    ):
        with pytest.raises(RiverError) as caught:
            datasets.optimize(name, target)
        assert caught.value.code == code


def test_a_file_that_is_lost_is_named(filled: Path) -> None:
    lost = min(home(filled).glob("*.parquet"))
    lost.unlink()
    with pytest.raises(RiverError, match=f"{lost.name} is missing") as caught:
        store(filled).optimize("d")
    assert caught.value.code == "CORRUPT"
    assert left(filled) == []


def test_a_table_that_is_read_only_stays_as_it_is(tmp_path: Path) -> None:
    store(tmp_path)
    for start in (0, 10):
        data = pa.Table.from_batches([rows(start, 10)]).append_column("share", pa.array([0.5] * 10))
        deltalake.write_deltalake(str(home(tmp_path)), data, mode="append", partition_by=["share"])
    with pytest.raises(RiverError, match="can only be read here: it is partitioned") as caught:
        store(tmp_path).optimize("d")
    assert caught.value.code == "WRONG_SCHEMA"


# In the background


def operations(datasets: DeltaDatasets) -> list[str]:
    return [each.operation for each in datasets.history("d")]


def ended() -> bool:
    return not any("optimize" in each.name for each in threading.enumerate())


def test_many_small_files_are_joined_in_the_background(tmp_path: Path) -> None:
    datasets = store(tmp_path, auto_optimize=6)
    for start in range(0, 50, 10):
        write(datasets, start)
    assert "OPTIMIZE" not in operations(datasets)
    write(datasets, 50)
    wait_for(lambda: "OPTIMIZE" in operations(datasets) and ended())
    assert read(datasets) == list(range(60))
    for start in range(60, 110, 10):  # the one that was left does not count
        write(datasets, start)
    assert operations(datasets).count("OPTIMIZE") == 1
    write(datasets, 110)
    wait_for(lambda: operations(datasets).count("OPTIMIZE") == 2 and ended())
    assert read(datasets) == list(range(120))


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    datasets = store(tmp_path, auto_optimize=None)
    write(datasets, *range(0, 100, 10))
    datasets.expire(time.time())
    assert ended()
    assert operations(datasets) == ["CREATE TABLE AS SELECT"]
    with pytest.raises(ValueError, match="2 files or more, or None for never, not 1"):
        store(tmp_path, auto_optimize=1)


def test_a_sweep_finds_the_small_files_of_other_programs(filled: Path) -> None:
    datasets = store(filled, auto_optimize=8)
    assert read(datasets) == list(range(60))
    for start in (60, 70):
        data = pa.Table.from_batches([rows(start, 10)])
        deltalake.write_deltalake(str(home(filled)), data, mode="append")
    datasets.expire(time.time())
    wait_for(lambda: "OPTIMIZE" in operations(datasets) and ended())
    assert read(datasets) == list(range(80))


def test_what_fails_in_the_background_is_told_and_tried_again(
    filled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_of(store(filled), "d")
    optimizer = AutoOptimizer(6)

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as failing:
        failing.setattr(compaction, "optimize", fail)
        optimizer.note(table)
        wait_for(ended)
    assert "was not optimized: the disk is full" in caplog.text
    write(store(filled), *range(60, 120, 10))
    optimizer.note(table, 6)
    wait_for(lambda: "OPTIMIZE" in operations(store(filled)) and ended())
    assert read(store(filled)) == list(range(120))


def test_a_look_that_fails_fails_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    datasets = store(tmp_path, auto_optimize=6)
    write(datasets, 0)

    def fail(*arguments: Any) -> bool:
        raise refusal(Code.BUSY, "look again")

    with monkeypatch.context() as failing:
        failing.setattr(compaction, "is_small", fail)
        for start in range(10, 70, 10):
            write(datasets, start)
        schema = datasets.ingest_target("d", "a").schema
        assert datasets.ingest("d", schema, [rows(70, 10)], {"a": Span(0, 10)}) == []
    assert "datasets/d cannot be looked at: BUSY: look again" in caplog.text
    write(datasets, 80)
    wait_for(lambda: "OPTIMIZE" in operations(datasets) and ended())
    assert read(datasets) == list(range(90))


def test_a_look_that_takes_its_time_stops_no_commit_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = store(tmp_path, auto_optimize=6)
    entered, opened, is_small = threading.Event(), threading.Event(), compaction.is_small

    def slow(*arguments: Any) -> bool:
        if threading.current_thread() is writer:
            entered.set()
            assert opened.wait(WAIT)
        return is_small(*arguments)

    monkeypatch.setattr(compaction, "is_small", slow)
    writer = threading.Thread(target=write, args=(datasets, 0), daemon=True)
    writer.start()
    try:
        assert entered.wait(WAIT)
        done = threading.Event()

        def other() -> None:
            datasets.commit(datasets.begin("e", "create", SCHEMA).txn, [])
            done.set()

        threading.Thread(target=other, daemon=True).start()
        assert done.wait(WAIT)
    finally:
        opened.set()
        writer.join(WAIT)
