"""Measure calls from one thread: one by one, pipelined, many rows to a message."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from ..row import ROW, Place, Ratio, Row

__all__ = ["RATIOS", "ROWS", "count_rows", "rows_until"]

# Rows made between two looks at the clock.
STEP = 64

# Rows before the clock starts: they connect, and let a window grow.
FIRST = 8


def rows_until(end: float) -> Iterator[str]:
    """Yield rows until a time."""
    while time.perf_counter() < end:
        for _ in range(STEP):
            yield ROW


def count_rows(call: Callable[[Iterator[str]], Any], seconds: float) -> float:
    """Return how many rows a second come out of a call that is given rows for so long."""
    for _ in call(iter([ROW] * FIRST)):
        pass
    count = 0
    start = time.perf_counter()
    for _ in call(rows_until(start + seconds)):
        count += 1
    return count / (time.perf_counter() - start)


class Pipelined(Row):
    """Keep so many messages of so many rows under way."""

    def __init__(self, in_flight: int, batch_rows: int) -> None:
        self.in_flight, self.batch_rows = in_flight, batch_rows
        self.name = f"{in_flight}x{batch_rows}"
        self.title = f"{in_flight} in flight"
        if batch_rows > 1:
            self.title += f", {batch_rows} rows a message"

    def measure(self, place: Place, seconds: float) -> float:
        return count_rows(self.call(place), seconds)

    def call(self, place: Place) -> Callable[[Iterator[str]], Any]:
        """Return the function that Spark would be given."""
        from wsmux.spark import connection, rpc

        name = "bench.one" if self.batch_rows == 1 else "bench.many"
        procedure = rpc(connection(place.addresses["river"]), name)
        return procedure.rows(max_in_flight=self.in_flight, batch_rows=self.batch_rows)


class Sync(Row):
    """Make one call for each row, and wait for it."""

    name, title = "sync", "one synchronous call a row"

    def measure(self, place: Place, seconds: float) -> float:
        return count_rows(self.call(place), seconds)

    def call(self, place: Place) -> Callable[[Iterator[str]], Any]:
        """Return what calls for each row, on the connection of this process."""
        from wsmux.spark import connection

        client = connection(place.addresses["river"]).client()
        return lambda rows: (client.rpc("bench", "one", row) for row in rows)


class BareSync(Row):
    """Exchange messages on one WebSocket of websocket-client's, without anything above."""

    name, title = "bare-sync", "one bare WebSocket, request and reply a row"
    needs: ClassVar[tuple[str, ...]] = ("websocket", "simple_websocket")

    def measure(self, place: Place, seconds: float) -> float:
        from ...peers.raw import open_line

        line = open_line(place.addresses["raw"])
        message = ROW.encode()

        def call(rows: Iterator[str]) -> Iterator[bytes]:
            for _ in rows:
                line.send(message)
                yield line.receive(len(message))

        try:
            return count_rows(call, seconds)
        finally:
            line.close()


class BareEach(Row):
    """Open a WebSocket for each row."""

    name, title = "bare-each", "one bare WebSocket for each row"
    needs = BareSync.needs

    def measure(self, place: Place, seconds: float) -> float:
        from ...peers.raw import open_line

        message = ROW.encode()
        count = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds or not count:
            line = open_line(place.addresses["raw"])
            line.send(message)
            line.receive(len(message))
            line.close()
            count += 1
        return count / elapsed


ROWS: list[Row] = [
    BareEach(),
    BareSync(),
    Sync(),
    *(Pipelined(in_flight, 1) for in_flight in (1, 8, 64, 256)),
    Pipelined(8, 64),
    Pipelined(32, 512),
]

RATIOS = [
    Ratio("256x1", "sync", {0: 3.3, 1: 30, 5: 90}, {0: 4, 1: 35, 5: 110}),
    Ratio("32x512", "sync", {0: 80, 1: 700, 5: 2000}, {0: 100, 1: 800, 5: 3000}),
    Ratio("sync", "bare-sync", {}, {}),  # what sessions, calls and threads cost
]
