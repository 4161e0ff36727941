"""What transactions stage: found by its notes, dropped at once, and never what is held."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.tables.folder import LocalFolder
from wsmux.spark.tables.staging import Staging

from ...helpers.spark.arrow_data import SCHEMA, rows

pytestmark = pytest.mark.spark

KEY, OTHER = "0" * 32, "1" * 32


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    staging = Staging(LocalFolder(tmp_path, sync=True), "datasets/d")
    staging.begin(KEY, {"mode": "append"})
    return staging


def part(staging: Staging, attempt: int = 0, key: str = KEY) -> Any:
    made = staging.new_part(key, 7, attempt, SCHEMA)
    made.write(rows(0, 5))
    return made


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("*.parquet"))


def test_a_transaction_is_what_it_was_begun_with(staging: Staging, tmp_path: Path) -> None:
    assert Staging(LocalFolder(tmp_path, sync=False), "datasets/d").info(KEY) == {"mode": "append"}
    assert staging.info(OTHER) is None
    assert staging.transactions() == [KEY]
    assert Staging(LocalFolder(tmp_path / "none", sync=False), "x").transactions() == []
    with pytest.raises(ValueError, match="is no key"):
        staging.info("../x")


def test_a_part_is_there_when_it_is_finished(staging: Staging, tmp_path: Path) -> None:
    one = part(staging)
    name = next(n for n in os.listdir(tmp_path / "_wsmux/staged" / KEY) if n.startswith("p7"))
    assert staging.part(KEY, name.removesuffix(".json")) is None
    receipt = one.finish(100, 3)
    assert (receipt.partition, receipt.attempt, receipt.rows) == (7, 0, 5)
    found = staging.part(KEY, receipt.file)
    assert found is not None
    assert found.receipt == receipt
    (file,) = found.files
    assert [file.path] == files(tmp_path)
    assert file.size == (tmp_path / file.path).stat().st_size
    assert file.path.startswith("part-00007-0-")
    assert staging.part(KEY, "p7-0-0000000000000000.parquet") is None
    assert staging.part(KEY, "../../x") is None
    one.discard()
    assert [file.path] == files(tmp_path), "it was finished"


def test_what_is_discarded_leaves_nothing(staging: Staging, tmp_path: Path) -> None:
    part(staging).discard()
    assert files(tmp_path) == []
    assert os.listdir(tmp_path / "_wsmux/staged" / KEY) == ["txn.json"]


def test_what_is_dropped_is_gone_but_for_what_is_held(staging: Staging, tmp_path: Path) -> None:
    finished = [part(staging, attempt).finish(1, 1) for attempt in range(2)]
    late = part(staging, 2)
    found = staging.part(KEY, finished[0].file)
    assert found is not None
    (held,) = found.files
    staging.drop(KEY, lambda path: path == held.path)
    assert files(tmp_path) == [held.path]
    assert staging.info(KEY) is None
    staging.drop(KEY, lambda path: False)
    assert files(tmp_path) == [held.path]
    with pytest.raises(RiverError, match="was aborted, or has expired") as caught:
        late.finish(1, 1)
    assert caught.value.code == "NO_TXN"
    late.discard()
    with pytest.raises(RiverError, match="was aborted, or has expired"):
        part(staging)


def test_a_transaction_is_used_while_its_file_grows(staging: Staging, tmp_path: Path) -> None:
    one = part(staging)
    for path in (tmp_path / "_wsmux/staged" / KEY, *(tmp_path / "_wsmux/staged" / KEY).iterdir()):
        os.utime(path, (1e9, 1e9))
    assert staging.last_used(KEY) > time.time() - 3600
    os.utime(tmp_path / files(tmp_path)[0], (2e9, 1.5e9))
    assert staging.last_used(KEY) == 1.5e9
    assert staging.last_used(OTHER) == 0.0
    one.discard()
