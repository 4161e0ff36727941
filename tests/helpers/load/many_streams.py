"""Open many streams on one connection, at once or over its life.

``python -m tests.helpers.load.many_streams NAME WIRE COUNT [LIMIT MOST]``.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Any

import wsmux

from .far import FILE, content
from .measuring import MB, WAIT, Process, far_end, report, wait_until

NEAR = Process(os.getpid())

# Streams of a life that are open at once, and the samples of memory taken over it.
BATCH = 100
SAMPLES = 10


def at_once(protocol: str, count: int) -> dict[str, Any]:
    """Open all, then echo 64 bytes on each."""
    config = wsmux.Config(max_streams=count)
    with (
        far_end("each", protocol, count) as far,
        wsmux.connect(far.url, protocol=protocol, config=config) as connection,
    ):
        connection.ping(WAIT)
        threads = NEAR.threads(), far.threads()
        before = NEAR.memory(), far.memory()
        start = time.monotonic()
        streams = [connection.open_stream(WAIT) for _ in range(count)]
        connection.ping(WAIT)
        opened = time.monotonic()
        idle = NEAR.memory(), far.memory()
        for stream in streams:
            stream.timeout = WAIT
            stream.write(content(b"%d" % stream.id) * 2)
        wrong = sum(read(stream) != content(b"%d" % stream.id) * 2 for stream in streams)
        echoed = time.monotonic()
        figures = {
            "open_s": opened - start,
            "echo_s": echoed - opened,
            "wrong": wrong,
            "near_mb": (idle[0] - before[0]) / MB,
            "far_mb": (idle[1] - before[1]) / MB,
            "near_threads": NEAR.threads() - 1,
            "far_threads": far.threads() - 1,
            "more_threads": NEAR.threads() + far.threads() - sum(threads),
        }
        for stream in streams:
            stream.reset()
        return figures


def read(stream: wsmux.Stream) -> bytes:
    data = b""
    while len(data) < 2 * FILE:
        data += stream.read(2 * FILE - len(data))
    return data


def in_sequence(protocol: str, count: int) -> dict[str, Any]:
    """Open, echo and close one after the other."""
    with (
        far_end("echo", protocol) as far,
        wsmux.connect(far.url, protocol=protocol) as connection,
    ):
        rounds = []
        for number in range(count):
            sent = content(b"%d" % number) * 2
            start = time.perf_counter()
            with connection.open_stream(WAIT) as stream:
                stream.timeout = WAIT
                stream.write(sent)
                assert read(stream) == sent
                stream.close_write()
                assert stream.read(1) == b""
            rounds.append(time.perf_counter() - start)
        wait_until(lambda: connection.stats().streams == 0)
        return {
            "median_us": median(rounds) * 1e6,
            "mean_us": sum(rounds) / count * 1e6,
            "left_near": connection.stats().streams,
            "left_far": asked(connection)["streams"] - 1,
        }


def asked(connection: wsmux.Connection) -> dict[str, Any]:
    """Return the far end's view of the connection, the asking stream among its streams."""
    with connection.open_stream(WAIT) as stream:
        stream.timeout = WAIT
        stream.write(b"stats")
        stats: dict[str, Any] = json.loads(stream.read(65536))
        return stats


def over_a_life(protocol: str, count: int) -> dict[str, Any]:
    """Open, echo on and close so many in batches, and sample the memory of both ends.

    One thread serves them: the allocator of the system keeps something for each thread, which with
    64 of them still grows by 2 MB after the first hundred thousand streams.
    """
    with (
        far_end("in-turn", protocol) as far,
        wsmux.connect(far.url, protocol=protocol) as connection,
    ):
        samples: list[tuple[int, int]] = []
        start = time.monotonic()
        for _ in range(SAMPLES):
            for _ in range(count // SAMPLES // BATCH):
                batch(connection)
            samples.append((NEAR.memory(), far.memory()))
        wait_until(lambda: connection.stats().streams == 0)
        return {
            "seconds": time.monotonic() - start,
            "opened": connection.stats().streams_opened,
            "near_mb": [near / MB for near, _ in samples],
            "far_mb": [other / MB for _, other in samples],
            "left_near": connection.stats().streams,
            "left_far": asked(connection)["streams"] - 1,
        }


def batch(connection: wsmux.Connection) -> None:
    streams = [connection.open_stream(WAIT) for _ in range(BATCH)]
    for stream in streams:
        stream.timeout = WAIT
        stream.write(b"%d" % stream.id)
        stream.close_write()
    for stream in streams:
        assert stream.read() == b"%d" % stream.id
        stream.close()


def files(protocol: str, count: int, limit: int, most: int) -> dict[str, Any]:
    """Ask for so many files of 32 bytes over one connection, at most ``most`` at once.

    The stream of a file stays open until the file was read, and the server takes ``limit`` of them
    at once. A file whose stream was refused is asked for again: where a wire does not tell the
    limit, that is how it is felt, and the opening of a stream may overtake the end of another.
    """
    with (
        far_end("files", protocol, limit) as far,
        wsmux.connect(far.url, protocol=protocol) as connection,
    ):
        left = deque(b"file %d\n" % number for number in range(count))
        running: deque[tuple[bytes, wsmux.Stream]] = deque()
        right = refused = highest = 0
        while left or running:
            if left and len(running) < most:
                running.append(asked_for(connection, left.popleft()))
                highest = max(highest, connection.stats().streams)
                continue
            name, stream = running.popleft()
            try:
                right += complete(name, stream)
            except (wsmux.StreamRefused, wsmux.StreamReset):
                refused += 1
                left.append(name)
        return {"right": right, "refused": refused, "most": highest}


def asked_for(connection: wsmux.Connection, name: bytes) -> tuple[bytes, wsmux.Stream]:
    stream = connection.open_stream(WAIT)
    stream.timeout = WAIT
    with suppress(wsmux.StreamError):  # the read says so, too
        stream.write(name)
    return name, stream


def complete(name: bytes, stream: wsmux.Stream) -> bool:
    with stream:
        return stream.read() == content(name)


SCRIPTS: dict[str, Callable[..., dict[str, Any]]] = {
    "at_once": at_once,
    "files": files,
    "life": over_a_life,
    "sequence": in_sequence,
}


def main(name: str, protocol: str, *numbers: str) -> dict[str, Any]:
    return SCRIPTS[name](protocol, *(int(number) for number in numbers))


if __name__ == "__main__":
    report(main)
