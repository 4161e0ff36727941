"""What a store of datasets does, in a directory of its own, in one that others share, and in S3."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.protocol import Receipt
from wsmux.spark.store.base import Committed, DatasetStore
from wsmux.spark.store.datasets import DeltaDatasets
from wsmux.spark.store.filters import parse_filters
from wsmux.spark.store.schemas import takes

from ...helpers.spark.arrow_data import (
    CHANGED,
    COLUMNS,
    REFUSED,
    SCHEMA,
    delta_wide,
    ids,
    pa,
    rows,
)
from ...helpers.spark.object_store import ObjectStore

pytestmark = pytest.mark.spark

TTL = 3600.0

Open = Callable[[], DatasetStore]


@pytest.fixture(params=["temporary", "directory", "s3"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return what opens the same store again, as another process does; or a temporary one."""
    if request.param == "temporary":
        store = DeltaDatasets(ttl=TTL)
        return lambda: store
    if request.param == "s3":
        objects: ObjectStore = request.getfixturevalue("objects")
        address, options = objects.address(), objects.options()
        return lambda: DeltaDatasets(address, storage_options=options, ttl=TTL)
    return lambda: DeltaDatasets(tmp_path, ttl=TTL, sync=False)


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
    assert written(store, rows(0, 10), rows(10, 5)) == Committed(0, 15, 100)
    assert everything(store) == everything(reopen()) == list(range(15))
    told = reopen().describe("d")
    assert (told.schema, told.version, told.rows) == (SCHEMA, 0, 15)
    assert told.bytes > 100


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
    assert written(store, rows(9, 2), mode="overwrite").version == 2
    assert everything(store) == [9, 10]


def test_overwriting_with_nothing_leaves_nothing(store: DatasetStore) -> None:
    written(store, rows(0, 3))
    txn = store.begin("d", "overwrite", SCHEMA).txn
    assert store.commit(txn, []) == Committed(1, 0, 0)
    assert store.commit(txn, []) == Committed(1, 0, 0)
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


def test_every_type_is_kept(store: DatasetStore, reopen: Open) -> None:
    given = delta_wide()
    written(store, given)
    (one,) = reopen().describe("d").ranges
    table = reopen().read(one.token)
    (batch,) = table.batches
    assert batch.schema.equals(table.schema, check_metadata=True)
    assert batch.schema.field(0).metadata == given.schema.field(0).metadata
    for field in given.schema:
        kept = batch.schema.field(field.name)
        wanted = field.with_type(CHANGED.get(field.name, field.type))
        takes(pa.schema([kept]), pa.schema([wanted]), "the dataset")
    assert str(batch.to_pylist()) == str(given.to_pylist())


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_type_that_is_not_kept_is_refused_with_its_column(store: DatasetStore, name: str) -> None:
    schema = pa.schema([("id", pa.int64()), (name, COLUMNS[name].type)])
    message = refused("WRONG_SCHEMA", store.begin, "d", "append", schema)
    assert name in message
    assert "cast it to" in message


def test_nanoseconds_are_kept_as_microseconds(store: DatasetStore) -> None:
    nanos = pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns"))
    written(store, pa.record_batch([nanos], names=["at"]))
    (one,) = store.describe("d").ranges
    (batch,) = store.read(one.token).batches
    assert batch.schema.types == [pa.timestamp("us")]
    assert batch.column(0).cast(pa.int64()).to_pylist() == [1_700_000_000_123_456, None]


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
    assert "set overwriteSchema" in refused("WRONG_SCHEMA", store.begin, "d", "overwrite", other)
    assert store.begin("d", "overwrite", other, overwrite_schema=True).done is False
    for mode, more in (("append", False), ("create", False), ("overwrite", True)):
        options = {"overwrite_schema": True, "merge_schema": more}
        message = refused("BAD_REQUEST", store.begin, "d", mode, other, **options)
        assert "belongs to the mode overwrite, without mergeSchema" in message


def test_a_stream_that_does_not_fit_its_transaction_is_refused(store: DatasetStore) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    refused("WRONG_SCHEMA", store.open_part, txn, 0, 0, pa.schema([("id", pa.int64())]))


def test_a_schema_that_was_overwritten_meanwhile_is_refused(store: DatasetStore) -> None:
    txn = store.begin("d", "append", SCHEMA).txn
    receipt = staged(store, txn, rows(0, 1))
    other = pa.record_batch([pa.array(["x"])], names=["other"])
    written(store, other, mode="overwrite", overwrite_schema=True)
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


def merged(store: DatasetStore, batch: Any) -> Committed:
    txn = store.begin("d", "append", batch.schema, merge_schema=True).txn
    return store.commit(txn, [staged(store, txn, batch)])


def test_schemas_are_merged_when_asked_to(store: DatasetStore, reopen: Open) -> None:
    """Columns are added, missing, in another order, and narrower than they are here."""
    written(store, rows(0, 2))
    added = pa.record_batch(
        [pa.array([{"x": 1}]), pa.array([7], pa.int8()), pa.array(["w9"])],
        schema=pa.schema(
            [
                ("more", pa.struct([("x", pa.int64())])),
                pa.field("id", pa.int8(), False),
                ("word", pa.string()),
            ]
        ),
    )
    assert merged(store, added).version == 1
    assert merged(store, rows(8, 1).select(["id"])).version == 2
    told = reopen().describe("d", 1)
    assert told.schema.names == ["id", "word", "more"]
    assert not told.schema.field("id").nullable
    found = [row for batch in store.read(told.ranges[0].token).batches for row in batch.to_pylist()]
    assert found == [
        {"id": 0, "word": "w0", "more": None},
        {"id": 1, "word": "w1", "more": None},
        {"id": 7, "word": "w9", "more": {"x": 1}},
        {"id": 8, "word": None, "more": None},
    ]
    refused("WRONG_SCHEMA", store.begin, "d", "append", SCHEMA)
    assert store.describe("d", version=0).schema == SCHEMA


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([("word", pa.string())]), "'id' of dataset d is never null, and is missing"),
        (pa.schema([("id", pa.int64())]), "'id' is never null"),
        (pa.schema([("id", pa.int8())]), "'id' of dataset d is never null, and may be here"),
        (pa.schema([pa.field("id", pa.float32(), False)]), "'id' is int64, here float"),
        (pa.schema([pa.field("id", pa.int8(), False), ("ID", pa.int8())]), "tell apart"),
        (pa.schema([pa.field("id", pa.int8(), False), ("Word", pa.int8())]), "tell apart"),
    ],
)
def test_schemas_that_cannot_be_merged(store: DatasetStore, schema: Any, words: str) -> None:
    written(store, rows(0, 2))
    message = refused("WRONG_SCHEMA", store.begin, "d", "append", schema, merge_schema=True)
    assert words in message


def test_what_others_have_merged_meanwhile_stays(store: DatasetStore, reopen: Open) -> None:
    written(store, rows(0, 1))

    def more(name: str, kind: Any) -> Any:
        fields = [pa.field("id", pa.int64(), False), (name, kind)]
        return pa.record_batch([pa.array([5]), pa.array([6], kind)], schema=pa.schema(fields))

    one, other = more("one", pa.int64()), more("other", pa.int32())
    txn = store.begin("d", "append", one.schema, merge_schema=True).txn
    receipt = staged(store, txn, one)
    merged(reopen(), other)
    store.commit(txn, [receipt])
    told = store.describe("d", 1)
    assert told.schema.names == ["id", "word", "other", "one"]
    found = [row for batch in store.read(told.ranges[0].token).batches for row in batch.to_pylist()]
    assert [(row["other"], row["one"]) for row in found] == [(None, None), (6, None), (None, 6)]
    late = pa.schema([pa.field("id", pa.int64(), False), ("one", pa.string())])
    refused("WRONG_SCHEMA", store.begin, "d", "append", late, merge_schema=True)


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
    assert "version 0" in message
    assert "the oldest is 2" in message
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


def test_a_version_is_read_as_it_was(store: DatasetStore, reopen: Open) -> None:
    written(store, rows(0, 5))
    between = time.time() + 0.002
    while time.time() < between + 0.002:
        pass  # commits are told apart by milliseconds
    written(store, rows(5, 5))
    other = pa.record_batch([pa.array(["x"])], names=["other"])
    written(store, other, mode="overwrite", overwrite_schema=True)

    def held(**when: Any) -> list[int]:
        told = reopen().describe("d", 1, **when)
        assert told.schema == SCHEMA
        return [each for one in told.ranges for each in ids(store.read(one.token).batches)]

    assert held(version=0) == held(timestamp=between) == list(range(5))
    assert held(version=1) == list(range(10))
    for told in (store.describe("d", version=2), store.describe("d", timestamp=time.time() + 60)):
        assert (told.version, told.schema.names) == (2, ["other"])
    assert "the newest is 2" in refused("BAD_REQUEST", store.describe, "d", version=3)
    assert "the oldest" in refused("VERSION_GONE", store.describe, "d", timestamp=1.0)
    store.expire(time.time() + TTL + 60)
    assert "the oldest is 2" in refused("VERSION_GONE", store.describe, "d", version=1)


def test_tokens_that_never_were(store: DatasetStore) -> None:
    written(store, rows(0, 5))
    token = store.describe("d").ranges[0].token
    name, home, *_ = token.split(":")
    refused("BAD_TOKEN", store.read, "nonsense")
    refused("BAD_TOKEN", store.read, f"{name}:{home}:9:0:1")
    refused("BAD_TOKEN", store.read, f"{name}:{home}:0:0:6")
    refused("VERSION_GONE", store.read, f"{name}:00000000:0:0:1")
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


def test_what_an_app_wrote_last_is_known_when_names_are_forgotten(
    store: DatasetStore, reopen: Open
) -> None:
    last = store.begin("d", "append", SCHEMA, "etl", 3)
    kept = store.commit(last.txn, [staged(store, last.txn, rows(10, 1))])
    written(store, rows(0, 1), mode="overwrite")
    store.expire(time.time() + TTL + 60)
    assert reopen().begin("d", "append", SCHEMA, "etl", 3) == (last.txn, True)
    assert reopen().commit(last.txn, []) == store.commit(last.txn, []) == kept
    assert reopen().abort(last.txn) is True


def test_a_list_tells_the_newest_versions(store: DatasetStore) -> None:
    written(store, rows(0, 5))
    written(store, rows(5, 5))
    begun = store.begin("e", "append", SCHEMA)
    store.commit(begun.txn, [])
    told = store.describe("d").bytes
    assert [tuple(info) for info in store.list()] == [
        ("d", 1, 10, told, None),
        ("e", 0, 0, 0, None),
    ]


def test_a_store_lives_for_more_than_no_time() -> None:
    with pytest.raises(ValueError, match="ttl"):
        DeltaDatasets(ttl=0)
