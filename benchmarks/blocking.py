"""The client of a library whose calls block: one thread for each line.

The clock of an upload stops when the server's count of the bytes has come, that of a download
when the last byte has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import NamedTuple

from .payload import CHUNK, check_piece, memory, pieces
from .peer import DOWNLOAD, ECHO, HEAD, MEMORY, UPLOAD, WINDOW, Client, Grown, Line, Open, Tail

__all__ = ["Blocking", "Compared", "Dial", "Dialled", "count_at_once", "send_all"]

# Lines and connections that come before those whose memory counts: the first touch what all share.
FIRST = 20

# Bytes that a process may still change by once it counts as settled, and how often it is asked.
SETTLED, LOOKS = 64 * 1024, 200

# Turns in which clients are compared.
TURNS = 24

# Part of a measurement that goes before it, where the one before left much to clear up.
WARM_UP = 0.25


class Dialled(NamedTuple):
    """Hold one more connection."""

    open: Open
    close: Callable[[], object]


Dial = Callable[[], Dialled]


class Compared(NamedTuple):
    """Hold clients of the same processes, that have what is measured and that do not."""

    clients: Sequence[Client]
    others: Sequence[Client]


class Blocking(Client):
    """Measure with lines.

    Args:
        dial: makes one more connection; without it each line is a connection of its own.
        hold: makes one to a server that serves its first line and only holds the others; without
            it an idle line is served as any other.
    """

    compared: Compared | None = None

    def __init__(self, opener: Open, *, dial: Dial | None = None, hold: Dial | None = None) -> None:
        self._open = opener
        self._dial = dial
        self._hold = hold
        if hold:
            self.most_idle = 10_000

    def upload(self, size: int) -> float:
        return self._timed(_upload, size)

    def download(self, size: int) -> float:
        return self._timed(_download, size)

    def echo(self, size: int) -> float:
        return self._timed(_echo, size)

    def _timed(self, move: Callable[[Line, int], float], size: int) -> float:
        line = self._open()
        try:
            return move(line, size)
        finally:
            line.close()

    def pings(self, size: int, lines: int, seconds: float) -> tuple[int, float]:
        return _pings([self._open() for _ in range(lines)], size, seconds)

    def opens(self, size: int, seconds: float) -> tuple[int, float]:
        message = _message(size)
        count = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds or not count:
            line = self._open()
            _exchange(line, message)
            line.close()
            count += 1
        return count, elapsed

    def tail(self, size: int, bulk: int) -> Tail:
        message = _message(size)
        times: list[float] = []
        small, large = self._open(), self._open()
        _exchange(small, message)
        with ThreadPoolExecutor(1) as pool:
            uploaded = pool.submit(_upload, large, bulk)
            while not times or not uploaded.done():
                start = time.perf_counter()
                _exchange(small, message)
                times.append(time.perf_counter() - start)
        elapsed = uploaded.result()
        large.send(HEAD.pack(WINDOW, 0))
        window = _number(large, WINDOW)
        small.close()
        large.close()
        times.sort()
        return Tail(times[len(times) // 2], times[len(times) * 99 // 100], bulk / elapsed, window)

    def beside(self, rate: Callable[[Client], float]) -> float:
        if self.compared is None:
            return super().beside(rate)
        clients, others = self.compared
        order = [*others, *clients]
        rates: dict[Client, list[float]] = {each: [] for each in order}
        for turn in range(TURNS):
            start = turn % len(order)
            for each in (*order[start:], *order[:start]):
                rates[each].append(rate(each))
        first, second = (
            median([value for each in group for value in rates[each]])
            for group in (clients, others)
        )
        return first / second

    def connections(self, size: int, count: int, seconds: float) -> tuple[int, float]:
        if self._dial is None:
            return self.pings(size, count, seconds)
        dialled = [self._dial() for _ in range(count)]
        try:
            return _pings([each.open() for each in dialled], size, seconds)
        finally:
            for each in dialled:
                each.close()

    def idle_lines(self, count: int) -> Grown:
        with self._held() as opener:
            return _grown(opener(), opener, count)

    @contextmanager
    def _held(self) -> Iterator[Open]:
        """Yield what opens lines that may be idle."""
        if self._hold is None:
            yield self._open
            return
        dialled = self._hold()
        try:
            yield dialled.open
        finally:
            dialled.close()

    def idle_connections(self, count: int) -> Grown:
        message = _message(CHUNK // 64)

        def connect() -> object:
            dialled = self._dial() if self._dial else None
            line = dialled.open() if dialled else self._open()
            _exchange(line, message)
            if dialled is None:
                return line
            line.close()
            return dialled

        return _grown(self._open(), connect, count)

    def pings_among_idle(self, size: int, count: int, seconds: float) -> float:
        with self._held() as opener:
            exchange = partial(_exchange, opener(), _message(size))

            def rate() -> float:
                count_at_once([exchange], WARM_UP * seconds)
                exchanged, elapsed = count_at_once([exchange], seconds)
                return exchanged / elapsed

            among_none = rate()
            held = [opener() for _ in range(count)]
            among_idle = rate()
            assert len(held) == count  # they lived until now
            return among_idle / among_none


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


def _message(size: int) -> bytes:
    return ECHO + b"".join(pieces(size - 1))


def _pings(lines: Sequence[Line], size: int, seconds: float) -> tuple[int, float]:
    message = _message(size)
    counted = count_at_once([partial(_exchange, line, message) for line in lines], seconds)
    for line in lines:
        line.close()
    return counted


def _exchange(line: Line, message: bytes) -> None:
    """Send a message and wait until it is back."""
    line.send(message)
    data = line.receive(CHUNK)
    if data != message:
        while len(data) < len(message):
            data += _more(line)
        if data != message:
            raise RuntimeError("the echo is not what was sent")


def _upload(line: Line, size: int) -> float:
    chunks, start = pieces(size), time.perf_counter()
    line.send(HEAD.pack(UPLOAD, size))
    send_all(line, chunks)
    counted = _number(line, UPLOAD)
    elapsed = time.perf_counter() - start
    if counted != size:
        raise RuntimeError(f"the server counted {counted} of {size} bytes")
    return elapsed


def _download(line: Line, size: int) -> float:
    start = time.perf_counter()
    line.send(HEAD.pack(DOWNLOAD, size))
    _take(line, size)
    return time.perf_counter() - start


def _echo(line: Line, size: int) -> float:
    _exchange(line, ECHO)
    with ThreadPoolExecutor(1) as pool:
        chunks, start = pieces(size), time.perf_counter()
        sent = pool.submit(send_all, line, chunks)
        _take(line, size)
        elapsed = time.perf_counter() - start
        sent.result()
    return elapsed


def send_all(line: Line, chunks: Sequence[bytes]) -> None:
    """Send one after the other."""
    send = line.send
    for chunk in chunks:
        send(chunk)


def _take(line: Line, size: int) -> None:
    receive, received = line.receive, 0
    while received < size:
        chunk = receive(CHUNK)
        if not chunk:
            raise RuntimeError(f"{size - received} of {size} bytes did not come")
        received = check_piece(chunk, received)
    if received > size:
        raise RuntimeError(f"{received - size} bytes more than {size} came")


def _number(line: Line, command: bytes) -> int:
    """Receive what the server answers to a command."""
    answer = line.receive(CHUNK)
    while len(answer) < HEAD.size:
        answer += _more(line)
    answered, number = HEAD.unpack(answer)
    if answered != command:
        raise RuntimeError(f"the server answered {answered!r} to {command!r}")
    return int(number)


def _more(line: Line) -> bytes:
    data = line.receive(CHUNK)
    if not data:
        raise RuntimeError("the line ended in the middle of a measurement")
    return data


def _grown(control: Line, opener: Callable[[], object], count: int) -> Grown:
    """Return by what both processes grow for each that is opened, which are left open."""

    def used() -> Grown:
        control.send(HEAD.pack(MEMORY, 0))
        return Grown(_number(control, MEMORY), memory())

    def settled() -> Grown:
        last = used()
        for _ in range(LOOKS):
            now = used()
            if all(abs(one - other) <= SETTLED for one, other in zip(now, last, strict=True)):
                return now
            last = now
        raise RuntimeError("the memory of the processes does not settle")

    held = [opener() for _ in range(FIRST)]
    before = settled()
    held += [opener() for _ in range(count)]
    after = settled()
    assert len(held) == FIRST + count  # they lived until now
    return Grown(
        (after.server - before.server) / count,
        (after.client - before.client) / count,
    )
