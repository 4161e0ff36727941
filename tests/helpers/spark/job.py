"""A driver: the same job, whatever kind of session it runs on.

``python -m tests.helpers.spark.job MASTER URL SETTINGS`` prints what has come of it, as one JSON
object. A further argument ``speculated`` adds a job of which one task is slow, until a copy of it
is made. ``MASTER`` is what Spark calls so, or ``connect:`` before what Spark Connect is to start.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from wsmux.spark import Recipe, connection, error_from, rpc, ship

__all__: list[str] = []


def session(master: str, settings: dict[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    kind, _, rest = master.partition("connect:")
    builder = builder.remote(rest) if rest else builder.master(kind)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def echoed(conn: Recipe) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what sends each batch through a stream of its own."""

    def through(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            with conn.open_stream("echo") as stream:
                with pa.ipc.new_stream(stream, batch.schema) as writer:
                    writer.write_batch(batch)
                stream.close_write()
                yield from pa.ipc.open_stream(stream.read())

    return through


def kept(spark: Any, df: Any, url: str, dataset: str) -> list[int]:
    """Write rows and read them back; return how many there are, and how many different ones."""
    place = {"url": url, "dataset": dataset}
    df.write.format("wsmux").mode("append").options(**place).save()
    found = spark.read.format("wsmux").options(**place).load()
    return [found.count(), found.distinct().count()]


def work(spark: Any, conn: Recipe) -> dict[str, Any]:
    df = spark.range(0, 1000, 1, 4).selectExpr("id as a")
    call = rpc(conn, "test.many").columns("a", into="c", into_type="bigint")
    done = {
        "shipped": ship(spark).endswith(".zip"),
        "called": call.on(df).where("c = 2 * a").count(),
        "streamed": df.mapInArrow(echoed(conn), "a long").distinct().count(),
        "kept": kept(spark, df, conn.url, "work"),
    }
    try:
        rpc(conn, "test.none").columns("a", into="c").on(df).count()
    except Exception as error:
        found = error_from(error)
        assert found is not None
        done["error"] = [found.code, found.what]
    return done


def speculated(spark: Any, conn: Recipe) -> list[int]:
    """Write what a slow task has made some of before it loses to its copy."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    df = spark.range(0, 400, 1, 4).selectExpr("id as a")
    call = rpc(conn, "held.once").columns("a", into="c", into_type="bigint", batch_rows=1)
    return kept(spark, call.on(df), conn.url, "speculated")


def main(master: str, url: str, settings: str, *more: str) -> None:
    spark, conn = session(master, json.loads(settings)), connection(url)
    done = work(spark, conn)
    if "speculated" in more:
        done["speculated"] = speculated(spark, conn)
    sys.stdout.write(f"{json.dumps(done)}\n")
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
