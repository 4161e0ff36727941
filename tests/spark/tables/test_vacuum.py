"""Vacuuming removes what no version within the retention needs, and nothing else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store.datasets import DeltaDatasets

from ...helpers.spark.arrow_data import SCHEMA, ids, pa, rows
from ...helpers.spark.engines import deltalake

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compared")]

HOUR = 3600.0


class Clock:
    """A clock that is some hours ahead or behind."""

    hours = 0.0

    def __call__(self) -> float:
        return time.time() + self.hours * HOUR


@pytest.fixture
def clock() -> Clock:
    return Clock()


def store(path: Path, clock: Clock, **options: Any) -> DeltaDatasets:
    return DeltaDatasets(path, sync=False, clock=clock, **options)


def write(datasets: DeltaDatasets, start: int, mode: str = "append") -> None:
    txn = datasets.begin("d", mode, SCHEMA).txn
    part = datasets.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(start, 10))
    datasets.commit(txn, [part.finish(1, 1)])


def read(datasets: DeltaDatasets) -> list[int]:
    ranges = datasets.describe("d").ranges
    return [each for one in ranges for each in ids(datasets.read(one.token).batches)]


def home(path: Path) -> Path:
    return path / "datasets" / "d"


def aged(path: Path, hours: float, data: bytes = b"12345") -> Path:
    """Make a file, unless it is there, that was last written some hours ago."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        path.write_bytes(data)
    then = time.time() - hours * HOUR
    os.utime(path, (then, then))
    return path


@pytest.fixture
def filled(tmp_path: Path, clock: Clock) -> Path:
    """Give a store with a dataset whose first version was overwritten."""
    datasets = store(tmp_path / "store", clock)
    write(datasets, 0)
    write(datasets, 10, "overwrite")
    return tmp_path / "store"


def test_orphans_go_and_nothing_else(filled: Path, clock: Clock) -> None:
    datasets = store(filled, clock)
    table = home(filled)
    old = [aged(table / "orphan.parquet", 200), aged(table / "p=1" / "orphan.parquet", 200)]
    for kept in ("notes.txt", ".hidden.parquet", "_other/x.parquet"):
        aged(table / kept, 200)
    aged(table / "young.parquet", 100)
    for file in table.glob("part-*.parquet"):
        aged(file, 200)
    before = set(table.rglob("*"))
    told = datasets.vacuum("d", dry_run=True)
    assert (told.files, told.bytes) == (["orphan.parquet", "p=1/orphan.parquet"], 10)
    assert set(table.rglob("*")) == before
    assert datasets.vacuum("d") == told
    assert before - set(table.rglob("*")) == {*old, table / "p=1"}, "the folder is empty"
    assert read(datasets) == list(range(10, 20))


def test_replaced_files_are_kept_for_the_retention(filled: Path, clock: Clock) -> None:
    datasets = store(filled, clock)
    (token,) = datasets.describe("d", version=0).ranges
    assert datasets.vacuum("d", 24).files == []
    assert ids(datasets.read(token.token).batches) == list(range(10))


def test_replaced_files_go_after_it(filled: Path, clock: Clock) -> None:
    """However, sweeps remove them as soon as they may."""
    datasets = store(filled, clock)
    assert datasets.describe("d", version=0).rows == 10
    clock.hours = 25
    datasets.vacuum("d")
    assert len(list(home(filled).glob("*.parquet"))) == 1
    with pytest.raises(RiverError) as caught:
        datasets.describe("d", version=0)
    assert caught.value.code == "VERSION_GONE"
    assert read(datasets) == read(store(filled, clock)) == list(range(10, 20))


def test_a_file_that_no_log_tells_of_any_more_goes(filled: Path, clock: Clock) -> None:
    """As when no sweep ran between its removal and the cleaning of the log."""
    log = home(filled) / "_delta_log"
    entry = log / f"{1:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    (gone,) = [each["remove"] for each in actions if "remove" in each]
    gone["deletionTimestamp"] -= round(200 * HOUR * 1000)
    entry.write_text("".join(f"{json.dumps(each)}\n" for each in actions))
    for version in range(2):
        aged(log / f"{version:020d}.json", 10**4)
    write(store(filled, clock), 20)
    table = deltalake.DeltaTable(str(home(filled)))
    table.create_checkpoint()
    table.cleanup_metadata()
    assert not entry.exists()
    for file in home(filled).glob("*.parquet"):
        aged(file, 200)
    datasets = store(filled, clock)
    assert datasets.vacuum("d").files == [gone["path"]]
    assert read(datasets) == list(range(10, 30))


def test_what_is_being_uploaded_stays_however_old(filled: Path, clock: Clock) -> None:
    """A transaction lives as long as it is written to, and so do its first files."""
    datasets = store(filled, clock)
    txn = datasets.begin("d", "append", SCHEMA).txn
    before = set(home(filled).glob("*.parquet"))
    part = datasets.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(20, 10))
    receipt = part.finish(1, 1)
    (path,) = set(home(filled).glob("*.parquet")) - before
    aged(path, 10**4)
    assert datasets.vacuum("d").files == []
    assert path.exists()
    datasets.commit(txn, [receipt])
    assert read(datasets) == list(range(10, 30))


def test_what_nobody_will_commit_goes_too(filled: Path, clock: Clock) -> None:
    datasets = store(filled, clock)
    txn = datasets.begin("d", "append", SCHEMA).txn
    part = datasets.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(20, 10))
    part.finish(1, 1)
    assert len(list(home(filled).glob("*.parquet"))) == 3
    clock.hours = 25
    datasets.vacuum("d")
    assert len(list(home(filled).glob("*.parquet"))) == 1
    assert os.listdir(home(filled) / "_wsmux" / "staged") == []


@pytest.mark.parametrize("retention", [0, 23.9, float("nan"), float("inf"), -1])
def test_readers_keep_what_was_promised_to_them(
    filled: Path, clock: Clock, retention: float
) -> None:
    with pytest.raises(RiverError, match=r"at least 24 hours, .* not") as caught:
        store(filled, clock).vacuum("d", retention)
    assert caught.value.code == "BAD_REQUEST"


def test_the_default_is_at_least_what_is_kept_anyway(filled: Path, clock: Clock) -> None:
    datasets = store(filled, clock, ttl=400 * HOUR)
    aged(home(filled) / "young.parquet", 399)
    aged(home(filled) / "old.parquet", 401)
    assert datasets.vacuum("d").files == ["old.parquet"]


def test_errors_have_codes(filled: Path, clock: Clock) -> None:
    datasets = store(filled, clock)
    for name, code in (("e", "NO_DATASET"), ("..", "BAD_NAME")):
        with pytest.raises(RiverError) as caught:
            datasets.vacuum(name)
        assert caught.value.code == code


def test_an_interval_that_is_not_understood_keeps_everything(filled: Path, clock: Clock) -> None:
    text = {"delta.deletedFileRetentionDuration": "interval 2 months"}
    path = home(filled) / "_delta_log" / f"{0:020d}.json"
    path.write_text(path.read_text().replace("interval 86400 seconds", *text.values()))
    aged(home(filled) / "orphan.parquet", 10**5)
    with pytest.raises(RiverError, match="not understood: nothing can be removed") as caught:
        store(filled, clock).vacuum("d")
    assert caught.value.code == "BAD_REQUEST"


def test_a_table_that_is_read_only_stays_as_it_is(tmp_path: Path, clock: Clock) -> None:
    store(tmp_path, clock)
    data = pa.Table.from_batches([rows(0, 10)]).append_column("share", pa.array([0.5] * 10))
    deltalake.write_deltalake(str(home(tmp_path)), data, partition_by=["share"])
    with pytest.raises(RiverError, match="can only be read here") as caught:
        store(tmp_path, clock).vacuum("d")
    assert caught.value.code == "WRONG_SCHEMA"
