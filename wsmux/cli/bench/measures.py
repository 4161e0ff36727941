"""Do the client's part of each measurement, and hold the clock.

The clock of an upload stops when the server's count of the bytes has come, that of a download
when the last byte has. Both move as many bytes as the last known rate makes of the wanted time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .peer import CHUNK, DOWNLOAD, ECHO, HEAD, UPLOAD, Line, Open, send_bytes

__all__ = ["MEASURES", "Measure"]

# Bytes of the first upload and download, which only finds the rate.
PROBE = 4 * 1024 * 1024

# Bytes of the exchange on a freshly opened line.
EXCHANGE = 1024

Rate = Callable[[Open, float, dict[str, float]], float]


@dataclass(frozen=True)
class Measure:
    """Name one figure; ``run(open, seconds, known)`` returns it, ``known`` keeps rates."""

    title: str
    unit: str
    run: Rate


def _bulk(name: str, move: Callable[[Line, int], None]) -> Rate:
    def rate(opener: Open, size: int) -> float:
        line = opener()
        try:
            start = time.perf_counter()
            move(line, size)
            return size / (time.perf_counter() - start)
        finally:
            line.close()

    def run(opener: Open, seconds: float, known: dict[str, float]) -> float:
        if name not in known:
            known[name] = rate(opener, PROBE)
        chunks = max(1, round(known[name] * seconds / CHUNK))
        known[name] = rate(opener, chunks * CHUNK)
        return known[name] / 1e6

    return run


def _upload(line: Line, size: int) -> None:
    line.send(HEAD.pack(UPLOAD, size))
    send_bytes(line, size)
    answer = line.receive(CHUNK)
    while len(answer) < HEAD.size:
        answer += _more(line)
    if HEAD.unpack(answer) != (UPLOAD, size):
        raise RuntimeError(f"the server counted {HEAD.unpack(answer)[1]} of {size} bytes")


def _download(line: Line, size: int) -> None:
    line.send(HEAD.pack(DOWNLOAD, size))
    receive, left = line.receive, size
    while left > 0:
        chunk = receive(CHUNK)
        if not chunk:
            raise RuntimeError(f"{left} of {size} bytes did not come")
        left -= len(chunk)
    if left:
        raise RuntimeError(f"{-left} bytes more than {size} came")


def _more(line: Line) -> bytes:
    data = line.receive(CHUNK)
    if not data:
        raise RuntimeError("the line ended in the middle of a measurement")
    return data


def _exchange(line: Line, message: bytes) -> None:
    """Send a message and wait until it is back."""
    line.send(message)
    left = len(message) - len(line.receive(CHUNK))
    while left > 0:
        left -= len(_more(line))


def _pings(opener: Open, seconds: float, known: dict[str, float], size: int, lines: int) -> float:
    """Return the round trips per second of all lines, a thread each."""
    message = ECHO + bytes(size - 1)
    opened = [opener() for _ in range(lines)]
    for line in opened:
        _exchange(line, message)
    ready = threading.Barrier(lines + 1)
    counts: list[int] = []
    failures: list[BaseException] = []

    def work(line: Line) -> None:
        count = 0
        ready.wait()
        end = time.perf_counter() + seconds
        try:
            while time.perf_counter() < end:
                _exchange(line, message)
                count += 1
        except Exception as error:
            failures.append(error)
        counts.append(count)

    threads = [threading.Thread(target=work, args=(line,)) for line in opened]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - start
    for line in opened:
        line.close()
    if failures:
        raise failures[0]
    return sum(counts) / elapsed


def _opens(opener: Open, seconds: float, known: dict[str, float]) -> float:
    message = ECHO + bytes(EXCHANGE - 1)
    count = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not count:
        line = opener()
        _exchange(line, message)
        line.close()
        count += 1
    return count / elapsed


MEASURES = {
    "upload": Measure("upload", "MB/s", _bulk("upload", _upload)),
    "download": Measure("download", "MB/s", _bulk("download", _download)),
    "ping-64": Measure("ping 64 B, 1 stream", "/s", partial(_pings, size=64, lines=1)),
    "ping-1k": Measure("ping 1 KiB, 1 stream", "/s", partial(_pings, size=1024, lines=1)),
    "ping-1k-10": Measure("ping 1 KiB, 10 streams", "/s", partial(_pings, size=1024, lines=10)),
    "ping-1k-100": Measure("ping 1 KiB, 100 streams", "/s", partial(_pings, size=1024, lines=100)),
    "opens": Measure("open + 1 KiB echo + close", "/s", _opens),
}
