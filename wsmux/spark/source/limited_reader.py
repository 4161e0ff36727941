"""Follow a topic in batches of limited size, which Spark supports from 4.2 on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from .offsets import Position
from .stream_reader import Follower

__all__ = ["LimitedStreamReader"]


class LimitedStreamReader(Follower, SupportsTriggerAvailableNow):
    """Follow a topic; see ``Follower``."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit set by ``maxRowsPerTrigger`` and ``maxBytesPerTrigger``.

        Spark has no limit on both; if both are set, ``latestOffset`` applies the bytes.
        """
        options = self._options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        return ReadAllAvailable() if options.max_bytes is None else ReadMaxBytes(options.max_bytes)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> Mapping[str, Any]:
        """Return the end of the next batch; see ``Follower.next_end``."""
        if isinstance(limit, ReadAllAvailable):
            return self.next_end(start, None, None)
        rows, size = self._options.max_rows, self._options.max_bytes
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return self.next_end(start, rows, size)

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the latest offsets, at which the query ends."""
        self._most = list(self.heads().latest)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the latest offsets, for the progress of the query."""
        heads = self.heads()
        latest = tuple(heads.latest)
        return Position(self._topic, self._reader, latest, home=heads.home).to_json()
