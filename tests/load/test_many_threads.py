"""Use one connection from 64 threads at once, in all ways in which streams begin and end.

What a Python without the GIL allows shows here first: run it with one, too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from zlib import crc32

import pytest

import wsmux

from ..helpers.fixtures import Tell
from ..helpers.inside import multiplexer_of
from ..helpers.joined_streams import read_exactly
from ..helpers.waiting import wait_for, wait_for_value
from ..helpers.wires import NAMES, WIRES

CALLERS = 64
ACCEPTORS = 16
OPERATIONS = 100_000

# Seconds: each call is far below it, on a machine that does other work, too.
PATIENCE = 120.0

# More than one frame, and less than a window.
LARGEST = 100_000

# As nobody means harm, no limit of abuse may be reached.
CONFIG = wsmux.Config(
    max_streams=4096,
    max_unaccepted=4096,
    max_pending_opens=4096,
    max_cancelled=10**6,
    max_empty_frames=10**6,
    max_resets=10**6,
    open_timeout=None,
    stream_timeout=PATIENCE,
)

ECHO, TALK, RESET = b"E", b"T", b"R"

# What the stream is for, the bytes that follow, their checksum.
HEAD = 9


def head(kind: bytes, data: bytes) -> bytes:
    return kind + len(data).to_bytes(4, "big") + crc32(data).to_bytes(4, "big")


class Caller:
    """Have one conversation after another, and count what was done."""

    def __init__(self, connection: wsmux.Connection, number: int) -> None:
        self._connection = connection
        self._random = Random(number)
        self._code = 64 + number
        self.operations = 0
        self.had: Counter[str] = Counter()

    def run(self) -> None:
        ways: list[Callable[[wsmux.Stream], None]] = [
            self.echo,
            self.talk,
            self.end_early,
            self.reset,
            self.be_reset,
            self.drop,
        ]
        while self.operations < OPERATIONS / CALLERS:
            way = self._random.choice(ways)
            way(self._connection.open_stream(timeout=PATIENCE))
            self.operations += 1
            self.had[way.__name__] += 1

    def _data(self) -> bytes:
        return self._random.randbytes(self._random.choice((0, 1, 300, 5000, LARGEST)))

    def _write(self, stream: wsmux.Stream, data: bytes) -> None:
        assert stream.write(data) == len(data)
        self.operations += 1

    def _read(self, stream: wsmux.Stream, size: int) -> bytes:
        self.operations += 1
        return read_exactly(stream, size)

    def echo(self, stream: wsmux.Stream) -> None:
        data = self._data()
        with stream:
            self._write(stream, head(ECHO, data))
            self._write(stream, data)
            stream.close_write()
            assert self._read(stream, len(data)) == data
            assert stream.read() == b""
        self.operations += 3

    def talk(self, stream: wsmux.Stream) -> None:
        with stream:
            for _ in range(self._random.randrange(1, 6)):
                data = self._data()
                self._write(stream, head(TALK, data) + data)
                assert self._read(stream, len(data)) == data
        self.operations += 1

    def end_early(self, stream: wsmux.Stream) -> None:
        data = self._data()
        self._write(stream, head(ECHO, data) + data)
        stream.close()
        self.operations += 1

    def reset(self, stream: wsmux.Stream) -> None:
        data = self._data() + b"."
        self._write(stream, (head(ECHO, data) + data)[:-1])
        assert stream.reset(self._code) == self._code
        with pytest.raises(wsmux.StreamReset):
            stream.read(1)
        self.operations += 2

    def be_reset(self, stream: wsmux.Stream) -> None:
        with stream:
            self._write(stream, head(RESET, b"") + self._code.to_bytes(2, "big"))
            if WIRES[self._connection.protocol].resets:
                with pytest.raises(wsmux.StreamReset) as error:
                    stream.read()
                assert error.value.code == self._code
            else:
                assert stream.read() == b""
        self.operations += 2

    def drop(self, stream: wsmux.Stream) -> None:
        data = self._data() + b"."
        self._write(stream, (head(ECHO, data) + data)[:-1])
        self.operations += 1  # the caller's name for it goes as well, and nobody closes it


def answer(stream: wsmux.Stream) -> Iterator[str]:
    """Serve one stream; yield what came of each of its messages."""
    while came := stream.read(1):
        came += read_exactly(stream, HEAD - 1)
        kind, size = came[:1], int.from_bytes(came[1:5], "big")
        if kind == RESET:
            stream.reset(int.from_bytes(read_exactly(stream, 2), "big"))
            yield "reset"
            return
        data = read_exactly(stream, size)
        assert head(kind, data) == came, "other bytes came than were written"
        yield "whole"
        stream.write(data)


def serve(connection: wsmux.Connection, tally: Counter[str]) -> None:
    """Serve streams until the connection ends."""
    for stream in connection:
        tally["streams"] += 1
        with suppress(wsmux.StreamError):  # as its caller wanted
            try:
                with stream:
                    for outcome in answer(stream):
                        tally[outcome] += 1
            except AssertionError as error:  # in the middle of a message, as on ``bymux``
                if str(error) != "the stream ended":
                    raise


def watch(near: wsmux.Connection, far: wsmux.Connection, over: threading.Event) -> None:
    """Look at both ends meanwhile, in every way there is."""
    while not over.wait(0.05):
        near.ping(PATIENCE)
        for end in (near, far):
            repr((end.stats(), end.stream_stats(), end.explain()))


@pytest.mark.long
@pytest.mark.parametrize("protocol", NAMES)
def test_64_threads_do_100_000_things_on_one_connection(protocol: str, tell: Tell) -> None:
    near, far = wsmux.pair(protocol=protocol, config=CONFIG)
    callers = [Caller(near, number) for number in range(CALLERS)]
    tallies: list[Counter[str]] = [Counter() for _ in range(ACCEPTORS)]
    failures: list[BaseException] = []
    over = threading.Event()

    def noted(action: Callable[..., None], *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                action(*arguments)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    calls = [noted(caller.run) for caller in callers]
    serving = [noted(serve, far, tally) for tally in tallies]
    watching = noted(watch, near, far, over)
    with near, far:
        for thread in calls:
            thread.join()
        over.set()
        watching.join()
        assert not failures
        had = sum((caller.had for caller in callers), Counter())
        operations = sum(caller.operations for caller in callers)
        for end in (near, far):
            wait_for(lambda: not end.stats().streams, PATIENCE)  # noqa: B023
            wait_for_value(lambda: multiplexer_of(end).table.unread, 0, PATIENCE)  # noqa: B023
        seen = far.stats()
        assert near.stats().streams_opened == had.total()
        assert seen.streams_accepted + seen.streams_refused == had.total()
        assert seen.unaccepted == seen.queued_bytes == near.stats().queued_bytes == 0
    for thread in serving:
        thread.join()
    assert not failures
    done = sum(tallies, Counter())
    tell(f"{protocol}: {operations} operations, {dict(had)}, of which were served {dict(done)}")
    assert operations >= OPERATIONS
    assert done["streams"] == seen.streams_accepted
    assert done["reset"] == had["be_reset"]
    assert done["whole"] >= had["echo"] + had["talk"]
