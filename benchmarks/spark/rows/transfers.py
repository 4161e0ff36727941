"""Measure bulk within Spark: eight columns of eight bytes, read and written by the gigabyte."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from ..bulk import DATASET, PARTS, ROW_BYTES, ROWS_THERE, SCHEMA_TEXT
from ..row import NEAR, Place, Ratio, Row

__all__ = ["RATIOS", "ROWS"]

MEGA = 1_000_000

# Rows written for each second that a figure may take.
WRITE_RATE = 3_000_000


class _Bulk(Row):
    unit = "MB/s"
    within_spark = True
    bulk = True
    needs: ClassVar[tuple[str, ...]] = ("msgpack", "pyspark", "pyarrow", "pandas")
    delays = (NEAR,)

    def format(self, place: Place) -> tuple[str, Mapping[str, str]]:
        """Return the name of the format and its options."""
        raise NotImplementedError


class _Read(_Bulk):
    """Read all that is there, as often as fits the time, into nothing."""

    def measure(self, place: Place, seconds: float) -> float:
        name, options = self.format(place)
        frame = place.spark.read.format(name).options(**options).schema(SCHEMA_TEXT).load()
        start = time.perf_counter()
        times = 0
        while not times or time.perf_counter() - start < seconds:
            frame.write.format("noop").mode("overwrite").save()
            times += 1
        return times * ROWS_THERE * ROW_BYTES / (time.perf_counter() - start) / MEGA


class _Write(_Bulk):
    """Write rows that Spark makes."""

    def measure(self, place: Place, seconds: float) -> float:
        name, options = self.format(place)
        count = round(WRITE_RATE * seconds)
        columns = [f"id + {number} as c{number}" for number in range(ROW_BYTES // 8)]
        frame = place.spark.range(0, count, 1, PARTS).selectExpr(*columns)
        start = time.perf_counter()
        frame.write.format(name).options(**options).mode("overwrite").save()
        return count * ROW_BYTES / (time.perf_counter() - start) / MEGA


class _Ours:
    """``format("wsmux")``."""

    def format(self, place: Place) -> tuple[str, Mapping[str, str]]:
        return "wsmux", {"url": place.addresses["data"], "dataset": self.dataset}

    dataset: str


class _Flight:
    """Arrow Flight."""

    def format(self, place: Place) -> tuple[str, Mapping[str, str]]:
        from ..flight import FlightSource

        place.spark.dataSource.register(FlightSource)
        return FlightSource.name(), {"url": place.addresses["flight"], "parts": str(PARTS)}


class ReadOurs(_Ours, _Read):
    """Read a dataset."""

    name, title, dataset = "spark-read", 'Spark: read, format("wsmux")', DATASET


class ReadFlight(_Flight, _Read):
    """Read the same over Flight."""

    name, title = "spark-read-flight", "Spark: read, Arrow Flight"


class WriteOurs(_Ours, _Write):
    """Write a dataset."""

    name, title, dataset = "spark-write", 'Spark: write, format("wsmux")', "written"


class WriteFlight(_Flight, _Write):
    """Write the same over Flight."""

    name, title = "spark-write-flight", "Spark: write, Arrow Flight"


ROWS: list[Any] = [ReadOurs(), ReadFlight(), WriteOurs(), WriteFlight()]

RATIOS = [
    Ratio("spark-read", "spark-read-flight", {NEAR: 0.9}, {NEAR: 1.0}),
    Ratio("spark-write", "spark-write-flight", {NEAR: 0.7}, {NEAR: 0.9}),
]
