"""Measure the same within Spark: two tasks at once, in workers of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from ..row import NEAR, ROW, Place, Ratio, Row
from .calls import Pipelined, Sync, count_rows

__all__ = ["RATIOS", "ROWS", "TASKS", "warm_up"]

# Task slots of the session.
TASKS = 2

# Rows of the job of a DataFrame, for each second that it may take: so many that the job's own half
# second counts for little.
FRAME_RATE = 2_000_000


class _Job(Row):
    """Run a function over rows in every task slot, and add up the rates."""

    within_spark = True
    needs: ClassVar[tuple[str, ...]] = ("msgpack", "pyspark", "pyarrow", "pandas")

    def measure(self, place: Place, seconds: float) -> float:
        addresses = Place(place.addresses, None)
        make = self.call

        def task(_: Iterator[int]) -> Iterator[float]:
            yield count_rows(make(addresses), seconds)

        rdd = place.spark.sparkContext.parallelize(range(TASKS), TASKS)
        return float(sum(rdd.mapPartitions(task).collect()))

    def call(self, place: Place) -> Callable[[Iterator[str]], Any]:
        """Return what a task does with its rows."""
        return iter


class SparkAlone(_Job):
    """Call nobody."""

    name, title, delays = "spark-alone", "Spark: no network", (NEAR,)


class SparkSync(_Job):
    """Make one call for each row, and wait for it."""

    name, title = "spark-sync", "Spark: one synchronous call a row"

    def call(self, place: Place) -> Callable[[Iterator[str]], Any]:
        return Sync().call(place)


class SparkPipelined(_Job):
    """Keep messages under way."""

    def __init__(self, in_flight: int, batch_rows: int) -> None:
        self._plain = Pipelined(in_flight, batch_rows)
        self.name = f"spark-{self._plain.name}"
        self.title = f"Spark: {self._plain.title}"

    def call(self, place: Place) -> Callable[[Iterator[str]], Any]:
        return self._plain.call(place)


class _Frame(_Job):
    """Send a DataFrame of strings through ``mapInArrow``, into nothing."""

    def measure(self, place: Place, seconds: float) -> float:
        count = round(FRAME_RATE * seconds)
        spark = place.spark
        rows = spark.range(0, count, 1, 2 * TASKS).selectExpr(f"repeat('x', {len(ROW)}) as row")
        mapped = rows.mapInArrow(self.mapper(place), "row string")
        start = time.perf_counter()
        mapped.write.format("noop").mode("overwrite").save()
        return count / (time.perf_counter() - start)

    def mapper(self, place: Place) -> Callable[[Any], Any]:
        """Return what is done with the batches."""
        return _same


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    """Return what came; a plain function, which is what ``mapInArrow`` wants."""
    return batches


class SparkIdentity(_Frame):
    """Give the batches back."""

    name, title, delays = "spark-identity", "Spark: mapInArrow, identity", (NEAR,)


class SparkArrow(_Frame):
    """Send each batch to a server, which gives it back."""

    name, title, delays = "spark-arrow", "Spark: mapInArrow, a batch a message, 4 in flight", (0, 5)

    def mapper(self, place: Place) -> Callable[[Any], Any]:
        from wsmux.spark import connection, rpc

        return rpc(connection(place.addresses["river"]), "bench.one").arrow(max_in_flight=4)


def warm_up(spark: Any) -> None:
    """Have everything loaded and compiled that jobs need, before the first is timed."""
    spark.sparkContext.parallelize(range(TASKS), TASKS).count()
    rows = spark.range(0, FRAME_RATE // 2, 1, 2 * TASKS).selectExpr("repeat('x', 100) as row")
    rows.mapInArrow(_same, "row string").write.format("noop").mode("overwrite").save()


ROWS: list[Row] = [
    SparkAlone(),
    SparkSync(),
    SparkPipelined(256, 1),
    SparkPipelined(32, 512),
    SparkIdentity(),
    SparkArrow(),
]

RATIOS = [
    Ratio("spark-256x1", "spark-sync", {}, {0: 4, 1: 35, 5: 110}),
    Ratio("spark-32x512", "spark-sync", {}, {0: 100, 1: 800, 5: 3000}),
    Ratio("spark-arrow", "spark-identity", {}, {0: 0.6}),
]
