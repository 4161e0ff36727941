"""A server is away for eight seconds amid work of each kind, with the usual options: nothing fails.

Not even a task does, though Spark would try it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.spark import DeltaDatasets, SqliteTopics, connection, rpc

from ..helpers.spark.arrow_data import SCHEMA, rows
from ..helpers.spark.arrow_data import ids as ids_of
from ..helpers.spark.format_servers import PATIENCE, filled, load, save
from ..helpers.spark.job_servers import JobServer
from ..helpers.spark.killing import Nursery
from ..helpers.spark.topics import add, follow, held, option_list, started
from ..helpers.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.hang_bound(300)]

AWAY = 8.0

# More rows than all buffers on the way take.
MANY = 1_000_000

USUAL: dict[str, Any] = {"connectTimeout": None, "retryBackoff": None}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Let Spark's driver open what it likes; our own side runs in workers here."""


@pytest.fixture(autouse=True)
def groups(spark: Any) -> Iterator[list[str | None]]:
    """Return the groups of jobs, of whose tasks none may fail: those of no group, to begin with."""
    tracker = spark.sparkContext.statusTracker()
    known = set(tracker.getJobIdsForGroup())
    made: list[str | None] = [None]
    yield made
    numbers = {number for each in made for number in tracker.getJobIdsForGroup(each)} - known
    jobs = [tracker.getJobInfo(each) for each in numbers]
    stages = [tracker.getStageInfo(each) for job in jobs if job for each in job.stageIds]
    assert stages
    assert [each.name for each in stages if each and each.numFailedTasks] == []


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path / "data")
    yield made
    made.close()


class Gate:
    """Hold what comes through in a task, from its fourth batch or hundredth row on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def batches(self) -> Callable[[Any], Any]:
        return self._holding(3)

    def rows(self) -> Callable[[Any], Any]:
        return self._holding(100)

    def _holding(self, after: int) -> Callable[[Any], Any]:
        there, on = self.path / "there", self.path / "on"

        def pass_on(given: Any) -> Any:
            for count, each in enumerate(given):
                if count == after:
                    there.touch()
                    while not on.exists():
                        time.sleep(0.01)
                yield each

        return pass_on

    def is_reached(self) -> bool:
        return (self.path / "there").exists()

    def open(self) -> None:
        (self.path / "on").touch()


def away(spark: Any, server: Nursery | JobServer, gate: Gate, job: Callable[[], Any]) -> Any:
    """Run a job, let the server be away when it is under way, and return what comes of it."""
    done: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            # Spark looks for formats in the session of the thread, and this one has none yet.
            spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
            done.append(job())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: gate.is_reached() or failed, PATIENCE)
    if not failed:
        be_away(server, gate.open)
    thread.join(PATIENCE)
    if failed:
        raise failed[0]
    return done[0]


def be_away(server: Nursery | JobServer, meanwhile: Callable[[], object]) -> None:
    server.kill()
    if isinstance(server, Nursery):
        server.wait_dead()
    meanwhile()
    time.sleep(AWAY)
    server.start()


def test_a_batch_read(spark: Any, nursery: Nursery, tmp_path: Path) -> None:
    filled(nursery.url, "d", [rows(start, 50_000) for start in range(0, MANY, 50_000)])
    gate = Gate(tmp_path / "gate")
    frame = load(spark, nursery.url, numPartitions=1, window=16384, batchRows=10_000, **USUAL)
    mapped = frame.mapInArrow(gate.batches(), frame.schema)
    assert away(spark, nursery, gate, mapped.selectExpr("sum(id)").first) == (sum(range(MANY)),)


def test_a_batch_write(spark: Any, nursery: Nursery, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    frame = spark.range(0, MANY, 1, 1).mapInArrow(gate.batches(), "id bigint")
    away(spark, nursery, gate, lambda: save(frame, nursery.url, **USUAL))
    store = DeltaDatasets(tmp_path / "data")
    ranges = store.describe("d").ranges
    assert sorted(each for one in ranges for each in ids_of(store.read(one.token).batches)) == list(
        range(MANY)
    )


def test_a_query_that_reads_and_writes(
    spark: Any, nursery: Nursery, tmp_path: Path, groups: list[str | None]
) -> None:
    topics = SqliteTopics(tmp_path / "data")
    topics.create("from", SCHEMA, 2)
    topics.create("to", SCHEMA, 2)
    end = add(topics, "from", 0, 20, 20)
    options = {"startingOffsets": "earliest", "maxRowsPerTrigger": 10, **USUAL}
    frame = follow(spark, option_list(nursery.url, "from", **options))
    writer = frame.writeStream.format("wsmux").options(**option_list(nursery.url, "to", **USUAL))
    with started(writer.option("checkpointLocation", str(tmp_path / "c"))) as query:
        groups.append(str(query.runId))
        wait_for(lambda: sum(topics.heads("to").latest) >= 10, PATIENCE)

        def add_more() -> None:
            nonlocal end
            end = add(topics, "from", 1, 5, 5, first=end)

        be_away(nursery, add_more)
        query.processAllAvailable()
        assert query.exception() is None
    assert sorted(held(topics, "to")) == list(range(end))


@pytest.mark.parametrize("batch_rows", [1, 16])
def test_calls(spark: Any, tmp_path: Path, batch_rows: int) -> None:
    server = JobServer(tmp_path / "log")
    try:
        gate = Gate(tmp_path / "gate")
        name = "job.one" if batch_rows == 1 else "job.many"
        call = rpc(connection(server.url), name).rows(batch_rows=batch_rows)
        rdd = spark.sparkContext.parallelize(range(10_000), 2).mapPartitions(gate.rows())
        found = away(spark, server, gate, rdd.mapPartitions(call).collect)
        assert found == list(range(0, 20_000, 2))
    finally:
        server.close()
