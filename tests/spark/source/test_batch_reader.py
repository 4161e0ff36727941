"""Batch reads as they are planned. No session."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from wsmux.spark import SparkError, serve_data
from wsmux.spark.source.batch_reader import reader_of, schema_of_source
from wsmux.spark.source.options import Action, parse_options
from wsmux.spark.topics.sqlite_topics import SqliteTopics

from ...helpers.spark.arrow_data import SCHEMA, pa, rows
from ...helpers.spark.format_servers import filled, opts, served
from ...helpers.spark.topics import add, option_list

pytestmark = pytest.mark.spark


def planned(url: str, **options: Any) -> list[Any]:
    parsed = parse_options(opts(url, **options), Action.READ)
    return reader_of(parsed, schema_of_source(parsed)).partitions()


@pytest.mark.parametrize("option", ["minPartitions", "numPartitions"])
def test_more_ranges_than_a_server_can_tell_are_told_with_what_to_do(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a hundred thousand of a long name, which are more than a message of River takes."""

    def describe(name: str, partitions: int | None, *more: Any) -> Any:
        assert partitions is None or partitions <= 10
        return usual(name, partitions, *more)

    with served() as (server, store):
        filled(server.url, "d", [rows(0, 100)])
        usual = store.describe
        monkeypatch.setattr(store, "describe", describe)
        assert len(planned(server.url, **{option: 10})) == 10
        with pytest.raises(SparkError) as caught:
            planned(server.url, **{option: 100_000})
    error = caught.value
    assert (error.code, error.what) == ("UNCAUGHT_ERROR", "dataset.describe")
    assert f"it was asked for 100,000 ranges by the option {option}: ask for fewer" in error.message
    assert "write a dataset of many small files anew with coalesce(n)" in error.message


def test_what_is_no_matter_of_ranges_is_told_as_it_is() -> None:
    with served() as (server, _), pytest.raises(SparkError) as caught:
        planned(server.url, dataset="none", minPartitions=10)
    assert caught.value.code == "NO_DATASET"


def test_a_topic_is_read_between_times_with_columns_of_metadata() -> None:
    now = [0.0]
    topics = SqliteTopics(clock=lambda: now[0])
    topics.create("t", SCHEMA, 2)
    for number in range(4):
        now[0] += 1
        add(topics, "t", number, 2, first=10 * number)
    with serve_data(topics=topics) as server:
        options = option_list(
            server.url,
            "t",
            startingTimestamp=2000,
            endingTimestamp="1970-01-01T00:00:04",
            startingOffsetsByTimestampStrategy="latest",  # partition 1 is empty
            columns="id",
            includeMetadata=True,
            minPartitions=2,
        )
        parsed = parse_options(options, Action.READ)
        schema = schema_of_source(parsed)
        kinds = "id:bigint,partition:int,offset:bigint,timestamp:timestamp"
        assert schema.simpleString() == f"struct<{kinds}>"
        reader = reader_of(parsed, schema)
        parts = reader.partitions()
        assert len(parts) == 2
        found = [
            each for part in parts for batch in reader.read(part) for each in batch.to_pylist()
        ]
        assert [(row["id"], row["offset"], row["timestamp"].timestamp()) for row in found] == [
            *((10, 2, 2.0), (11, 3, 2.0), (20, 4, 3.0), (21, 5, 3.0)),
        ]
        del options["startingOffsetsByTimestampStrategy"]
        parsed = parse_options(options, Action.READ)
        with pytest.raises(SparkError, match="partition 1 has no row of startingTimestamp"):
            reader_of(parsed, schema).partitions()


def test_a_plan_for_a_topic_that_was_made_anew_reads_nothing_of_the_new_one(
    tmp_path: Path,
) -> None:
    topics = SqliteTopics(tmp_path, sync=False)
    topics.create("t", SCHEMA)
    add(topics, "t", 0, 3)
    with serve_data(topics=topics) as server:
        parsed = parse_options(option_list(server.url, "t"), Action.READ)
        reader = reader_of(parsed, schema_of_source(parsed))
        (part,) = reader.partitions()
        shutil.rmtree(tmp_path / "topics" / "t")
        topics.create("t", SCHEMA)
        add(topics, "t", 0, 10, first=100)
        with pytest.raises(SparkError, match="topic t was removed and made anew") as caught:
            list(reader.read(part))
        assert caught.value.code == "OFFSETS_GONE"


def test_a_column_with_the_name_of_one_of_metadata_is_left_out_or_refused() -> None:
    topics = SqliteTopics()
    topics.create("t", pa.schema([("id", pa.int64()), ("offset", pa.string())]))
    with serve_data(topics=topics) as server:
        options = option_list(server.url, "t", includeMetadata=True)
        with pytest.raises(SparkError, match="has a column 'offset' of its own") as caught:
            schema_of_source(parse_options(options, Action.SCHEMA))
        assert caught.value.code == "WRONG_SCHEMA"
        parsed = parse_options({**options, "columns": "id"}, Action.READ)
        schema = schema_of_source(parsed)
        assert schema.names == ["id", "partition", "offset", "timestamp"]
        assert reader_of(parsed, schema).partitions() == []
