"""Serve streams by handlers in worker threads.

In the four wires over two carriers, and over every carrier in one wire. What waits for a timeout
runs in the four wires over one, which is no part of it.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

import pytest

import wsmux
from wsmux.endpoints.connection_options import ConnectionOptions

from ..helpers import scripted
from ..helpers.carriers import SOME, Carrier, Ends
from ..helpers.connections import Join, Spawn
from ..helpers.scripted import WAIT, call
from ..helpers.stream_outcomes import check_late_refusal, check_reset
from ..helpers.waiting import wait_for
from ..helpers.wires import NAMES, wire_of

OPEN_TIMEOUT = 1.0
REFUSING = wsmux.Config(open_timeout=OPEN_TIMEOUT)
ON_ONE = pytest.mark.parametrize(
    "carrier", [carrier for carrier in SOME if carrier.name == "socketpair"], ids=str
)


@pytest.fixture(params=SOME, ids=str)
def carrier(request: pytest.FixtureRequest) -> Carrier:
    chosen: Carrier = request.param
    return chosen


def serving(
    join_ends: Join,
    handler: Callable[[wsmux.Stream], object],
    workers: int,
    config: wsmux.Config | None = None,
) -> Ends:
    options = {"stream_handler": handler, "workers": workers, "config": config}
    return join_ends(client={"config": config}, server=options)


def worker_threads(connection: wsmux.Connection) -> list[threading.Thread]:
    name = f"{connection.name}-worker-"
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_a_stream_is_closed_when_its_handler_returns(join_ends: Join) -> None:
    ends = serving(join_ends, lambda stream: stream.write(b"done"), 1)
    with ends.client.open_stream() as stream:
        assert stream.read() == b"done"
    wait_for(lambda: ends.server.stats().streams == 0)


@ON_ONE
def test_no_more_handlers_run_at_once_than_there_are_workers(join_ends: Join) -> None:
    running, release = [], threading.Event()

    def handler(stream: wsmux.Stream) -> None:
        running.append(stream.id)
        assert release.wait(WAIT)

    ends = serving(join_ends, handler, 2, REFUSING)
    streams = [ends.client.open_stream() for _ in range(3)]
    wait_for(lambda: len(running) == 2)
    check_late_refusal(streams[2])
    assert sorted(running) == wire_of(ends.client).ids(2)
    release.set()
    for stream in streams[:2]:
        assert stream.read() == b""


def test_workers_are_reused(join_ends: Join) -> None:
    threads = set()
    ends = serving(join_ends, lambda stream: threads.add(threading.current_thread()), 64)
    for _ in range(50):
        with ends.client.open_stream() as stream:
            stream.read()
    assert len(worker_threads(ends.server)) <= 4
    assert len(threads) <= 4


def test_idle_workers_end_but_for_one(join_ends: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wsmux.endpoints.stream_handlers.IDLE", 0.02)
    meeting = threading.Barrier(5)
    ends = serving(join_ends, lambda stream: meeting.wait(WAIT), 8)
    streams = [ends.client.open_stream() for _ in range(4)]
    meeting.wait(WAIT)
    for stream in streams:
        assert stream.read() == b""
    wait_for(lambda: len(worker_threads(ends.server)) <= 1)
    streams = [ends.client.open_stream() for _ in range(4)]
    meeting.wait(WAIT)
    for stream in streams:
        assert stream.read() == b""


def test_workers_end_with_their_connection(join_ends: Join) -> None:
    ends = serving(join_ends, scripted.handle, 8)
    call(ends.client, "source", 1, 1)
    ends.client.close()
    wait_for(lambda: not worker_threads(ends.server))


def test_a_handler_that_raises_resets_its_stream_and_is_logged(
    join_ends: Join, caplog: pytest.LogCaptureFixture
) -> None:
    ends = serving(join_ends, scripted.handle, 1)
    with caplog.at_level(logging.ERROR, "wsmux"):
        with ends.client.open_stream() as stream:
            stream.write(scripted.command("raise"))
            check_reset(stream)
        wait_for(lambda: "as the test asked" in caplog.text)
    assert call(ends.client, "source", 3, 1) == scripted.pattern(3, 1)


def test_a_handler_may_keep_its_worker_after_closing_the_stream(join_ends: Join) -> None:
    release = threading.Event()

    def handler(stream: wsmux.Stream) -> None:
        with stream:
            stream.write(b"answer")
        assert release.wait(WAIT)

    ends = serving(join_ends, handler, 2)
    with ends.client.open_stream() as stream:
        assert stream.read() == b"answer"
    release.set()


def nested(join_ends: Join, workers: int, config: wsmux.Config | None = None) -> Ends:
    options = {"stream_handler": scripted.handle, "workers": workers, "config": config}
    return join_ends(client=options, server=options)


def test_calls_nest_as_deep_as_there_are_workers(join_ends: Join) -> None:
    ends = nested(join_ends, 8)
    assert call(ends.client, "nest", 15) == b"." * 16


@ON_ONE
def test_calls_nested_deeper_than_there_are_workers_are_refused_in_time(join_ends: Join) -> None:
    ends = nested(join_ends, 2, REFUSING)
    start = time.monotonic()
    if wire_of(ends.client).resets:
        with pytest.raises(wsmux.StreamReset):
            call(ends.client, "nest", 8)
    else:  # the innermost answer is cut off, which the others cannot tell
        assert len(call(ends.client, "nest", 8)) < 9
    assert OPEN_TIMEOUT <= time.monotonic() - start < OPEN_TIMEOUT + 5
    assert ends.client.stats().streams_refused + ends.server.stats().streams_refused == 1
    assert call(ends.client, "nest", 3) == b"...."


def test_both_sides_nest_at_once(join_ends: Join, spawn: Spawn) -> None:
    ends = nested(join_ends, 64)
    calls = [spawn(call, end, "nest", 7) for end in ends for _ in range(8)]
    assert {future.result(WAIT) for future in calls} == {b"." * 8}


# Without a thread


def starting_none_behind(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let no more workers than ``most`` be started, as if the system had no thread left."""
    started, start = [], threading.Thread.start

    def starting(thread: threading.Thread) -> None:
        if "-worker-" in thread.name:
            if len(started) == most:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)


@pytest.mark.parametrize("protocol", NAMES)
def test_a_connection_that_gets_no_worker_is_refused_and_ends(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    starting_none_behind(monkeypatch, 0)
    ours, theirs = socket.socketpair()
    with wsmux.from_socket(theirs, role="server", protocol=protocol) as peer:
        with pytest.raises(wsmux.NoThreadError, match="worker-1 cannot be started"):
            wsmux.from_socket(
                ours, role="client", protocol=protocol, stream_handler=scripted.handle
            )
        assert peer.wait_closed(WAIT)
        assert peer.close_code == wire_of(peer).seen_close(False, 1001, "")[0]


@ON_ONE
def test_a_server_that_has_no_worker_for_a_connection_ends_it(
    join_ends: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    starting_none_behind(monkeypatch, 0)
    options = ConnectionOptions(config=wsmux.Config(), stream_handler=scripted.handle)
    ends = join_ends()
    options.serve(ends.server, ran.append)
    assert ends.client.wait_closed(WAIT)
    assert (ends.server.close_code, ran) == (1001, [])


def test_a_worker_without_a_successor_serves_on_after_a_system_exit(
    join_ends: Join, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(stream: wsmux.Stream) -> None:
        if stream.read(4) == b"exit":
            raise SystemExit("as the test asked")
        stream.write(b"echo")

    starting_none_behind(monkeypatch, 1)
    ends = serving(join_ends, handler, 8, REFUSING)
    with caplog.at_level(logging.WARNING, "wsmux"):
        for _ in range(2):
            with ends.client.open_stream() as stream:
                stream.timeout = WAIT
                stream.write(b"exit")
                check_reset(stream)
    assert "its worker goes on" in caplog.text
    with ends.client.open_stream() as stream:
        stream.timeout = WAIT
        stream.write(b"more")
        assert stream.read(4) == b"echo"
