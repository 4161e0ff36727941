"""Measure what Spark asks a hundred times a second of a stream that has nothing new."""

from __future__ import annotations

import time
from typing import ClassVar

from ..bulk import TOPIC
from ..row import Place, Ratio, Row

__all__ = ["RATIOS", "ROWS"]

STEP = 100


class LatestOffset(Row):
    """Ask for the latest offsets of an idle topic, as the planner does."""

    name, title, unit = "latest-offset", "latest offsets of an idle topic", "calls/s"
    bulk = True
    needs: ClassVar[tuple[str, ...]] = ("msgpack", "pyspark", "pyarrow")
    delays = (5,)

    def measure(self, place: Place, seconds: float) -> float:
        from wsmux.spark.source.datasource import DefaultSource

        source = DefaultSource({"url": place.addresses["data"], "topic": TOPIC})
        reader = source.streamReader(source.schema())
        start_offset = reader.initialOffset()
        limit = reader.getDefaultReadLimit()
        count = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds or not count:
            for _ in range(STEP):
                reader.latestOffset(start_offset, limit)
            count += STEP
        reader.stop()
        return count / elapsed


ROWS: list[Row] = [LatestOffset()]

# A hundredth of a round trip that a bare WebSocket takes, or less.
RATIOS = [Ratio("latest-offset", "bare-sync", {5: 100}, {5: 100})]
