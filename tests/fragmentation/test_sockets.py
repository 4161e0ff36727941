"""Cut conversations of real connections, their handshake included, behind bytes drawn by a seed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import wsmux
from wsmux.testing import Counters, FaultProxy, Faults

from ..helpers.scripted import pattern
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for
from ..helpers.wires import NAMES, wire_of

# Seconds from a cut to the last typed error.
SOON = 1.0

CONFIG = wsmux.Config(receive_window=64 * 1024, close_timeout=0.5)

ON_EVERY_WIRE = pytest.mark.parametrize("protocol", NAMES)


class Stage:
    """Serve a conversation behind a proxy, and keep what every reader got.

    Attributes:
        got: the bytes that each connection has read from each stream.
        whole: the streams whose end it has read.
        errors: what ended the reads and writes of handlers.
    """

    def __init__(self, protocol: str, proxy: FaultProxy, server: wsmux.Server) -> None:
        self.protocol = protocol
        self.proxy = proxy
        self.server = server
        self.forget()

    def forget(self) -> None:
        self.got: defaultdict[tuple[str, int], bytes] = defaultdict(bytes)
        self.whole: set[tuple[str, int]] = set()
        self.errors: list[BaseException] = []
        self.handlers = 0

    def read(self, stream: wsmux.Stream, count: int = -1) -> None:
        place = (stream.connection.name, stream.id)
        while count and (chunk := stream.read(count if count > 0 else 1000)):
            self.got[place] += chunk
            count -= len(chunk) if count > 0 else 0
        if count:
            self.whole.add(place)

    def echo(self, stream: wsmux.Stream) -> None:
        """Send back what comes, and record both; the handler of both sides."""
        place = (stream.connection.name, stream.id)
        self.handlers += 1
        stream.timeout = WAIT
        try:
            while chunk := stream.read(1000):
                self.got[place] += chunk
                stream.write(chunk)
            self.whole.add(place)
        except (wsmux.WsmuxError, ValueError) as error:
            self.errors.append(error)
        finally:
            self.handlers -= 1

    def talk(self) -> None:
        """Act as the client: everything once, in an order that depends on nothing."""
        url = self.proxy.url
        with wsmux.connect(
            url, protocol=self.protocol, config=CONFIG, stream_handler=self.echo, timeout=WAIT
        ) as client:
            with client.open_stream(WAIT) as one:
                one.timeout = WAIT
                one.write(pattern(900, one.id))
                self.read(one, 900)
                one.close_write()
                self.read(one)
            client.ping(WAIT)
            two = client.open_stream(WAIT)
            two.timeout = WAIT
            two.write(pattern(50, two.id))
            self.read(two, 50)
            two.reset(64 if wire_of(client).resets else 0)
            with client.open_stream(WAIT) as three:
                three.timeout = WAIT
                three.write(pattern(3000, three.id))
                three.close_write()
                self.read(three)
            client.go_away()
            client.close(timeout=WAIT)


def converse(connection: wsmux.Connection) -> None:
    """Act as the server beside its streams: open one, ping, and wait."""
    with suppress(wsmux.WsmuxError), connection.open_stream(WAIT) as stream:
        stream.timeout = WAIT
        stream.write(pattern(400, stream.id))
        stream.close_write()
        stream.read()
        connection.ping(WAIT)
    connection.wait_closed(WAIT)


@contextmanager
def staged(protocol: str, **faults: Faults) -> Iterator[Stage]:
    stages: list[Stage] = []

    def handle(stream: wsmux.Stream) -> None:
        stages[0].echo(stream)

    with (
        wsmux.serve(converse, protocols=[protocol], stream_handler=handle, config=CONFIG) as server,
        FaultProxy(server.port, **faults) as proxy,
    ):
        stages.append(Stage(protocol, proxy, server))
        yield stages[0]


def run(stage: Stage) -> tuple[BaseException | None, float]:
    """Have one conversation; return what ended it, and how long after the cut that took."""
    stage.forget()
    ended: Future[None] = Future()

    def talk() -> None:
        try:
            ended.set_result(stage.talk())
        except BaseException as error:
            ended.set_exception(error)

    thread = threading.Thread(target=talk, name="talker")
    thread.start()
    wait_for(lambda: ended.done() or not stage.proxy.cutting)
    cut_at = time.monotonic()
    error = ended.exception(WAIT)
    wait_for(lambda: stage.handlers == 0 and not stage.server.connections)
    seconds = time.monotonic() - cut_at
    thread.join(WAIT)
    wait_for(lambda: stage.proxy.connections == 0)
    return error, seconds


def check(stage: Stage, error: BaseException | None) -> None:
    """Make sure that the end was typed, and all that was read a prefix of what was sent."""
    typed: tuple[Any, ...] = (wsmux.ConnectionClosed, wsmux.HandshakeError)
    if isinstance(error, ConnectionError) and not stage.got:
        return  # cut in the handshake: no connection came about, as ``connect`` documents
    assert error is None or isinstance(error, typed), repr(error)
    # Behind the script's own reset, a stream fails too; a wire without resets shows a clean end.
    streamwise = (*typed, wsmux.StreamError, ValueError)
    assert all(isinstance(error, streamwise) for error in stage.errors), stage.errors
    sizes = {0: 900, 1: 50, 2: 3000}
    ids = wire_ids(stage.protocol)
    for (name, stream), data in stage.got.items():
        size = sizes[ids.index(stream)] if stream in ids else 400
        assert pattern(size, stream).startswith(data), (name, stream)
        if (name, stream) in stage.whole and stream != ids[1]:
            assert len(data) == size, (name, stream)


def wire_ids(protocol: str) -> list[int]:
    first = 1 if protocol == "yamux" else 0
    return [first, first + 2, first + 4]


def measure(stage: Stage) -> dict[str, Counters]:
    """Have a conversation that nothing disturbs; return what went each way."""
    error, _ = run(stage)
    assert error is None
    check(stage, error)
    ids = wire_ids(stage.protocol)
    read = Counter(stream for _, stream in stage.whole)
    assert (read[ids[0]], read[ids[2]]) == (2, 2)  # by both sides
    return {way: stage.proxy.counters(way) for way in ("up", "down")}


def cut(protocol: str, count: int, seed: int) -> float:
    """Cut so many conversations somewhere; return the longest time from a cut to its errors."""
    chance, slowest = random.Random(f"{protocol} {seed}"), 0.0
    with staged(protocol) as stage:
        totals = measure(stage)
        for _ in range(count):
            way, how = chance.choice(["up", "down"]), chance.choice(["fin", "rst"])
            place = chance.randint(1, totals[way].forwarded)
            stage.proxy.cut_after(place, way=way, how=how)  # type: ignore[arg-type]
            error, seconds = run(stage)
            stage.proxy.cut_after(way=way)  # one that is left over, if there were fewer bytes
            check(stage, error)
            slowest = max(slowest, seconds)
    return slowest


@ON_EVERY_WIRE
def test_a_cut_anywhere_ends_typed_and_leaves_a_prefix(protocol: str) -> None:
    cut(protocol, 8, seed=1)


@pytest.mark.long
@pytest.mark.hang_bound(600)
@ON_EVERY_WIRE
def test_many_cuts_end_typed_in_time_and_leave_a_prefix(
    protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slowest = cut(protocol, 125, seed=2)
    with capsys.disabled():
        print(f"\n{protocol}: 125 cuts, the slowest end {slowest:.3f} s after")  # noqa: T201
    assert slowest <= SOON


@pytest.mark.parametrize(
    "faults",
    [Faults(slice=1), Faults(coalesce=64 * 1024, coalesce_wait=0.005)],
    ids=["one-byte", "gathered"],
)
@ON_EVERY_WIRE
def test_pieces_change_nothing(protocol: str, faults: Faults) -> None:
    with staged(protocol, up=faults, down=faults) as stage:
        measure(stage)
