"""Do everything for long: echoes, resets of both ends, cuts by both ends, and new connections.

``python -m tests.helpers.load.soak WIRE SECONDS ROWS``. Its figures are the rows of a table, one
taken each ``SECONDS / ROWS``.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import wsmux

from .measuring import MB, WAIT, Process, far_end, report

__all__ = ["COLUMNS"]

NEAR = Process(os.getpid())

COLUMNS = (
    *("second", "near MB", "far MB", "threads", "descriptors"),
    *("blocks", "operations", "wrong"),
)

# Threads that work at once, and how often each of their operations is: an echo, a reset by this
# end and by the other, a cut by this end and by the other, a clean close.
WORKERS = 4
WEIGHTS = {"echo": 300, "reset": 40, "asked": 40, "abort": 1, "cut": 1, "close": 1}

LARGEST = 200_000
PATTERN = random.Random(2).randbytes(2 * LARGEST)


class Line:
    """Hold the one connection that all work on, and connect anew when it has ended."""

    def __init__(self, url: str, protocol: str) -> None:
        self._url = url
        self._protocol = protocol
        self._lock = threading.Lock()
        self._connection: wsmux.Connection | None = None
        self.connected = 0

    def get(self) -> wsmux.Connection:
        with self._lock:
            if self._connection is None or self._connection.closed:
                if self._connection is not None:
                    self._connection.close(WAIT)
                self._connection = wsmux.connect(self._url, protocol=self._protocol, timeout=WAIT)
                self.connected += 1
            return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close(WAIT)


def operate(line: Line, done: Counter[str], stop: threading.Event, seed: int) -> None:
    """Do one operation after the other; a connection that has ended is the only error allowed."""
    chance = random.Random(seed)
    while not stop.is_set():
        what = chance.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        try:
            OPERATIONS[what](line.get(), chance, done)
        except wsmux.ConnectionClosed:
            what = "ended"
        except Exception as error:
            done[f"wrong: {error!r}"] += 1
        done[what] += 1


def echo(connection: wsmux.Connection, chance: random.Random, done: Counter[str]) -> None:
    start, size = chance.randrange(LARGEST), chance.randrange(LARGEST)
    sent = PATTERN[start : start + size]
    with connection.open_stream(WAIT) as stream:
        stream.timeout = WAIT
        stream.write(b"e")
        writer = threading.Thread(target=write_all, args=(stream, sent))
        writer.start()
        try:
            got = stream.read()
        finally:
            writer.join()
    if got != sent:
        done["wrong: an echo differs"] += 1


def write_all(stream: wsmux.Stream, data: bytes) -> None:
    with suppress(wsmux.WsmuxError):  # the reader says so, too
        stream.write(data)
        stream.close_write()


def reset(connection: wsmux.Connection, chance: random.Random, _: Counter[str]) -> None:
    stream = connection.open_stream(WAIT)
    stream.timeout = WAIT
    stream.write(b"e" + PATTERN[: chance.randrange(10_000)])
    stream.reset(77)


def asked(connection: wsmux.Connection, _: random.Random, done: Counter[str]) -> None:
    """Have the far end reset a stream; ``bymux`` shows that as an end."""
    with connection.open_stream(WAIT) as stream:
        stream.timeout = WAIT
        stream.write(b"r")
        with suppress(wsmux.StreamReset):
            if stream.read(1):
                done["wrong: a reset stream has bytes"] += 1


def abort(connection: wsmux.Connection, *_: object) -> None:
    connection.abort()


def cut(connection: wsmux.Connection, *_: object) -> None:
    """Have the far end cut the connection."""
    with connection.open_stream(WAIT) as stream:
        stream.timeout = WAIT
        stream.write(b"a")
        stream.read(1)


def close(connection: wsmux.Connection, *_: object) -> None:
    connection.close(WAIT)


OPERATIONS = {
    "abort": abort,
    "asked": asked,
    "close": close,
    "cut": cut,
    "echo": echo,
    "reset": reset,
}


def main(protocol: str, seconds: str, rows: str) -> dict[str, Any]:
    done: Counter[str] = Counter()
    stop = threading.Event()
    table = []
    with far_end("mixed", protocol) as far:
        line = Line(far.url, protocol)
        start = time.monotonic()
        workers = [
            threading.Thread(target=operate, args=(line, done, stop, seed))
            for seed in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        for row in range(1, int(rows) + 1):
            stop.wait(max(0.0, start + row * float(seconds) / int(rows) - time.monotonic()))
            table.append(look(far, done, time.monotonic() - start))
        stop.set()
        for worker in workers:
            worker.join(WAIT)
        line.close()
        wrong = {what: count for what, count in done.items() if what.startswith("wrong")}
        return {"rows": table, "wrong": wrong, "connected": line.connected, "done": dict(done)}


def look(far: Process, done: Counter[str], second: float) -> tuple[float, ...]:
    """Return one row of the table; its descriptors and threads are those of both ends.

    The blocks are those that Python's own allocator holds at this end.
    """
    gc.collect()
    counts = dict(done)
    wrong = sum(count for what, count in counts.items() if what.startswith("wrong"))
    return (
        round(second),
        round(NEAR.memory() / MB, 1),
        round(far.memory() / MB, 1),
        NEAR.threads() + far.threads(),
        NEAR.descriptors() + far.descriptors(),
        sys.getallocatedblocks(),
        sum(counts.values()) - wrong,
        wrong,
    )


if __name__ == "__main__":
    report(main)
