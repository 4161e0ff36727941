"""Watch connections for what stands still, mostly with looks at made-up times."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest

import wsmux
from wsmux import Cause, Stall, StallWatch
from wsmux.diagnostics import stall_watch
from wsmux.runtime.logs import MAX_VALUE, PAUSE
from wsmux.runtime.parking import Parker, wake

from ..helpers.connections import Spawn
from ..helpers.inside import multiplexer_of, record_of
from ..helpers.joined_streams import fill, open_pair, read_exactly
from ..helpers.scripted import WAIT
from ..helpers.waiting import wait_for, wait_for_writer

# Longer than any test, so that the thread never looks by itself.
HOUR = 3600.0


class Stuck(NamedTuple):
    """A stream whose writer has used up the credit and tries no more."""

    client: wsmux.Connection
    server: wsmux.Connection
    near: wsmux.Stream
    far: wsmux.Stream
    size: int


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    """Return a stream whose peer does not read; seen from the server it lies unread."""
    client, server = wsmux.pair()
    with client, server:
        near, far = open_pair(client, server)
        size = fill(near)
        wait_for(lambda: record_of(far).buffer.size == size)
        yield Stuck(client, server, near, far, size)


def looking(watch: StallWatch, count: int = 3) -> float:
    """Look so many times, longer apart than may be stood still; return the time of the last."""
    now = time.monotonic()
    for _ in range(count):
        now += 2 * HOUR
        assert watch.look(now)
    return now


def test_a_stall_is_told_once_with_its_sentences(stuck: Stuck) -> None:
    told: list[Stall] = []
    with StallWatch(stuck.server, after=HOUR, tell=told.append) as watch:
        looking(watch)
    [stall] = told
    assert stall.connection is stuck.server
    assert [finding.cause for finding in stall.findings] == [Cause.UNREAD]
    assert str(stall).startswith(f"{stuck.server.name} stalls: {stuck.size} bytes lie unread")
    assert stall.left_out == 0


def test_what_has_not_lasted_is_not_told(stuck: Stuck) -> None:
    told: list[Stall] = []
    with StallWatch(stuck.server, after=HOUR, tell=told.append) as watch:
        now = time.monotonic()
        for part in range(4):
            watch.look(now + part * HOUR / 5)
        assert told == []
        watch.look(now + 2 * HOUR)
        assert len(told) == 1


def test_a_stall_that_comes_again_is_told_again(stuck: Stuck) -> None:
    told: list[Stall] = []
    with StallWatch(stuck.server, after=HOUR, tell=told.append) as watch:
        now = looking(watch)
        read_exactly(stuck.far, stuck.size)
        watch.look(now + 1)
        fill(stuck.near)
        wait_for(lambda: [f.cause for f in stuck.server.explain()] == [Cause.UNREAD])
        for hours in (2, 4, 6):
            watch.look(now + hours * HOUR)
    assert len(told) == 2


def test_a_write_tried_again_and_again_is_one_stall(stuck: Stuck, spawn: Spawn) -> None:
    told: list[Stall] = []
    with StallWatch(stuck.client, after=HOUR, tell=told.append) as watch:
        now = time.monotonic()
        for hours in range(5):
            stuck.near.timeout = WAIT
            writing = spawn(stuck.near.write, b"more")
            wait_for_writer(stuck.client)
            watch.look(now + hours * HOUR)
            wakes: list[Parker] = []
            with multiplexer_of(stuck.client).mutex:  # as if the time were up
                record_of(stuck.near).fail_write(TimeoutError, wakes)
            wake(wakes)
            with pytest.raises(TimeoutError):
                writing.result(WAIT)
            record_of(stuck.near).write_failure = None
    [stall] = told
    assert [finding.cause for finding in stall.findings] == [Cause.NO_CREDIT]


def test_who_waits_for_what_may_come_is_no_stall(spawn: Spawn) -> None:
    told: list[Stall] = []
    client, server = wsmux.pair()
    with client, server:
        near, far = open_pair(client, server)
        reading, accepting = spawn(near.read, 1), spawn(client.accept_stream, WAIT)
        wait_for(lambda: len(client.explain()) == 2)
        with StallWatch([client, server], after=HOUR, tell=told.append) as watch:
            looking(watch)
        far.write(b"x")
        assert reading.result(WAIT) == b"x"
        with server.open_stream(), accepting.result(WAIT):
            pass
    assert told == []


def test_of_many_stalls_on_one_connection_the_first_are_told() -> None:
    told: list[Stall] = []
    config = wsmux.Config(open_timeout=None)
    client, server = wsmux.pair(config=config)
    with client, server:
        streams = [client.open_stream() for _ in range(stall_watch.MAX_FINDINGS + 5)]
        wait_for(lambda: server.stats().unaccepted == len(streams))
        with StallWatch(server, after=HOUR, tell=told.append) as watch:
            looking(watch)
        [stall] = told
        assert len(stall.findings) == stall_watch.MAX_FINDINGS
        assert stall.left_out == 5
        assert str(stall).endswith("; and 5 more like it")


def test_by_default_a_warning_is_logged(stuck: Stuck, caplog: pytest.LogCaptureFixture) -> None:
    with StallWatch(stuck.server, after=HOUR) as watch:
        looking(watch)
    [record] = caplog.records
    assert (record.name, record.levelno) == ("wsmux.watchdog", logging.WARNING)
    assert "nobody is reading it" in record.getMessage()


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what begins a new second of the log; until then all is in one."""
    now = [0.0]
    monkeypatch.setattr(stall_watch, "_warnings", stall_watch._Warnings(lambda: now[0]))

    def advance() -> None:
        now[0] += PAUSE

    return advance


@contextmanager
def many_stuck(count: int) -> Iterator[list[wsmux.Connection]]:
    """Return so many connections with a stream each that nobody accepts."""
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            client, server = wsmux.pair(config=wsmux.Config(open_timeout=None))
            servers.append(stack.enter_context(server))
            stack.enter_context(stack.enter_context(client).open_stream())
        wait_for(lambda: all(server.stats().unaccepted == 1 for server in servers))
        yield servers


def test_each_of_five_stalls_at_once_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with many_stuck(5) as servers, StallWatch(servers, after=HOUR) as watch:
        looking(watch)
        lines = [record.getMessage() for record in caplog.records]
        assert sorted(line.split()[0] for line in lines) == sorted(each.name for each in servers)
        assert all("more like it were left out" not in line for line in lines)


def test_of_a_flood_of_stalls_the_log_gets_so_many_lines_a_second_and_a_count_of_the_rest(
    second: Callable[[], None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall_watch, "MAX_LINES", 3)

    def logged() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return ["stall" if " stalls: " in line else line for line in lines]

    with (
        many_stuck(5) as servers,
        StallWatch(servers, after=HOUR) as one,
        StallWatch(servers, after=HOUR) as other,
    ):
        looking(one)
        assert logged() == ["stall"] * 3 + [
            "2 more stalls were found and are not logged one by one"
        ]
        looking(other)
        assert logged() == []
        second()
        looking(one)
        assert logged() == ["5 more stalls were found and are not logged one by one"]


def test_a_logged_stall_has_each_of_its_sentences_whole(caplog: pytest.LogCaptureFixture) -> None:
    client, server = wsmux.pair(config=wsmux.Config(open_timeout=None))
    with client, server:
        streams = [client.open_stream() for _ in range(stall_watch.MAX_FINDINGS + 5)]
        wait_for(lambda: server.stats().unaccepted == len(streams))
        with StallWatch(server, after=HOUR) as watch:
            looking(watch)
            [record] = caplog.records
            line = record.getMessage()
            assert len(line) > 2 * MAX_VALUE
            assert line.count(" for somebody to accept it; ") == stall_watch.MAX_FINDINGS
            assert line.endswith("; and 5 more like it")


def test_what_is_told_to_may_fail(stuck: Stuck, caplog: pytest.LogCaptureFixture) -> None:
    def fail(stall: Stall) -> None:
        raise RuntimeError("no such channel")

    with StallWatch(stuck.server, after=HOUR, tell=fail) as watch:
        looking(watch)
        assert watch.look(time.monotonic())
    [record] = caplog.records
    assert "the callback for a stall of" in record.getMessage()


# The thread


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "wsmux-watchdog"]


def test_one_thread_tells_for_all_watches_and_ends_with_them(stuck: Stuck) -> None:
    told, both = [], threading.Event()

    def tell(stall: Stall) -> None:
        told.append(threading.current_thread())
        if len(told) == 2:
            both.set()

    watches = [StallWatch(stuck.server, after=0.02, tell=tell) for _ in range(2)]
    assert both.wait(WAIT)
    assert threads() == [told[0]]
    assert told[0] is told[1]
    for watch in watches:
        watch.stop()
        watch.stop()
    wait_for(lambda: not threads())


def test_the_thread_ends_with_the_connections(stuck: Stuck) -> None:
    StallWatch([stuck.client, stuck.server], after=0.01)
    assert threads()
    stuck.client.abort()
    stuck.server.abort()
    wait_for(lambda: not threads())


def test_a_later_watch_starts_a_thread_again(stuck: Stuck) -> None:
    for _ in range(3):
        with StallWatch(stuck.server, after=HOUR):
            assert len(threads()) == 1
        wait_for(lambda: not threads())


def test_a_watch_that_is_due_sooner_is_looked_after(stuck: Stuck) -> None:
    told = threading.Event()
    with (
        StallWatch(stuck.client, after=HOUR),
        StallWatch(stuck.server, after=0.01, tell=lambda stall: told.set()),
    ):
        assert told.wait(WAIT)


def test_a_function_that_fails_ends_its_watch(
    stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> list[wsmux.Connection]:
        raise LookupError("no connections known")

    StallWatch(fail, after=0.01)
    wait_for(lambda: not threads())
    assert "the stall watch failed" in caplog.text


def test_without_a_thread_there_is_no_watch(stuck: Stuck, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="can't start"):
        StallWatch(stuck.server)
    monkeypatch.undo()
    with StallWatch(stuck.server, after=HOUR):
        assert len(stall_watch._thread._watches) == 1


def test_a_forked_child_watches_nothing(stuck: Stuck) -> None:
    with StallWatch(stuck.server, after=HOUR):
        child = os.fork()
        if not child:
            os._exit(len(stall_watch._thread._watches) + stall_watch._thread._running)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(stall_watch._thread._watches) == 1


@pytest.mark.parametrize("after", [0.0, -1.0, float("nan"), 1e6])
def test_the_time_must_be_one(stuck: Stuck, after: float) -> None:
    with pytest.raises(ValueError, match="after must be above 0 s"):
        StallWatch(stuck.server, after=after)


# Which connections
