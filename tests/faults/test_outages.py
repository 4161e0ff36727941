"""Meet bad luck with resumable connections: hundreds of cuts, Ctrl-C, TLS, reloads of servers."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import wsmux
from wsmux.protocols.resumption import Hello, Welcome, parse_answer
from wsmux.runtime.parking import drop_idle

from ..helpers.broken_setups import echo
from ..helpers.certificates import Certificates
from ..helpers.commands import PATIENCE
from ..helpers.drained_server import drained
from ..helpers.inside import multiplexer_of, send_lock_of
from ..helpers.interrupts import interrupted_at
from ..helpers.nginx import documented, nginx
from ..helpers.process_scripts import comes_free
from ..helpers.raw_peer import BINARY, RawPeer, in_thread, raw_client
from ..helpers.resumed import Pair, check_bulk_over_cuts, joined, pair
from ..helpers.timeouts import WAIT
from ..helpers.waiting import threads_of, wait_for, wait_for_value

# Nothing but a carrier that is found takes less than this.
LONG = 10 * WAIT

# What is left


def held() -> Counter[str]:
    """Count the descriptors, the threads, and the objects of the package by type."""
    drop_idle()
    gc.collect()
    found = Counter(
        type(each).__qualname__
        for each in gc.get_objects()
        if str(type(each).__module__).startswith("wsmux")
    )
    found["descriptors"] = len(os.listdir("/proc/self/fd"))
    found["threads"] = threading.active_count()
    return found


def cut_often(ends: Pair, streams: tuple[wsmux.Stream, wsmux.Stream], count: int) -> None:
    """Cut the carrier so often; both ends say something before each cut and behind it."""
    ours, theirs = streams
    for _ in range(count):
        before = ends.client.stats().reconnects
        ours.write(b"up")
        ends.proxy.reset()
        theirs.write(b"down")
        wait_for(lambda before=before: ends.client.stats().reconnects > before)
        assert (theirs.read(2), ours.read(4)) == (b"up", b"down")
    wait_for(lambda: not ends.client.stats().unacknowledged_bytes)
    wait_for(lambda: not ends.server.stats().unacknowledged_bytes)


def test_two_hundred_cuts_leave_nothing() -> None:
    with pair() as ends:
        streams = joined(ends)
        cut_often(ends, streams, 10)
        wait_for(lambda: not any("reconnect" in each.name for each in threading.enumerate()))
        before, blocks = held(), sys.getallocatedblocks()
        cut_often(ends, streams, 200)
        # What tests before this one left may have gone meanwhile; nothing may have come.
        wait_for_value(lambda: held() - before, Counter())
        assert sys.getallocatedblocks() < blocks + 2000  # ten for each cut


# Ctrl-C

CALLS: dict[str, Callable[[wsmux.Connection, wsmux.Stream], object]] = {
    "read": lambda connection, stream: stream.read(1),
    "write": lambda connection, stream: stream.write(bytes(300_000)),  # more than its credit
    "open": lambda connection, stream: connection.open_stream(timeout=WAIT),
    "ping": lambda connection, stream: connection.ping(WAIT),
    "accept": lambda connection, stream: connection.accept_stream(WAIT),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_at_any_step_of_a_call_in_an_outage_leaves_no_half_work(call: str) -> None:
    """In the middle of a change it ends the connection, as without an outage; never in a wait."""
    number = untouched = 0
    while not untouched:
        with pair(buffer=256 * 1024) as ends:
            while not untouched and not ends.client.closed:
                number += 1
                untouched += not interrupt_in_outage(ends, call, number)
    assert number > 10


def interrupt_in_outage(ends: Pair, call: str, number: int) -> bool:
    """Make a call in an outage, interrupted at a step; return whether it was."""
    ours, theirs = joined(ends)
    thread = threading.get_ident()
    over = threading.Event()

    def waits() -> bool:
        return sys._current_frames()[thread].f_code.co_name in (
            "park",
            "park_beside",
            "wait_writable",
        )

    def end() -> None:
        """Go on once the call waits, or has been interrupted before that."""
        wait_for(lambda: over.is_set() or waits())
        ends.over()
        with suppress(wsmux.WsmuxError):  # what is written may be cut off, as may be the connection
            if call == "accept":
                ends.server.open_stream(timeout=WAIT).close()
            theirs.write(b"x")
            while theirs.read(65536):
                pass

    ends.outage()
    ending = in_thread(end)
    made: list[object] = []  # what is dropped at once would be collected within the call
    try:
        return interrupted_at(number, lambda: made.append(CALLS[call](ends.client, ours)))
    except wsmux.ConnectionClosed:
        return True
    finally:
        over.set()
        assert comes_free(multiplexer_of(ends.client).mutex)
        assert comes_free(send_lock_of(ends.client))
        if ends.client.closed:
            assert "interrupted in the middle" in str(ends.client.error)
            ends.server.abort()  # otherwise it waits for its client
        else:
            ours.reset()
            assert ends.client.ping(WAIT) > 0
        ending.result(WAIT)
        while not ends.client.closed and ends.server.stats().unaccepted:
            ends.server.accept_stream(WAIT).reset()  # what was opened, and then interrupted


# TLS


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_carrier_with_tls_that_is_reset_loses_nothing(
    way: str, certificates: Certificates
) -> None:
    with pair(tls=certificates) as ends:
        check_bulk_over_cuts(ends, way, "rst", 20_001)


# Many

SUBPROTOCOL = "wsmux.resume.v1+wsmux"


@pytest.mark.parametrize("most", [20, pytest.param(1000, marks=pytest.mark.long)])
def test_of_many_detached_sessions_the_oldest_are_lost_first(most: int) -> None:
    more = 5
    with wsmux.serve(
        wsmux.Connection.wait_closed,
        resume=wsmux.Resume(max_detached=most, grace=LONG),
        max_connections=2 * most,
    ) as server:
        keys: dict[int, Welcome] = {}
        lost: list[wsmux.Connection] = []
        for number in range(most + more):
            known = set(server.connections)
            with begin(server, number) as peer:
                welcome = parse_answer(peer.recv_message())
                assert isinstance(welcome, Welcome)
                keys[number] = welcome
                wait_for(lambda known=known: set(server.connections) - known)
                (new,) = set(server.connections) - known
            wait_for(lambda new=new: new.stats().detached is not None)
            lost += [new] if number < more else []
        for connection in lost:
            assert connection.wait_closed(WAIT)
            assert isinstance(connection.error, wsmux.ResumeLost)
        wait_for(lambda: len(server.connections) == most)
        wait_for(lambda: threads_of(server) == most)
        for number, known in ((more - 1, False), (more, True), (most + more - 1, True)):
            welcome = keys[number]
            hello = Hello(id_of(number), welcome.epoch, 1, True)
            with raw_client(server.port, subprotocol=SUBPROTOCOL) as peer:
                peer.send_frame(BINARY, hello.encode(welcome.key))
                assert isinstance(parse_answer(peer.recv_message()), Welcome) is known
        server.shutdown(0)


def id_of(number: int) -> bytes:
    return b"%016d" % number


def begin(server: wsmux.Server, number: int) -> RawPeer:
    peer = raw_client(server.port, subprotocol=SUBPROTOCOL)
    peer.send_frame(BINARY, Hello(id_of(number)).encode(None))
    return peer


# Servers and proxies that are reloaded


@pytest.mark.parametrize(
    ("path", "held", "error"),
    [
        # Gunicorn waits for the connection, and kills the worker.
        pytest.param("resumed", True, wsmux.ResumeLost, marks=pytest.mark.long),
        ("resumed", False, wsmux.ConnectionClosed),
        pytest.param("resumed-drained", True, wsmux.ConnectionClosed, marks=pytest.mark.wide),
        ("resumed-drained", False, wsmux.ConnectionClosed),
    ],
)
def test_a_client_of_a_worker_that_is_reloaded_learns_it_at_once(
    path: str, held: bool, error: type[wsmux.WsmuxError]
) -> None:
    with drained("gthread", held) as (process, url):
        connection = wsmux.connect(f"{url}{path}", resume=wsmux.Resume(grace=LONG))
        with connection:
            assert connection.resumable
            with connection.open_stream(timeout=WAIT) as stream:
                stream.timeout = WAIT
                before = stream.makefile("rb").readline()
                process.send_signal(signal.SIGHUP)
                assert connection.wait_closed(WAIT)
                assert isinstance(connection.error, error)
                with pytest.raises(error):
                    connection.open_stream(timeout=WAIT)
        with (
            wsmux.connect(f"{url}{path}", resume=True) as another,
            another.open_stream(timeout=WAIT) as stream,
        ):
            stream.timeout = WAIT
            assert stream.makefile("rb").readline() != before
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


def test_a_connection_resumes_through_an_nginx_that_is_reloaded(tmp_path: Path) -> None:
    with (
        wsmux.serve(stream_handler=echo, resume=True) as server,
        nginx(tmp_path, documented(), server.port, main="worker_shutdown_timeout 1ms;") as port,
        wsmux.connect(f"ws://127.0.0.1:{port}/", resume=True) as connection,
        connection.open_stream(timeout=WAIT) as stream,
    ):
        stream.timeout = WAIT
        stream.write(b"before")
        assert stream.read(6) == b"before"
        for count in (1, 2):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGHUP)
            wait_for(lambda count=count: connection.stats().reconnects == count)
            stream.write(b"behind")
            assert stream.read(6) == b"behind"


# The clock of the machine

DAY = 86_400.0


@pytest.mark.parametrize("change", [DAY, -DAY, 3650 * DAY, -3650 * DAY])
def test_a_change_of_the_clock_in_an_outage_neither_ends_nor_lengthens_it(
    change: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(grace=LONG) as ends:
        ours, theirs = joined(ends)
        ends.outage()
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + change)
        ours.write(b"in it")
        before = ends.client.stats().detached
        assert before is not None
        assert 0 <= before < LONG
        ends.over()
        assert theirs.read(5) == b"in it"
        assert [end.stats().reconnects for end in (ends.client, ends.server)] == [1, 1]
        assert ends.client.ping(WAIT) > 0
