"""Do everything at once, from many threads, with the interpreter switching as often as it can.

The four wires over a socketpair and a WebSocket; the other carriers in one wire, ``wsmux``: each
run takes a second.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator

import pytest

import wsmux

from . import scripted
from .carriers import SOME, Carrier
from .conftest import Join, Spawn
from .outcomes import check_read_of_reset
from .scripted import WAIT, call, command, digest, pattern
from .waiting import wait_for

KIB = 1024


@pytest.fixture(params=SOME, ids=str)
def carrier(request: pytest.FixtureRequest) -> Carrier:
    chosen: Carrier = request.param
    return chosen


@pytest.fixture
def restless() -> Iterator[None]:
    """Have the interpreter switch threads after every microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def one_operation(connection: wsmux.Connection, chance: random.Random) -> None:
    """Do one thing with one stream, and check every byte of it."""
    size, seed = chance.randrange(40 * KIB), chance.randrange(1000)
    match chance.randrange(8):
        case 0:
            assert call(connection, "source", size, seed) == pattern(size, seed)
        case 1:
            with connection.open_stream(WAIT) as stream:
                stream.timeout = WAIT
                stream.write(command("sink"))
                for start in range(0, size, 1000):
                    stream.write(pattern(size, seed)[start : start + 1000])
                stream.close_write()
                assert stream.read().decode() == digest(pattern(size, seed))
        case 2:
            with connection.open_stream(WAIT) as stream:
                stream.timeout = WAIT
                stream.write(command("reset", 64 + seed))
                check_read_of_reset(stream, code=64 + seed)
        case 3:
            stream = connection.open_stream(WAIT)
            stream.write(command("source", size, seed))
            stream.reset(99)
        case 4:
            connection.open_stream(WAIT).write(command("sink"))
        case 5:
            connection.ping(WAIT)
        case 6:
            assert call(connection, "nest", 2) == b"..."
        case 7:
            with connection.open_stream(WAIT) as stream:
                stream.timeout = WAIT
                stream.write(command("echo") + b"x")
                assert stream.read(1) == b"x"
                stream.write(pattern(size, seed))
                stream.close_write()
                assert stream.read() == pattern(size, seed)


def storm(join_ends: Join, spawn: Spawn, threads: int, operations: int) -> None:
    options = {"stream_handler": scripted.handle, "workers": 256}
    ends = join_ends(client=options, server=options)
    failed = threading.Event()

    def work(connection: wsmux.Connection, seed: int) -> int:
        chance = random.Random(seed)
        for done in range(operations):
            if failed.is_set():
                return done
            try:
                one_operation(connection, chance)
            except BaseException:
                failed.set()
                raise
        return operations

    futures = [spawn(work, ends[seed % 2], seed) for seed in range(threads)]
    assert [future.result(10 * WAIT) for future in futures] == [operations] * threads
    wait_for(lambda: all(left(end.stats()) == (0, 0, 0, 0, 0, 0) for end in ends))
    for one, other in (ends, ends[::-1]):  # a reset may be under way to who knows nothing of it yet
        wait_for(lambda: one.stats().streams_opened == _taken(other.stats()))  # noqa: B023


def left(stats: wsmux.ConnectionStats) -> tuple[int, ...]:
    """Return what must all come to nothing once every stream has ended."""
    return (
        stats.streams,
        stats.unread_bytes,
        stats.queued_bytes,
        stats.unaccepted,
        stats.waiting_readers,
        stats.waiting_writers,
    )


def _taken(stats: wsmux.ConnectionStats) -> int:
    return stats.streams_accepted + stats.streams_refused


@pytest.mark.usefixtures("restless")
def test_everything_at_once_stays_exact(join_ends: Join, spawn: Spawn) -> None:
    storm(join_ends, spawn, threads=32, operations=64)


@pytest.mark.long
@pytest.mark.hang_bound(600)
@pytest.mark.usefixtures("restless")
def test_everything_at_once_stays_exact_for_long(join_ends: Join, spawn: Spawn) -> None:
    storm(join_ends, spawn, threads=32, operations=1000)
