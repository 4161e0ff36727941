"""What reads and writes for a query, asked as Spark would ask it, without one."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.spark import DataServer, SparkError, serve_data
from wsmux.spark.protocol import Code, refusal
from wsmux.spark.source.options import Action, parse_options
from wsmux.spark.topics.sqlite_topics import SqliteTopics
from wsmux.testing import FaultProxy

from ...helpers.inside import calls_of
from ...helpers.spark.arrow_data import SCHEMA, ids, pa
from ...helpers.spark.inside import database_of, released_of
from ...helpers.spark.topics import add, option_list
from ...helpers.waiting import wait_for

pytest.importorskip("pyspark", reason="pyspark is not installed")
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from wsmux.spark.source.batch_reader import schema_of_source
from wsmux.spark.source.datasource import stream_reader_of
from wsmux.spark.source.limited_reader import LimitedStreamReader
from wsmux.spark.source.stream_reader import Follower, PlainStreamReader
from wsmux.spark.source.stream_writer import StreamWriter
from wsmux.spark.source.types import spark_schema

pytestmark = pytest.mark.spark

DECLARED: StructType = spark_schema(SCHEMA)


@pytest.fixture
def topics() -> SqliteTopics:
    topics = SqliteTopics()
    topics.create("t", SCHEMA, 2)
    return topics


@pytest.fixture
def server(topics: SqliteTopics) -> Iterator[DataServer]:
    with serve_data(topics=topics) as server:
        yield server


def options_of(url: str, action: Action = Action.STREAM_READ, **options: Any) -> Any:
    return parse_options(option_list(url, "t", **options), action)


@pytest.fixture
def reader(server: DataServer) -> Iterator[Any]:
    reader = stream_reader_of(options_of(server.url, startingOffsets="earliest"), DECLARED)
    yield reader
    reader.stop()


def took(reader: Follower, parts: list[Any]) -> list[int]:
    """Return what tasks read, in other processes as far as they can tell."""
    copy = pickle.loads(pickle.dumps(reader))
    return sorted(each for part in parts for each in ids(copy.read(part)))


def test_limits_are_those_that_spark_names(topics: SqliteTopics, reader: Any) -> None:
    assert reader.getDefaultReadLimit() == ReadAllAvailable()
    add(topics, "t", 0, 10, 10)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(6))
    assert end["offsets"] == {"0": 3, "1": 3}
    assert reader.latestOffset(end, ReadMaxBytes(100))["offsets"] == {"0": 8, "1": 8}
    assert reader.latestOffset(end, ReadAllAvailable())["offsets"] == {"0": 10, "1": 10}
    assert reader.reportLatestOffset()["offsets"] == {"0": 10, "1": 10}
    assert took(reader, reader.partitions(start, end)) == [0, 1, 2, 10, 11, 12]
    assert reader.partitions(end, end) == []


def test_both_limits_hold(topics: SqliteTopics, server: DataServer) -> None:
    add(topics, "t", 0, 20, 20)  # five bytes for each row, as told
    for rows, size, taken in ((20, 1000, 10), (100, 150, 15)):
        limits = {"maxRowsPerTrigger": rows, "maxBytesPerTrigger": size}
        options = options_of(server.url, startingOffsets="earliest", **limits)
        reader = stream_reader_of(options, DECLARED)
        assert reader.getDefaultReadLimit() == ReadMaxRows(rows)
        end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(rows))
        assert end["offsets"] == {"0": taken, "1": taken}
        reader.stop()


def test_more_partitions_and_fewer_columns(topics: SqliteTopics, server: DataServer) -> None:
    end = add(topics, "t", 0, 10, 2)
    options = options_of(server.url, startingOffsets="earliest", minPartitions=5)
    reader = stream_reader_of(options, spark_schema(pa.schema([SCHEMA.field("id")])))
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert len(parts) == 6
    assert took(reader, parts) == list(range(end))
    assert next(reader.read(parts[0])).schema.names == ["id"]
    reader.stop()


def test_a_query_begins_at_a_time_with_columns_of_metadata() -> None:
    now = [0.0]
    topics = SqliteTopics(clock=lambda: now[0])
    topics.create("t", SCHEMA, 2)
    for number in range(4):
        now[0] += 1
        add(topics, "t", number, 2, 1, first=10 * number)
    with serve_data(topics=topics) as server:
        options = options_of(server.url, startingTimestamp=3000, includeMetadata=True)
        reader = stream_reader_of(options, schema_of_source(options))
        reader.prepareForTriggerAvailableNow()  # follows the topic before
        now[0] += 1
        add(topics, "t", 4, 2, 1, first=40)
        start = reader.initialOffset()
        assert start["offsets"] == {"0": 4, "1": 2}
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end["offsets"] == {"0": 8, "1": 4}
        copy = pickle.loads(pickle.dumps(reader))
        batches = [each for part in reader.partitions(start, end) for each in copy.read(part)]
        found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        names = ["id", "word", "partition", "offset", "timestamp"]
        assert batches[0].schema.names == names
        assert [(each[0], *each[2:4], each[4].timestamp()) for each in found] == [
            *((20, 0, 4, 3.0), (21, 0, 5, 3.0), (30, 0, 6, 4.0), (31, 0, 7, 4.0)),
            *((22, 1, 2, 3.0), (32, 1, 3, 4.0)),
        ]
        reader.stop()


def test_a_query_that_begins_after_all_rows_is_refused_or_waits(
    topics: SqliteTopics, server: DataServer
) -> None:
    add(topics, "t", 0, 10, 5)
    late = {"startingTimestamp": "9000-01-01"}
    reader = stream_reader_of(options_of(server.url, **late), DECLARED)
    with pytest.raises(SparkError, match="partition 0 has no row of startingTimestamp") as caught:
        reader.initialOffset()
    assert caught.value.code == "BAD_OFFSETS"
    reader.stop()
    late["startingOffsetsByTimestampStrategy"] = "latest"
    reader = stream_reader_of(options_of(server.url, **late), DECLARED)
    assert reader.initialOffset()["offsets"] == {"0": 10, "1": 5}
    reader.stop()


def test_another_topic_of_the_same_name_is_an_error_or_read(topics: SqliteTopics) -> None:
    others = SqliteTopics()
    others.create("t", SCHEMA, 2)
    add(topics, "t", 0, 4)
    add(others, "t", 0, 2, first=100)
    with serve_data(topics=topics) as server:
        reader = stream_reader_of(options_of(server.url, startingOffsets="earliest"), DECLARED)
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        reader.stop()
    with serve_data(topics=others) as server:
        reader = stream_reader_of(options_of(server.url), DECLARED)
        with pytest.raises(
            SparkError, match=r"rows were lost: the topic was removed and made anew;"
        ):
            reader.latestOffset(start, ReadAllAvailable())
        reader.stop()
        reader = stream_reader_of(options_of(server.url, failOnDataLoss=False), DECLARED)
        end = reader.latestOffset(start, ReadAllAvailable())
        assert took(reader, reader.partitions(start, end)) == [100, 101]
        reader.stop()


def made_anew(topics: SqliteTopics, root: Path, count: int) -> None:
    """Remove topic t, make it again, and write more rows to it than it had."""
    shutil.rmtree(root / "topics" / "t")
    topics.create("t", SCHEMA, 2)
    add(topics, "t", 0, count, first=100)


@pytest.fixture
def kept_topics(tmp_path: Path) -> SqliteTopics:
    topics = SqliteTopics(tmp_path, sync=False)
    topics.create("t", SCHEMA, 2)
    add(topics, "t", 0, 4)
    return topics


@pytest.mark.parametrize("plain", [False, True], ids=["4.2", "4.1"])
def test_no_row_of_a_topic_that_was_made_anew_is_skipped(
    kept_topics: SqliteTopics, tmp_path: Path, plain: bool
) -> None:
    """It has more rows by now than the checkpoint tells of the former one."""
    with serve_data(topics=kept_topics) as server:

        def reader_of(**options: Any) -> Any:
            parsed = options_of(server.url, startingOffsets="earliest", **options)
            return (PlainStreamReader if plain else LimitedStreamReader)(parsed, DECLARED)

        def end_of(reader: Any, start: Any) -> Any:
            return reader.latestOffset(*(() if plain else (start, ReadAllAvailable())))

        reader = reader_of()
        first = reader.initialOffset()
        start = json.loads(json.dumps(end_of(reader, first)))
        assert took(reader, reader.partitions(first, start)) == [0, 1, 2, 3]
        reader.commit(start)
        reader.stop()
        made_anew(kept_topics, tmp_path, 10)
        reader = reader_of()
        with pytest.raises(SparkError, match="the topic was removed and made anew;") as caught:
            reader.partitions(start, end_of(reader, start))
        assert caught.value.code == "OFFSETS_GONE"
        reader.stop()
        reader = reader_of(failOnDataLoss=False)
        end = end_of(reader, start)
        for _ in range(2):  # the second time as after a crash
            assert took(reader, reader.partitions(start, end)) == list(range(100, 110))
        reader.commit(end)
        assert released_of(kept_topics) == [[10, 0]]
        add(kept_topics, "t", 1, 2, first=200)
        wait_for(lambda: reader.heads().latest == [12, 0])
        assert took(reader, reader.partitions(end, end_of(reader, end))) == [200, 201]
        reader.stop()


def test_a_query_that_runs_has_a_topic_that_was_made_anew_keep_its_rows(
    kept_topics: SqliteTopics, tmp_path: Path
) -> None:
    """From the plan of the first batch on, as those of a query that begins."""
    with serve_data(topics=kept_topics) as server:
        options = options_of(server.url, startingOffsets="earliest", failOnDataLoss=False)
        reader: Any = LimitedStreamReader(options, DECLARED)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert took(reader, reader.partitions(start, end)) == [0, 1, 2, 3]
        reader.commit(end)
        made_anew(kept_topics, tmp_path, 10)
        wait_for(lambda: reader.heads().latest == [10, 0])
        after = reader.latestOffset(end, ReadMaxRows(4))
        parts = reader.partitions(end, after)
        assert released_of(kept_topics) == [[0, 0]]
        assert took(reader, parts) == [100, 101, 102, 103]
        reader.stop()


def test_a_batch_of_a_topic_that_was_made_anew_reads_nothing_of_the_new_one(
    kept_topics: SqliteTopics, tmp_path: Path
) -> None:
    """Once it was planned, and once its tasks have begun."""
    with serve_data(topics=kept_topics) as server:
        readers = [
            LimitedStreamReader(
                options_of(server.url, startingOffsets="earliest", failOnDataLoss=loss), DECLARED
            )
            for loss in (True, False)
        ]
        start = readers[0].initialOffset()
        end = readers[0].latestOffset(start, ReadAllAvailable())
        (part,) = readers[0].partitions(start, end)
        made_anew(kept_topics, tmp_path, 10)
        for reader in readers:
            wait_for(lambda reader=reader: reader.heads().latest == [10, 0])
        with pytest.raises(SparkError, match="topic t was removed and made anew") as caught:
            took(readers[0], [part])
        assert caught.value.code == "OFFSETS_GONE"
        with pytest.raises(SparkError, match="made anew"):
            readers[0].partitions(start, end)
        readers[0].commit(end)  # which tells the server nothing of the new one
        assert released_of(kept_topics) == []
        assert took(readers[1], [part]) == []
        assert readers[1].partitions(start, end) == []
        after = readers[1].latestOffset(end, ReadMaxRows(4))
        assert after["offsets"] == {"0": 4, "1": 0} == end["offsets"]
        assert took(readers[1], readers[1].partitions(end, after)) == [100, 101, 102, 103]
        for reader in readers:
            reader.stop()


def test_a_home_is_kept_while_a_server_tells_none(kept_topics: SqliteTopics) -> None:
    """As one of an earlier version, beside others."""
    with serve_data(topics=kept_topics) as server:
        reader: Any = LimitedStreamReader(options_of(server.url), DECLARED)
        start = reader.initialOffset()
        with database_of(kept_topics).write() as db:
            db.execute("UPDATE topics SET home = ''")
        add(kept_topics, "t", 1, 2)
        wait_for(lambda: reader.heads().latest == [6, 0])
        assert reader.heads().home == ""
        assert reader.latestOffset(start, ReadAllAvailable())["home"] == start["home"] != ""
        reader.stop()


def test_a_spark_that_is_started_again_meanwhile_keeps_the_home(
    topics: SqliteTopics, server: DataServer
) -> None:
    """Before 4.2 it plans its first batch without what is in the checkpoint."""
    before = PlainStreamReader(options_of(server.url), DECLARED)
    start = before.initialOffset()
    before.stop()
    with database_of(topics).write() as db:
        db.execute("UPDATE topics SET home = ''")
    add(topics, "t", 1, 2)
    reader = PlainStreamReader(options_of(server.url), DECLARED)
    assert took(reader, reader.partitions(start, reader.latestOffset())) == [0, 1]
    add(topics, "t", 2, 1)
    wait_for(lambda: reader.heads().latest == [3, 0])
    assert reader.latestOffset()["home"] == start["home"] != ""
    reader.stop()


def test_nothing_new_is_the_same_offset_as_text(topics: SqliteTopics, reader: Any) -> None:
    """Spark compares what it has written with what it is told, as JSON."""
    add(topics, "t", 0, 1, 1)
    start = json.loads(json.dumps(reader.initialOffset()))
    end = reader.latestOffset(start, ReadAllAvailable())
    written = json.dumps(end)
    for _ in range(3):
        again = reader.latestOffset(json.loads(written), ReadAllAvailable())
        assert json.dumps(again) == written


def test_a_reading_that_is_cut_goes_on_where_it_was(
    topics: SqliteTopics, server: DataServer
) -> None:
    end = add(topics, "t", 0, 300_000)
    with FaultProxy(server.port) as proxy:
        options = options_of(f"ws://127.0.0.1:{proxy.port}", startingOffsets="earliest")
        reader = stream_reader_of(options, DECLARED)
        start = reader.initialOffset()
        (part,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        proxy.cut_after(1_000_000, 1_000_000)
        assert ids(reader.read(part)) == list(range(end))
        assert not proxy.cutting
        reader.stop()
        reader._recipe.link().close()


def test_what_goes_while_it_is_read_is_left_out_if_told_so(
    topics: SqliteTopics, server: DataServer
) -> None:
    add(topics, "t", 0, 10)
    for loss, found in (("true", None), ("false", [4, 5, 6, 7, 8, 9])):
        options = options_of(server.url, startingOffsets="earliest", failOnDataLoss=loss)
        reader = stream_reader_of(options, DECLARED)
        start = reader.initialOffset()
        parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        with database_of(topics).write() as db:
            db.execute("UPDATE partitions SET earliest = 4 WHERE partition = 0")
        if found is None:
            with pytest.raises(SparkError, match=r"^\[OFFSETS_GONE\] stream read: offset 0 of"):
                took(reader, parts)
        else:
            assert took(reader, parts) == found
        reader.stop()


def test_a_checkpoint_of_something_else_is_refused(reader: Any) -> None:
    with pytest.raises(SparkError, match=r"^\[WRONG_CHECKPOINT\] topic t: this checkpoint holds"):
        reader.latestOffset({"index": 3}, ReadAllAvailable())


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [("id", pa.string(), "WRONG_SCHEMA"), ("more", pa.int32(), "NO_COLUMN")],
)
def test_a_topic_with_other_columns_is_refused(
    server: DataServer, name: str, kind: Any, code: str
) -> None:
    """As when it was made anew between two runs; the declared columns are those of the first."""
    declared = spark_schema(pa.schema([(name, kind)]))
    reader = stream_reader_of(options_of(server.url), declared)
    with pytest.raises(SparkError, match=rf"^\[{code}\] topic t: "):
        reader.initialOffset()


def test_columns_that_change_on_the_way_are_an_error(topics: SqliteTopics) -> None:
    others = SqliteTopics()
    others.create("t", pa.schema([("id", pa.string()), ("word", pa.string())]), 2)
    with database_of(others).write() as db:
        db.execute("UPDATE topics SET home = ''")  # as of an earlier version
    schema = others.describe("t").schema
    txn = others.begin("t", "q", 0, schema).txn
    part = others.open_part(txn, 0, 0, schema)
    part.write(pa.record_batch([pa.array(["x"] * 5), pa.array(["y"] * 5)], schema=schema))
    others.commit(txn, [part.finish(1, 0)])
    add(topics, "t", 0, 5)
    with serve_data(topics=topics) as server:
        reader = stream_reader_of(options_of(server.url, startingOffsets="earliest"), DECLARED)
        start = reader.initialOffset()
        parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    with (
        serve_data(topics=others, port=server.port),
        pytest.raises(SparkError, match=r"^\[WRONG_TYPE\] stream read: "),
    ):
        took(reader, parts)
    reader.stop()


# Before Spark 4.2


def test_a_spark_without_limits_is_served_too(topics: SqliteTopics, server: DataServer) -> None:
    add(topics, "t", 0, 10)
    options = options_of(server.url, startingOffsets="earliest", maxRowsPerTrigger=4)
    reader = PlainStreamReader(options, DECLARED)
    start, found = reader.initialOffset(), []
    for _ in range(3):
        end = reader.latestOffset()
        found.append(took(reader, reader.partitions(start, end)))
        start = end
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert reader.latestOffset() == start
    reader.stop()


def test_such_a_spark_goes_on_behind_its_checkpoint(
    topics: SqliteTopics, server: DataServer
) -> None:
    add(topics, "t", 0, 10)
    options = options_of(server.url, startingOffsets="earliest", maxRowsPerTrigger=4)
    first = PlainStreamReader(options, DECLARED)
    first.initialOffset()
    kept = first.latestOffset()
    first.stop()
    second = PlainStreamReader(options, DECLARED)
    end = second.latestOffset()
    assert took(second, second.partitions(kept, end)) == [4, 5, 6, 7, 8, 9]
    second.commit(end)
    assert released_of(topics) == [[10, 0]]
    second.stop()


def test_such_a_spark_has_rows_kept_for_its_last_run_alone(
    topics: SqliteTopics, server: DataServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Available rows, one run after another: each asks for the end before it knows the start."""
    options = options_of(server.url, startingOffsets="earliest")
    start: Any = None
    for number in range(3):
        behind = add(topics, "t", number, 10, 5, first=15 * number)
        reader = PlainStreamReader(options, DECLARED)
        end = json.loads(json.dumps(reader.latestOffset()))
        start = reader.initialOffset() if start is None else start
        parts = reader.partitions(start, end)
        assert took(reader, parts) == list(range(15 * number, behind))
        assert released_of(topics) == [[10 * number, 5 * number]]
        again = PlainStreamReader(options, DECLARED)  # as after a crash
        assert took(again, again.partitions(start, end)) == list(range(15 * number, behind))
        again.commit(end)
        assert released_of(topics) == [[10 * number + 10, 5 * number + 5]]
        again.stop()
        reader.stop()
        start = end
    assert "failed" not in caplog.text


def test_such_a_spark_that_is_started_again_has_another_id_in_place_of_the_first(
    topics: SqliteTopics, server: DataServer
) -> None:
    options = options_of(server.url, startingOffsets="earliest")
    start: Any = None
    for number in range(4):
        add(topics, "t", number, 10)
        if number % 2 == 0:  # two batches for each start
            reader = PlainStreamReader(options, DECLARED)
        start = reader.initialOffset() if start is None else start
        wait_for(lambda it=reader, at=10 * number + 10: it.heads().latest[0] == at)
        end = reader.latestOffset()
        reader.partitions(start, end)
        reader.commit(end)
        assert released_of(topics) == [[10 * number + 10, 0]]
        start = end
        if number % 2:
            reader.stop()


@pytest.mark.parametrize("plain", [False, True], ids=["4.2", "4.1"])
def test_a_checkpoint_without_an_id_gets_one(
    topics: SqliteTopics, server: DataServer, caplog: pytest.LogCaptureFixture, plain: bool
) -> None:
    """As earlier versions wrote them; a batch that is run again between two such has none."""
    add(topics, "t", 0, 10)
    first, second = ({"topic": "t", "reader": "", "offsets": {"0": n, "1": 0}} for n in (2, 5))
    reader: Any = (PlainStreamReader if plain else LimitedStreamReader)(
        options_of(server.url), DECLARED
    )
    assert took(reader, reader.partitions(first, second)) == [2, 3, 4]
    reader.commit(second)
    assert released_of(topics) == []
    end = reader.latestOffset(*(() if plain else (second, ReadAllAvailable())))
    assert took(reader, reader.partitions(second, end)) == [5, 6, 7, 8, 9]
    reader.commit(end)
    assert released_of(topics) == [[10, 0]]
    assert "failed" not in caplog.text
    reader.stop()


def test_an_id_that_could_not_be_told_of_is_replaced_later(
    topics: SqliteTopics, server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(server.url, startingOffsets="earliest", retries=0)
    add(topics, "t", 0, 10)
    topics.release("t", "before", [4, 0])
    start = {"topic": "t", "reader": "before", "offsets": {"0": 4, "1": 0}}
    reader = PlainStreamReader(options, DECLARED)
    end = reader.latestOffset()

    def fail(*arguments: Any, **more: Any) -> None:
        raise refusal(Code.STORE_FAILED, "not now")

    with monkeypatch.context() as failing:
        failing.setattr(topics, "release", fail)
        reader.partitions(start, end)
    reader.commit(end)
    assert released_of(topics) == [[10, 0]]
    reader.stop()


# Writing


def test_the_output_mode_complete_is_refused(server: DataServer) -> None:
    options = options_of(server.url, Action.STREAM_WRITE)
    with pytest.raises(
        SparkError, match="topics only support appending; use the output mode append"
    ):
        StreamWriter(options, DECLARED, True)


def test_feeds_end_with_the_reader(server: DataServer) -> None:
    reader = stream_reader_of(options_of(server.url), DECLARED)
    assert reader.heads()[:3] == ([0, 0], [0, 0], [0, 0])
    assert calls_of(server.rpc) == 1
    reader.stop()
    wait_for(lambda: calls_of(server.rpc) == 0)
