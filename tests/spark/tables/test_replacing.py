"""Overwriting the rows that match a condition: which files are touched, and what others do."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store import datasets as datasets_module
from wsmux.spark.store.base import Committed
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.tables.replacing import Replacer

from ...helpers.spark.arrow_data import pa
from ...helpers.spark.bulk import call, put, schema_of
from ...helpers.spark.engines import by_polars, deltalake, duckdb
from ...helpers.spark.killing import DEATH, Nursery, client, excuse

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compared")]

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("word", pa.string())])
DAYS = [date(2026, 1, 1), date(2026, 1, 2), None]


def batch_of(ids: Any, day: Callable[[int], Any] = lambda each: DAYS[each % 3]) -> Any:
    found = list(ids)
    words = [None if each % 5 == 0 else f"w{each % 4}" for each in found]
    return pa.record_batch([found, [day(each) for each in found], words], schema=SCHEMA)


def staged(store: DeltaDatasets, txn: str, *batches: Any) -> list[Any]:
    receipts = []
    for place, batch in enumerate(batches):
        part = store.open_part(txn, place, 0, batch.schema)
        try:
            part.write(batch)
            receipts.append(part.finish(1, 1))
        finally:
            part.discard()
    return receipts


def written(store: DeltaDatasets, *batches: Any, mode: str = "append", **options: Any) -> Committed:
    txn = store.begin("d", mode, batches[0].schema, **options).txn
    return store.commit(txn, staged(store, txn, *batches))


def replaced(store: DeltaDatasets, where: str, *batches: Any, **options: Any) -> Committed:
    return written(store, *batches, mode="overwrite", replace_where=where, **options)


def read(store: DeltaDatasets, **when: Any) -> list[dict[str, Any]]:
    told = store.describe("d", **when)
    found = [
        row
        for one in told.ranges
        for batch in store.read(one.token).batches
        for row in batch.to_pylist()
    ]
    return sorted(found, key=str)


def live(path: Path) -> set[str]:
    return set(deltalake.DeltaTable(str(path / "datasets" / "d")).file_uris())


def entry(path: Path, version: int) -> list[dict[str, Any]]:
    log = path / "datasets" / "d" / "_delta_log" / f"{version:020d}.json"
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def store(tmp_path: Path) -> DeltaDatasets:
    return DeltaDatasets(tmp_path, sync=False)


def test_only_files_of_which_some_rows_match_are_rewritten(
    store: DeltaDatasets, tmp_path: Path
) -> None:
    written(store, batch_of(range(1, 5)))  # outside, by its statistics
    written(store, batch_of(range(5, 15)))  # in part
    written(store, batch_of(range(15, 20)))  # inside
    one, part, inside = (next(iter(each)) for each in _added(tmp_path, 3))
    done = replaced(store, "id >= 10", batch_of(range(50, 53)))
    assert (done.version, done.rows) == (3, 3)
    assert [row["id"] for row in sorted(read(store), key=lambda row: row["id"])] == [
        *range(1, 10),
        *range(50, 53),
    ]
    actions = entry(tmp_path, 3)
    assert {each["remove"]["path"] for each in actions if "remove" in each} == {part, inside}
    adds = [each["add"] for each in actions if "add" in each]
    assert [json.loads(each["stats"])["numRecords"] for each in adds] == [5, 3]
    info = actions[0]["commitInfo"]
    assert info["operationParameters"] == {"mode": "Overwrite", "predicate": "id >= 10"}
    assert info["operationMetrics"]["numRemovedFiles"] == "2"
    assert info["operationMetrics"]["numCopiedRows"] == "5"
    assert any(each.endswith(one) for each in live(tmp_path))
    assert read(store, version=2) == sorted(batch_of(range(1, 20)).to_pylist(), key=str)
    assert not [*(tmp_path / "datasets" / "d" / "_wsmux" / "staged").iterdir()]


def _added(path: Path, versions: int) -> list[set[str]]:
    return [
        {each["add"]["path"] for each in entry(path, version) if "add" in each}
        for version in range(versions)
    ]


def test_partitions_are_replaced_without_a_look_into_files(
    store: DeltaDatasets, tmp_path: Path
) -> None:
    written(store, batch_of(range(30)), partition_by=["day"])
    for name in live(tmp_path):
        Path(name).write_bytes(b"not looked at")
    replaced(store, "day = '2026-01-01'", batch_of([90], lambda _: DAYS[0]))
    folders = sorted(Path(name).parent.name for name in live(tmp_path))
    assert folders == ["day=2026-01-01", "day=2026-01-02", "day=__HIVE_DEFAULT_PARTITION__"]
    replaced(store, "day IS NULL AND day IS NULL", batch_of([91], lambda _: None))
    replaced(store, "day IN ('2026-01-02')", batch_of([92], lambda _: DAYS[1]))
    assert [row["id"] for row in read(store)] == [90, 91, 92]


def test_rows_stay_where_they_stood(store: DeltaDatasets) -> None:
    written(store, batch_of(range(1, 4)), batch_of(range(4, 7)))
    written(store, batch_of(range(7, 10)))
    replaced(store, "id IN (2, 5, 8)", batch_of([2]))
    (one,) = store.describe("d", 1).ranges
    found = [each for batch in store.read(one.token).batches for each in batch["id"].to_pylist()]
    assert found == [1, 3, 4, 6, 7, 9, 2]


def test_a_file_in_which_no_row_matches_stays(store: DeltaDatasets, tmp_path: Path) -> None:
    written(store, batch_of([1, 9]))
    before = live(tmp_path)
    replaced(store, "id = 5", batch_of([5]))
    assert before < live(tmp_path)
    replaced(store, "id BETWEEN 2 AND 8", batch_of([2]))
    assert sorted(row["id"] for row in read(store)) == [1, 2, 9]
    assert before < live(tmp_path)


def test_a_condition_may_replace_by_nothing_and_make_a_dataset(store: DeltaDatasets) -> None:
    replaced(store, "id > 3", batch_of([4, 5]))
    assert len(read(store)) == 2
    store.commit(store.begin("d", "overwrite", SCHEMA, replace_where="id = 4").txn, [])
    assert [row["id"] for row in read(store)] == [5]


def test_columns_may_come_with_it(store: DeltaDatasets, tmp_path: Path) -> None:
    written(store, batch_of(range(1, 5)))
    more = pa.record_batch([[7], ["x"]], names=["id", "extra"])
    replaced(store, "extra = 'x' AND id > 2", more, merge_schema=True)
    assert len(read(store)) == 5
    replaced(
        store, "extra IS NULL AND id > 2", pa.record_batch([[3]], names=["id"]), merge_schema=True
    )
    assert sorted(row["id"] for row in read(store)) == [1, 2, 3, 7]
    assert by_polars(str(tmp_path / "datasets" / "d")).num_rows == 4


# What is refused


@pytest.mark.parametrize(
    ("where", "batch", "shown"),
    [
        ("id > 3", [4, 3], "id = 3"),
        ("day = '2026-01-01' AND id > 0", [3, 4], "day = 2026-01-02"),
        ("day <> '2026-01-05'", [3, 2], "day = NULL"),
        ("word IS NULL", [5, 6], "word = 'w2'"),
    ],
)
def test_rows_that_do_not_match_are_refused(
    store: DeltaDatasets, tmp_path: Path, where: str, batch: list[int], shown: str
) -> None:
    written(store, batch_of(range(1, 10)))
    before, held = read(store), sorted(tmp_path.rglob("*.parquet"))
    with pytest.raises(RiverError) as caught:
        replaced(store, where, batch_of(batch))
    assert caught.value.code == "REPLACE_WHERE_MISMATCH"
    assert f"a row has {shown}, which replaceWhere does not match: {where}" in caught.value.message
    assert f'write only rows that match, as df.where("{where}")' in caught.value.message
    assert read(store) == before
    assert sorted(tmp_path.rglob("*.parquet")) == held


@pytest.mark.parametrize(
    ("where", "options", "code", "words"),
    [
        ("id = 1", {"mode": "append"}, "BAD_REQUEST", "belongs to the mode overwrite"),
        ("id = 1", {"overwrite_schema": True}, "BAD_REQUEST", "without overwriteSchema"),
        ("id = 1 OR id = 2", {}, "BAD_FILTER", "comparisons joined by AND"),
        ("none = 1", {}, "NO_COLUMN", "there are id, day, word"),
        ("id = 'x'", {}, "BAD_FILTER", "the column is int64, and 'x' is not"),
        ("day = 'x'", {}, "BAD_FILTER", "the column is date32"),
    ],
)
def test_conditions_that_are_refused(
    store: DeltaDatasets, where: str, options: dict[str, Any], code: str, words: str
) -> None:
    given: dict[str, Any] = {"mode": "overwrite", "replace_where": where, **options}
    with pytest.raises(RiverError, match=words) as caught:
        written(store, batch_of([1]), **given)
    assert caught.value.code == code


# Others meanwhile


def test_what_others_add_before_the_commit_is_replaced_too(
    store: DeltaDatasets, tmp_path: Path
) -> None:
    """As with any overwrite: what counts is what is there when it is committed."""
    written(store, batch_of(range(1, 10)))
    txn = store.begin("d", "overwrite", SCHEMA, replace_where="id >= 5").txn
    receipts = staged(store, txn, batch_of([50]))
    written(DeltaDatasets(tmp_path, sync=False), batch_of([3, 8]))
    store.commit(txn, receipts)
    assert sorted(row["id"] for row in read(store)) == [1, 2, 3, 3, 4, 50]
    assert store.commit(txn, receipts).version == 2, "done again it answers the same"


@pytest.mark.parametrize("meanwhile", ["append", "overwrite", "optimize", "same"])
def test_what_others_do_while_files_are_rewritten(
    store: DeltaDatasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    for start in (1, 4, 7):
        written(store, batch_of(range(start, start + 3)))
    other = DeltaDatasets(tmp_path, sync=False)
    txn = store.begin("d", "overwrite", SCHEMA, replace_where="id IN (2, 5, 8)").txn
    receipts = staged(store, txn, batch_of([2]))
    rewrite, left = Replacer.rewrite, ["once"]

    def disturbed(replacer: Replacer) -> None:
        if left and meanwhile != "same":
            rewrite(replacer)
        if left:
            left.clear()
            if meanwhile == "append":
                written(other, batch_of([0, 5, 9]))
            elif meanwhile == "overwrite":
                written(other, batch_of([1, 8]), mode="overwrite")
            elif meanwhile == "optimize":
                assert other.optimize("d").files_removed == 3
            else:
                assert other.commit(txn, receipts).version == 3
        rewrite(replacer)

    monkeypatch.setattr(Replacer, "rewrite", disturbed)
    done = store.commit(txn, receipts)
    wanted = {
        "append": [0, 1, 2, 3, 4, 6, 7, 9, 9],
        "overwrite": [1, 2],
        "optimize": [1, 2, 3, 4, 6, 7, 9],
        "same": [1, 2, 3, 4, 6, 7, 9],
    }
    assert done.version == (3 if meanwhile == "same" else 4)
    assert sorted(row["id"] for row in read(store)) == wanted[meanwhile]
    held = {str(each) for each in tmp_path.rglob("*.parquet")}
    old = {
        str(tmp_path / "datasets" / "d" / each)
        for some in _added(tmp_path, done.version)
        for each in some
    }
    assert held == live(tmp_path) | old, "what was rewritten in vain is gone"


def test_it_gives_up_when_others_never_stop(
    store: DeltaDatasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(store, batch_of([1, 9]))
    other = DeltaDatasets(tmp_path, sync=False)
    rewrite = Replacer.rewrite

    def disturbed(replacer: Replacer) -> None:
        rewrite(replacer)
        written(other, batch_of([1, 5, 9]))

    monkeypatch.setattr(Replacer, "rewrite", disturbed)
    with pytest.raises(RiverError, match="5 times: nothing was changed; ask again") as caught:
        replaced(store, "id = 5", batch_of([5]))
    assert caught.value.code == "BUSY"
    assert datasets_module.ATTEMPTS == 5
    assert len(read(store)) == 17


@pytest.mark.hang_bound(180)
def test_a_server_killed_at_any_change_replaces_once(tmp_path: Path) -> None:
    DeltaDatasets(tmp_path, sync=False)
    wanted = [*range(10, 20)]
    written(DeltaDatasets(tmp_path, sync=False), batch_of(range(20)))
    nursery = Nursery(tmp_path)
    deaths, finished = 0, False
    try:
        while not finished:
            # Each time one more file has rows to be replaced, and one change more is made.
            nursery.kill()
            nursery.wait_dead()
            nursery.start(after=(deaths := deaths + 3))
            new = batch_of([deaths % 10])
            try:
                _replace(nursery.url, deaths, new)
                finished = True
            except DEATH as error:
                excuse(error)
                nursery.wait_dead()
                nursery.start()
                _replace(nursery.url, deaths, new)
            found = sorted(row["id"] for row in read(DeltaDatasets(tmp_path, sync=False)))
            assert found == [deaths % 10, *wanted]
    finally:
        nursery.close()
    assert deaths > 10, "servers died at every change that is made"


def _replace(url: str, number: int, batch: Any) -> None:
    with client(url) as (calls, streams):
        more = {"app": "a", "app_version": number, "replace_where": "id < 10"}
        schema = schema_of(SCHEMA)
        begun = call(calls, "dataset.begin", dataset="d", mode="overwrite", schema=schema, **more)
        if not begun["done"]:
            receipts = [put(streams, begun["txn"], 0, batch)]
            call(calls, "dataset.commit", txn=begun["txn"], receipts=receipts)


def test_an_app_replaces_once(store: DeltaDatasets) -> None:
    written(store, batch_of(range(1, 5)))
    replaced(store, "id = 2", batch_of([2, 2]), app="a", app_version=1)
    assert store.begin("d", "overwrite", SCHEMA, "a", 1, replace_where="id = 2").done
    assert len(read(store)) == 5


# An oracle


CONDITIONS = [
    "id >= 20",
    "id BETWEEN 10 AND 29 AND word = 'w1'",
    "id <> 15",
    "word IN ('w1', 'w3')",
    "word IS NULL",
    "word IS NOT NULL AND id < 25",
    "day = '2026-01-01'",
    "day > '2026-01-01' AND id > 7",
    "day IS NULL AND word <> 'w2'",
    "id = 12",
    "id < 0",
    "id IN (3, 17, 31)",
    "word >= 'w2' AND day IN ('2026-01-01', '2026-01-02')",
]


@pytest.mark.parametrize("partitions", [[], ["day"], ["day", "word"]], ids=str)
@pytest.mark.parametrize("where", CONDITIONS)
def test_what_stays_is_what_sql_says(
    store: DeltaDatasets, tmp_path: Path, where: str, partitions: list[str]
) -> None:
    chosen = random.Random(where)
    for start in (0, 10, 20):
        written(store, batch_of(range(start, start + 10)), partition_by=partitions)
    alike = [batch_of([start] * 4, lambda each: DAYS[each % 3]) for start in (12, 17, 20, 31)]
    written(store, *alike)
    whole = pa.Table.from_pylist(read(store), SCHEMA)
    new = batch_of(chosen.sample(range(40), 20))
    with duckdb.connect() as connection:
        connection.register("whole", whole)
        connection.register("new", pa.Table.from_batches([new]))
        stays = connection.sql(f"SELECT * FROM whole WHERE ({where}) IS NOT TRUE").to_arrow_table()
        comes = connection.sql(f"SELECT * FROM new WHERE {where}").to_arrow_table()
    (fitting,) = comes.cast(SCHEMA).combine_chunks().to_batches() or [new.slice(0, 0)]
    replaced(store, where, fitting)
    wanted = sorted(stays.to_pylist() + comes.to_pylist(), key=str)
    assert read(store) == wanted
    found = deltalake.DeltaTable(str(tmp_path / "datasets" / "d")).to_pyarrow_table()
    assert sorted(found.select(SCHEMA.names).to_pylist(), key=str) == wanted
