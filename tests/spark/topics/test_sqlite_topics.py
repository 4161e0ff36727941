"""What a store of topics does: in a directory of its own, in one that others share, in Redis."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.protocol import Receipt
from wsmux.spark.store.base import Committed, Heads, Retention
from wsmux.spark.topics.redis_topics import RedisTopics
from wsmux.spark.topics.sqlite_topics import SqliteTopics

from ...helpers.redis_server import redis_server
from ...helpers.spark.arrow_data import SCHEMA, ids, pa, rows
from ...helpers.spark.clients import WAIT

pytestmark = pytest.mark.spark

TTL = 3600.0

Store = SqliteTopics | RedisTopics
Open = Callable[..., Store]


server = pytest.fixture(scope="module", name="server")(redis_server)


@pytest.fixture(params=["own", "shared", "redis"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Return what opens the same store again, as another process does; its own is there once."""
    made: list[Store] = []
    kind, namespace = request.param, uuid.uuid4().hex

    def open_store(**options: Any) -> Store:
        options = {"ttl": TTL, **options}
        if kind == "own" and made:
            return made[0]
        if kind == "own":
            made.append(SqliteTopics(**options))
        elif kind == "shared":
            made.append(SqliteTopics(tmp_path, sync=False, **options))
        else:
            url = request.getfixturevalue("server").url
            made.append(RedisTopics(url, namespace=namespace, sync=False, **options))
        return made[-1]

    yield open_store
    for each in made:
        each.close()


@pytest.fixture
def store(reopen: Open) -> Store:
    store = reopen()
    assert store.create("t", SCHEMA, 2)
    return store


def staged(store: Store, txn: str, batch: Any, partition: int = 0, attempt: int = 0) -> Receipt:
    part = store.open_part(txn, partition, attempt, batch.schema)
    part.write(batch)
    return part.finish(100, 7)


def written(store: Store, query: str, number: int, *batches: Any) -> Committed:
    txn = store.begin("t", query, number, SCHEMA).txn
    receipts = [staged(store, txn, batch, place) for place, batch in enumerate(batches)]
    return store.commit(txn, receipts)


def read(store: Store, partition: int, start: int, end: int, **more: Any) -> list[int]:
    return ids(store.read("t", partition, start, end, **more).batches)


def refused(code: str, function: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(RiverError) as caught:
        function(*arguments, **named)
    assert caught.value.code == code
    return caught.value.message


# Creating


def test_a_topic_is_created_once(store: Store, reopen: Open) -> None:
    assert reopen().create("t", SCHEMA) is False
    assert reopen().create("t", SCHEMA, 2) is False
    assert "2 partitions, not 3" in refused("EXISTS", store.create, "t", SCHEMA, 3)
    refused("WRONG_SCHEMA", store.create, "t", pa.schema([("x", pa.int8())]))
    told = reopen().describe("t")
    assert (told.schema, told.partitions) == (SCHEMA, 2)
    assert told.heads[:3] == ([0, 0], [0, 0], [0, 0])


@pytest.mark.parametrize("partitions", [0, -1, 10_001])
def test_a_topic_has_a_number_of_partitions(store: Store, partitions: int) -> None:
    refused("BAD_REQUEST", store.create, "u", SCHEMA, partitions)


@pytest.mark.parametrize("name", ["..", "a/b", "", "x" * 129])
def test_bad_names_are_refused(store: Store, name: str) -> None:
    for function, more in ((store.create, [SCHEMA]), (store.heads, []), (store.describe, [])):
        refused("BAD_NAME", function, name, *more)
    refused("BAD_NAME", store.wait_heads, name, None, 0.0)


def test_a_topic_that_is_not_there(store: Store) -> None:
    refused("NO_TOPIC", store.describe, "u")
    refused("NO_TOPIC", store.heads, "u")
    refused("NO_TOPIC", store.begin, "u", "q", 0, SCHEMA)
    refused("NO_TOPIC", store.read, "u", 0, 0, 1)
    refused("NO_TOPIC", store.release, "u", "q", [0])
    refused("NO_TOPIC", store.offsets_at, "u", 0)


def test_columns_of_metadata_are_read_beside_others_and_instead_of_their_own(reopen: Open) -> None:
    store = reopen(clock=lambda: 1.0004)
    schema = pa.schema([("offset", pa.string()), ("id", pa.int64())])
    store.create("own", schema, 2)
    batch = pa.record_batch([["x", "y"], [5, 6]], schema=schema)
    txn = store.begin("own", "q", 0, schema).txn
    store.commit(txn, [staged(store, txn, batch, 1)])
    table = store.read("own", 1, 1, 2, metadata=True)
    assert table.schema.names == ["id", "partition", "offset", "timestamp"]
    (found,) = table.batches
    assert found.schema == table.schema
    (row,) = found.to_pylist()
    assert row.pop("timestamp").timestamp() == 1.0
    assert row == {"id": 6, "partition": 1, "offset": 1}
    table = store.read("own", 1, 0, 2, ["offset"], metadata=True)
    assert [batch.to_pydict() for batch in table.batches] == [{"offset": [0, 1]}]
    assert next(store.read("own", 1, 0, 2).batches).to_pydict() == batch.to_pydict()
    refused("NO_COLUMN", store.read, "own", 0, 0, 0, ["key"], metadata=True)
    assert store.offsets_at("own", 1000) == [None, 0]
    assert store.offsets_at("own", 2**63 - 1) == [None, None]


# Writing


def test_partitions_of_a_batch_are_spread(store: Store, reopen: Open) -> None:
    done = written(store, "q", 0, rows(0, 3), rows(10, 2), rows(20, 1))
    assert done == Committed(1, 6, 300)
    assert reopen().heads("t")[:3] == ([0, 0], [4, 2], [200, 100])
    assert read(reopen(), 0, 0, 4) == [0, 1, 2, 20]
    assert read(store, 1, 0, 2) == [10, 11]


def test_all_who_begin_a_batch_get_the_same_transaction(store: Store, reopen: Open) -> None:
    txns = {each.begin("t", "q", 5, SCHEMA) for each in (store, reopen(), store)}
    assert len(txns) == 1
    assert store.begin("t", "q", 6, SCHEMA) not in txns
    assert store.begin("t", "p", 5, SCHEMA) not in txns


def test_a_batch_is_committed_once(store: Store, reopen: Open) -> None:
    answer = written(store, "q", 0, rows(0, 3))
    again = reopen().begin("t", "q", 0, SCHEMA)
    assert again.done
    assert reopen().commit(again.txn, []) == answer
    assert "committed before" in refused("NO_TXN", store.open_part, again.txn, 0, 1, SCHEMA)
    assert store.heads("t").latest == [3, 0]


def test_an_older_batch_is_done_whatever_it_was(store: Store) -> None:
    written(store, "q", 5, rows(0, 3))
    begun = store.begin("t", "q", 4, SCHEMA)
    assert begun.done
    assert store.commit(begun.txn, []) == Committed(1, 0, 0)
    assert store.abort(begun.txn) is True


def test_queries_have_batches_of_their_own(store: Store) -> None:
    written(store, "q", 5, rows(0, 3))
    written(store, "p", 0, rows(3, 3))
    assert read(store, 0, 0, 6) == list(range(6))


def test_an_aborted_batch_may_begin_again(store: Store, reopen: Open) -> None:
    txn = store.begin("t", "q", 0, SCHEMA).txn
    old = staged(store, txn, rows(0, 3))
    assert store.abort(txn) is False
    refused("NO_TXN", store.commit, txn, [old])
    assert reopen().begin("t", "q", 0, SCHEMA).txn == txn
    refused("WRONG_RECEIPT", store.commit, txn, [old])
    store.commit(txn, [staged(store, txn, rows(9, 1))])
    assert read(store, 0, 0, 1) == [9]


def test_an_abort_never_undoes_a_commit(store: Store) -> None:
    written(store, "q", 0, rows(0, 3))
    assert store.abort(store.begin("t", "q", 0, SCHEMA).txn) is True
    assert store.heads("t").latest == [3, 0]


def test_a_batch_may_be_empty(store: Store) -> None:
    assert written(store, "q", 0) == Committed(1, 0, 0)
    assert store.begin("t", "q", 0, SCHEMA).done


def test_a_schema_that_does_not_fit_is_refused(store: Store) -> None:
    other = pa.schema([("id", pa.string())])
    refused("WRONG_SCHEMA", store.begin, "t", "q", 0, other)
    txn = store.begin("t", "q", 0, SCHEMA).txn
    refused("WRONG_SCHEMA", store.open_part, txn, 0, 0, other)


@pytest.mark.parametrize(("query", "number"), [("", 0), ("x" * 1001, 0), ("q", -1), ("q", 2**63)])
def test_a_query_and_a_batch_are_named(store: Store, query: str, number: int) -> None:
    refused("BAD_REQUEST", store.begin, "t", query, number, SCHEMA)


def test_a_transaction_of_no_query_counts_once_and_is_forgotten(store: Store, reopen: Open) -> None:
    begun = store.begin("t", None, None, SCHEMA)
    assert begun != store.begin("t", None, None, SCHEMA)
    receipt = staged(store, begun.txn, rows(0, 3))
    answer = store.commit(begun.txn, [receipt])
    assert answer == Committed(1, 3, 100)
    assert reopen().commit(begun.txn, [receipt]) == answer
    assert reopen().abort(begun.txn) is True
    assert "committed before" in refused("NO_TXN", store.check_open, begun.txn)
    store.expire(time.time() + TTL + 60)
    assert "has expired" in refused("NO_TXN", store.commit, begun.txn, [receipt])
    assert store.heads("t").latest == [3, 0]


@pytest.mark.parametrize(("query", "number"), [("q", None), (None, 0)])
def test_a_query_and_a_batch_go_together(
    store: Store, query: str | None, number: int | None
) -> None:
    assert "both or none" in refused("BAD_REQUEST", store.begin, "t", query, number, SCHEMA)


def test_a_query_is_never_forgotten(store: Store, reopen: Open) -> None:
    written(store, "q", 7, rows(0, 3))
    store.expire(time.time() + 10**9)
    assert reopen().begin("t", "q", 7, SCHEMA).done


def test_older_batches_of_a_query_are_over_with_a_commit(store: Store) -> None:
    old = store.begin("t", "q", 3, SCHEMA).txn
    part = store.open_part(old, 0, 0, SCHEMA)
    part.write(rows(0, 3))
    written(store, "q", 4, rows(10, 3))
    assert "while it was written" in refused("NO_TXN", part.finish, 1, 1)
    part.discard()
    assert read(store, 0, 0, 3) == [10, 11, 12]


@pytest.mark.parametrize("key", ["0" * 32 + "-9999999999999999999", "0" * 32, "0" * 32 + "-0"])
def test_a_transaction_that_never_was(store: Store, key: str) -> None:
    refused("NO_TXN", store.commit, f"t:t:{key}", [])
    refused("NO_TXN", store.check_open, f"t:t:{key}")
    refused("NO_TXN", store.check_open, f"t:none:{key}")


def test_a_part_that_is_written_keeps_its_transaction(reopen: Open) -> None:
    now = 1000.0
    store = reopen(ttl=100.0, clock=lambda: now)
    store.create("t", SCHEMA)
    txn = store.begin("t", "q", 0, SCHEMA).txn
    part = store.open_part(txn, 0, 0, SCHEMA)
    for start in range(10):
        now += 50.0
        part.write(rows(start, 1))
        store.expire(now)
    store.commit(txn, [part.finish(1, 1)])
    assert read(store, 0, 0, 10) == list(range(10))


def test_a_part_of_what_has_expired_is_told_so(reopen: Open, tmp_path: Path) -> None:
    now = 1000.0
    store = reopen(ttl=100.0, clock=lambda: now)
    store.create("t", SCHEMA)
    part = store.open_part(store.begin("t", "q", 0, SCHEMA).txn, 0, 0, SCHEMA)
    now += 200.0
    store.expire(now)
    assert "while it was written" in refused("NO_TXN", part.write, rows(0, 1))
    part.discard()
    assert list(tmp_path.glob("topics/t/*")) == []


# Reading


def test_any_offsets_are_read_again_and_again(store: Store) -> None:
    for number in range(4):
        written(store, "q", number, rows(10 * number, 10))
    for start, end in ((0, 40), (5, 15), (10, 20), (39, 40), (40, 40), (0, 0)):
        assert read(store, 0, start, end) == list(range(start, end))
    table = store.read("t", 0, 8, 12, ["word"])
    assert [batch.schema.names for batch in table.batches] == [["word"]] * 2


def test_offsets_that_never_were(store: Store) -> None:
    written(store, "q", 0, rows(0, 3))
    assert "the latest is 3" in refused("BAD_OFFSETS", store.read, "t", 0, 0, 4)
    refused("BAD_OFFSETS", store.read, "t", 0, 2, 1)
    assert "none is 2" in refused("BAD_OFFSETS", store.read, "t", 2, 0, 0)
    refused("NO_COLUMN", store.read, "t", 0, 0, 1, ["x"])


def test_a_topic_is_told_from_others_of_its_name(store: Store, reopen: Open) -> None:
    written(store, "q", 0, rows(0, 10))
    home = store.heads("t").home
    assert len(home) == 16
    assert reopen().describe("t").heads.home == reopen().heads("t").home == home
    store.create("u", SCHEMA)
    assert store.heads("u").home not in ("", home)
    for known in (home, None, ""):
        assert read(reopen(), 0, 0, 10, home=known) == list(range(10))
    message = refused("OFFSETS_GONE", store.read, "t", 0, 0, 10, home="0" * 16)
    assert message == "topic t was removed and made anew, and the rows of the former one are gone"


# Retention


def test_offsets_that_are_gone_are_told(reopen: Open) -> None:
    store = reopen(retention=Retention(rows=10))
    store.create("t", SCHEMA)
    for number in range(4):
        written(store, "q", number, rows(10 * number, 10))
    overtaken = store.read("t", 0, 0, 40)
    store.expire(time.time())
    assert reopen().heads("t")[:3] == ([30], [40], [100])
    message = refused("OFFSETS_GONE", store.read, "t", 0, 12, 40)
    assert message == "offset 12 of partition 0 of topic t is gone; the earliest is 30"
    assert read(reopen(), 0, 30, 40) == list(range(30, 40))
    assert read(store, 0, 30, 30) == []
    with pytest.raises(RiverError, match="is gone"):
        list(overtaken.batches)


def test_retention_waits_for_known_queries(reopen: Open) -> None:
    store = reopen(retention=Retention(rows=1))
    store.create("t", SCHEMA)
    store.release("t", "slow", [0])
    store.release("t", "fast", [0])
    for number in range(4):
        written(store, "q", number, rows(10 * number, 10))
    store.release("t", "fast", [40])
    store.expire(time.time())
    assert store.heads("t").earliest == [0]
    store.release("t", "slow", [25])
    store.release("t", "slow", [3])  # what was released stays so
    store.expire(time.time())
    assert store.heads("t").earliest == [20]
    store.release("t", "slow", [25], "slow")
    store.release("t", "slow", [25], "unknown")
    store.expire(time.time())
    assert store.heads("t").earliest == [20]
    store.release("t", "another", [30], "slow")
    store.expire(time.time())
    assert store.heads("t").earliest == [30]
    refused("BAD_REQUEST", store.release, "t", "another", [30], "")


def test_a_hard_limit_does_not_wait(reopen: Open) -> None:
    store = reopen(retention=Retention(hard_age=60.0))
    store.create("t", SCHEMA)
    store.release("t", "slow", [0])
    written(store, "q", 0, rows(0, 10))
    store.expire(time.time())
    assert store.heads("t").earliest == [0]
    store.expire(time.time() + 120)
    assert store.heads("t")[:3] == ([10], [10], [0])
    written(store, "q", 1, rows(10, 5))
    assert read(store, 0, 10, 15) == list(range(10, 15))


def dropped(
    reopen: Open,
    retention: Retention,
    released: dict[str, list[int]] | None = None,
    batches: int = 5,
    second: int = 0,
) -> list[int]:
    """Return what is the earliest of 10 rows, and some of partition 1, each 10 s, at 100 s."""
    now = 0.0
    store = reopen(retention=retention, clock=lambda: now)
    store.create("t", SCHEMA, 2)
    for number in range(batches):
        now = number * 10.0
        written(store, "q", number, rows(10 * number, 10), *[rows(0, second)] * bool(second))
    for query, offsets in (released or {}).items():
        store.release("t", query, offsets)
    store.expire(100.0)
    return store.heads("t").earliest


@pytest.mark.parametrize(
    ("retention", "earliest"),
    [
        ({}, 0),
        ({"rows": 25}, 20),
        ({"rows": 20}, 30),
        ({"bytes": 250}, 20),
        ({"age": 75.0}, 30),
        ({"age": 1.0}, 50),
        ({"rows": 1, "hard_rows": 1}, 40),
        ({"hard_rows": 25}, 30),
    ],
    ids=str,
)
def test_at_least_the_newest_rows_stay(
    reopen: Open, retention: dict[str, float], earliest: int
) -> None:
    assert dropped(reopen, Retention(**retention)) == [earliest, 0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("retention", "released", "earliest"),
    [
        ({"rows": 1}, [[25, 0]], 20),
        ({"age": 1.0}, [[50, 0], [10, 0]], 10),
        ({"rows": 1}, [[0, 0]], 0),
        ({"hard_rows": 25}, [[0, 0]], 30),
        ({"hard_bytes": 250}, [[0, 0]], 30),
        ({"hard_age": 75.0}, [[0, 0]], 30),
    ],
    ids=str,
)
def test_what_a_query_has_not_released_stays_below_hard_limits(
    reopen: Open, retention: dict[str, float], released: list[list[int]], earliest: int
) -> None:
    known = {f"q{number}": offsets for number, offsets in enumerate(released)}
    assert dropped(reopen, Retention(**retention), known) == [earliest, 0]  # type: ignore[arg-type]


def test_partitions_wait_apart(reopen: Open) -> None:
    assert dropped(reopen, Retention(rows=1), {"q": [0, 20]}, 3, second=10) == [0, 20]


@pytest.mark.parametrize("field", ["rows", "bytes", "age", "hard_rows", "hard_bytes", "hard_age"])
def test_a_limit_is_above_0(field: str) -> None:
    with pytest.raises(ValueError, match=f"Retention.{field} must be above 0"):
        Retention(**{field: 0})


@pytest.mark.parametrize("option", ["ttl", "lock_timeout"])
def test_times_are_above_0(tmp_path: Path, option: str) -> None:
    options: dict[str, Any] = {option: 0}
    with pytest.raises(ValueError, match=f"{option} must be above 0 seconds, not 0"):
        SqliteTopics(tmp_path, **options)


def test_what_was_never_written_cannot_be_released(store: Store) -> None:
    assert "2 partitions, not 1" in refused("BAD_OFFSETS", store.release, "t", "q", [0])
    assert "ends at 0" in refused("BAD_OFFSETS", store.release, "t", "q", [0, 1])
    refused("BAD_REQUEST", store.release, "t", "", [0, 0])


def test_what_nobody_commits_is_swept(store: Store, reopen: Open) -> None:
    txn = store.begin("t", "q", 0, SCHEMA).txn
    receipt = staged(store, txn, rows(0, 3))
    store.expire(time.time())
    store.check_open(txn)
    store.expire(time.time() + TTL + 60)
    refused("NO_TXN", reopen().commit, txn, [receipt])
    assert store.begin("t", "q", 0, SCHEMA).txn == txn


# Waiting


def test_heads_are_told_when_they_change(store: Store, reopen: Open) -> None:
    seen = store.wait_heads("t", None, 0.0)
    assert seen[:3] == ([0, 0], [0, 0], [0, 0])
    assert store.wait_heads("t", seen, 0.01) == seen
    waiting = threading.Event()

    def wait() -> Heads:
        waiting.set()
        return store.wait_heads("t", seen, WAIT)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(wait)
        assert waiting.wait(WAIT)
        written(reopen(), "q", 0, rows(0, 3))
        assert future.result(WAIT).latest == [3, 0]
