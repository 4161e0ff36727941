"""Batch reads by ``format("wsmux")``: columns, types, partitions, filters, topics, limits."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from wsmux.spark import serve_data
from wsmux.spark.store.base import Retention
from wsmux.spark.topics.sqlite_topics import SqliteTopics

from ...helpers.spark.arrow_data import SCHEMA, pa, rows
from ...helpers.spark.format_servers import (
    PATIENCE,
    failure,
    filled,
    load,
    opts,
    save,
    served,
)
from ...helpers.spark.topics import add
from ...helpers.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(180)]

# What Spark has other types for, and how it shows their values.
KINDS = [
    ("yes", pa.bool_(), [True, None], "boolean", [True, None]),
    ("tiny", pa.int8(), [-1, 1], "tinyint", [-1, 1]),
    ("small", pa.int16(), [-1, 1], "smallint", [-1, 1]),
    ("whole", pa.int32(), [-1, 1], "int", [-1, 1]),
    ("long", pa.int64(), [-(2**62), None], "bigint", [-(2**62), None]),
    ("half", pa.float32(), [0.5, None], "float", [0.5, None]),
    ("double", pa.float64(), [0.1, None], "double", [0.1, None]),
    (
        "money",
        pa.decimal128(9, 2),
        [Decimal("1.25"), None],
        "decimal(9,2)",
        [Decimal("1.25"), None],
    ),
    ("word", pa.large_string(), ["ü", None], "string", ["ü", None]),
    ("raw", pa.large_binary(), [b"\0\xff", None], "binary", [b"\0\xff", None]),
    ("key", pa.binary(2), [b"ab", b"cd"], "binary", [b"ab", b"cd"]),
    ("day", pa.date32(), [date(2024, 2, 29), None], "date", [date(2024, 2, 29), None]),
    (
        "local",
        pa.timestamp("ms"),
        [datetime(2024, 1, 2, 3, 4, 5), None],
        "timestamp_ntz",
        [datetime(2024, 1, 2, 3, 4, 5), None],
    ),
    ("list", pa.large_list(pa.int32()), [[1, None], []], "array<int>", [[1, None], []]),
    (
        "map",
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1)], []],
        "map<string,bigint>",
        [{"a": 1}, {}],
    ),
    (
        "pair",
        pa.struct([("a", pa.int32()), ("b", pa.large_string())]),
        [{"a": 1, "b": "x"}, None],
        "struct<a:int,b:string>",
        [(1, "x"), None],
    ),
]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Let Spark's driver open what it likes; our own side runs in workers here."""


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def test_every_type_that_spark_has_a_word_for(spark: Any) -> None:
    moment = datetime(2024, 7, 1, 12, tzinfo=UTC)
    schema = pa.schema(
        [pa.field(name, kind) for name, kind, *_ in KINDS]
        + [pa.field("at", pa.timestamp("ms", "UTC"), False)]
    )
    arrays = [pa.array(values, kind) for _, kind, values, *_ in KINDS]
    arrays.append(pa.array([moment, moment], pa.timestamp("ms", "UTC")))
    with served() as (server, _):
        filled(server.url, "d", [pa.record_batch(arrays, schema=schema)])
        frame = load(spark, server.url)
        told = {field.name: field for field in frame.schema}
        assert {name: told[name].dataType.simpleString() for name, *_ in KINDS} == {
            name: words for name, _, _, words, _ in KINDS
        }
        assert (told["at"].dataType.simpleString(), told["at"].nullable) == ("timestamp", False)
        found = frame.selectExpr("*", "unix_seconds(at) seconds").collect()
        assert {name: [row[name] for row in found] for name, *_ in KINDS} == {
            name: values for name, _, _, _, values in KINDS
        }
        assert [row.seconds for row in found] == [int(moment.timestamp())] * 2


def test_a_type_that_spark_has_no_word_for_is_named(spark: Any) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("odd", pa.uint64())])
    batch = pa.record_batch([pa.array([1]), pa.array([2], pa.uint64())], schema=schema)
    topics = SqliteTopics()
    topics.create("t", schema)
    with serve_data(topics=topics) as server:
        txn = topics.begin("t", "q", 0, schema).txn
        part = topics.open_part(txn, 0, 0, schema)
        part.write(batch)
        topics.commit(txn, [part.finish(1, 1)])
        place = {"dataset": None, "topic": "t"}
        found = failure(lambda: load(spark, server.url, **place))
        assert (found.code, found.what) == ("WRONG_TYPE", "topic t")
        expected = "column 'odd' is uint64, for which Spark has no type; name others in the option"
        assert found.message == f"{expected} columns"
        assert ids(load(spark, server.url, **place, columns="id")) == [1]


def test_a_type_that_delta_has_no_word_for_is_named(spark: Any) -> None:
    with served() as (server, _):
        frame = spark.sql("SELECT INTERVAL '1' DAY AS pause, 1 AS id")
        found = failure(lambda: save(frame, server.url))
        assert found.code == "WRONG_SCHEMA"
        expected = "column 'pause': Delta has no type duration[us]; cast it to int64 or string"
        assert expected in found.message


def test_a_version_is_read_as_it_was(spark: Any) -> None:
    with served() as (server, _):
        filled(server.url, "d", [rows(0, 10)])
        filled(server.url, "d", [rows(10, 10)])
        other = pa.record_batch([pa.array([7])], names=["id"])
        filled(server.url, "d", [other], mode="overwrite", overwrite_schema=True)
        assert ids(load(spark, server.url)) == [7]
        assert ids(load(spark, server.url, versionAsOf=0)) == list(range(10))
        before = load(spark, server.url, versionAsOf=1)
        assert before.columns == ["id", "word"]
        assert ids(before) == list(range(20))
        assert ids(load(spark, server.url, timestampAsOf="2100-01-01")) == [7]
        found = failure(lambda: load(spark, server.url, versionAsOf=9))
        assert found.message == "dataset d has no version 9; the newest is 2"
        found = failure(lambda: load(spark, server.url, timestampAsOf="2020-01-01"))
        assert found.code == "VERSION_GONE"


def test_columns_are_chosen_by_the_option_or_by_a_schema(spark: Any) -> None:
    with served() as (server, store):
        filled(server.url, "d", [rows(0, 10)])
        assert load(spark, server.url, columns="word,id").columns == ["word", "id"]
        assert ids(load(spark, server.url, columns="word,id")) == list(range(10))
        assert store.reads[-1][1] == ["word", "id"]

        reading = spark.read.format("wsmux").options(**opts(server.url))
        assert [row.word for row in reading.schema("word string").load().collect()] == (
            rows(0, 10).column("word").to_pylist()
        )
        found = failure(lambda: reading.schema("id int").load().collect())
        assert found.code == "WRONG_SCHEMA"
        assert "column 'id' is int32, here int64" in found.message
        found = failure(lambda: reading.schema("ID bigint").load().collect())
        assert found.message == "dataset d has no column 'ID'; it has id, word"
        found = failure(lambda: load(spark, server.url, columns="nope"))
        assert (found.code, found.message) == (
            "NO_COLUMN",
            "there is no column 'nope'; there are id, word",
        )


def test_spark_does_not_tell_a_python_source_which_columns_it_needs(spark: Any) -> None:
    """When this fails, Spark does, and the reader should take it up: see docs/guides/spark.md."""
    from pyspark.sql.datasource import DataSourceReader

    with served() as (server, store):
        filled(server.url, "d", [rows(0, 10)])
        assert load(spark, server.url).select("id").collect() == [(each,) for each in range(10)]
        assert store.reads[-1][1] is None, "all columns are read"
        assert load(spark, server.url, columns="id").collect() == [(each,) for each in range(10)]
        assert store.reads[-1][1] == ["id"]
    told = {name for name in vars(DataSourceReader) if not name.startswith("_")}
    assert told <= {"partitions", "pushFilters", "read"}


def test_partitions_are_as_many_as_asked_for(spark: Any) -> None:
    with served() as (server, _):
        filled(server.url, "d", [rows(0, 50)], [rows(50, 50)])
        for asked, count in (
            ({}, 1),  # the server's choice for so few rows
            ({"numPartitions": 3}, 3),
            ({"minPartitions": 5}, 5),
        ):
            assert load(spark, server.url, **asked).rdd.getNumPartitions() == count
        assert ids(load(spark, server.url, numPartitions=5, batchRows=3)) == list(range(100))


def test_what_is_empty_is_read(spark: Any) -> None:
    with served() as (server, _):
        spark.range(0).write.format("wsmux").mode("append").options(**opts(server.url)).save()
        assert load(spark, server.url).collect() == []


def test_filters_are_pushed_only_if_asked_for(spark: Any) -> None:
    where = "id >= 5 and word is not null and word <> 'w1' and word like 'w%' and id % 2 = 0"
    with served() as (server, store):
        filled(server.url, "d", [rows(0, 100)])
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            pushed = ids(load(spark, server.url, pushdown="true").where(where))
            assert sorted(store.reads[-1][2]) == [
                "id >= 5",
                "word != 'w1'",
                "word not_null",
                "word starts_with 'w'",
            ]
            assert ids(load(spark, server.url).where(where)) == pushed
            assert store.reads[-1][2] == []
            chosen = load(spark, server.url, pushdown="true").where("id in (1, 3) or id is null")
            assert ids(chosen) == [1, 3]
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        with pytest.raises(Exception, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
            load(spark, server.url, pushdown="true").collect()


def test_a_limit_cancels_what_is_not_read(spark: Any) -> None:
    with served() as (server, _):
        filled(server.url, "d", *[[rows(part * 200_000, 200_000)] for part in range(3)])
        frame = load(spark, server.url, batchRows=100, window=16384)
        assert len(frame.limit(5).collect()) == 5
        wait_for(lambda: all(not each.stats().streams for each in server.connections), PATIENCE)


def test_columns_that_change_between_planning_and_reading_are_an_error(spark: Any) -> None:
    with served() as (server, _):
        filled(server.url, "d", [rows(0, 3)])
        frame = load(spark, server.url)
        other = pa.record_batch([pa.array(["a"]), pa.array(["b"])], ["id", "word"])
        filled(server.url, "d", [other], mode="overwrite", overwrite_schema=True)
        found = failure(frame.collect)
        assert found.code == "WRONG_SCHEMA"
        assert "the schema Spark has of dataset d" in found.message


def test_sql_reads_by_the_format_s_name(spark: Any) -> None:
    with served() as (server, _):
        filled(server.url, "d", [rows(0, 10)])
        options = f"OPTIONS (url '{server.url}', dataset 'd')"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING wsmux {options}")
        assert spark.sql("SELECT sum(id) s FROM seen").first().s == 45
        spark.catalog.dropTempView("seen")
        found = failure(lambda: spark.sql(f"CREATE TABLE kept_there USING wsmux {options}"))
        assert "use CREATE TEMPORARY VIEW" in found.message


def test_what_a_topic_holds_is_read_between_offsets(spark: Any) -> None:
    topics = SqliteTopics()
    topics.create("t", SCHEMA, 2)
    with serve_data(topics=topics) as server:
        add(topics, "t", 0, 10, 10)

        def read(**options: Any) -> list[int]:
            return ids(load(spark, server.url, dataset=None, topic="t", **options))

        assert read(startingOffsets='{"1": 4}', endingOffsets='{"0": 2, "1": 6}') == [0, 1, 14, 15]
        assert read(minPartitions=6, columns="id") == list(range(20))
        frame = load(spark, server.url, dataset=None, topic="t", includeMetadata="true")
        row = frame.where("partition = 1 AND offset = 3").select("id", "timestamp").first()
        assert row.id == 13
        begun = {"startingTimestamp": round(row.timestamp.timestamp() * 1000)}
        assert read(**begun, columns="id") == list(range(20))
        found = failure(lambda: read(startingOffsets='{"0": 11}'))
        assert found.code == "BAD_OFFSETS"
        found = failure(lambda: read(startingOffsets='{"0": 9}', endingOffsets='{"0": 3}'))
        assert found.code == "BAD_OFFSETS"
        assert "partition 0 begins at 9, after its end at 3" in found.message


def test_offsets_that_are_gone_are_an_error_or_left_out(spark: Any) -> None:
    topics = SqliteTopics(retention=Retention(hard_rows=3))
    topics.create("t", SCHEMA)
    with serve_data(topics=topics) as server:
        add(topics, "t", 1, 3, first=add(topics, "t", 0, 3))
        topics.expire(0.0)
        options = {"dataset": None, "topic": "t", "startingOffsets": '{"0": 1}'}
        found = failure(lambda: load(spark, server.url, **options).collect())
        assert found.code == "OFFSETS_GONE"
        assert "failOnDataLoss=false" in found.message
        assert ids(load(spark, server.url, failOnDataLoss="false", **options)) == [3, 4, 5]
