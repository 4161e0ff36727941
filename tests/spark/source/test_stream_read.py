"""Queries that follow a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.spark import serve_data
from wsmux.spark.server.data_server import DataServer
from wsmux.spark.topics.redis_topics import RedisTopics
from wsmux.spark.topics.sqlite_topics import SqliteTopics

from ...helpers.inside import calls_of
from ...helpers.redis_server import RedisServer
from ...helpers.spark.arrow_data import SCHEMA
from ...helpers.spark.format_servers import PATIENCE
from ...helpers.spark.inside import released_of
from ...helpers.spark.topics import Sink, add, follow, option_list, started
from ...helpers.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(180)]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Let Spark's driver open what it likes; our own side runs in workers here."""


@pytest.fixture
def topics() -> SqliteTopics:
    topics = SqliteTopics()
    topics.create("t", SCHEMA, 2)
    return topics


@pytest.fixture
def server(topics: SqliteTopics) -> Iterator[DataServer]:
    with serve_data(topics=topics) as server:
        yield server


def run(spark: Any, server: DataServer, checkpoint: Path, **options: Any) -> Sink:
    """Read all that there is, in batches; return what came."""
    sink = Sink()
    frame = follow(spark, option_list(server.url, "t", **options))
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)
    return sink


def test_a_restart_goes_on_behind_what_was_read(
    spark: Any, server: DataServer, topics: SqliteTopics, tmp_path: Path
) -> None:
    end = add(topics, "t", 0, 10, 10)
    begin = json.dumps({"0": 2, "1": -2})
    sink = run(spark, server, tmp_path, startingOffsets=begin, maxRowsPerTrigger=8)
    assert sorted(sink.ids()) == list(range(2, end))
    assert [len(batch) for batch in sink.batches] == [8, 8, 2]
    add(topics, "t", 1, 3, 0, first=end)
    assert run(spark, server, tmp_path).ids() == [20, 21, 22]
    assert run(spark, server, tmp_path).ids() == []


def test_a_query_has_columns_of_metadata_from_a_time_on(spark: Any, tmp_path: Path) -> None:
    now = [1000.0]
    topics = SqliteTopics(clock=lambda: now[0])
    topics.create("t", SCHEMA, 2)
    first = add(topics, "t", 0, 3, 3)
    now[0] += 1
    add(topics, "t", 1, 2, 2, first=first)
    found: list[tuple[int, int, int, float]] = []

    def note(frame: Any, number: int) -> None:
        told = frame.select("id", "partition", "offset", "timestamp").collect()
        found.extend((*row[:3], row.timestamp.timestamp()) for row in told)

    with serve_data(topics=topics) as server:
        options = option_list(server.url, "t", startingTimestamp=1_000_001, includeMetadata="true")
        writer = follow(spark, options).writeStream.foreachBatch(note)
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        assert writer.start().awaitTermination(PATIENCE)
    assert sorted(found) == [
        *((6, 0, 3, 1001.0), (7, 0, 4, 1001.0)),
        *((8, 1, 3, 1001.0), (9, 1, 4, 1001.0)),
    ]


def test_a_query_that_waits_asks_for_nothing(
    spark: Any, server: DataServer, topics: SqliteTopics, tmp_path: Path
) -> None:
    calls: list[str] = []
    for name in ("describe", "release", "heads", "read"):
        method = getattr(topics, name)

        def counted(*args: Any, name: str = name, method: Any = method, **more: Any) -> Any:
            calls.append(name)
            return method(*args, **more)

        setattr(topics, name, counted)
    sink = Sink()
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "300")
    writer = follow(spark, option_list(server.url, "t")).writeStream.foreachBatch(sink)
    with started(writer.option("checkpointLocation", str(tmp_path))) as query:
        query.processAllAvailable()
        end = add(topics, "t", 0, 4, 4)
        wait_for(lambda: len(sink.ids()) == end, PATIENCE)
        query.processAllAvailable()
        subscribed = calls_of(server.rpc)
        before = [name for name in calls if name != "heads"]
        looked = query.lastProgress["timestamp"]
        wait_for(lambda: query.lastProgress["timestamp"] != looked, PATIENCE)
        assert [name for name in calls if name != "heads"] == before
        assert calls_of(server.rpc) == subscribed == 1
    wait_for(lambda: calls_of(server.rpc) == 0, PATIENCE)


def test_what_comes_while_all_is_read_waits_for_the_next_run(
    spark: Any, server: DataServer, topics: SqliteTopics, tmp_path: Path
) -> None:
    end = add(topics, "t", 0, 6, 0)

    class Adding(Sink):
        def __call__(self, frame: Any, number: int) -> None:
            super().__call__(frame, number)
            add(topics, "t", 1 + number, 3, 3, first=100 * (1 + number))

    sink = Adding()
    options = option_list(server.url, "t", startingOffsets="earliest", maxRowsPerTrigger=3)
    writer = follow(spark, options).writeStream.foreachBatch(sink)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)
    assert sink.ids() == list(range(end))


def test_the_server_keeps_what_is_not_read_yet(
    spark: Any, server: DataServer, tmp_path: Path, topics: SqliteTopics
) -> None:
    add(topics, "t", 0, 6, 0)
    run(spark, server, tmp_path, startingOffsets="earliest", maxRowsPerTrigger=3)
    assert released_of(topics) == [[3, 0]]


def test_a_query_goes_on_at_another_server_that_shares_topics(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    end, found = 0, []
    with RedisServer(tmp_path / "redis", durable=True) as redis:
        stores = [RedisTopics(redis.url) for _ in range(2)]
        stores[0].create("t", SCHEMA, 2)
        for number, store in enumerate(stores):
            end = add(stores[1 - number], "t", number, 10, 10, first=end)
            begin = json.dumps({"0": 0, "1": 0})
            with serve_data(topics=store) as server:
                sink = run(spark, server, tmp_path / "checkpoint", startingOffsets=begin)
            found += sink.ids()
        for store in stores:
            store.close()
    assert sorted(found) == list(range(40))
