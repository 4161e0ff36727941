"""Stores of offsets keep them by the same rules, and with their effects."""

from __future__ import annotations

import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wsmux.durable import (
    DurableRefused,
    FileOffsets,
    Offsets,
    ReceivedStream,
    RedisOffsets,
    Refusal,
    SqlOffsets,
)

from ..helpers.durable import EPOCH, MemoryOffsets, pattern, receiving
from ..helpers.redis_server import RedisServer, redis_server
from ..helpers.timeouts import WAIT

OTHER = b"another epoch..."

server = pytest.fixture(scope="module", name="server")(redis_server)


@pytest.fixture(params=["sqlite", "redis", "decoding redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Offsets]:
    if request.param == "sqlite":
        yield SqlOffsets(lambda: sqlite3.connect(tmp_path / "offsets.db"))
        return
    server: RedisServer = request.getfixturevalue("server")
    with server.client() as client:
        client.flushall()
        if request.param == "redis":
            yield RedisOffsets(client)
        else:
            import redis

            with redis.Redis.from_url(server.url, decode_responses=True) as decoding:
                yield RedisOffsets(decoding)


def test_an_offset_is_of_a_name_and_an_epoch(store: Offsets) -> None:
    assert store.committed("a", EPOCH) == 0
    store.commit("a", EPOCH, 5)
    store.commit("b", OTHER, 7)
    assert store.committed("a", EPOCH) == 5
    assert store.committed("a", OTHER) == 0
    assert store.committed("b", OTHER) == 7


def test_epoch_and_offset_change_together(store: Offsets) -> None:
    store.commit("a", EPOCH, 500)
    store.commit("a", OTHER, 3)
    assert store.committed("a", EPOCH) == 0
    assert store.committed("a", OTHER) == 3


@pytest.mark.parametrize(("before", "after"), [(5, 4), (10, 9), (2**60 + 1, 2**60), (100, 99)])
def test_an_offset_never_goes_back(store: Offsets, before: int, after: int) -> None:
    store.commit("a", EPOCH, before)
    store.commit("a", EPOCH, before)
    with pytest.raises(DurableRefused, match=f"{before} bytes of 'a' are committed") as caught:
        store.commit("a", EPOCH, after)
    assert caught.value.kind is Refusal.SUPERSEDED
    assert store.committed("a", EPOCH) == before


@pytest.mark.parametrize("name", ["ü ' \" ; --", "x" * 255, "a:b/c"])
def test_any_name_is_kept(store: Offsets, name: str) -> None:
    store.commit(name, EPOCH, 1)
    assert store.committed(name, EPOCH) == 1


def test_threads_share_a_store(store: Offsets) -> None:
    def count(name: str) -> None:
        for offset in range(1, 20):
            store.commit(name, EPOCH, offset)

    threads = [threading.Thread(target=count, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert [store.committed(str(number), EPOCH) for number in range(4)] == [19] * 4


# Effect and offset in one transaction


class Crash(Exception):
    """Stand for the end of the process."""


def run(offsets: Any, handle: Callable[[ReceivedStream], None], data: bytes) -> None:
    """Send data until all are committed, however often the handler fails."""
    while True:
        with receiving(handle, offsets) as connect:
            stream = connect().open_stream(WAIT, durable="rows", epoch=EPOCH, size=len(data))
            stream.timeout = WAIT
            try:
                stream.write(data[stream.offset :])
                stream.close()
                return
            except Exception:
                stream.suspend()


def test_rows_of_sqlite_are_there_once_whatever_fails(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    offsets = SqlOffsets(lambda: sqlite3.connect(path))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE rows (number INTEGER)")
    steps = iter(range(1000))

    def handle(stream: ReceivedStream) -> None:
        with closing(sqlite3.connect(path)) as database:
            while data := _eights(stream):
                with database:
                    numbers = struct.iter_unpack(">Q", data)
                    database.executemany("INSERT INTO rows VALUES (?)", numbers)
                    if next(steps) % 5 == 1:
                        raise Crash
                    offsets.record(
                        database, stream.name, stream.epoch, stream.offset, since=stream.committed
                    )
                    if next(steps) % 5 == 2:
                        raise Crash
                if next(steps) % 5 == 3:
                    raise Crash
                stream.commit()

    run(offsets, handle, pattern(0, 80_000))
    with closing(sqlite3.connect(path)) as database:
        found = [row[0] for row in database.execute("SELECT number FROM rows ORDER BY number")]
    assert found == list(range(0, 80_000, 8))


def test_items_of_redis_are_there_once_whatever_fails(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()
        offsets = RedisOffsets(client)
        steps = iter(range(1000))

        def handle(stream: ReceivedStream) -> None:
            while data := _eights(stream):
                with client.pipeline(transaction=True) as pipeline:
                    pipeline.rpush("rows", *(data[at : at + 8] for at in range(0, len(data), 8)))
                    if next(steps) % 5 == 1:
                        raise Crash
                    offsets.record(pipeline, stream.name, stream.epoch, stream.offset)
                    pipeline.execute()
                if next(steps) % 5 == 3:
                    raise Crash
                stream.commit()

        run(offsets, handle, pattern(0, 80_000))
        found: Any = client.lrange("rows", 0, -1)
        assert [int.from_bytes(each, "big") for each in found] == list(range(0, 80_000, 8))


def test_of_two_that_receive_the_same_rows_one_commits_them(tmp_path: Path) -> None:
    """A process whose connection is lost goes on with what it has, beside the next one."""
    path = tmp_path / "rows.db"
    store = SqlOffsets(lambda: sqlite3.connect(path))

    def record(offset: int, since: int, epoch: bytes = EPOCH) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            store.record(database, "a", epoch, offset, since=since)

    def refuse(offset: int, since: int, there: int) -> None:
        with pytest.raises(DurableRefused, match=f"{there} bytes of 'a' are committed") as raised:
            record(offset, since)
        assert raised.value.kind is Refusal.SUPERSEDED

    refuse(8, 5, 0)  # the row that was there is gone
    record(50, 0)
    refuse(50, 0, 50)
    record(100, 50)
    for offset in (70, 100, 120):
        refuse(offset, 50, 100)
    record(100, 100)  # nothing new
    store.commit("a", EPOCH, 100)
    record(7, 0, OTHER)
    refuse(120, 100, 0)
    assert store.committed("a", OTHER) == 7


def test_a_driver_that_counts_nothing_cannot_tell_who_was_first(tmp_path: Path) -> None:
    class Cursor(sqlite3.Cursor):
        rowcount = -1  # type: ignore[assignment]

    store = SqlOffsets(lambda: sqlite3.connect(tmp_path / "offsets.db"))
    with closing(sqlite3.connect(tmp_path / "offsets.db")) as database, database:
        cursors = SimpleNamespace(cursor=lambda: database.cursor(Cursor))
        with pytest.raises(TypeError, match="does not count the rows that it changes"):
            store.record(cursors, "a", EPOCH, 5, since=0)


def _eights(stream: ReceivedStream) -> bytes:
    """Return some whole numbers of eight bytes."""
    data = stream.read(8_000)
    while len(data) % 8:
        data += stream.read(8 - len(data) % 8)
    return data


@pytest.mark.parametrize("table", ["", "a b", "a;b", "1a", "a.b.c", "a-b"])
def test_a_table_has_a_plain_name(table: str) -> None:
    with pytest.raises(ValueError, match="letters, digits and underscores"):
        SqlOffsets(lambda: sqlite3.connect(":memory:"), table)


def test_another_style_of_arguments_is_told() -> None:
    with pytest.raises(ValueError, match="one of qmark, format, pyformat, numeric, not 'named'"):
        SqlOffsets(lambda: sqlite3.connect(":memory:"), paramstyle="named")


def test_arguments_stand_where_a_driver_wants_them(tmp_path: Path) -> None:
    class Cursor(sqlite3.Cursor):
        def execute(self, statement: str, arguments: Any = ()) -> Any:
            return super().execute(statement.replace("%s", "?"), arguments)

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

    path = tmp_path / "offsets.db"
    store = SqlOffsets(lambda: sqlite3.connect(path, factory=Connection), paramstyle="pyformat")
    store.commit("a", EPOCH, 5)
    assert store.committed("a", EPOCH) == 5


@pytest.mark.parametrize("counted", [0, -1])
def test_a_driver_that_does_not_count_what_stays_the_same_is_understood(
    tmp_path: Path, counted: int
) -> None:
    """As those of MySQL do; PEP 249 allows -1 for all."""
    path = tmp_path / "offsets.db"

    class Cursor(sqlite3.Cursor):
        rowcount = counted  # type: ignore[assignment]

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

    store = SqlOffsets(lambda: sqlite3.connect(path, factory=Connection))
    store.commit("a", EPOCH, 5)
    with closing(sqlite3.connect(path, factory=Connection)) as database, database:
        store.record(database, "a", EPOCH, 7)
    store.commit("a", EPOCH, 7)  # what ``ReceivedStream.commit`` does then
    with pytest.raises(DurableRefused, match="7 bytes of 'a' are committed") as raised:
        store.commit("a", EPOCH, 6)
    assert raised.value.kind is Refusal.SUPERSEDED
    store.commit("a", OTHER, 3)
    assert (store.committed("a", EPOCH), store.committed("a", OTHER)) == (0, 3)


def test_an_older_snapshot_of_the_row_is_no_permission(tmp_path: Path) -> None:
    """Where a transaction reads what was there when it began, and changes what is there now."""
    path = tmp_path / "offsets.db"

    class Cursor(sqlite3.Cursor):
        def fetchone(self) -> Any:
            name, epoch, position = super().fetchone()
            return name, epoch, position - 5

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

    store = SqlOffsets(lambda: sqlite3.connect(path))
    store.commit("a", EPOCH, 10)
    with (
        closing(sqlite3.connect(path, factory=Connection)) as database,
        pytest.raises(DurableRefused, match="or more meanwhile"),
    ):
        store.record(database, "a", EPOCH, 7)
    assert store.committed("a", EPOCH) == 10


def test_a_name_that_the_database_takes_for_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "offsets.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE wsmux_offsets (name VARCHAR(255) NOT NULL COLLATE NOCASE PRIMARY KEY, "
            "epoch CHAR(32) NOT NULL, position BIGINT NOT NULL)"
        )
    store = SqlOffsets(lambda: sqlite3.connect(path))
    store.commit("A", EPOCH, 5)
    with pytest.raises(DurableRefused, match="takes 'a' for the name 'A'") as raised:
        store.committed("a", EPOCH)
    assert raised.value.kind is Refusal.NAME
    assert store.committed("A", EPOCH) == 5


def test_all_stores_are_offsets(tmp_path: Path) -> None:
    def takes(store: Offsets) -> Offsets:
        return store

    assert takes(FileOffsets(tmp_path))
    assert takes(MemoryOffsets())
