"""Measure a library that blocks, with a thread for each line or call.

What moves so many bytes returns the seconds that takes, and what lasts so many seconds how many
there were, and the seconds that took. What a client cannot measure it has no method for, and its
variant leaves that out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from statistics import median
from typing import Any, NamedTuple

from . import words
from .words import CHUNK, HEAD, MEMORY, PEAK, SMALL, WINDOW, Line, Open, Talk, talk

# Lines and connections that come before those whose memory counts: the first touch what all share.
FIRST = 20

# Bytes that a process may still change by once it counts as settled, and how often it is asked.
SETTLED, LOOKS = 64 * 1024, 200

# Turns in which clients are compared.
TURNS = 24

# Part of a measurement that goes before it, where the one before left much to clear up.
WARM_UP = 0.25


class Tail(NamedTuple):
    """Hold how long small messages took under bulk, in seconds, and bytes of bulk per second.

    The ``window`` is what of the bulk might be unread, in bytes, when it ended; 0 if not known.
    """

    p50: float
    p99: float
    rate: float
    window: int


class Dialled(NamedTuple):
    """Hold one more connection."""

    open: Open
    close: Callable[[], object]


Dial = Callable[[], Dialled]


class Blocking:
    """Measure with lines.

    Args:
        dial: makes one more connection; without it each line is a connection of its own.
        hold: makes one to a server that serves its first line and only holds the others; without
            it an idle line is served as any other.
        begin: opens a line with what it sends first, where that is one call.

    Attributes:
        most_idle: lines that may be open and idle at once.
        compared: clients of the same processes that have what is measured, and that do not.
        cuttable: makes a connection that outlives its sockets; gives what opens a line of it, and
            what resets its socket.
    """

    compared: tuple[Sequence[Blocking], Sequence[Blocking]]
    cuttable: Callable[[], AbstractContextManager[tuple[Open, Callable[[], object]]]]

    def __init__(
        self,
        opener: Open,
        dial: Dial | None = None,
        hold: Dial | None = None,
        begin: Callable[[bytes], Line] | None = None,
    ) -> None:
        self._open = opener
        self._begin = begin or self._open_and_send
        self._dial = dial or (lambda: Dialled(opener, int))
        self._hold = hold or (lambda: Dialled(opener, int))
        self.most_idle = 10_000 if hold else 1_000

    def upload(self, size: int) -> float:
        """Send ``size`` bytes on a new line, until their count has come."""
        with closing(self._open()) as line:
            return spent(line, words.upload(size))

    def download(self, size: int) -> float:
        """Have ``size`` bytes sent on a new line, until the last has come."""
        with closing(self._open()) as line:
            return spent(line, words.download(size))

    def echo(self, size: int) -> float:
        """Have ``size`` bytes sent back on a new line, none waited for."""
        with closing(self._open()) as line:
            exchanging(line, 1)()
            return both_ways(line, words.pieces(size), words.take(size))

    def pings(self, size: int, lines: int, seconds: float) -> tuple[int, float]:
        """Exchange messages of ``size`` bytes on all lines at once, each after one not counted."""
        return exchange_on_all([self._open() for _ in range(lines)], size, seconds)

    def opens(self, size: int, seconds: float) -> tuple[int, float]:
        """Open a line, exchange ``size`` bytes and close it, one line after the other."""
        message = words.echo_of(size)

        def one() -> None:
            side = words.exchange(message)
            first = next(side)
            assert first is not None
            with closing(self._begin(first)) as line:
                talk(line, side)

        took = repeated(one, seconds)
        return len(took), sum(took)

    def _open_and_send(self, first: bytes) -> Line:
        line = self._open()
        line.send(first)
        return line

    def tail(self, size: int, bulk: int) -> Tail:
        """Exchange messages of ``size`` bytes on one line while another uploads ``bulk`` bytes."""
        times: list[float] = []
        with closing(self._open()) as small, closing(self._open()) as large:
            ping = exchanging(small, size)
            ping()
            with ThreadPoolExecutor(1) as pool:
                uploaded = pool.submit(spent, large, words.upload(bulk))
                while not times or not uploaded.done():
                    times += repeated(ping, 0)
            large.send(HEAD.pack(WINDOW, 0))
            window = talk(large, words.number(WINDOW))
        times.sort()
        rate = bulk / uploaded.result()
        return Tail(times[len(times) // 2], times[len(times) * 99 // 100], rate, window)

    def beside(self, rate: Callable[[Any], float]) -> float:
        """Return a rate, to that of the same in the same processes without what is measured."""
        clients, others = self.compared
        order = [*others, *clients]
        rates: dict[Blocking, list[float]] = {each: [] for each in order}
        for turn in range(TURNS):
            first = turn % len(order)
            for each in (*order[first:], *order[:first]):
                rates[each].append(rate(each))
        one, other = (
            median([value for each in group for value in rates[each]])
            for group in (clients, others)
        )
        return one / other

    def across_cuts(self, size: int, seconds: float) -> float:
        """Return the median of the seconds of an exchange that begins with a cut."""
        with self.cuttable() as (opener, cut), closing(opener()) as line:
            exchange = exchanging(line, size)
            exchange()

            def across() -> None:
                cut()
                exchange()

            return median(repeated(across, seconds))

    def more_memory(self, bulk: int) -> tuple[float, float]:
        """Return how much more memory server and client take at most for bulk each way.

        More, that is, than plain connections of the same processes, which are new ones, and both
        have moved the same before, so that what they share is there.
        """
        (client, second), (first, last) = self.compared

        def move(each: Blocking) -> None:
            each.upload(bulk)
            each.download(bulk)

        def grows(each: Blocking) -> list[int]:
            with closing(each._open()) as memory, closing(each._open()) as peak:
                before = _settled(memory)
                _asked(peak, PEAK)  # both begin anew, with what is in memory now
                words.peak()
                move(each)
                most = _asked(peak, PEAK), words.peak()
            return [high - low for high, low in zip(most, before, strict=True)]

        move(first)
        move(client)
        without, with_it = grows(last), grows(second)
        return with_it[0] - without[0], with_it[1] - without[1]

    def connections(self, size: int, count: int, seconds: float) -> tuple[int, float]:
        """Do what ``pings`` does with one line on each of ``count`` new connections."""
        dialled = [self._dial() for _ in range(count)]
        try:
            return exchange_on_all([each.open() for each in dialled], size, seconds)
        finally:
            for each in dialled:
                each.close()

    def idle_lines(self, count: int) -> tuple[float, float]:
        """Open lines that do nothing; return by how much each makes server and client grow.

        The processes are new ones.
        """
        with closing(self._hold()) as held:
            return _grown(held.open(), held.open, count)

    def idle_connections(self, count: int) -> tuple[float, float]:
        """Do the same with connections, on each of which there was one exchange."""

        def connect() -> Dialled:
            dialled = self._dial()
            line = dialled.open()
            exchanging(line, CHUNK // 64)()
            line.close()
            return dialled

        return _grown(self._open(), connect, count)

    def pings_among_idle(self, size: int, count: int, seconds: float) -> float:
        """Return the rate of ``pings`` on one line among ``count`` idle ones, to that among none.

        The processes are new ones.
        """
        with closing(self._hold()) as held:
            ping = exchanging(held.open(), size)

            def rate() -> float:
                count_at_once([ping], WARM_UP * seconds)
                exchanged, elapsed = count_at_once([ping], seconds)
                return exchanged / elapsed

            among_none = rate()
            idle = [held.open() for _ in range(count)]
            among_idle = rate()
            assert len(idle) == count  # they lived until now
            return among_idle / among_none


class LineCalls:
    """Measure remote calls with lines that keep messages apart, one call at a time on each.

    Calls carry ``SMALL`` bytes and return them, but for those of ``echoes``.
    """

    def __init__(self, opener: Open) -> None:
        self._open = opener

    def rpcs(self, at_once: int, seconds: float) -> tuple[int, float]:
        """Make calls, so many at a time, each line of them after one not counted."""
        return exchange_on_all([self._open() for _ in range(at_once)], SMALL, seconds)

    def streamed(self, count: int) -> float:
        """Have messages echoed on one stream, none waited for; return the seconds for all."""
        message = words.echo_of(SMALL)
        with closing(self._open()) as line:
            return both_ways(line, [message] * count, words.take_all(message, count))

    def subscribed(self, count: int) -> float:
        """Have messages sent; return the seconds until the last has come."""
        with closing(self._open()) as line:
            return spent(line, words.subscribe(count))

    def echoes(self, size: int, seconds: float) -> tuple[int, float]:
        """Have messages of ``size`` bytes echoed on one stream, one after the other."""
        with closing(self._open()) as line:
            return count_at_once([exchanging(line, size)], seconds)


def spent(line: Line, side: Talk[None]) -> float:
    """Return the seconds that one side takes."""
    start = time.perf_counter()
    talk(line, side)
    return time.perf_counter() - start


def repeated(action: Callable[[], object], seconds: float) -> list[float]:
    """Repeat an action for so many seconds, at least once; return the seconds that each took."""
    took: list[float] = []
    now = time.perf_counter()
    stop = now + seconds
    while now < stop or not took:
        action()
        before, now = now, time.perf_counter()
        took.append(now - before)
    return took


def median_us(action: Callable[[], object], seconds: float) -> float:
    """Return the median of the microseconds that an action takes, after once not counted."""
    action()
    return median(repeated(action, seconds)) * 1e6


def exchanging(line: Line, size: int) -> Callable[[], None]:
    """Return what exchanges a message of ``size`` bytes."""
    message = words.echo_of(size)
    return lambda: talk(line, words.exchange(message))


def exchange_on_all(lines: Sequence[Line], size: int, seconds: float) -> tuple[int, float]:
    """Exchange messages of ``size`` bytes on all lines at once, and close them."""
    counted = count_at_once([exchanging(line, size) for line in lines], seconds)
    for line in lines:
        line.close()
    return counted


def both_ways(line: Line, chunks: Sequence[bytes], receive: Talk[None]) -> float:
    """Send from another thread, and return the seconds until everything is back."""
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(talk, line, (chunk for chunk in chunks))
        try:
            elapsed = spent(line, receive)
        except BaseException:
            line.close()  # which ends who sends, too
            raise
        sent.result()
    return elapsed


def count_at_once(actions: Sequence[Callable[[], object]], seconds: float) -> tuple[int, float]:
    """Repeat each action in a thread of its own, after once that is not counted.

    Return how often all of them were done, and the seconds that took.
    """
    for action in actions:
        action()
    ready = threading.Barrier(len(actions) + 1)

    def work(action: Callable[[], object]) -> int:
        ready.wait()
        return len(repeated(action, seconds))

    with ThreadPoolExecutor(len(actions)) as pool:
        working = [pool.submit(work, action) for action in actions]
        ready.wait()
        start = time.perf_counter()
        count = sum(each.result() for each in working)
        return count, time.perf_counter() - start


def _grown(control: Line, opener: Callable[[], object], count: int) -> tuple[float, float]:
    """Return by what both processes grow for each that is opened, which are left open."""

    held = [opener() for _ in range(FIRST)]
    before = _settled(control)
    held += [opener() for _ in range(count)]
    after = _settled(control)
    assert len(held) == FIRST + count  # they lived until now
    return (after[0] - before[0]) / count, (after[1] - before[1]) / count


def _settled(control: Line) -> tuple[int, int]:
    """Return the memory of the server and of this process, in bytes, once it stays as it is."""
    last = _asked(control, MEMORY), words.memory()
    for _ in range(LOOKS):
        now = _asked(control, MEMORY), words.memory()
        if all(abs(one - other) <= SETTLED for one, other in zip(now, last, strict=True)):
            return now
        last = now
    raise RuntimeError("the memory of the processes does not settle")


def _asked(control: Line, what: bytes) -> int:
    control.send(HEAD.pack(what, 0))
    return talk(control, words.number(what))
