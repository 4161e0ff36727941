"""Connections that share an I/O thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

import wsmux
from wsmux.transport import shared_io

from ..helpers.connections import Spawn
from ..helpers.inside import multiplexer_of, on_poll
from ..helpers.joined_streams import read_exactly
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for

Pair = tuple[wsmux.Connection, wsmux.Connection]


@pytest.fixture(autouse=True)
def all_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_io, "OWN", 0)


@pytest.fixture
def pairs() -> Iterator[Callable[[int], list[Pair]]]:
    with ExitStack() as stack:

        def make(count: int) -> list[Pair]:
            made = [wsmux.pair() for _ in range(count)]
            for each in made:
                for end in each:
                    stack.callback(end.abort)
            return made

        yield make


def ident(connection: wsmux.Connection) -> int:
    return multiplexer_of(connection).io_ident


def echoes(pair: Pair) -> None:
    ours, theirs = pair
    with ours.open_stream(WAIT) as stream:
        stream.timeout = WAIT
        stream.write(b"x" * 1000)
        with theirs.accept_stream(WAIT) as accepted:
            accepted.write(read_exactly(accepted, 1000))
        assert read_exactly(stream, 1000) == b"x" * 1000


def test_fifty_pairs_need_one_thread(pairs: Callable[[int], list[Pair]], spawn: Spawn) -> None:
    before = threading.active_count()
    made = pairs(50)
    assert len({ident(end) for pair in made for end in pair}) == 1
    assert threading.active_count() <= before + 1
    for echoing in [spawn(echoes, pair) for pair in made]:
        echoing.result(WAIT)
    for ours, theirs in made:
        ours.close(WAIT)
        assert theirs.wait_closed(WAIT)


def test_above_a_number_the_next_ones_share(
    pairs: Callable[[int], list[Pair]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_io, "OWN", 4)
    made = pairs(4)
    idents = [ident(end) for pair in made for end in pair]
    assert len(set(idents)) == 5
    assert idents.count(idents[-1]) == 4
    for pair in made:
        echoes(pair)
    for end in made[0]:  # makes room for two that have a thread again
        end.close(WAIT)
    (again,) = pairs(1)
    assert ident(again[0]) != idents[-1] != ident(again[1])


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), SystemExit(1)])
def test_a_defect_ends_one_connection_alone(
    error: BaseException,
    pairs: Callable[[int], list[Pair]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: object) -> None:
        raise error

    first, second = pairs(2)
    echoes(first)
    monkeypatch.setattr(multiplexer_of(first[1]).protocol, "receive_data", fail)
    with suppress(wsmux.ConnectionClosed):  # the opening may have been sent before
        first[0].open_stream(WAIT).write(b"x")
    assert first[1].wait_closed(WAIT)
    with pytest.raises(wsmux.ConnectionClosedError, match="internal error"):
        first[1].open_stream(WAIT)
    echoes(second)
    messages = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert messages == [f"the I/O thread of {first[1].name} failed; the connection ends"]


def test_a_close_in_that_thread_does_not_wait_for_itself(
    pairs: Callable[[int], list[Pair]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a finalizer, which the garbage collector may run there."""
    (ours, theirs), other = pairs(2)
    took: list[float] = []

    def close(transport: object) -> None:
        if transport is multiplexer_of(other[0]).transport and not took:
            start = time.monotonic()
            ours.close(WAIT)
            took.append(time.monotonic() - start)

    with monkeypatch.context() as patch:
        on_poll(patch, close)
        echoes(other)
        wait_for(lambda: took)
    assert took[0] < WAIT / 2
    assert ours.wait_closed(WAIT)
    assert theirs.wait_closed(WAIT)
    assert ours.close_code == 1000
    echoes(other)


def test_one_that_is_flooded_leaves_time_to_the_others(
    pairs: Callable[[int], list[Pair]], spawn: Spawn
) -> None:
    flooded, quiet = pairs(2)
    with flooded[0].open_stream(WAIT) as stream:
        stream.write(b"begin")
        accepted = flooded[1].accept_stream(WAIT)
        stop = threading.Event()

        def flood() -> int:
            count = 0
            while not stop.is_set():
                stream.write(bytes(100_000))
                count += 1
            return count

        def drain() -> None:
            while accepted.read(100_000):
                pass

        flooding, draining = spawn(flood), spawn(drain)
        for _ in range(50):
            echoes(quiet)
        stop.set()
        assert flooding.result(WAIT)
        stream.close_write()
        draining.result(WAIT)
        accepted.close()


def test_what_is_recorded_for_a_function_has_a_thread_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The function may take its time, so nobody else may wait for it."""
    told, go_on = threading.Event(), threading.Event()

    def deliver(_: str) -> None:
        told.set()
        go_on.wait(WAIT)

    config = wsmux.Config(recording=wsmux.Recording(to=deliver))
    recorded, theirs = wsmux.pair(config=config)
    plain = wsmux.pair()
    with plain[0], plain[1]:
        assert ident(plain[0]) not in (ident(recorded), ident(theirs))
        recorded.abort()
        assert told.wait(WAIT)
        echoes(plain)
        go_on.set()
        theirs.abort()
    assert recorded.wait_closed(WAIT)
    assert theirs.wait_closed(WAIT)


@pytest.mark.parametrize("own", [0, 64])
def test_a_log_that_fails_keeps_no_connection_from_its_end(
    own: int, pairs: Callable[[int], list[Pair]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fails(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            raise ZeroDivisionError

    def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(shared_io, "OWN", own)
    first, second = pairs(2)
    monkeypatch.setattr(multiplexer_of(first[1]).protocol, "receive_data", fail)
    log, handler = logging.getLogger("wsmux"), Fails()
    level = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        with suppress(wsmux.ConnectionClosed):
            first[0].open_stream(WAIT).write(b"x")
        assert first[1].wait_closed(WAIT)
        with pytest.raises(wsmux.ConnectionClosedError, match="internal error"):
            first[1].accept_stream(WAIT)
        echoes(second)
        for end in (*first, *second):
            end.abort()
            start = time.monotonic()
            end.close(WAIT)
            assert time.monotonic() - start < WAIT / 2
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
