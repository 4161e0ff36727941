"""What goes wrong in jobs of the format: some of it passes unseen, the rest is told in a line."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from wsmux.spark import DeltaDatasets
from wsmux.testing import FaultProxy

from ...helpers.spark.arrow_data import ids as ids_of
from ...helpers.spark.arrow_data import rows
from ...helpers.spark.format_servers import PATIENCE, failure, filled, load, save, served
from ...helpers.spark.killing import Nursery
from ...helpers.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(240)]

COUNT, EACH = 120_000, 20_000


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Let Spark's driver open what it likes; our own side runs in workers here."""


def parts() -> list[list[Any]]:
    return [[rows(start, EACH)] for start in range(0, COUNT, EACH)]


def summed(frame: Any) -> tuple[int, int, int]:
    """Return how many ids there are, how many different ones, and their sum."""
    row = frame.selectExpr("count(id)", "count(DISTINCT id)", "sum(id)").first()
    return tuple(row)


WHOLE = COUNT, COUNT, COUNT * (COUNT - 1) // 2


def kept(store: Any) -> list[int]:
    found = store.describe("d").ranges
    return sorted(each for one in found for each in ids_of(store.read(one.token).batches))


def begun(spark: Any, job: Any, failed: list[BaseException]) -> threading.Thread:
    """Start a thread that runs a job; what it raises is appended to ``failed``."""

    def run() -> None:
        try:
            # Spark looks for formats in the session of the thread, and this one has none yet.
            spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
            job()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_what_is_asked_wrongly_is_told_in_one_line(spark: Any) -> None:
    with served(token="sesame") as (server, _):
        url = server.url
        for options, code, text in (
            ({"datset": "x"}, "BAD_OPTION", "there is no option 'datset'; did you mean dataset?"),
            ({"url": "http://h"}, "BAD_OPTION", "expected a ws:// or wss:// URL, got"),
            ({"txnAppId": "a"}, "BAD_OPTION", "the option txnAppId does not belong to a read"),
            ({"dataset": "none"}, "NO_DATASET", "there is no dataset none"),
            ({"token": "wrong-one"}, "UNAUTHORIZED", "unknown token"),
            ({"token": None}, "UNAUTHORIZED", "a token is required"),
        ):
            given = {"url": url, "token": "sesame", **options}
            found = failure(lambda given=given: load(spark, **given).collect())
            assert (found.code, "\n" in str(found)) == (code, False)
            assert text in found.message
            assert "wrong-one" not in str(found)


def test_a_server_that_is_not_there_is_told_with_its_address(spark: Any) -> None:
    with served() as (server, _):
        url = server.url
    found = failure(lambda: load(spark, url, connectTimeout=0.3, retries=1))
    assert (found.what, found.place["url"]) == ("dataset.describe", url)
    assert found.code == "UNEXPECTED_DISCONNECT"


def test_a_token_that_expires_fails_the_tasks(spark: Any) -> None:
    asked = []

    def check(token: str) -> bool:
        asked.append(token)
        if expired.is_set():
            raise PermissionError("this token has expired")
        return True

    expired = threading.Event()
    with served(token=check) as (server, _):
        save(spark.range(3), server.url, token="sesame")
        # With other options, so that no connection is there yet.
        frame = load(spark, server.url, token="sesame", retries=2)
        frame.rdd.getNumPartitions()  # so that it is planned
        expired.set()
        found = failure(lambda: frame.collect())
        assert found.code == "UNAUTHORIZED"
        assert "this token has expired" in found.message
        found = failure(lambda: save(spark.range(3), server.url, token="sesame"))
        assert (found.code, found.what) == ("UNAUTHORIZED", "dataset.begin")
        assert "sesame" not in str(found)


def test_a_cut_within_a_partition_is_not_seen_by_a_read(spark: Any) -> None:
    with served() as (server, store), FaultProxy(server.port) as proxy:
        filled(server.url, "d", *parts())
        frame = load(spark, proxy.url, numPartitions=2)
        frame.rdd.getNumPartitions()
        proxy.cut_after(150_000, 150_000)  # of 540 kB, as they are stored
        assert summed(frame) == WHOLE
        assert not proxy.cutting


def test_a_cut_within_a_partition_is_not_seen_by_a_write(spark: Any) -> None:
    with served() as (server, store), FaultProxy(server.port) as proxy:
        proxy.cut_after(200_000, 200_000, way="up")
        save(spark.range(0, COUNT, 1, 2), proxy.url)
        assert not proxy.cutting
        assert kept(store) == list(range(COUNT))
        assert store.aborted == []


def test_a_job_that_is_cancelled_leaves_nothing_visible(spark: Any) -> None:
    def slowly(batches: Any) -> Any:
        for count, batch in enumerate(batches):
            if count == 3:  # the first has passed all buffers by then
                time.sleep(PATIENCE)
            yield batch

    context = spark.sparkContext
    with served() as (server, store):
        frame = spark.range(0, COUNT, 1, 2).mapInArrow(slowly, "id bigint")
        caught: list[BaseException] = []

        def job() -> None:
            context.setJobGroup("staged", "to be cancelled", interruptOnCancel=True)
            save(frame, server.url, batchRows=1000)

        thread = begun(spark, job, caught)
        wait_for(lambda: store.staging.is_set() or caught, PATIENCE)
        assert not caught
        context.cancelJobGroup("staged")
        thread.join(PATIENCE)
        assert caught
        wait_for(lambda: store.aborted, PATIENCE)
        assert [committed for _, committed in store.aborted] == [False]
        wait_for(lambda: all(not each.stats().streams for each in server.connections), PATIENCE)
        assert store.commits == 0


def test_a_server_that_is_killed_is_waited_for(spark: Any, tmp_path: Path) -> None:
    """It dies within a write and within a read, and comes back; the jobs hear nothing of it."""
    nursery = Nursery(tmp_path / "data")
    options = {"connectTimeout": 20}
    gate = tmp_path / "gate"
    many = 1_000_000  # more than all buffers on the way take

    def held(batches: Any) -> Any:
        from pyspark import TaskContext

        for count, batch in enumerate(batches):
            if count == 3 and TaskContext.get().partitionId() == 0:
                (gate / "there").mkdir(parents=True, exist_ok=True)
                while not (gate / "on").exists():
                    time.sleep(0.01)
            yield batch

    def revive() -> None:
        nursery.kill()
        nursery.wait_dead()
        nursery.start()
        (gate / "on").mkdir()

    def during(job: Any) -> None:
        """Run a job, and kill the server when it is half done."""
        failed: list[BaseException] = []
        thread = begun(spark, job, failed)
        wait_for(lambda: (gate / "there").exists() or failed, PATIENCE)
        if not failed:
            revive()
        thread.join(PATIENCE)
        if failed:
            raise failed[0]
        for name in ("there", "on"):
            (gate / name).rmdir()

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50000")
    try:
        frame = spark.range(0, many, 1, 2).mapInArrow(held, "id bigint")
        during(lambda: save(frame, nursery.url, **options))
        found: list[Any] = []
        frame = load(spark, nursery.url, numPartitions=1, window=16384, **options)
        frame = frame.mapInArrow(held, "id bigint")
        during(lambda: found.append(summed(frame)))
        assert found == [(many, many, many * (many - 1) // 2)]
        assert kept(DeltaDatasets(tmp_path / "data")) == list(range(many))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        nursery.close()
