"""What every store of datasets does, in memory and in a directory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.protocol import Receipt
from wsmux.spark.store.base import Committed, DatasetStore
from wsmux.spark.store.directory_stores import DirectoryDatasets
from wsmux.spark.store.filters import parse_filters
from wsmux.spark.store.memory import MemoryDatasets

from ...helpers.spark.arrow_data import SCHEMA, ids, pa, rows, wide

pytestmark = pytest.mark.spark

TTL = 3600.0

Open = Callable[[], DatasetStore]


@pytest.fixture(params=["memory", "parquet", "arrow"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return what opens the same store again, as another process does; memory is there once."""
    if request.param == "memory":
        store = MemoryDatasets(ttl=TTL)
        return lambda: store
    kind = request.param
    return lambda: DirectoryDatasets(tmp_path, file_format=kind, ttl=TTL, sync=False)


@pytest.fixture
def store(reopen: Open) -> DatasetStore:
    return reopen()


def staged(
    store: DatasetStore, txn: str, *batches: Any, partition: int = 0, attempt: int = 0
) -> Receipt:
    part = store.open_part(txn, partition, attempt, batches[0].schema if batches else SCHEMA)
    for batch in batches:
        part.write(batch)
    return part.finish(100, 7)


def written(store: DatasetStore, *batches: Any, mode: str = "append", **app: Any) -> Committed:
    begun = store.begin("d", mode, batches[0].schema if batches else SCHEMA, **app)
    return store.commit(begun.txn, [staged(store, begun.txn, *batches)])


def everything(store: DatasetStore, **options: Any) -> list[int]:
    ranges = store.describe("d").ranges
    return [each for one in ranges for each in ids(store.read(one.token, **options).batches)]


def refused(code: str, function: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(RiverError) as caught:
        function(*arguments, **named)
    assert caught.value.code == code
    return caught.value.message


# Writing


def test_what_is_committed_is_read(store: DatasetStore, reopen: Open) -> None:
    assert written(store, rows(0, 10), rows(10, 5)) == Committed(1, 15, 100)
    assert everything(store) == everything(reopen()) == list(range(15))
    told = reopen().describe("d")
    assert (told.schema, told.version, told.rows, told.bytes) == (SCHEMA, 1, 15, 100)


def test_what_is_staged_is_not_seen(store: DatasetStore) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    staged(store, txn, rows(0, 5))
    refused("NO_DATASET", store.describe, "d")
    assert store.list() == []


def test_only_what_receipts_name_counts(store: DatasetStore) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    staged(store, txn, rows(0, 5), partition=0, attempt=0)
    winner = staged(store, txn, rows(10, 5), partition=0, attempt=1)
    other = staged(store, txn, rows(20, 5), partition=1)
    store.commit(txn, [other, winner])
    assert sorted(everything(store)) == [*range(10, 15), *range(20, 25)]


def test_append_adds_and_overwrite_replaces(store: DatasetStore) -> None:
    written(store, rows(0, 3))
    written(store, rows(3, 3))
    assert everything(store) == list(range(6))
    assert written(store, rows(9, 2), mode="overwrite").version == 3
    assert everything(store) == [9, 10]


def test_overwriting_with_nothing_leaves_nothing(store: DatasetStore) -> None:
    written(store, rows(0, 3))
    txn = store.begin("d", "overwrite", SCHEMA).txn
    assert store.commit(txn, []) == Committed(2, 0, 0)
    assert store.commit(txn, []) == Committed(2, 0, 0)
    told = store.describe("d", 8)
    assert (told.ranges, told.rows, told.schema) == ([], 0, SCHEMA)


def test_parts_without_rows_are_no_files(store: DatasetStore) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    receipts = [staged(store, txn, partition=0), staged(store, txn, rows(0, 2), partition=1)]
    assert [receipt.rows for receipt in receipts] == [0, 2]
    store.commit(txn, receipts)
    assert everything(store) == [0, 1]


def test_create_wants_nothing_there(store: DatasetStore) -> None:
    first, second = (store.begin("d", "create", SCHEMA).txn for _ in range(2))
    store.commit(first, [staged(store, first, rows(0, 1))])
    assert "already" in refused("EXISTS", store.commit, second, [staged(store, second, rows(1, 1))])
    refused("EXISTS", store.begin, "d", "create", SCHEMA)
    assert everything(store) == [0]


def test_every_type_is_kept(store: DatasetStore) -> None:
    written(store, wide())
    (one,) = store.describe("d").ranges
    table = store.read(one.token)
    assert table.schema.equals(wide().schema, check_metadata=True)
    (batch,) = table.batches
    assert batch.schema.equals(wide().schema, check_metadata=True)
    assert str(batch.to_pylist()) == str(wide().to_pylist())


def test_dictionaries_are_kept_decoded(store: DatasetStore) -> None:
    batch = pa.record_batch([pa.array(["a", "b", "a"]).dictionary_encode()], names=["x"])
    written(store, batch)
    (one,) = store.describe("d").ranges
    (read,) = store.read(one.token).batches
    assert read.schema.types == [pa.string()]
    assert read.to_pylist() == batch.to_pylist()


# Commits, done twice and not at all


def test_a_commit_done_twice_answers_the_same(store: DatasetStore, reopen: Open) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    receipt = staged(store, txn, rows(0, 5))
    answer = store.commit(txn, [receipt])
    written(store, rows(5, 1), mode="overwrite")
    assert store.commit(txn, [receipt]) == reopen().commit(txn, []) == answer
    assert everything(reopen()) == [5]


def test_an_abort_never_undoes_a_commit(store: DatasetStore, reopen: Open) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    store.commit(txn, [staged(store, txn, rows(0, 5))])
    assert store.abort(txn) is True
    assert reopen().abort(txn) is True
    assert everything(store) == list(range(5))


def test_what_is_aborted_is_gone(store: DatasetStore, reopen: Open) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    receipt, unfinished = staged(store, txn, rows(0, 5)), store.open_part(txn, 1, 0, SCHEMA)
    assert store.abort(txn) is False
    assert store.abort(txn) is False
    assert "aborted" in refused("NO_TXN", reopen().commit, txn, [receipt])
    refused("NO_TXN", store.open_part, txn, 0, 1, SCHEMA)
    refused("NO_TXN", store.check_open, txn)
    refused("NO_TXN", lambda: (unfinished.write(rows(0, 1)), unfinished.finish(1, 1)))
    unfinished.discard()


def test_a_committed_transaction_takes_nothing_more(store: DatasetStore) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    late = store.open_part(txn, 0, 0, SCHEMA)
    late.write(rows(50, 1))
    store.commit(txn, [staged(store, txn, rows(0, 5))])
    assert "committed before" in refused("NO_TXN", store.open_part, txn, 0, 1, SCHEMA)
    late.discard()
    assert everything(store) == list(range(5))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 6},
        {"bytes": 1},
        {"crc": 8},
        {"partition": 5},
        {"attempt": 5},
        {"file": "p0-0-0000000000000000.parquet"},
    ],
    ids=str,
)
def test_a_wrong_receipt_commits_nothing(store: DatasetStore, change: dict[str, Any]) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    receipt = staged(store, txn, rows(0, 5))
    wrong = Receipt.of({**receipt.to_json(), **change})
    refused("WRONG_RECEIPT", store.commit, txn, [wrong])
    refused("NO_DATASET", store.describe, "d")
    assert store.commit(txn, [receipt]).rows == 5


def test_a_receipt_of_another_transaction_is_wrong(store: DatasetStore) -> None:
    one, other = (store.begin("d", "append", SCHEMA).txn for _ in range(2))
    receipt = staged(store, one, rows(0, 5))
    refused("WRONG_RECEIPT", store.commit, other, [receipt])


def test_transactions_that_never_were(store: DatasetStore) -> None:
    for txn in ("", "d:d:" + "0" * 32, "t:d:" + "0" * 32, "d:../x:" + "0" * 32):
        refused("NO_TXN", store.commit, txn, [])
        refused("NO_TXN", store.open_part, txn, 0, 0, SCHEMA)
    assert store.abort("d:d:" + "0" * 32) is False


# Apps


def test_an_app_writes_each_version_once(store: DatasetStore, reopen: Open) -> None:
    app = {"app": "etl", "app_version": 7}
    begun = store.begin("d", "append", SCHEMA, **app)
    answer = store.commit(begun.txn, [staged(store, begun.txn, rows(0, 5))])
    again = reopen().begin("d", "append", SCHEMA, **app)
    assert again == (begun.txn, True)
    assert store.commit(again.txn, []) == answer
    assert store.begin("d", "overwrite", SCHEMA, "etl", 6).done
    assert not store.begin("d", "append", SCHEMA, "etl", 8).done
    assert not store.begin("d", "append", SCHEMA, "other", 1).done


def test_of_two_who_write_a_version_one_counts(store: DatasetStore) -> None:
    one, other = (store.begin("d", "append", SCHEMA, "etl", 1).txn for _ in range(2))
    receipts = [staged(store, txn, rows(0, 5)) for txn in (one, other)]
    answer = store.commit(one, [receipts[0]])
    assert store.commit(other, [receipts[1]]) == answer
    assert everything(store) == list(range(5))


@pytest.mark.parametrize(("app", "version"), [("etl", None), (None, 1), ("", 1), ("x" * 1001, 1)])
def test_an_app_has_a_version(store: DatasetStore, app: Any, version: Any) -> None:
    refused("BAD_REQUEST", store.begin, "d", "append", SCHEMA, app, version)


# Schemas


def test_a_schema_that_does_not_fit_is_refused_at_once(store: DatasetStore) -> None:
    written(store, rows(0, 1))
    other = pa.schema([("id", pa.string()), ("more", pa.int8())])
    message = refused("WRONG_SCHEMA", store.begin, "d", "append", other)
    for words in ("'more' is not there", "'word' is missing", "'id' is int64, here string"):
        assert words in message
    assert store.begin("d", "overwrite", other).done is False


def test_a_stream_that_does_not_fit_its_transaction_is_refused(store: DatasetStore) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    refused("WRONG_SCHEMA", store.open_part, txn, 0, 0, pa.schema([("id", pa.int64())]))


def test_a_schema_that_was_overwritten_meanwhile_is_refused(store: DatasetStore) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    receipt = staged(store, txn, rows(0, 1))
    written(store, pa.record_batch([pa.array(["x"])], names=["other"]), mode="overwrite")
    refused("WRONG_SCHEMA", store.commit, txn, [receipt])


def test_what_is_never_null_is_read_as_the_dataset_says(store: DatasetStore) -> None:
    loose = pa.schema([pa.field("id", pa.int64()), pa.field("word", pa.string())])
    written(store, pa.RecordBatch.from_arrays(rows(0, 2).columns, schema=loose))
    written(store, rows(2, 2))
    assert everything(store) == [0, 1, 2, 3]
    (one,) = store.describe("d").ranges
    assert {batch.schema for batch in store.read(one.token).batches} == {loose}


def test_a_schema_that_cannot_be_stored_leaves_nothing(store: DatasetStore) -> None:
    refused("WRONG_SCHEMA", store.begin, "d", "append", pa.schema([]))
    assert store.list() == []


def test_a_mode_is_one_of_three(store: DatasetStore) -> None:
    refused("BAD_REQUEST", store.begin, "d", "ignore", SCHEMA)


@pytest.mark.parametrize("name", ["..", "a/b", "", "x" * 129])
def test_bad_names_are_refused(store: DatasetStore, name: str) -> None:
    refused("BAD_NAME", store.begin, name, "append", SCHEMA)
    refused("BAD_NAME", store.describe, name)


# Reading


def test_ranges_are_as_many_as_asked_for(store: DatasetStore) -> None:
    written(store, rows(0, 10))
    written(store, rows(10, 10))
    for count in (1, 2, 3, 7, 20, 50):
        told = store.describe("d", count)
        assert len(told.ranges) == min(count, 20)
        assert everything(store) == list(range(20))
        assert [each for one in told.ranges for each in ids(store.read(one.token).batches)] == list(
            range(20)
        )
        assert sum(one.rows for one in told.ranges) == 20


def test_a_reading_is_resumed(store: DatasetStore) -> None:
    written(store, rows(0, 10), rows(10, 10))
    (one,) = store.describe("d", 1).ranges
    for skip in (0, 1, 10, 13, 20, 99):
        assert ids(store.read(one.token, skip).batches) == list(range(20))[skip:]
    even = parse_filters([["word", "in", ["w0", "w2", "w4"]]])
    matching = ids(store.read(one.token, 0, None, even).batches)
    for skip in (1, 3, len(matching), 99):
        assert ids(store.read(one.token, skip, None, even).batches) == matching[skip:]


def test_columns_and_filters_are_pushed_down(store: DatasetStore) -> None:
    written(store, rows(0, 20))
    filters = parse_filters([["id", ">=", 10], ["word", "=", "w1"]])
    told = store.describe("d", 1, ["word"], filters)
    assert told.schema.names == ["word"]
    table = store.read(told.ranges[0].token, 0, ["word"], filters)
    assert table.schema == told.schema
    assert [batch.to_pylist() for batch in table.batches] == [[{"word": "w1"}] * 2]
    swapped = store.read(told.ranges[0].token, 0, ["word", "id"])
    assert [batch.schema.names for batch in swapped.batches] == [["word", "id"]]


def test_wrong_columns_and_filters_are_refused(store: DatasetStore) -> None:
    written(store, rows(0, 1))
    token = store.describe("d").ranges[0].token
    for function, first in ((store.describe, ("d", 1)), (store.read, (token, 0))):
        refused("NO_COLUMN", function, *first, ["x"])
        refused("NO_COLUMN", function, *first, None, parse_filters([["x", "=", 1]]))
        refused("BAD_FILTER", function, *first, None, parse_filters([["id", "=", "1"]]))


def test_a_version_stays_readable_until_its_time_is_over(store: DatasetStore, reopen: Open) -> None:
    written(store, rows(0, 5))
    token = store.describe("d").ranges[0].token
    written(store, rows(5, 5))
    written(store, rows(10, 5), mode="overwrite")
    store.expire(time.time())
    assert ids(reopen().read(token).batches) == list(range(5))
    begun = store.read(token)
    store.expire(time.time() + TTL + 60)
    message = refused("VERSION_GONE", reopen().read, token)
    assert "version 1" in message
    assert "the oldest is 3" in message
    refused("VERSION_GONE", store.read, token)
    assert everything(reopen()) == list(range(10, 15))
    with pytest.raises(RiverError, match="no longer kept"):
        list(begun.batches)


def test_appended_versions_stay_readable(store: DatasetStore) -> None:
    written(store, rows(0, 5))
    token = store.describe("d").ranges[0].token
    written(store, rows(5, 5))
    store.expire(time.time() + 10 * TTL)
    assert ids(store.read(token).batches) == list(range(5))


def test_tokens_that_never_were(store: DatasetStore) -> None:
    written(store, rows(0, 5))
    token = store.describe("d").ranges[0].token
    name, home, *_ = token.split(":")
    refused("BAD_TOKEN", store.read, "nonsense")
    refused("BAD_TOKEN", store.read, f"{name}:{home}:9:0:1")
    refused("BAD_TOKEN", store.read, f"{name}:{home}:1:0:6")
    refused("VERSION_GONE", store.read, f"{name}:{home}:0:0:1")
    refused("VERSION_GONE", store.read, f"{name}:00000000:1:0:1")
    refused("NO_DATASET", store.read, f"other:{home}:1:0:1")


# Time to live


def test_what_nobody_commits_is_swept(store: DatasetStore, reopen: Open) -> None:
    written(store, rows(0, 2))
    txn = store.begin("d", "append", SCHEMA).txn
    receipt = staged(store, txn, rows(5, 5))
    store.expire(time.time())
    store.check_open(txn)
    store.expire(time.time() + TTL + 60)
    assert "expired" in refused("NO_TXN", reopen().commit, txn, [receipt])
    assert everything(store) == [0, 1]


def test_a_commit_is_known_when_its_name_is_forgotten(store: DatasetStore, reopen: Open) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    receipt = staged(store, txn, rows(0, 5))
    answer = store.commit(txn, [receipt])
    written(store, rows(0, 1), mode="overwrite")
    written(store, rows(9, 1), mode="overwrite")
    last = store.begin("d", "append", SCHEMA).txn
    kept = store.commit(last, [staged(store, last, rows(10, 1))])
    store.expire(time.time() + TTL + 60)
    assert reopen().commit(last, []) == kept
    assert reopen().abort(last) is True
    refused("NO_TXN", reopen().commit, txn, [receipt])
    assert answer.version == 1


def test_a_list_tells_the_newest_versions(store: DatasetStore) -> None:
    written(store, rows(0, 5))
    written(store, rows(5, 5))
    begun = store.begin("e", "append", SCHEMA)
    store.commit(begun.txn, [])
    assert [tuple(info) for info in store.list()] == [
        ("d", 2, 10, 200, None),
        ("e", 1, 0, 0, None),
    ]


def test_a_store_lives_for_more_than_no_time() -> None:
    with pytest.raises(ValueError, match="ttl"):
        MemoryDatasets(ttl=0)
