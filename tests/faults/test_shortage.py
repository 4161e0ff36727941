"""Lack descriptors, threads and room on the disk; change the clock; write while nobody reads."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

import wsmux
from wsmux.config import KIB
from wsmux.protocols.events import DataReceived

from ..helpers.load.measuring import MB, Process
from ..helpers.pure_peer import PurePeer
from ..helpers.raw_peer import WAIT, in_thread, wait_for
from ..helpers.wires import NAMES

DAY = 86_400.0

HERE = Process(os.getpid())


def echo(stream: wsmux.Stream) -> None:
    while data := stream.read(1000):
        stream.write(data)


def echoes(url: str) -> bool:
    with wsmux.connect(url, timeout=WAIT) as connection, connection.open_stream(WAIT) as stream:
        stream.timeout = WAIT
        stream.write(b"x")
        return stream.read(1) == b"x"


# Descriptors and threads


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Leave the process no descriptor to open, by the system's own limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_without_descriptors_what_runs_goes_on_and_a_new_connection_fails_typed() -> None:
    with wsmux.serve(stream_handler=echo) as server, wsmux.connect(server.url) as connection:
        with connection.open_stream(WAIT) as stream:
            stream.timeout = WAIT
            stream.write(b"x")
            assert stream.read(1) == b"x"  # all that it needs is there
            with no_descriptors():
                with pytest.raises((OSError, wsmux.WsmuxError)) as error:
                    wsmux.connect(server.url, timeout=WAIT)
                assert "Too many open files" in str(error.value)
                with pytest.raises(OSError, match="Too many open files"):
                    wsmux.pair()
                stream.write(b"still here")
                assert stream.read(10) == b"still here"
        assert echoes(server.url)


def test_without_descriptors_a_writer_that_meets_a_full_socket_goes_on() -> None:
    """It has nothing to be woken with, and leaves its frames to the I/O thread."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
    config = wsmux.Config(receive_window=4 * MB, max_connection_buffer=4 * MB)
    connection = wsmux.from_socket(ours, role="client", protocol="wsmux")
    with PurePeer(theirs, "wsmux", config=config) as peer:
        peer.send()
        stream = connection.open_stream(WAIT)
        peer.accept(1)
        with no_descriptors():
            writing = in_thread(stream.write, bytes(MB))
            wait_for(lambda: writing.done() or connection.stats().waiting_for_room)
            got = 0
            while got < MB:
                got += sum(len(e.data) for e in peer.receive() if isinstance(e, DataReceived))
            assert writing.result(WAIT) == MB
        assert not connection.closed
        connection.abort()
    assert connection.wait_closed(WAIT)


def test_without_threads_a_new_connection_fails_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("wsmux.transport.shared_io.OWN", 64)  # a shared one is there already
    with wsmux.serve(stream_handler=echo) as server, wsmux.connect(server.url) as connection:
        with connection.open_stream(WAIT) as stream, monkeypatch.context() as patch:
            stream.timeout = WAIT
            stream.write(b"x")
            assert stream.read(1) == b"x"  # every thread that it needs runs
            patch.setattr(threading.Thread, "start", refuse)
            for make in (wsmux.pair, lambda: wsmux.connect(server.url, timeout=WAIT)):
                with pytest.raises((RuntimeError, wsmux.WsmuxError)):
                    make()
            stream.write(b"still here")
            assert stream.read(10) == b"still here"
        assert echoes(server.url)


# The clock


@pytest.mark.parametrize("change", [DAY, -DAY, 3650 * DAY, -3650 * DAY])
def test_a_change_of_the_clock_fires_no_timer_and_holds_none_up(
    change: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = wsmux.Config(ping_interval=5.0, ping_timeout=5.0, idle_timeout=60.0, open_timeout=60.0)
    ours, theirs = wsmux.pair(config=config)
    with ours, theirs, ours.open_stream(WAIT) as stream:
        stream.write(b"x")
        accepted = theirs.accept_stream(WAIT)
        assert accepted.read(1) == b"x"
        there = in_thread(theirs.accept_stream, WAIT)
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + change)
        ours.ping(WAIT)
        theirs.ping(WAIT)
        stream.timeout = 0.01
        with pytest.raises(TimeoutError):
            stream.read(1)
        assert not there.done()
        assert not ours.closed
        with ours.open_stream(WAIT):
            there.result(WAIT)


def test_nothing_below_the_layers_of_messages_looks_at_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def looked() -> float:
        raise AssertionError("the wall clock was asked")

    ours, theirs = wsmux.pair()
    monkeypatch.setattr(time, "time", looked)
    with ours, theirs, ours.open_stream(WAIT) as stream:
        stream.write(b"x")
        accepted = theirs.accept_stream(WAIT)
        assert accepted.read(1) == b"x"
        ours.ping(WAIT)
        stream.timeout = 0.01
        with pytest.raises(TimeoutError):
            stream.read(1)


# Both write, nobody reads

MUCH = 10 * MB


@pytest.mark.parametrize("protocol", NAMES)
def test_both_sides_write_and_nobody_reads(protocol: str) -> None:
    """Both block with flat memory, are counted as waiting for credit, and time out exactly."""
    ours, theirs = wsmux.pair(protocol=protocol)
    with ours, theirs:
        near = ours.open_stream(WAIT)
        near.write(b"x")
        far = theirs.accept_stream(WAIT)
        before = HERE.memory()
        near.timeout = far.timeout = 0.3
        writes = [in_thread(stream.write, bytes(MUCH)) for stream in (near, far)]
        wait_for(lambda: ours.stats().waiting_writers and theirs.stats().waiting_writers)
        window = ours.config.receive_window
        for end in (ours, theirs):
            assert end.stats().unread_bytes <= window
        for write in writes:
            with pytest.raises(wsmux.WriteTimeout) as error:
                write.result(WAIT)
            assert 0 < error.value.bytes_written <= window
        assert HERE.memory() - before < 3 * MUCH  # the two that are written, and little else
        ours.ping(WAIT)
        got, sent = 0, writes[0].exception(WAIT)
        assert isinstance(sent, wsmux.WriteTimeout)
        while got < 1 + sent.bytes_written:
            got += len(far.read(65536))
        near.timeout = WAIT
        assert near.write(b"goes on") == 7
        near.close_write()
        assert far.read() == b"goes on"
