"""What goes wrong while queries run: some of it passes unseen, the rest is told in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wsmux.spark import Retention, SqliteTopics, serve_data

from ...helpers.spark.arrow_data import SCHEMA, pa
from ...helpers.spark.format_servers import PATIENCE, failure
from ...helpers.spark.killing import Nursery
from ...helpers.spark.topics import Sink, add, follow, held, option_list, started
from ...helpers.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(180)]

KEEP_TWO_ROWS = Retention(hard_rows=2)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Let Spark's driver open what it likes; our own side runs in workers here."""


def run(spark: Any, url: str, checkpoint: Path, topic: str = "t", **options: Any) -> Sink:
    """Read all that there is, in batches; return what came."""
    sink = Sink()
    writer = follow(spark, option_list(url, topic, **options)).writeStream.foreachBatch(sink)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(PATIENCE)
    assert not query.isActive
    return sink


def test_what_retention_took_is_an_error_or_left_out(spark: Any, tmp_path: Path) -> None:
    topics = SqliteTopics(retention=KEEP_TWO_ROWS)
    topics.create("t", SCHEMA)
    end = add(topics, "t", 0, 4)
    with serve_data(topics=topics) as server:
        assert run(spark, server.url, tmp_path, startingOffsets="earliest").ids() == [0, 1, 2, 3]
        for batch in (1, 2):
            end = add(topics, "t", batch, 3, first=end)
        topics.expire(0.0)
        found = failure(lambda: run(spark, server.url, tmp_path))
        assert (found.code, found.what) == ("OFFSETS_GONE", "topic t")
        assert "rows were lost: partition 0 begins at 7, after 4;" in found.message
        assert "failOnDataLoss=false" in found.message
        assert run(spark, server.url, tmp_path, failOnDataLoss=False).ids() == [7, 8, 9]


def test_refusals_end_in_one_line(spark: Any, tmp_path: Path) -> None:
    topics = SqliteTopics()
    topics.create("t", SCHEMA)
    topics.create("other", pa.schema([("id", pa.string())]))
    add(topics, "t", 0, 3)
    with serve_data(topics=topics, token="sesame") as server:
        url = server.url
        found = failure(lambda: run(spark, url, tmp_path / "a", token="wrong-one"))
        assert found.code == "UNAUTHORIZED"
        assert "wrong-one" not in str(found)
        found = failure(lambda: run(spark, url, tmp_path / "b", "none", token="sesame"))
        assert found.code == "NO_TOPIC"
        beyond = {"startingOffsets": '{"0": 4}', "token": "sesame"}
        found = failure(lambda: run(spark, url, tmp_path / "c", **beyond))
        assert (found.code, found.place["url"]) == ("BAD_OFFSETS", url.rstrip("/"))

        frame = follow(spark, option_list(url, "t", token="sesame", startingOffsets="earliest"))
        writer = frame.writeStream.format("wsmux")
        writer = writer.options(**option_list(url, "other", token="sesame"))
        writer = writer.option("checkpointLocation", str(tmp_path / "d"))
        found = failure(lambda: writer.start().awaitTermination(PATIENCE))
        assert (found.code, found.what) == ("WRONG_SCHEMA", "topic.begin")
        assert found.place["attempt"] == "2"


def test_a_server_that_is_killed_is_waited_for(spark: Any, tmp_path: Path) -> None:
    """Its topics are read and written by one query, which hears nothing of it."""
    nursery = Nursery(tmp_path / "data")
    topics = SqliteTopics(tmp_path / "data")
    try:
        topics.create("from", SCHEMA, 2)
        topics.create("to", SCHEMA, 2)
        end = add(topics, "from", 0, 20, 20)
        read = option_list(nursery.url, "from", startingOffsets="earliest", maxRowsPerTrigger=20)
        writer = follow(spark, read).writeStream.format("wsmux")
        writer = writer.options(**option_list(nursery.url, "to", connectTimeout=20))
        with started(writer.option("checkpointLocation", str(tmp_path / "c"))) as query:
            wait_for(lambda: sum(topics.heads("to").latest) >= 20, PATIENCE)
            nursery.kill()
            nursery.wait_dead()
            end = add(topics, "from", 1, 5, 5, first=end)
            nursery.start()
            query.processAllAvailable()
            assert query.exception() is None
        assert sorted(held(topics, "to")) == list(range(end))
    finally:
        nursery.close()


def test_a_server_that_stays_away_fails_the_query(spark: Any, tmp_path: Path) -> None:
    topics = SqliteTopics()
    topics.create("t", SCHEMA)
    with serve_data(topics=topics) as server:
        url = server.url
        options = option_list(url, "t", connectTimeout=2, callTimeout=6, retries=1)
        writer = follow(spark, options).writeStream.foreachBatch(Sink())
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        query.processAllAvailable()
    found = failure(lambda: query.awaitTermination(PATIENCE))
    assert found.code == "NO_CONNECTION"
    assert "the server was unreachable for 6 s" in found.message
