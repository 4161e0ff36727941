"""Queries that add to a topic: each batch once, whatever is done again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.spark import serve_data
from wsmux.spark.server.data_server import DataServer
from wsmux.spark.topics.sqlite_topics import SqliteTopics

from ...helpers.spark.arrow_data import SCHEMA
from ...helpers.spark.format_servers import PATIENCE
from ...helpers.spark.topics import add, follow, held, option_list

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(180)]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Let Spark's driver open what it likes; our own side runs in workers here."""


@pytest.fixture
def topics() -> SqliteTopics:
    topics = SqliteTopics()
    topics.create("from", SCHEMA, 2)
    topics.create("to", SCHEMA, 2)
    return topics


@pytest.fixture
def server(topics: SqliteTopics) -> Iterator[DataServer]:
    with serve_data(topics=topics) as server:
        yield server


def copy(
    spark: Any, server: DataServer, checkpoint: Path, mode: str = "append", **options: Any
) -> Any:
    """Copy what there is of one topic to the other, in batches of five rows; return the query."""
    read = option_list(server.url, "from", startingOffsets="earliest", maxRowsPerTrigger=5)
    writer = follow(spark, read).writeStream.format("wsmux").outputMode(mode)
    writer = writer.options(**option_list(server.url, "to", **options))
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)
    return query


def test_a_batch_that_comes_again_is_not_written_again(
    spark: Any, server: DataServer, topics: SqliteTopics, tmp_path: Path
) -> None:
    """As after a crash between the commit at the server and Spark's own note of it."""
    end = add(topics, "from", 0, 7, 6)
    copy(spark, server, tmp_path)
    commits = sorted((tmp_path / "commits").glob("[0-9]*"))
    assert len(commits) == 3
    last = max(commits, key=lambda path: int(path.name))
    last.unlink()
    (tmp_path / "commits" / f".{last.name}.crc").unlink()
    query = copy(spark, server, tmp_path)
    assert [progress.batchId for progress in query.recentProgress] == [2]
    assert sorted(held(topics, "to")) == list(range(end))
    end = add(topics, "from", 1, 0, 4, first=end)
    copy(spark, server, tmp_path)
    assert sorted(held(topics, "to")) == list(range(end))


def test_the_first_batch_comes_again_as_it_was(
    spark: Any, server: DataServer, topics: SqliteTopics, tmp_path: Path
) -> None:
    """Spark asks for the start of the first batch anew, which is another one by then."""
    add(topics, "from", 0, 3, 2)
    copy(
        spark,
        server,
        tmp_path,
    )
    shutil.rmtree(tmp_path / "commits")
    topics.create("second", SCHEMA)
    end = add(topics, "from", 1, 5, 5, first=5)
    read = option_list(server.url, "from", startingOffsets="latest")
    writer = (
        follow(spark, read).writeStream.format("wsmux").options(**option_list(server.url, "second"))
    )
    writer = writer.option("checkpointLocation", str(tmp_path))
    assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    assert sorted(held(topics, "second")) == list(range(end))
