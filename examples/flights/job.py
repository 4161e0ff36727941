"""Run the jobs of the demonstration on Spark, in a process of its own.

It takes orders in lines of JSON and answers in lines of JSON: ``{"share": ...}`` as a job goes on,
then ``{"done": ...}`` or ``{"error": ...}``. It ends when stdin does, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from wsmux.spark import Recipe, connection, error_from, rpc

from .check import DELAYS, DISTANCES
from .spark_session import spark_session

__all__ = ["main"]

# Task slots, and partitions of what is not read in parts of its own.
TASKS, PARTITIONS = 2, 8

# Rows of one message; each is one call on the wire.
BATCH_ROWS = 512

# Routes that are sent before their answers are read; well within the window of a stream.
ROUTES = 2000

# Seconds between two looks at how far a job is.
LOOK = 0.2

PLANE = "struct<seats:int,built:int>"
CHECKSUM = """crc32(concat_ws('|', carrier, flight, coalesce(tailnum, ''), origin, dest, time_hour,
    coalesce(string(dep_delay), ''), coalesce(string(arr_delay), ''),
    coalesce(string(seats), ''), coalesce(string(built), ''), sky))"""


@dataclass(frozen=True, slots=True)
class Place:
    """Say where everything is.

    Attributes:
        data: the URL of the data server. enrichment: that of the other.
        checkpoint: a directory for what queries remember.
    """

    data: str
    enrichment: str
    checkpoint: str

    def conn(self) -> Recipe:
        """Return the recipe of the connections for enrichment."""
        return connection(self.enrichment, token=os.environ["WSMUX_TOKEN"])

    def options(self, **further: str) -> dict[str, str]:
        """Return the options of a read or write at the data server."""
        return {"url": self.data, "token": os.environ["WSMUX_TOKEN"], **further}


# What is done with a DataFrame


def enriched(flights: Any, conn: Recipe) -> Any:
    """Return flights with plane and weather, each by calls to a server.

    ``weather.on(planes.on(flights))`` is the same, with a Python process for each.
    """
    planes = rpc(conn, "planes.lookup").columns(
        "tailnum", into="plane", into_type=PLANE, error_col="no_plane", batch_rows=BATCH_ROWS
    )
    weather = rpc(conn, "weather.sky").columns(
        "origin", "time_hour", into="report", error_col="no_report", batch_rows=BATCH_ROWS
    )
    schema = weather.schema(planes.schema(flights.schema))
    return flights.mapInArrow(lambda batches: weather(planes(batches)), schema).selectExpr(
        *flights.columns,
        *("plane.seats as seats", "plane.built as built"),
        *("coalesce(report, 'no report') as sky", "no_plane", "no_report"),
    )


def delays(flights: Any) -> Any:
    """Return delays by airport, hour and weather, with what is compared."""
    from pyspark.sql.functions import expr

    names, compared = DELAYS
    made = {
        "flights": "count(*)",
        "departed": "count(dep_delay)",
        "delay": "coalesce(sum(dep_delay), 0)",
        "seats": "coalesce(sum(seats), 0)",
        "strangers": "count_if(no_plane is not null)",
        "checksum": f"sum({CHECKSUM})",
    }
    return flights.groupBy(*names).agg(*(expr(made[name]).alias(name) for name in compared))


@dataclass(frozen=True, slots=True)
class Distances:
    """What ``mapPartitions`` runs: a stream for each partition, a line for each flight."""

    conn: Recipe

    def __call__(self, rows: Iterable[Any]) -> Iterator[tuple[str, tuple[int, int, int]]]:
        """Yield of each flight what counts for its airport."""
        rows = iter(rows)
        with self.conn.open_stream("distances") as stream, stream.makefile("rb") as answers:
            while some := list(islice(rows, ROUTES)):
                stream.write("".join(f"{row.origin} {row.dest}\n" for row in some).encode())
                for row in some:
                    answer = answers.readline()
                    if not answer:
                        raise ConnectionError("the server ended the stream of distances")
                    km = answer.strip()
                    yield row.origin, (1, 0, int(km)) if km else (1, 1, 0)


# The orders


class Jobs:
    """Carry out orders; each method is one, and returns what is told of it."""

    def __init__(self, spark: Any, place: Place, tell: Callable[[float], None]) -> None:
        self._spark = spark
        self._place = place
        self._tell = tell

    def read(self, **options: str) -> Any:
        return self._spark.read.format("wsmux").options(**self._place.options(**options)).load()

    def enrich(self) -> dict[str, Any]:
        """Read flights, make two calls for each, write them."""
        flights = self.read(dataset="flights", numPartitions=str(PARTITIONS))
        self._write(enriched(flights, self._place.conn()), "enriched")
        return {}

    def summarise(self, **source: str) -> dict[str, Any]:
        """Read enriched flights, aggregate them, write the result, and read that."""
        name = "delays-of-" + "-".join(source)
        self._write(delays(self.read(**source)), name)
        return {"rows": [row.asDict() for row in self.read(dataset=name).collect()]}

    def distances(self) -> dict[str, Any]:
        """Stream the routes of all flights through a server, from ``mapPartitions``."""
        flights = self.read(dataset="flights", columns="origin,dest", numPartitions=str(PARTITIONS))
        totals = (
            flights.rdd.mapPartitions(Distances(self._place.conn()))
            .reduceByKey(lambda one, other: tuple(map(int.__add__, one, other)))
            .collect()
        )
        names, compared = DISTANCES
        return {
            "rows": [
                {names[0]: origin, **dict(zip(compared, values, strict=True))}
                for origin, values in totals
            ]
        }

    def stream(self, batch: int, total: int) -> dict[str, Any]:
        """Follow the topic of departures to its end, from where the checkpoint says."""
        flights = (
            self._spark.readStream.format("wsmux")
            .options(**self._place.options(topic="departures", startingOffsets="earliest"))
            .option("maxRowsPerTrigger", batch)
            .load()
        )
        query = (
            enriched(flights, self._place.conn())
            .writeStream.format("wsmux")
            .options(**self._place.options(topic="enriched"))
            .option("checkpointLocation", self._place.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        batches: dict[int, int] = {}
        ended = False
        while not ended:
            ended = query.awaitTermination(LOOK)
            for progress in query.recentProgress:
                if progress["batchId"] not in batches and progress["numInputRows"]:
                    batches[progress["batchId"]] = progress["numInputRows"]
                    self._tell(progress["numInputRows"] / total)
        return {"batches": sorted(batches)}

    def _write(self, frame: Any, dataset: str) -> None:
        options = self._place.options(dataset=dataset)
        frame.write.format("wsmux").mode("overwrite").options(**options).save()


def main(argument: str) -> None:
    """Start a session, say so, and carry out orders until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    settings: dict[str, str] = json.loads(argument)
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    with spark_session("wsmux demo", TASKS, settings) as spark:
        spark.range(1).mapInArrow(_same, "id long").collect()  # starts what else there is
        _say({"done": {}})
        while True:
            _carry_out(spark, json.loads(orders.get()))


def _same(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


def _listen(orders: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        orders.put(line)
    os._exit(0)  # whoever gave the orders is gone; Java ends when this does


def _carry_out(spark: Any, order: Mapping[str, Any]) -> None:
    start = time.monotonic()
    over = threading.Event()
    jobs = Jobs(spark, Place(**order["place"]), lambda share: _say({"add": share}))
    watching = threading.Thread(target=_watch, args=(spark, over), daemon=True)
    if order["what"] != "stream":  # which tells of its batches
        watching.start()
    answer: dict[str, Any]
    try:
        told = getattr(jobs, order["what"])(**order["with"])
        answer = {"done": {"seconds": time.monotonic() - start, **told}}
    except Exception as error:
        known = error_from(error)
        answer = {"error": str(known or f"{type(error).__name__}: {str(error)[:1000]}")}
    over.set()
    if watching.ident is not None:
        watching.join()
    _say(answer)


def _watch(spark: Any, over: threading.Event) -> None:
    """Show how far a job is: what share of its largest stage is done."""
    tracker = spark.sparkContext.statusTracker()
    told = 0.0
    while not over.wait(LOOK):
        stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        for stage in stages:
            if stage is not None and stage.numTasks >= PARTITIONS:
                share = stage.numCompletedTasks / stage.numTasks
                if share > told:
                    _say({"add": share - told})
                    told = share


def _say(what: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
