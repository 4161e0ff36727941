"""Be the client of a library whose calls block: one thread for each line.

The clock of an upload stops when the server's count of the bytes has come, that of a download
when the last byte has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from .peer import CHUNK, DOWNLOAD, ECHO, HEAD, UPLOAD, Client, Line, Open, send_bytes

__all__ = ["Blocking", "count_at_once"]


class Blocking(Client):
    """Measure with lines."""

    def __init__(self, opener: Open) -> None:
        self._open = opener

    def upload(self, size: int) -> float:
        return self._timed(_upload, size)

    def download(self, size: int) -> float:
        return self._timed(_download, size)

    def _timed(self, move: Callable[[Line, int], None], size: int) -> float:
        line = self._open()
        try:
            start = time.perf_counter()
            move(line, size)
            return time.perf_counter() - start
        finally:
            line.close()

    def pings(self, size: int, lines: int, seconds: float) -> tuple[int, float]:
        message = ECHO + bytes(size - 1)
        opened = [self._open() for _ in range(lines)]
        counted = count_at_once([partial(_exchange, line, message) for line in opened], seconds)
        for line in opened:
            line.close()
        return counted

    def opens(self, size: int, seconds: float) -> tuple[int, float]:
        message = ECHO + bytes(size - 1)
        count = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds or not count:
            line = self._open()
            _exchange(line, message)
            line.close()
            count += 1
        return count, elapsed


def count_at_once(actions: Sequence[Callable[[], object]], seconds: float) -> tuple[int, float]:
    """Repeat each action in a thread of its own, after once that is not counted.

    Return how often all of them were done, and the seconds that took.
    """
    for action in actions:
        action()
    ready = threading.Barrier(len(actions) + 1)
    counts: list[int] = []
    failures: list[BaseException] = []

    def work(action: Callable[[], object]) -> None:
        count = 0
        ready.wait()
        end = time.perf_counter() + seconds
        try:
            while time.perf_counter() < end:
                action()
                count += 1
        except Exception as error:
            failures.append(error)
        counts.append(count)

    threads = [threading.Thread(target=work, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - start
    if failures:
        raise failures[0]
    return sum(counts), elapsed


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
