"""Do everything at once, from many threads, with the interpreter switching as often as it can.

The four wires over a socketpair and a WebSocket; the other carriers in one wire, ``wsmux``: each
run takes a second.
"""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

import wsmux
from wsmux.testing import LockOrder, restless

from ..helpers import scripted
from ..helpers.carriers import SOME, Carrier
from ..helpers.connections import Join, Spawn
from ..helpers.inside import forget_process_memory
from ..helpers.js_ws import short_js_ws_close as short_js_ws_close
from ..helpers.scripted import WAIT, call, command, digest, pattern
from ..helpers.stream_outcomes import check_read_of_reset
from ..helpers.waiting import wait_for

KIB = 1024

# Seconds until a storm is given up.
PATIENCE = 1500.0

# Nobody means harm with so many resets.
CONFIG = wsmux.Config(max_resets=10**6)


# Those of a WebSocket have all that the others have.
CARRIERS = [
    each if str(each).startswith("ws") else pytest.param(each, marks=pytest.mark.long)
    for each in SOME
]


@pytest.fixture(params=CARRIERS, ids=str)
def carrier(request: pytest.FixtureRequest) -> Carrier:
    chosen: Carrier = request.param
    return chosen


class Hot:
    """A stream that all threads do everything to at once, in turn with its successors."""

    # What its calls may end with, whatever the others do meanwhile.
    ERRORS = (wsmux.ConcurrencyError, wsmux.StreamError, TimeoutError, ValueError)

    def __init__(self, connection: wsmux.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._stream: wsmux.Stream | None = None
        self.done: Counter[str] = Counter()

    def _current(self) -> wsmux.Stream:
        with self._lock:
            stream = self._stream
        if stream is not None and not stream.closed:
            return stream
        made = self._connection.open_stream(WAIT)
        made.timeout = 0.01
        with self._lock:
            before, self._stream = self._stream, made
        if before is not None:
            before.reset()
        return made

    def act(self, chance: random.Random) -> None:
        stream = self._current()
        name = chance.choice(
            ["write"] * 4 + ["read"] * 4 + ["half", "close_read", "reset", "close"]
        )
        try:
            match name:
                case "write":
                    stream.write(command("echo") + pattern(chance.randrange(4 * KIB), 1))
                case "read":
                    stream.read(chance.randrange(1, 4 * KIB))
                case "half":
                    stream.close_write()
                case "close_read":
                    stream.close_read()
                case "reset":
                    stream.reset(64 + chance.randrange(5))
                case "close":
                    stream.close()
        except self.ERRORS as error:
            name += f" {type(error).__name__}"
        self.done[name] += 1

    def close(self) -> None:
        if self._stream is not None:
            self._stream.reset()


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


def storm(
    join_ends: Join, spawn: Spawn, threads: int, operations: int, heat: float = 0.0
) -> tuple[Hot, Hot]:
    """Have threads do so many operations each; ``heat`` is the part of them on shared streams."""
    options = {"stream_handler": scripted.handle, "workers": 256, "config": CONFIG}
    ends = join_ends(client=options, server=options)
    hot = Hot(ends.client), Hot(ends.server)
    failed = threading.Event()

    def work(side: int, seed: int) -> int:
        chance = random.Random(seed)
        for done in range(operations):
            if failed.is_set():
                return done
            try:
                if chance.random() < heat:
                    hot[side].act(chance)
                else:
                    one_operation(ends[side], chance)
            except BaseException:
                failed.set()
                raise
        return operations

    futures = [spawn(work, seed % 2, seed) for seed in range(threads)]
    assert [future.result(PATIENCE) for future in futures] == [operations] * threads
    for stream in hot:
        stream.close()
    wait_for(lambda: all(left(end.stats()) == (0, 0, 0, 0, 0, 0) for end in ends))
    for one, other in (ends, ends[::-1]):  # a reset may be under way to who knows nothing of it yet
        wait_for(lambda: one.stats().streams_opened == _taken(other.stats()))  # noqa: B023
    return hot


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
    storm(join_ends, spawn, threads=32, operations=32)


@pytest.mark.long
@pytest.mark.hang_bound(600)
@pytest.mark.usefixtures("restless")
def test_everything_at_once_stays_exact_for_long(join_ends: Join, spawn: Spawn) -> None:
    storm(join_ends, spawn, threads=32, operations=1000)


def everything(
    join_ends: Join, spawn: Spawn, threads: int, operations: int, odds: float
) -> tuple[LockOrder, tuple[Hot, Hot]]:
    """Have a storm half of which is on two streams, with the locks watched, in a restless time."""
    with LockOrder() as order, restless(odds=odds, seed=7):
        forget_process_memory()  # made with the module, before anybody watched
        hot = storm(join_ends, spawn, threads, operations, heat=0.5)
    return order, hot


ON_EVERY_WIRE = pytest.mark.parametrize(
    "carrier",
    [
        carrier if carrier.protocol == "wsmux" else pytest.param(carrier, marks=pytest.mark.wide)
        for carrier in SOME
        if carrier.name == "socketpair"
    ],
    ids=str,
)
ON_WEBSOCKETS = pytest.mark.parametrize(
    "carrier", [carrier for carrier in SOME if carrier.name == "ws"], ids=str
)


@ON_EVERY_WIRE
def test_64_threads_take_their_locks_in_one_order(join_ends: Join, spawn: Spawn) -> None:
    order, hot = everything(join_ends, spawn, threads=64, operations=4, odds=0.01)
    assert order.acquisitions > 500
    assert sum((one.done for one in hot), Counter()).total() > 64


@pytest.mark.long
@pytest.mark.hang_bound(1800)
@ON_WEBSOCKETS
def test_64_threads_do_100_000_operations(
    join_ends: Join, spawn: Spawn, capsys: pytest.CaptureFixture[str]
) -> None:
    order, hot = everything(join_ends, spawn, threads=64, operations=1563, odds=0.001)
    with capsys.disabled():
        print(f"\n{order.acquisitions} acquisitions, {order.edges.keys()}")  # noqa: T201
        print(sum((one.done for one in hot), Counter()))  # noqa: T201
