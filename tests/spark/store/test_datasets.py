"""Datasets as Delta tables: other engines read the same, damage is named, nothing else touched."""

from __future__ import annotations

import fcntl
import gc
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.store.filters import parse_filters

from ...helpers.spark.arrow_data import REFUSED, SCHEMA, ids, pa, rows, wide
from ...helpers.spark.engines import ENGINES, by_polars, deltalake, plain, read_by
from ...helpers.spark.inside import table_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compared")]


def write(store: DeltaDatasets, name: str, *batches: Any, mode: str = "append", **app: Any) -> str:
    """Commit batches, each as a part; return the transaction."""
    txn = store.begin(name, mode, batches[0].schema, **app).txn
    receipts = []
    for place, batch in enumerate(batches):
        part = store.open_part(txn, place, 0, batch.schema)
        part.write(batch)
        receipts.append(part.finish(1, 1))
    store.commit(txn, receipts)
    return txn


def path_of(store: DeltaDatasets) -> Path:
    """Return the folder of the dataset d."""
    return Path(table_of(store, "d").folder.address)


def read(store: DeltaDatasets, name: str) -> list[int]:
    ranges = store.describe(name).ranges
    return [each for one in ranges for each in ids(store.read(one.token).batches)]


def table(store: DeltaDatasets, name: str) -> Any:
    told = store.describe(name)
    batches = [each for one in told.ranges for each in store.read(one.token).batches]
    return pa.Table.from_batches(batches, told.schema)


# What other engines read

# pyarrow's data sets do not read nulls that a null struct has in what is never null.
STRICT = {"strict struct"}


def appended(store: DeltaDatasets) -> None:
    for start in range(0, 30, 10):
        write(store, "d", rows(start, 5), rows(start + 5, 5))


def overwritten(store: DeltaDatasets) -> None:
    appended(store)
    write(store, "d", rows(50, 10), mode="overwrite")
    write(store, "d", rows(60, 3))


def retyped(store: DeltaDatasets) -> None:
    appended(store)
    at = pa.array([1, None], pa.timestamp("us"))
    batch = pa.record_batch([pa.array([1, 2]), at], names=["id", "at"])
    write(store, "d", batch, mode="overwrite", overwrite_schema=True)


def emptied(store: DeltaDatasets) -> None:
    appended(store)
    store.commit(store.begin("d", "overwrite", SCHEMA).txn, [])


def every_type(store: DeltaDatasets) -> None:
    batch = wide()
    kept = [name for name in batch.schema.names if name not in REFUSED | STRICT]
    numbered = batch.select(kept).append_column("id", pa.array([1, 2]))
    write(store, "d", numbered)


def checkpointed(store: DeltaDatasets) -> None:
    overwritten(store)
    for version in range(4):
        name = f"{version:020d}.json"
        os.utime(path_of(store) / "_delta_log" / name, (1e9, 1e9))
    table_of(store, "d").checkpoint()
    write(store, "d", rows(90, 4))


def optimized(store: DeltaDatasets) -> None:
    every_type(store)
    every_type(store)
    assert store.optimize("d").files_removed == 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "fill", [appended, overwritten, retyped, emptied, every_type, checkpointed, optimized]
)
def test_engines_agree(tmp_path: Path, fill: Callable[[DeltaDatasets], None], engine: str) -> None:
    store = DeltaDatasets(tmp_path, sync=False)
    fill(store)
    found, wanted = read_by(engine, str(tmp_path / "datasets" / "d")), table(store, "d")
    assert found.schema.names == wanted.schema.names
    assert plain(found) == plain(wanted)


def test_statistics_let_engines_leave_out_files(tmp_path: Path) -> None:
    store = DeltaDatasets(tmp_path, sync=False)
    for start in range(0, 100, 10):
        write(store, "d", rows(start, 10))
    path = str(tmp_path / "datasets" / "d")
    actions = pa.table(deltalake.DeltaTable(path).get_add_actions(flatten=True))
    assert sorted(actions["min.id"].to_pylist()) == list(range(0, 100, 10))
    assert sorted(actions["max.id"].to_pylist()) == list(range(9, 100, 10))
    for file in (tmp_path / "datasets" / "d").glob("*.parquet"):
        if actions["path"].to_pylist()[3] != file.name:
            file.write_bytes(b"not looked at")
    wanted = actions["min.id"].to_pylist()[3]
    (one,) = store.describe("d", 1).ranges
    filters = parse_filters([["id", "=", wanted + 5]])
    assert ids(store.read(one.token, 0, None, filters).batches) == [wanted + 5]
    assert by_polars(path, wanted)["id"].to_pylist() == [wanted]


def test_a_scan_without_matches_is_heard_of(tmp_path: Path) -> None:
    store = DeltaDatasets(tmp_path, sync=False)
    write(store, "d", rows(0, 10), rows(10, 10))
    (one,) = store.describe("d", 1).ranges
    filters = parse_filters([["word", "=", "w1 and more"]])  # between those that are there
    told, batches, stored = store.read(one.token, 0, ["id"], filters)
    assert stored is None
    assert told.names == ["id"]
    assert [(batch.num_rows, batch.schema) for batch in batches] == [(0, told)] * 2


def test_a_temporary_directory_goes_with_its_store() -> None:
    store = DeltaDatasets()
    write(store, "d", rows(0, 5))
    path = path_of(store)
    assert deltalake.DeltaTable(str(path)).version() == 0
    del store
    gc.collect()
    assert not path.exists()


# Damage


def test_a_forked_process_leaves_the_temporary_directory_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = DeltaDatasets()
    write(store, "d", rows(0, 1))
    path = path_of(store)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    del store
    gc.collect()
    assert path.exists()
    shutil.rmtree(path.parents[1])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    store = DeltaDatasets(tmp_path / "store", sync=False)
    for start in (0, 10, 20):
        write(store, "d", rows(start, 10))
    write(store, "other", rows(0, 10))
    return tmp_path / "store"


def datasets(directory: Path, **options: Any) -> DeltaDatasets:
    return DeltaDatasets(directory, sync=False, **options)


def home(directory: Path) -> Path:
    return directory / "datasets" / "d"


def log(directory: Path) -> Path:
    return home(directory) / "_delta_log"


def entry(directory: Path, version: int) -> Path:
    return log(directory) / f"{version:020d}.json"


def part(directory: Path) -> Path:
    return min(home(directory).glob("*.parquet"))


def put(path: Path, data: bytes) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.write_bytes(data)


def link_outside(path: Path) -> None:
    """Put a link to somewhere else in the place of a file or directory."""
    root = next(each for each in path.parents if each.name == "store").parent
    outside = root / "outside"
    shutil.move(path, outside)
    path.symlink_to(outside)


def change(directory: Path, **values: Any) -> None:
    """Change the action of the newest entry that adds a file."""
    lines = [json.loads(line) for line in entry(directory, 2).read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"] |= values
    entry(directory, 2).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def old_format(directory: Path) -> None:
    shutil.rmtree(log(directory))
    (home(directory) / "_log").mkdir()


LOG_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "garbage": (lambda d: put(entry(d, 1), b"\x00\xff"), "_delta_log/.*cannot be used|used"),
    "half": (lambda d: put(entry(d, 1), b'{"add"'), "cannot be used: it is not whole"),
    "no action": (lambda d: put(entry(d, 1), b'{"add":{}}'), "datasets/d cannot be used"),
    "gap": (lambda d: entry(d, 1).unlink(), "no readable Delta table"),
    "no beginning": (lambda d: entry(d, 0).unlink(), "no readable Delta table"),
    "log a file": (lambda d: put(log(d), b""), "datasets/d/_delta_log is a file"),
    "log a link": (lambda d: link_outside(log(d)), "datasets/d/_delta_log is a symbolic link"),
    "a file": (lambda d: put(home(d), b""), "datasets/d is a file"),
    "a link": (lambda d: link_outside(home(d)), "datasets/d is a symbolic link"),
    "old": (old_format, "was written before datasets were Delta tables"),
}

PART_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "outside": (lambda d: change(d, path="../../x"), "outside of its folder"),
    "absolute": (lambda d: change(d, path="/etc/passwd"), "outside of its folder"),
    "elsewhere": (lambda d: change(d, path="s3://bucket/x"), "outside of its folder"),
    "a folder": (lambda d: change(d, path="_wsmux"), "not a file of the store"),
    "rows": (
        lambda d: change(d, stats='{"numRecords":11}'),
        "parquet is damaged: it has 10 rows, not 11",
    ),
    "part garbage": (lambda d: put(part(d), b"garbage"), "parquet is damaged"),
    "part empty": (lambda d: put(part(d), b""), "parquet is damaged"),
    "part cut": (lambda d: put(part(d), part(d).read_bytes()[:-9]), "parquet is damaged"),
    "part missing": (lambda d: part(d).unlink(), "parquet is missing"),
    "part a link": (lambda d: link_outside(part(d)), "parquet is not a file of the store"),
}


@pytest.mark.parametrize("case", LOG_DAMAGE | PART_DAMAGE)
def test_damage_is_named_and_the_rest_goes_on(directory: Path, case: str) -> None:
    damage, words = (LOG_DAMAGE | PART_DAMAGE)[case]
    damage(directory)
    before = sorted(directory.rglob("*"))
    store = datasets(directory)
    with pytest.raises(RiverError, match=words) as caught:
        read(store, "d")
    assert caught.value.code == "CORRUPT"
    assert str(directory) not in caught.value.message
    store.expire(time.time() + 10**9)
    assert sorted(directory.rglob("*")) == before, "what cannot be understood is not swept"
    write(store, "other", rows(10, 10))
    assert read(store, "other") == list(range(20))


def test_a_bit_that_has_changed_among_values_is_found(tmp_path: Path) -> None:
    store = datasets(tmp_path / "store")
    write(store, "d", rows(0, 10_000))
    path = part(tmp_path / "store")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(RiverError, match="parquet is damaged"):
        read(store, "d")


@pytest.mark.parametrize("case", LOG_DAMAGE)
def test_a_damaged_log_takes_no_commit_and_is_listed(directory: Path, case: str) -> None:
    LOG_DAMAGE[case][0](directory)
    store = datasets(directory)
    with pytest.raises(RiverError) as caught:
        write(store, "d", rows(30, 10))
    assert caught.value.code == "CORRUPT"
    damaged, other = store.list()
    assert (damaged.name, damaged.error) == ("d", caught.value.message)
    assert (other.name, other.rows, other.error) == ("other", 10, None)


def test_foreign_files_beside_datasets_are_not_datasets(directory: Path) -> None:
    (directory / "datasets" / "read me!").write_text("hello")
    (directory / "datasets" / ".hidden?").mkdir()
    assert [info.name for info in datasets(directory).list()] == ["d", "other"]


def test_a_link_to_datasets_outside_is_refused(directory: Path) -> None:
    link_outside(directory / "datasets")
    with pytest.raises(RiverError, match="datasets is a symbolic link"):
        datasets(directory)


# Staging and time


def tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.fixture
def unfinished(directory: Path) -> Iterator[tuple[DeltaDatasets, str, Any]]:
    """Give a store, a transaction with a finished part, and one of its parts that is not."""
    store = datasets(directory)
    txn = store.begin("d", "append", SCHEMA).txn
    part = store.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(0, 1))
    part.finish(1, 1)
    other = store.open_part(txn, 1, 0, SCHEMA)
    other.write(rows(0, 1))
    yield store, txn, other
    other.discard()


def test_a_sweep_removes_what_no_version_holds(
    directory: Path, unfinished: tuple[DeltaDatasets, str, Any]
) -> None:
    store, txn, _ = unfinished
    files = {path.name for path in home(directory).glob("*.parquet")}
    assert len(files) == 5
    (log(directory) / ".0123.tmp").write_text("of a process that is no more")
    store.expire(time.time())
    assert f"datasets/d/_wsmux/staged/{txn[-32:]}/txn.json" in tree(directory)
    assert (log(directory) / ".0123.tmp").exists()
    store.expire(time.time() + 10**6)
    assert len(list(home(directory).glob("*.parquet"))) == 3
    assert os.listdir(home(directory) / "_wsmux" / "staged") == []
    assert not (log(directory) / ".0123.tmp").exists()
    assert read(datasets(directory), "d") == list(range(30))


def test_a_removal_cut_short_is_ended_by_the_next_sweep(
    directory: Path,
    unfinished: tuple[DeltaDatasets, str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, txn, _ = unfinished

    def die(*names: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(Path, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            store.abort(txn)
    assert len(list(home(directory).glob("*.parquet"))) == 5
    datasets(directory).expire(time.time())
    assert len(list(home(directory).glob("*.parquet"))) == 3
    assert os.listdir(home(directory) / "_wsmux" / "staged") == []


def test_what_was_overwritten_is_removed_in_time(directory: Path) -> None:
    store = datasets(directory)
    write(store, "d", rows(50, 10), mode="overwrite")
    store.expire(time.time())
    assert len(list(home(directory).glob("*.parquet"))) == 4
    store.expire(time.time() + 10**6)
    assert len(list(home(directory).glob("*.parquet"))) == 1
    assert read(datasets(directory), "d") == list(range(50, 60))


def test_what_another_process_has_removed_is_told(directory: Path) -> None:
    here, there = datasets(directory), datasets(directory)
    token = here.describe("d", 1).ranges[0].token
    write(here, "d", rows(50, 10), mode="overwrite")
    assert ids(here.read(token).batches) == list(range(30))
    there.expire(time.time() + 10**6)
    with pytest.raises(RiverError, match="no longer kept") as caught:
        list(here.read(token).batches)
    assert caught.value.code == "VERSION_GONE"


def test_losers_go_with_the_commit(directory: Path) -> None:
    store = datasets(directory)
    txn = store.begin("d", "append", SCHEMA).txn
    receipts = []
    for attempt in range(3):
        part = store.open_part(txn, 0, attempt, SCHEMA)
        part.write(rows(0, 1))
        receipts.append(part.finish(1, 1))
    store.commit(txn, receipts[1:2])
    assert len(list(home(directory).glob("*.parquet"))) == 4
    assert os.listdir(home(directory) / "_wsmux" / "staged") == []


def test_a_commit_that_waits_in_vain_says_so_and_can_be_made_again(directory: Path) -> None:
    store = datasets(directory, lock_timeout=0.05)
    txn = store.begin("d", "append", SCHEMA).txn
    part = store.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(30, 10))
    receipt = part.finish(1, 1)
    with (home(directory) / "_wsmux" / "lock").open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(RiverError, match=r"datasets/d/_wsmux/lock was held .* 0\.05 s") as busy:
            store.commit(txn, [receipt])
        assert busy.value.code == "BUSY"
        write(store, "other", rows(10, 10))  # another dataset goes on
        store.expire(time.time())  # so do sweeps, with a warning
        assert read(store, "d") == list(range(30))
    assert store.commit(txn, [receipt]).version == 3
    assert read(store, "d") == list(range(40))


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 9)])
def test_a_part_that_is_lost_is_not_committed(
    directory: Path, damage: Callable[[Path], None]
) -> None:
    store = datasets(directory)
    txn = store.begin("d", "append", SCHEMA).txn
    before = set(home(directory).glob("*.parquet"))
    part = store.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(30, 10))
    receipt = part.finish(1, 1)
    (path,) = set(home(directory).glob("*.parquet")) - before
    damage(path)
    with pytest.raises(RiverError, match="write it again") as caught:
        store.commit(txn, [receipt])
    assert caught.value.code == "CORRUPT"
    assert read(store, "d") == list(range(30))


@pytest.mark.parametrize(("app", "version"), [("\ud800", 1), ("etl", 2**63), ("etl", -(2**63) - 1)])
def test_an_app_that_no_log_can_tell_is_refused(directory: Path, app: str, version: int) -> None:
    with pytest.raises(RiverError) as caught:
        datasets(directory).begin("d", "append", SCHEMA, app, version)
    assert caught.value.code == "BAD_REQUEST"


def test_nothing_about_a_dataset_stops_the_sweep_of_others(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = datasets(directory)
    swept: list[str] = []

    def odd(table: Any, now: float) -> None:
        swept.append(table.name)
        raise ValueError("it is odd")

    monkeypatch.setattr(store, "_sweep", odd)
    store.expire(time.time())
    assert {"d", "other"} <= set(swept)
    assert "it is odd" in caplog.text


def test_a_damaged_receipt_is_named(directory: Path) -> None:
    store = datasets(directory)
    txn = store.begin("d", "append", SCHEMA).txn
    part = store.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(30, 10))
    receipt = part.finish(1, 1)
    (note,) = (home(directory) / "_wsmux" / "staged" / txn[-32:]).glob("p0-0-*.json")
    note.write_text('{"receipt": {}, "size": 1, "stats": ""}')
    with pytest.raises(RiverError, match="is damaged") as caught:
        store.commit(txn, [receipt])
    assert caught.value.code == "CORRUPT"


def test_an_append_only_table_is_not_overwritten(directory: Path) -> None:
    path = str(home(directory))
    deltalake.DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})
    store = datasets(directory)
    write(store, "d", rows(30, 10))
    with pytest.raises(RiverError, match="it is append-only"):
        store.begin("d", "overwrite", SCHEMA)


def test_a_part_needs_memory_for_one_row_group(tmp_path: Path) -> None:
    """However large it becomes: what Arrow holds is looked at while it is written."""
    store = datasets(tmp_path)
    schema = pa.schema([("data", pa.binary())])
    txn = store.begin("d", "append", schema).txn
    part = store.open_part(txn, 0, 0, schema)
    before, most = pa.total_allocated_bytes(), 0
    for number in range(100):
        part.write(pa.record_batch([pa.array([os.urandom(1 << 20)])], schema=schema))
        most = max(most, pa.total_allocated_bytes() - before)
        assert number < 100
    receipt = part.finish(1, 1)
    assert store.commit(txn, [receipt]).rows == 100
    assert most < 48 << 20
    told = store.describe("d")
    assert told.bytes > 100 << 20
    assert len(told.ranges) == 2
    assert len(store.describe("d", 8).ranges) == 8


def test_times_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lock_timeout must be above 0 seconds, not 0"):
        DeltaDatasets(tmp_path, lock_timeout=0)
    for ttl in (0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"ttl must be above 0 and finite, not {ttl}"):
            DeltaDatasets(tmp_path, ttl=ttl)
