"""Carry bulk: much of it, or beside readers that have stalled.

``python -m tests.helpers.load.bulk NAME WIRE NUMBER NUMBER``.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import wsmux

from .far import CHUNK
from .measuring import MB, WAIT, Peak, Process, far_end, report, wait_until

NEAR = Process(os.getpid())

# What is written again and again, from another place each time: a prime number of bytes.
BLOCK = random.Random(1).randbytes(4_194_301)

# Streams that run, and those of them that stall: 5 %.
RUNNING, STALLED = 19, 1


def transfer(protocol: str, size: int, streams: int) -> dict[str, Any]:
    """Carry ``size`` bytes over so many streams at once, and compare the digests of both ends."""
    with (
        far_end("take", protocol) as far,
        wsmux.connect(far.url, protocol=protocol) as connection,
    ):
        with ThreadPoolExecutor(streams) as threads:
            assert all(threads.map(lambda _: write(connection, 4 * CHUNK), range(streams)))
            before = NEAR.memory(), far.memory()
            start = time.monotonic()
            with Peak(NEAR, far) as peak:
                equal = list(
                    threads.map(lambda _: write(connection, size // streams), range(streams))
                )
            seconds = time.monotonic() - start
        wait_until(lambda: connection.stats().streams == 0)
        return {
            "seconds": seconds,
            "mb_per_s": size / seconds / MB,
            "unequal": equal.count(False),
            "near_more_mb": (peak[0] - before[0]) / MB,
            "far_more_mb": (peak[1] - before[1]) / MB,
        }


def write(connection: wsmux.Connection, size: int) -> bool:
    """Write so many bytes on a stream of its own; tell whether the far end has read the same."""
    digest = hashlib.sha256()
    block = memoryview(BLOCK)
    place = 0
    with connection.open_stream(WAIT) as stream:
        stream.timeout = WAIT
        while size:
            part = block[place : place + min(CHUNK, size)]
            place = (place + len(part)) % len(block)
            stream.write(part)
            digest.update(part)
            size -= len(part)
        stream.close_write()
        return stream.read() == digest.digest()


def beside_stalled(protocol: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Compare what streams carry beside a stalled one with what they carry without it."""
    with (
        far_end("drain", protocol) as far,
        wsmux.connect(far.url, protocol=protocol) as connection,
    ):
        ratios = []
        for number in range(rounds):
            rates = {}
            for stalls in (True, False) if number % 2 else (False, True):
                rates[stalls] = carried(connection, STALLED if stalls else 0, seconds)
            ratios.append(rates[True] / rates[False])
        with connection.open_stream(WAIT) as stream:
            stream.write(b"!")
        return {"ratios": ratios, "median": median(ratios)}


def carried(connection: wsmux.Connection, stalled: int, seconds: float) -> int:
    """Return the bytes that the running streams carry in so many seconds."""
    stuck = [connection.open_stream(WAIT) for _ in range(stalled)]
    stop = threading.Event()
    with ThreadPoolExecutor(RUNNING + stalled) as threads:
        for stream in stuck:
            stream.write(b"-")
            threads.submit(fill, stream)
        wait_until(lambda: connection.stats().waiting_writers >= stalled)
        running = [threads.submit(pour, connection, stop) for _ in range(RUNNING)]
        stop.wait(seconds)
        stop.set()
        total = sum(each.result() for each in running)
        for stream in stuck:
            stream.reset()
    return total


def fill(stream: wsmux.Stream) -> None:
    """Write to a stream that nobody reads until it is reset."""
    try:
        while True:
            stream.write(bytes(CHUNK))
    except (ValueError, wsmux.StreamError):
        return


def pour(connection: wsmux.Connection, stop: threading.Event) -> int:
    written = 0
    with connection.open_stream(WAIT) as stream:
        stream.timeout = WAIT
        while not stop.is_set():
            written += stream.write(bytes(CHUNK))
    return written


def main(name: str, protocol: str, *numbers: str) -> dict[str, Any]:
    if name == "transfer":
        size, streams = (int(number) for number in numbers)
        return transfer(protocol, size, streams)
    return beside_stalled(protocol, int(numbers[0]), float(numbers[1]))


if __name__ == "__main__":
    report(main)
