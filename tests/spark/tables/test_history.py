"""The log tells what made each version."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store.base import VersionInfo
from wsmux.spark.store.datasets import DeltaDatasets

from ...helpers.spark.arrow_data import SCHEMA, pa, rows
from ...helpers.spark.engines import deltalake
from ...helpers.spark.inside import table_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compared")]


@pytest.fixture
def datasets(tmp_path: Path) -> DeltaDatasets:
    """Give a store with a dataset of two commits."""
    store = DeltaDatasets(tmp_path, sync=False)
    for mode in ("append", "overwrite"):
        txn = store.begin("d", mode, SCHEMA).txn
        part = store.open_part(txn, 0, 0, SCHEMA)
        part.write(rows(0, 10))
        store.commit(txn, [part.finish(1, 1)])
    return store


def log(tmp_path: Path) -> Path:
    return tmp_path / "datasets" / "d" / "_delta_log"


def test_versions_tell_what_made_them(datasets: DeltaDatasets) -> None:
    newest, oldest = datasets.history("d")
    assert (newest.version, newest.operation) == (1, "WRITE")
    assert newest.parameters == {"mode": "Overwrite"}
    assert newest.metrics["numFiles"] == "1"
    assert newest.metrics["numOutputRows"] == "10"
    assert newest.metrics["numOutputBytes"] == str(datasets.describe("d").bytes)
    assert abs(newest.time - time.time()) < 60
    assert (oldest.version, oldest.operation) == (0, "CREATE TABLE AS SELECT")


def test_it_is_what_other_engines_tell(datasets: DeltaDatasets, tmp_path: Path) -> None:
    path = str(log(tmp_path).parent)
    deltalake.write_deltalake(path, pa.Table.from_batches([rows(20, 10)]), mode="append")
    told = deltalake.DeltaTable(path).history()
    found = datasets.history("d")
    assert [each.version for each in found] == [2, 1, 0]
    for theirs, ours in zip(told, found, strict=True):
        assert (theirs["version"], theirs["operation"]) == (ours.version, ours.operation)
        assert theirs["timestamp"] == round(ours.time * 1000)


def test_the_newest_ones_are_told_as_far_as_the_log_goes(
    datasets: DeltaDatasets, tmp_path: Path
) -> None:
    assert [each.version for each in datasets.history("d", 1)] == [1]
    os.utime(log(tmp_path) / f"{0:020d}.json", (1e9, 1e9))
    table_of(datasets, "d").checkpoint()
    assert [each.version for each in datasets.history("d")] == [1]


@pytest.mark.parametrize("info", ["{}", '{"commitInfo":{}}'])
def test_a_writer_need_not_tell(datasets: DeltaDatasets, tmp_path: Path, info: str) -> None:
    entry = log(tmp_path) / f"{2:020d}.json"
    entry.write_text(f'{info}\n{{"txn":{{"appId":"a","version":1}}}}\n')
    os.utime(entry, (1e9, 1e9))
    assert datasets.history("d", 1) == [VersionInfo(2, 1e9, "", {}, {})]


@pytest.mark.parametrize(
    ("dataset", "limit", "code"),
    [
        ("e", 1, "NO_DATASET"),
        ("", 1, "BAD_NAME"),
        ("d", 0, "BAD_REQUEST"),
        ("d", 1e9, "BAD_REQUEST"),
    ],
)
def test_errors_have_codes(datasets: DeltaDatasets, dataset: str, limit: Any, code: str) -> None:
    with pytest.raises(RiverError) as caught:
        datasets.history(dataset, limit)
    assert caught.value.code == code
