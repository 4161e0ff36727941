"""Copy topics to a topic and to a dataset by queries of Spark's, until somebody kills this.

``python -m tests.helpers.spark.stream_driver MASTER SETTINGS JAVA FROM TO CHECKPOINTS``; FROM and
TO are addresses of servers, SETTINGS further ones of Spark as JSON. A query that fails is started
again, as whoever runs one does, and after ``FAILURES`` of them this ends: a Java may be left in
which no task can be serialized any more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from .sessions import new_session

__all__: list[str] = []

# Seconds of a wait for a query, after which there is another.
SLICE = 3600

# More than a query can have on its way in a task when a server is started anew.
OPTIONS = {"connectTimeout": "5", "callTimeout": "20", "retryBackoff": "0.05"}

# Failed queries after which another process is better.
FAILURES = 20

# Batches to a dataset between two looks at all of it.
LOOK = 8


def options(url: str, **more: object) -> dict[str, str]:
    return {**OPTIONS, "url": url, **{name: str(value) for name, value in more.items()}}


def followed(spark: Any, source: str, topic: str) -> Any:
    limits = {"startingOffsets": "earliest", "maxRowsPerTrigger": 100}
    read = spark.readStream.format("wsmux").options(**options(source, topic=topic, **limits))
    return read.load().writeStream


def to_topic(spark: Any, source: str, sink: str) -> Any:
    return followed(spark, source, "t").format("wsmux").options(**options(sink, topic="t"))


def to_dataset(spark: Any, source: str, sink: str) -> Any:
    """Write each batch as a job of its own, which counts once by its transaction."""

    def save(frame: Any, number: int) -> None:
        once = options(sink, dataset="d", txnAppId="copy", txnVersion=number)
        frame.write.format("wsmux").mode("append").options(**once).save()
        if number % LOOK == LOOK - 1:
            held = spark.read.format("wsmux").options(**options(sink, dataset="d")).load()
            count, different = held.selectExpr("count(id)", "count(distinct id)").first()
            assert count == different, f"{count} rows are read, {different} different ones"

    return followed(spark, source, "d").foreachBatch(save)


def main(master: str, settings: str, java: str, source: str, sink: str, checkpoints: str) -> None:
    spark = new_session(java, master, json.loads(settings))
    kinds: dict[str, Callable[..., Any]] = {"topic": to_topic, "dataset": to_dataset}
    running: dict[str, Any] = {}
    for _ in range(FAILURES):
        try:
            for name, kind in kinds.items():
                if name not in running or not running[name].isActive:
                    writer = kind(spark, source, sink)
                    writer = writer.option("checkpointLocation", f"{checkpoints}/{name}")
                    running[name] = writer.start()
            spark.streams.awaitAnyTermination(SLICE)
        except Exception as error:  # the next query begins where this one was
            sys.stderr.write(f"a query failed: {str(error)[-2000:]}\n")
        spark.streams.resetTerminated()


if __name__ == "__main__":
    main(*sys.argv[1:])
