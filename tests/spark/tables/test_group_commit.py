"""Rows of several clients are added in one commit, which tells how far each client is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark import DeltaDatasets
from wsmux.spark.store.base import Span
from wsmux.spark.tables.staging import StagedPart
from wsmux.spark.tables.table import DeltaDirectory

from ...helpers.spark.arrow_data import SCHEMA, pa, rows
from ...helpers.spark.engines import deltalake
from ...helpers.spark.ingesting import held
from ...helpers.spark.inside import table_of

pytestmark = pytest.mark.spark

RANDOM = "~0123"


@pytest.fixture
def store(tmp_path: Path) -> DeltaDatasets:
    return made(DeltaDatasets(tmp_path))


def made(store: DeltaDatasets, **options: Any) -> DeltaDatasets:
    store.commit(store.begin("d", "create", SCHEMA, **options).txn, [])
    return store


def add(store: DeltaDatasets, spans: Mapping[str, Span], *batches: Any) -> list[str]:
    schema = store.ingest_target("d", "anyone").schema
    return store.ingest("d", schema, batches, spans)


def known(store: DeltaDatasets, *clients: str) -> list[int]:
    return [store.ingest_target("d", client).rows for client in clients]


def test_a_group_is_one_version_and_one_file(store: DeltaDatasets, tmp_path: Path) -> None:
    spans = {"a": Span(0, 3), RANDOM: Span(0, 2)}
    assert add(store, spans, rows(0, 3), rows(10, 2)) == []
    assert held(store) == [0, 1, 2, 10, 11]
    table = deltalake.DeltaTable(tmp_path / "datasets" / "d")
    assert (table.version(), len(table.file_uris())) == (1, 1)
    assert table.transaction_version("ingest:a") == 3
    assert table.transaction_version(f"ingest:{RANDOM}") is None
    stats = pa.table(table.get_add_actions(flatten=True)).to_pylist()[0]
    assert (stats["num_records"], stats["min.id"], stats["max.id"]) == (5, 0, 11)
    assert known(store, "a", RANDOM, "b") == [3, 2, 0]


def test_a_client_that_is_elsewhere_is_told_and_nothing_is_added(store: DeltaDatasets) -> None:
    add(store, {"a": Span(0, 3), RANDOM: Span(0, 2)}, rows(0, 5))
    assert add(store, {"a": Span(0, 3), "b": Span(0, 1)}, rows(0, 4)) == ["a"]
    assert add(store, {"a": Span(3, 4), RANDOM: Span(0, 2)}, rows(3, 3)) == [RANDOM]
    assert held(store) == [0, 1, 2, 3, 4]
    assert known(store, "a", RANDOM, "b") == [3, 2, 0]


def job(store: DeltaDatasets) -> Any:
    txn = store.begin("d", "append", SCHEMA).txn
    part = store.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(0, 4))
    return store.commit(txn, [part.finish(1, 1)])


def client(store: DeltaDatasets) -> Any:
    return add(store, {"a": Span(0, 4)}, rows(0, 4))


@pytest.mark.parametrize("commit", [job, client])
def test_a_commit_is_tried_again_while_others_are_faster_but_not_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: Callable[[DeltaDatasets], Any]
) -> None:
    store = made(DeltaDatasets(tmp_path, lock_timeout=0.05))
    with monkeypatch.context() as losing:
        losing.setattr(DeltaDirectory, "add_entry", lambda *arguments: False)
        text = "^BUSY: datasets/d is written to by others all the time: nothing was changed;"
        with pytest.raises(RiverError, match=text):
            commit(store)
    assert held(store) == []
    store, tries, add_entry = (
        DeltaDatasets(tmp_path),
        iter([False, False]),
        DeltaDirectory.add_entry,
    )

    def lose_twice(*arguments: Any) -> bool:
        return next(tries, True) and add_entry(*arguments)

    monkeypatch.setattr(DeltaDirectory, "add_entry", lose_twice)
    assert commit(store) in ((1, 4, 1), [])
    assert held(store) == [0, 1, 2, 3]


def test_another_process_knows_how_far_each_client_is(store: DeltaDatasets, tmp_path: Path) -> None:
    add(store, {"a": Span(0, 3), RANDOM: Span(0, 2)}, rows(0, 5))
    other = DeltaDatasets(tmp_path)
    assert known(other, "a", RANDOM) == [3, 2]
    assert add(other, {"a": Span(3, 4)}, rows(5, 1)) == []
    assert add(store, {"a": Span(3, 4)}, rows(5, 1)) == ["a"]


def test_a_client_with_a_name_is_known_when_the_log_was_cleaned(
    store: DeltaDatasets, tmp_path: Path
) -> None:
    add(store, {"a": Span(0, 3), RANDOM: Span(0, 2)}, rows(0, 5))
    table_of(store, "d").checkpoint()
    log = tmp_path / "datasets" / "d" / "_delta_log"
    (log / f"{0:020d}.json").unlink()
    add(store, {"b": Span(0, 1)}, rows(9, 1))
    (log / f"{1:020d}.json").unlink()
    assert known(DeltaDatasets(tmp_path), "a", "b", RANDOM) == [3, 1, 0]


def test_a_random_client_is_forgotten_after_its_time(store: DeltaDatasets) -> None:
    add(store, {"a": Span(0, 3), RANDOM: Span(0, 2)}, rows(0, 5))
    state = table_of(store, "d")
    with state.view() as found:
        assert found is not None
        now = found.times[-1]
    store.expire(now + 1.0)
    assert known(store, "a", RANDOM) == [3, 2]
    target = store.ingest_target("d", RANDOM)
    store.expire(now + 86_401.0)
    assert known(store, "a", RANDOM) == [3, 2]
    target = store.ingest_target("d", "a")
    store.expire(now + 86_401.0)
    assert known(store, "a", RANDOM) == [target.rows, 0] == [3, 0]


def test_rows_of_an_earlier_schema_are_brought_into_the_present_one(store: DeltaDatasets) -> None:
    schema = store.ingest_target("d", "a").schema
    wider = pa.schema([*SCHEMA, pa.field("more", pa.int64())])
    store.commit(store.begin("d", "append", wider, merge_schema=True).txn, [])
    assert store.ingest("d", schema, [rows(0, 2)], {"a": Span(0, 2)}) == []
    (one,) = store.describe("d", 1).ranges
    assert pa.Table.from_batches(store.read(one.token).batches).column("more").to_pylist() == [
        None,
        None,
    ]


def test_rows_with_a_column_that_is_gone_are_refused(store: DeltaDatasets) -> None:
    schema = store.ingest_target("d", "a").schema
    narrow = pa.schema([SCHEMA.field("id")])
    store.commit(store.begin("d", "overwrite", narrow, overwrite_schema=True).txn, [])
    with pytest.raises(RiverError, match=r"WRONG_SCHEMA.*has no column 'word' any more"):
        store.ingest("d", schema, [rows(0, 2)], {"a": Span(0, 2)})


def test_nulls_where_there_are_none_add_nothing(store: DeltaDatasets, tmp_path: Path) -> None:
    batch = pa.record_batch([pa.array([None], pa.int64()), pa.array(["x"])], SCHEMA)
    with pytest.raises(RiverError, match="BAD_ARROW"):
        store.ingest("d", store.ingest_target("d", "a").schema, [batch], {"a": Span(0, 1)})
    assert known(store, "a") == [0]
    assert left(tmp_path) == set()


def left(directory: Path) -> set[str]:
    """Return the files of the dataset that no version has, and what is noted of such."""
    table = deltalake.DeltaTable(directory / "datasets" / "d")
    there = {uri.rpartition("/")[2] for uri in table.file_uris()}
    files = {path.name for path in (directory / "datasets" / "d").rglob("*.parquet")}
    staged = (directory / "datasets/d/_wsmux/staged").rglob("*.json")
    return (files - there) | {path.name for path in staged if path.name != "txn.json"}


def test_what_was_written_in_vain_is_removed(store: DeltaDatasets, tmp_path: Path) -> None:
    add(store, {"a": Span(0, 3)}, rows(0, 3))
    add(store, {"a": Span(0, 3)}, rows(0, 3))
    assert left(tmp_path) == set()


def test_what_groups_stage_is_swept_when_it_is_old_and_begun_anew(
    store: DeltaDatasets, tmp_path: Path
) -> None:
    add(store, {"a": Span(0, 1)}, rows(0, 1))
    add(store, {"a": Span(1, 2)}, rows(1, 1))
    staged = tmp_path / "datasets/d/_wsmux/staged"
    (first,) = staged.iterdir()
    store.expire(time.time() + 86_401.0)
    assert list(staged.iterdir()) == []
    add(store, {"a": Span(2, 3)}, rows(2, 1))
    (other,) = staged.iterdir()
    assert other != first
    assert held(store) == [0, 1, 2]


@pytest.mark.parametrize("moment", ["before its end", "behind its end"])
def test_rows_whose_staged_file_is_swept_are_not_acknowledged(
    store: DeltaDatasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As behind a pause that is longer than ``ttl``, or where a clock steps."""
    end = StagedPart.end

    def sweep() -> None:
        DeltaDatasets(tmp_path).expire(time.time() + 2 * 86_400.0)

    def swept_end(part: StagedPart) -> Any:
        if moment == "before its end":
            sweep()
        finished = end(part)
        if moment == "behind its end":
            sweep()
        return finished

    with monkeypatch.context() as sweeping:
        sweeping.setattr(StagedPart, "end", swept_end)
        with pytest.raises(RiverError, match="^BUSY: datasets/d was swept while .* ask again"):
            add(store, {"a": Span(0, 3)}, rows(0, 3))
    assert (held(store), known(store, "a"), left(tmp_path)) == ([], [0], set())
    assert add(store, {"a": Span(0, 3)}, rows(0, 3)) == []
    assert held(store) == [0, 1, 2]


def test_a_group_goes_into_the_partitions_of_its_rows(tmp_path: Path) -> None:
    store = made(DeltaDatasets(tmp_path), partition_by=["word"])
    assert add(store, {"a": Span(0, 7)}, rows(0, 7)) == []
    assert sorted(held(store)) == list(range(7))
    assert left(tmp_path) == set()
    assert (tmp_path / "datasets" / "d" / "word=w0").is_dir()


def test_another_program_that_commits_first_is_no_obstacle(
    store: DeltaDatasets, tmp_path: Path
) -> None:
    path = tmp_path / "datasets" / "d"
    before = json.loads((path / "_delta_log" / f"{0:020d}.json").read_text().splitlines()[0])
    assert "commitInfo" in before
    deltalake.write_deltalake(path, pa.Table.from_batches([rows(50, 1)]), mode="append")
    assert add(store, {"a": Span(0, 1)}, rows(0, 1)) == []
    assert held(store) == [50, 0]


def test_a_dataset_that_is_not_there_is_told(store: DeltaDatasets) -> None:
    with pytest.raises(RiverError, match="NO_DATASET"):
        store.ingest_target("other", "a")
