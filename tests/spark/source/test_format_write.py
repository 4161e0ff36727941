"""Batch writes by ``format("wsmux")``: all of a job or nothing, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.rpc import RiverError
from wsmux.spark import serve_data
from wsmux.spark.server.arrow_stream import Limits
from wsmux.spark.topics.sqlite_topics import SqliteTopics

from ...helpers.spark.arrow_data import ids, pa
from ...helpers.spark.format_servers import Watched, failure, filled, load, opts, save, served
from ...helpers.spark.inside import table_of
from ...helpers.spark.topics import held

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(180)]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Let Spark's driver open what it likes; our own side runs in workers here."""


def frame_of(spark: Any, start: int, end: int, parts: int = 2) -> Any:
    return spark.range(start, end, 1, parts)


def kept(store: Watched, dataset: str = "d") -> list[int]:
    """Return the ids that a store holds, in order, so that a doubled one shows."""
    told = store.describe(dataset)
    return sorted(each for found in told.ranges for each in ids(store.read(found.token).batches))


def failing_once(batches: Iterator[Any]) -> Iterator[Any]:
    """A step that fails after the first batch, in the first attempt at partition 1."""
    from pyspark import TaskContext

    context = TaskContext.get()
    for batch in batches:
        yield batch
        if (context.partitionId(), context.attemptNumber()) == (1, 0):
            raise LookupError("the first attempt")


def test_append_adds_and_overwrite_replaces(spark: Any) -> None:
    with served() as (server, store):
        save(frame_of(spark, 0, 10), server.url)
        save(frame_of(spark, 10, 15, 9), server.url)  # four partitions of nothing
        assert kept(store) == list(range(15))
        save(frame_of(spark, 3, 6), server.url, "overwrite")
        assert kept(store) == [3, 4, 5]
        save(frame_of(spark, 0, 0), server.url, "overwrite")
        assert kept(store) == []
        assert store.aborted == []


def test_columns_are_added_when_schemas_are_merged(spark: Any) -> None:
    with served() as (server, store):
        save(frame_of(spark, 0, 4), server.url)
        more = spark.sql("SELECT 'x' AS extra, CAST(7 AS INT) AS id")
        assert failure(lambda: save(more, server.url)).code == "WRONG_SCHEMA"
        save(more, server.url, mergeSchema="true")
        assert kept(store) == [0, 1, 2, 3, 7]
        assert store.describe("d").schema.names[-1] == "extra"
        assert str(store.describe("d").schema.field("id").type) == "int64"


def test_a_dataset_is_partitioned_by_an_option(spark: Any) -> None:
    frame = frame_of(spark, 0, 12, 1).selectExpr("id", "DATE'2024-02-28' + int(id % 3) day")
    with served() as (server, store):
        save(frame, server.url, partitionBy="day")
        save(frame.where("id < 6"), server.url)
        found = failure(lambda: save(frame, server.url, partitionBy="id"))
        assert (found.code, found.what) == ("WRONG_SCHEMA", "dataset.begin")
        assert "is partitioned by day, and not by id: leave out partitionBy" in found.message
        read = load(spark, server.url, numPartitions=1).where("day > DATE'2024-02-28'")
        days = ["2024-02-28", "2024-02-29", "2024-03-01"]
        there = sorted([*range(12), *range(6)])
        assert sorted((row.id, str(row.day)) for row in read.collect()) == [
            (each, days[each % 3]) for each in there if each % 3
        ]
        folders = Path(table_of(store, "d").folder.address).glob("day=*")
        assert sorted(each.name for each in folders) == [f"day={each}" for each in days]


def test_rows_that_match_a_condition_are_replaced(spark: Any) -> None:
    frame = frame_of(spark, 0, 12).selectExpr("id", "DATE'2026-01-01' + int(id % 3) day", "id n")
    where = "day = '2026-01-01' AND n > 3"
    with served() as (server, store):
        save(frame, server.url)
        new = spark.sql("SELECT 100L AS id, DATE'2026-01-01' AS day, 4L AS n")
        save(new, server.url, "overwrite", replaceWhere=where)
        assert kept(store) == [*(each for each in range(12) if each not in (6, 9)), 100]
        found = failure(lambda: save(frame, server.url, "overwrite", replaceWhere=where))
        assert found.code == "REPLACE_WHERE_MISMATCH"
        assert "a row has" in found.message
        assert f'df.where("{where}")' in found.message
        found = failure(lambda: save(new, server.url, replaceWhere=where))
        assert (found.code, found.what) == ("BAD_REQUEST", "dataset.begin")
        assert len(kept(store)) == 11


def test_what_spark_has_for_partitions_is_refused_by_spark_itself(spark: Any) -> None:
    """So that nobody believes a dataset to be partitioned that is not."""
    with served() as (server, store):
        save(frame_of(spark, 0, 3), server.url)
        writer = frame_of(spark, 0, 3).write.format("wsmux").mode("append")
        with pytest.raises(Exception, match="provided: identity\\(id\\)"):
            writer.options(**opts(server.url)).partitionBy("id").save()
        assert kept(store) == [0, 1, 2]


def test_a_schema_is_replaced_only_when_it_is_asked_for(spark: Any) -> None:
    other = spark.sql("SELECT 'x' AS word, CAST(7 AS INT) AS id")
    with served() as (server, store):
        save(frame_of(spark, 0, 3), server.url)
        found = failure(lambda: save(other, server.url, "overwrite"))
        assert found.code == "WRONG_SCHEMA"
        assert "set overwriteSchema to replace the schema" in found.message
        assert kept(store) == [0, 1, 2]
        save(other, server.url, "overwrite", overwriteSchema="true", partitionBy="word")
        assert [tuple(row) for row in load(spark, server.url).collect()] == [("x", 7)]
        found = failure(lambda: save(other, server.url, overwriteSchema="true"))
        assert "belongs to the mode overwrite" in found.message


def test_types_come_as_spark_has_them(spark: Any) -> None:
    frame = spark.sql(
        "SELECT 1Y tiny, 'ü' word, 1.25BD money, X'00ff' raw, DATE'2024-02-29' day,"
        " TIMESTAMP'2024-07-01 12:00:00+02:00' at, TIMESTAMP_NTZ'2024-07-01 12:00:00' local,"
        " array(1, null) list, map('a', 1L) pairs, named_struct('a', 1, 'b', 'x') pair"
    )
    with served() as (server, store):
        save(frame, server.url)
        told = store.describe("d")
        assert [str(field.type).replace(" not null", "") for field in told.schema] == [
            "int8",
            "string",
            "decimal128(3, 2)",
            "binary",
            "date32[day]",
            "timestamp[us, tz=UTC]",
            "timestamp[us]",
            "list<element: int32>",
            "map<string, int64>",
            "struct<a: int32, b: string>",
        ]


def test_a_rerun_with_the_same_version_writes_nothing(spark: Any) -> None:
    with served() as (server, store):
        for _ in range(2):
            save(frame_of(spark, 0, 5), server.url, txnAppId="etl", txnVersion=7)
        assert kept(store) == list(range(5))
        assert store.commits == 1
        save(frame_of(spark, 5, 8), server.url, txnAppId="etl", txnVersion=8)
        assert kept(store) == list(range(8))


def test_a_task_that_fails_is_tried_again_and_nothing_is_doubled(spark: Any) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        frame = frame_of(spark, 0, 1000).mapInArrow(failing_once, "id bigint")
        with served() as (server, store):
            save(frame, server.url, batchRows=100)
            assert kept(store) == list(range(1000))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_what_does_not_fit_is_refused_before_anything_runs(spark: Any) -> None:
    with served() as (server, store):
        save(frame_of(spark, 0, 3), server.url)
        for columns, message in (
            (["cast(id as string) id"], "column 'id' is int64, here string"),
            (["nullif(id, 1) id"], "column 'id' is never null"),
            (["id other"], "column 'other' is not there; column 'id' is missing here"),
        ):
            frame = frame_of(spark, 3, 6).selectExpr(*columns)
            found = failure(lambda frame=frame: save(frame, server.url))
            assert (found.code, found.what) == ("WRONG_SCHEMA", "dataset.begin")
            assert message in found.message
        assert kept(store) == [0, 1, 2]


def test_a_row_that_is_too_large_fails_the_job(spark: Any) -> None:
    with served(limits=Limits(batch_bytes=1 << 20)) as (server, store):
        frame = spark.range(1).selectExpr("id", "repeat('x', 2000000) word")
        found = failure(lambda: save(frame, server.url))
        assert (found.code, found.what) == ("TOO_LARGE", "stream write")
        assert "up to 1048576 are accepted: send smaller batches" in found.message
        assert found.place["partition"].isdigit()
        assert [committed for _, committed in store.aborted] == [False]


def test_a_commit_that_fails_is_aborted(spark: Any) -> None:
    with served() as (server, store):
        store.commit_error = RiverError("STORE_FAILED", "no space left on device")
        found = failure(lambda: save(frame_of(spark, 0, 3), server.url))
        assert (found.code, found.what) == ("STORE_FAILED", "dataset.commit")
        assert found.message == "no space left on device"
        assert [committed for _, committed in store.aborted] == [False, False]  # ours, and Spark's
        with pytest.raises(RiverError, match="NO_DATASET"):
            store.describe("d")


def test_a_commit_that_was_made_is_no_failure_whatever_was_answered(spark: Any) -> None:
    with served() as (server, store):
        store.commit_error, store.too_late = RiverError("STORE_FAILED", "the disk is slow"), True
        save(frame_of(spark, 0, 3), server.url)
        assert [committed for _, committed in store.aborted] == [True]
        assert kept(store) == [0, 1, 2]


def test_a_staging_area_that_has_expired_fails_the_commit(spark: Any) -> None:
    with served() as (server, store):
        filled(server.url, "d", [pa.record_batch([pa.array([1])], ["id"])])
        store.expire_first = True
        found = failure(lambda: save(frame_of(spark, 0, 3), server.url))
        assert (found.code, found.what) == ("NO_TXN", "dataset.commit")
        assert kept(store) == [1]


def test_a_topic_is_added_to_once(spark: Any) -> None:
    topics = SqliteTopics()
    topics.create("t", pa.schema([pa.field("id", pa.int64(), False)]), 2)
    with serve_data(topics=topics) as server:
        options = {"dataset": None, "topic": "t"}
        for _ in range(2):
            save(frame_of(spark, 0, 4), server.url, txnAppId="etl", txnVersion=1, **options)
        save(frame_of(spark, 4, 6), server.url, **options)
        assert sorted(held(topics, "t")) == list(range(6))
        found = failure(lambda: save(frame_of(spark, 0, 1), server.url, "overwrite", **options))
        assert found.message == "topics only support appending; use the mode append"


def test_the_usual_mode_is_refused_by_spark_itself(spark: Any) -> None:
    with served() as (server, _), pytest.raises(Exception, match="ErrorIfExists"):
        frame_of(spark, 0, 1).write.format("wsmux").options(**opts(server.url)).save()
