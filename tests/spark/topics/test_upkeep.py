"""Topics stay small: small files are joined, and what is known of a topic does not grow."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark.store.base import Retention
from wsmux.spark.topics.segments import Segment, SegmentWriter
from wsmux.spark.topics.sqlite_topics import SqliteTopics
from wsmux.spark.topics.upkeep import JOINED_BYTES, JOINED_FILES, Bounds, bounds, runs

from ...helpers.spark.arrow_data import SCHEMA, ids, rows
from ...helpers.spark.clients import WAIT
from ...helpers.spark.inside import database_of, join_soon
from ...helpers.spark.topics import add, held

pytestmark = pytest.mark.spark

ANY = Bounds(float("inf"), JOINED_BYTES, float("inf"))


def segments(*sizes: int) -> list[Segment]:
    """Return files of so many rows and bytes, a second apart."""
    found, start = [], 0
    for place, size in enumerate(sizes):
        found.append(Segment(start, size, size, f"f{place}", "", place, place, place))
        start += size
    return found


def planned(most: Bounds, *sizes: int) -> list[list[int]]:
    return [[each.rows for each in run] for run in runs(segments(*sizes), most)]


# Planning


def test_small_files_are_joined_in_their_order() -> None:
    assert planned(ANY, 1, 1, 1) == [[1, 1, 1]]
    assert planned(ANY, 1) == []
    assert planned(ANY) == []


def test_a_file_that_is_larger_than_all_behind_it_stays() -> None:
    assert planned(ANY, 100, 3, 2, 2) == [[3, 2, 2]]
    assert planned(ANY, 100, 50, 25) == []
    assert planned(ANY, 7, 3, 2, 2) == [[7, 3, 2, 2]]


@pytest.mark.parametrize(
    "most", [Bounds(10, 1000, 1000), Bounds(1000, 10, 1000)], ids=["rows", "bytes"]
)
def test_joined_files_are_bounded(most: Bounds) -> None:
    assert planned(most, *[3] * 7) == [[3, 3, 3], [3, 3, 3]]
    assert planned(most, 3, 3, 6, 3, 3) == [[3, 3], [3, 3]]


def test_joined_files_span_a_bounded_time() -> None:
    assert planned(Bounds(1000, 1000, 2.5), *[1] * 6) == [[1, 1, 1], [1, 1, 1]]


def test_one_step_joins_a_bounded_number_of_files() -> None:
    assert [len(run) for run in runs(segments(*[1] * 2500), ANY)] == [JOINED_FILES] * 2 + [500]


def test_a_joined_file_is_a_small_part_of_what_is_kept() -> None:
    assert bounds(Retention()) == ANY
    assert bounds(Retention(rows=100, hard_rows=1000, age=50.0)) == Bounds(10, JOINED_BYTES, 5)
    assert bounds(Retention(bytes=1000, hard_age=10.0)) == Bounds(float("inf"), 100, 1)


# Joining


def filled(store: SqliteTopics, count: int, first: int = 0) -> None:
    """Commit rows one by one, to each of two partitions."""
    for number in range(first, first + count):
        add(store, "t", number, 1, 1, first=2 * number)


def files(directory: Path) -> list[str]:
    return sorted(os.listdir(directory / "topics" / "t"))


@pytest.fixture
def store(tmp_path: Path) -> SqliteTopics:
    store = SqliteTopics(tmp_path, sync=False)
    store.create("t", SCHEMA, 2)
    return store


def test_a_sweep_joins_small_files_and_changes_no_row(store: SqliteTopics, tmp_path: Path) -> None:
    filled(store, 40)
    before, heads = held(store, "t"), store.heads("t")
    store.expire(time.time())
    # A joined file for each partition; the newest commit stays apart, for retention.
    assert [name[0] for name in files(tmp_path)] == ["j", "j", "p", "p"]
    assert (held(store, "t"), store.heads("t")) == (before, heads)
    assert held(SqliteTopics(tmp_path), "t") == before
    assert ids(store.read("t", 1, 7, 12).batches) == before[47:52]
    filled(store, 40, 40)
    store.expire(time.time())
    assert len(files(tmp_path)) < 12
    assert sorted(held(store, "t")) == list(range(160))


def told(store: SqliteTopics, partition: int, start: int, end: int) -> list[tuple[Any, ...]]:
    """Return id, partition, offset and time, in ms, of rows."""
    names = ["id", "partition", "offset", "timestamp"]
    table = store.read("t", partition, start, end, names, True)
    found = [tuple(row.values()) for batch in table.batches for row in batch.to_pylist()]
    return [(*each[:3], round(each[3].timestamp() * 1000)) for each in found]


def test_joined_rows_keep_their_times_however_often(tmp_path: Path) -> None:
    now = [1000.0]
    store = SqliteTopics(tmp_path, sync=False, clock=lambda: now[0])
    store.create("t", SCHEMA, 2)
    expected = []
    for number in range(80):
        now[0] += 0.25
        filled(store, 1, number)
        expected.append((2 * number + 1, 1, number, round(now[0] * 1000)))
        if number in (39, 79):
            before = files(tmp_path)
            store.expire(now[0])
            assert len(files(tmp_path)) < len(before)
    assert told(store, 1, 0, 80) == expected
    assert told(store, 1, 17, 60) == expected[17:60]
    for moment, offset in (
        (0, 0),
        (1_000_250, 0),
        (1_000_251, 1),
        (1_010_000, 39),
        (1_020_000, 79),
    ):
        assert store.offsets_at("t", moment) == [offset, offset]
    assert store.offsets_at("t", 1_020_001) == [None, None]


def test_a_time_is_looked_up_again_if_its_rows_go_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    keep = Retention(hard_rows=22)
    store = SqliteTopics(tmp_path, sync=False, clock=lambda: now[0], retention=keep)
    store.create("t", SCHEMA)
    join_soon(store, 8, 8)
    for number in range(20):
        now[0] += 1
        add(store, "t", number, 1, first=number)
    store.expire(now[0])
    assert store.offsets_at("t", 3000) == [2]
    read = store.read

    def drop_and_read(*arguments: Any) -> Any:
        monkeypatch.undo()
        add(store, "t", 20, 10, first=20)
        store.expire(now[0])
        return read(*arguments)

    monkeypatch.setattr(store, "read", drop_and_read)
    assert store.offsets_at("t", 3000) == store.heads("t").earliest
    assert store.heads("t").earliest > [2]


def test_a_file_without_the_time_that_is_told_of_it_is_damaged(store: SqliteTopics) -> None:
    filled(store, 40)
    store.expire(time.time())
    joined = "FROM segments WHERE file LIKE 'j%'"
    with database_of(store).write() as db:
        db.execute("UPDATE segments SET time = time + 1000 WHERE file LIKE 'j%'")
        (least,) = db.execute(f"SELECT min(time) {joined}").fetchone()
    with pytest.raises(RiverError, match=r"^CORRUPT: topics/t/j-\w+.arrow has no row as late as"):
        store.offsets_at("t", int(least * 1000) - 1)


def test_few_files_are_left_alone(store: SqliteTopics, tmp_path: Path) -> None:
    filled(store, 15)
    before = files(tmp_path)
    store.expire(time.time())
    assert files(tmp_path) == before


def test_what_is_being_read_is_read_on_when_it_was_joined(store: SqliteTopics) -> None:
    filled(store, 40)
    batches = store.read("t", 0, 0, 40).batches
    found = ids([next(batches), next(batches)])
    store.expire(time.time())
    assert found + ids(batches) == [2 * number for number in range(40)]


def test_of_two_who_join_the_same_one_does(store: SqliteTopics, tmp_path: Path) -> None:
    filled(store, 40)
    other = SqliteTopics(tmp_path, sync=False)
    ready = threading.Barrier(2)

    def sweep(which: SqliteTopics) -> None:
        ready.wait(WAIT)
        which.expire(time.time())

    threads = [threading.Thread(target=sweep, args=(each,)) for each in (store, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert len(files(tmp_path)) == 4
    assert sorted(held(store, "t")) == list(range(80))


def test_what_is_dropped_while_it_is_joined_stays_dropped(
    store: SqliteTopics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store, 40)
    dropping = SqliteTopics(tmp_path, sync=False, retention=Retention(hard_rows=20))
    join_soon(dropping, 10**6, 1)
    close = SegmentWriter.close

    def drop_and_close(writer: Any) -> str:
        dropping.expire(time.time())
        return close(writer)

    monkeypatch.setattr(SegmentWriter, "close", drop_and_close)
    store.expire(time.time())
    assert store.heads("t").earliest == [30, 30]
    assert sorted(held(store, "t")) == list(range(60, 80))
    with database_of(store).read() as db:
        known = sorted(file for (file,) in db.execute("SELECT file FROM segments"))
    assert files(tmp_path) == known


def test_joining_ends_when_the_store_is_closed(
    store: SqliteTopics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store, 40)
    before = files(tmp_path)
    write = SegmentWriter.write

    def write_and_close(writer: SegmentWriter, batch: Any) -> None:
        write(writer, batch)
        store.close()

    with monkeypatch.context() as closing:
        closing.setattr(SegmentWriter, "write", write_and_close)
        store.expire(time.time())
    assert files(tmp_path) == before
    store.expire(time.time())
    assert len(files(tmp_path)) == 4


def test_a_damaged_file_is_not_joined(
    store: SqliteTopics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(store, 40)
    before = files(tmp_path)
    (tmp_path / "topics" / "t" / before[0]).write_bytes(b"garbage")
    store.expire(time.time())
    assert set(before) <= set(files(tmp_path))
    assert "topic t cannot be swept" in caplog.text
    with pytest.raises(RiverError, match="is damaged"):
        held(store, "t")


def test_joined_rows_go_when_all_of_them_may(tmp_path: Path) -> None:
    store = SqliteTopics(tmp_path, sync=False, retention=Retention(rows=100))
    store.create("t", SCHEMA, 2)
    filled(store, 200)
    store.expire(time.time())
    heads = store.heads("t")
    assert 100 <= sum(heads.latest) - sum(heads.earliest) <= 110
    assert len(files(tmp_path)) < 40
    assert sorted(held(store, "t")) == list(range(2 * heads.earliest[0], 400))


# What it takes


def state(directory: Path) -> int:
    """Return the bytes of what is known of topics, SQLite's log among them."""
    names = ("topics.sqlite", "topics.sqlite-wal")  # the third file is shared memory
    return sum((directory / name).stat().st_size for name in names)


def one(store: SqliteTopics, query: str | None, batch: int | None) -> None:
    txn = store.begin("t", query, batch, SCHEMA).txn
    part = store.open_part(txn, 0, 0, SCHEMA)
    part.write(rows(0, 1))
    store.commit(txn, [part.finish(100, 0)])


@pytest.mark.hang_bound(300)
@pytest.mark.parametrize("query", ["q", None])
def test_what_is_known_of_a_topic_does_not_grow(tmp_path: Path, query: str | None) -> None:
    """As long as transactions of no query are remembered, here 100 s, each takes some bytes."""
    now = 0.0
    kept = Retention(rows=100)
    store = SqliteTopics(tmp_path, ttl=100.0, retention=kept, sync=False, clock=lambda: now)
    store.create("t", SCHEMA)
    sizes = []
    for batch in range(600):
        now += 1.0
        one(store, query, None if query is None else batch)
        if batch % 20 == 19:
            store.expire(now)
            sizes.append(state(tmp_path))
    heads = store.heads("t")
    assert 100 <= heads.latest[0] - heads.earliest[0] <= 110
    assert len(files(tmp_path)) < 50
    assert max(sizes[:15]) < 80 * 1024
    assert max(sizes[15:]) <= 1.05 * max(sizes[:15])


def work(store: SqliteTopics, query: str, first: int, count: int) -> tuple[int, int]:
    """Return the steps of SQLite's machine that some appends take, and their statements."""
    steps = statements = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    def trace(statement: str) -> None:
        nonlocal statements
        statements += 1

    with database_of(store).write() as writer, database_of(store).read() as reader:
        connections = writer, reader
        for db in connections:
            db.set_progress_handler(step, 1)
            db.set_trace_callback(trace)
    for number in range(first, first + count):
        one(store, query, number)
    for db in connections:
        db.set_progress_handler(None, 1)
        db.set_trace_callback(None)
    return steps, statements


@pytest.mark.hang_bound(300)
def test_an_append_costs_the_same_however_many_there_were(store: SqliteTopics) -> None:
    early = work(store, "q", 0, 10)
    for number in range(10, 400):
        one(store, "q", number)
    assert store.heads("t").latest == [400, 0]  # none of them was joined
    late = work(store, "q", 400, 10)
    assert late[1] == early[1]
    assert late[0] <= 1.1 * early[0]
