"""Read a byte a second, give credit a byte at a time, or not at all: others keep their rate.

The row of peers that read slowly (H7) and of handlers that never read (H8). Rates are compared
with and without the slow ones, by turns, and the fastest fifth counts, so that the load of the
machine falls on both. The figures are behind the marker ``long``.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager

import pytest

import wsmux

from ..helpers.every_server import memory
from ..helpers.raw_peer import ACK, ROLES, WAIT, Meeting, in_thread, meet, uint32, wait_for
from ..helpers.wires import NAMES

MIB = 1024 * 1024
MUTES = 4

A_MIB = bytes(MIB)

Ends = tuple[wsmux.Connection, wsmux.Connection]


@contextmanager
def ends(protocol: str, config: wsmux.Config | None = None) -> Iterator[Ends]:
    accepted: Future[wsmux.Connection] = Future()

    def handle(connection: wsmux.Connection) -> None:
        accepted.set_result(connection)
        connection.wait_closed()

    with (
        wsmux.serve(handle, protocols=[protocol], config=config) as server,
        wsmux.connect(server.url, protocol=protocol, config=config) as client,
    ):
        yield client, accepted.result(WAIT)
        client.abort()


def stream_between(opener: wsmux.Connection, taker: wsmux.Connection) -> list[wsmux.Stream]:
    """Return both ends of a new stream, the opener's first."""
    opened = opener.open_stream(WAIT)
    opened.write(b"!")
    taken = taker.accept_stream(WAIT)
    for stream in (opened, taken):
        stream.timeout = WAIT
    assert taken.read(1) == b"!"
    return [opened, taken]


def seconds_for(size: int, writer: wsmux.Stream, reader: wsmux.Stream) -> float:
    """Return the seconds that so many bytes take from one end to the other."""
    chunk = bytes(64 * 1024)

    def write() -> None:
        for _ in range(size // len(chunk)):
            writer.write(chunk)

    started = time.perf_counter()
    writing = in_thread(write)
    left = size
    while left:
        left -= len(reader.read(left))
    writing.result(WAIT)
    return time.perf_counter() - started


class Slow:
    """Hold writers that wait for peers which read a byte now and then, or never."""

    def __init__(self, ours: wsmux.Connection, theirs: wsmux.Connection, pause: float | None):
        self._pause = pause
        self._stop = threading.Event()
        self._pairs = [stream_between(ours, theirs) for _ in range(MUTES)]
        for ours_, theirs_ in self._pairs:
            ours_.timeout = theirs_.timeout = None
        self._writing = [in_thread(self._write, pair[0]) for pair in self._pairs]
        wait_for(lambda: ours.stats().waiting_writers >= MUTES, "writers without credit")
        self._reading = [in_thread(self._read, pair[1]) for pair in self._pairs]

    def _write(self, stream: wsmux.Stream) -> None:
        while not self._stop.is_set():
            stream.write(bytes(64 * 1024))

    def _read(self, stream: wsmux.Stream) -> None:
        while not self._stop.wait(self._pause):
            if self._pause is not None:
                stream.read(1)

    def close(self) -> None:
        self._stop.set()
        for ours, theirs in self._pairs:
            ours.reset()
            theirs.reset()
        for future in (*self._writing, *self._reading):
            assert isinstance(future.exception(WAIT), wsmux.WsmuxError | None)


def check_rate(protocol: str, pause: float | None, size: int, rounds: int, least: float) -> float:
    """Compare the rate of a stream alone to that beside slow ones; return the share."""
    alone, beside = [], []
    with ends(protocol) as calm, ends(protocol) as crowded:
        slow = Slow(*crowded, pause)
        try:
            streams = [stream_between(*pair) for pair in (calm, crowded)]
            for turn in range(rounds):
                for which in (turn % 2, 1 - turn % 2):
                    (beside if which else alone).append(seconds_for(size, *streams[which]))
        finally:
            slow.close()
    share = fastest(alone) / fastest(beside)
    assert share >= least, f"the others had {share:.0%} of their rate"
    return share


def fastest(seconds: list[float]) -> float:
    """Return the middle of the fastest fifth: what the machine can do when it is left alone."""
    return statistics.median(sorted(seconds)[: max(1, len(seconds) // 5)])


READERS = {"a-byte-a-second": 1.0, "never": None}


@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize("reader", READERS)
def test_others_go_on_beside_slow_readers(protocol: str, reader: str) -> None:
    """None of their bytes wait for those of the slow ones."""
    with ends(protocol) as (client, server):
        slow = Slow(client, server, READERS[reader])
        try:
            for opener, taker in ((client, server), (server, client)):
                writer, end = stream_between(opener, taker)
                seconds_for(MIB, writer, end)
        finally:
            slow.close()
        writer, end = stream_between(client, server)
        seconds_for(MIB, writer, end)


@pytest.mark.long
@pytest.mark.parametrize("protocol", NAMES)
@pytest.mark.parametrize("reader", READERS)
def test_others_keep_90_percent_of_their_rate(
    protocol: str, reader: str, figure: Callable[[str], None]
) -> None:
    share = check_rate(protocol, READERS[reader], 4 * MIB, 60, 0.9)
    figure(f"others had {share:.0%} of their rate")


# Credit a byte at a time, by hand


# Bytes of a frame with one byte of data, its mask included.
FRAME = 9


def drip(met: Meeting, ids: list[int], stop: threading.Event, pause: float) -> int:
    """Give each stream a byte of credit now and then; return how many that were."""
    given = 0
    while not stop.wait(pause):
        for stream_id in ids:
            met.peer.send_message(stream_id, ACK, uint32(1))
            given += 1
    return given


@pytest.mark.parametrize("role", ROLES)
def test_credit_of_single_bytes_costs_little_processor_time(role: str) -> None:
    """Each byte is sent when its credit comes, and nothing spins between."""
    with meet(role, wsmux.Config(ping_interval=None)) as met:
        streams = [met.accepted(index=index, window=1) for index in range(MUTES)]
        for stream in streams:
            stream.timeout = None
        writing = [in_thread(stream.write, bytes(4096)) for stream in streams]
        wait_for(lambda: met.connection.stats().waiting_writers == MUTES)
        stop = threading.Event()
        reading = in_thread(met.peer.recv_to_end)
        sent = met.connection.stats().bytes_sent
        before = time.process_time()
        dripping = in_thread(drip, met, [stream.id for stream in streams], stop, 0.05)
        enough = sent + 10 * MUTES * FRAME
        wait_for(lambda: met.connection.stats().bytes_sent > enough, "ten bytes of each")
        cost = time.process_time() - before
        stop.set()
        assert dripping.result(WAIT) >= 8
        # 10 turns of 4 streams, the peer's work by hand included; a busy loop takes all of 0.5 s.
        assert cost < 0.25
        met.connection.abort()
        for write in writing:
            assert isinstance(write.exception(WAIT), wsmux.ConnectionClosedError)
        met.peer.sock.close()
        reading.exception(WAIT)


@pytest.mark.long
@pytest.mark.parametrize("protocol", NAMES)
def test_slow_readers_cost_less_than_5_percent_of_a_processor(
    protocol: str, figure: Callable[[str], None]
) -> None:
    with ends(protocol) as (client, server):
        slow = Slow(client, server, 1.0)
        before, started = time.process_time(), time.monotonic()
        time.sleep(5.0)  # a time to measure, not an event to wait for
        share = (time.process_time() - before) / (time.monotonic() - started)
        slow.close()
    figure(f"{share:.2%} of a processor, both ends")
    assert share < 0.05


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
def test_credit_of_single_bytes_leaves_others_90_percent(
    role: str, figure: Callable[[str], None]
) -> None:
    size, alone, beside = 8 * MIB, [], []
    for turn in range(25):
        for with_drip in (turn % 2 == 0, turn % 2 == 1):
            (beside if with_drip else alone).append(one_beside_drips(role, size, with_drip))
    share = fastest(alone) / fastest(beside)
    figure(f"others had {share:.0%} of their rate")
    assert share >= 0.9


def one_beside_drips(role: str, size: int, with_drip: bool) -> float:
    """Return the seconds of a bulk stream, read by hand, beside streams that get single bytes."""
    with meet(role) as met:
        streams = [met.accepted(index=index, window=1) for index in range(MUTES)]
        bulk = met.accepted(index=MUTES, window=2**31)
        for stream in streams:
            stream.timeout = None
        writing = [in_thread(stream.write, bytes(4096)) for stream in streams]
        wait_for(lambda: met.connection.stats().waiting_writers == MUTES)
        stop = threading.Event()
        ids = [stream.id for stream in streams]
        dripping = in_thread(drip, met, ids, stop, 0.01) if with_drip else None
        started = time.perf_counter()
        bulk.timeout = WAIT * 4
        sending = in_thread(bulk.write, bytes(size))
        left = size
        while left > 0:
            left -= len(met.peer.sock.recv(2**18))
        seconds = time.perf_counter() - started
        reading = in_thread(met.peer.recv_to_end)
        sending.result(WAIT)
        stop.set()
        if dripping is not None:
            dripping.result(WAIT)
        met.connection.abort()
        for write in writing:
            write.exception(WAIT)
        met.peer.sock.close()
        reading.exception(WAIT)
        return seconds


# Handlers that never read


def fill(opener: wsmux.Connection, count: int, patience: float) -> list[Future[int]]:
    """Write to new streams whose other ends nobody reads, until nothing more is taken."""
    writing = []
    for _ in range(count):
        stream = opener.open_stream(WAIT)
        stream.timeout = patience
        writing.append(in_thread(stream.write, A_MIB))
    return writing


@pytest.mark.parametrize("protocol", NAMES)
def test_what_nobody_reads_is_bounded_for_each_connection(protocol: str) -> None:
    most = 2 * MIB
    with ends(protocol, wsmux.Config(max_connection_buffer=most)) as (client, server):
        writing = fill(client, 16, 0.2)
        kept = [server.accept_stream(WAIT) for _ in writing]
        for write in writing:
            assert isinstance(write.exception(WAIT), wsmux.WsmuxError | TimeoutError)
        limit = max(most, 16 * 256 * 1024 if protocol == "yamux" else 0)
        assert server.stats().unread_bytes <= limit
        writer, reader = stream_between(server, client)
        seconds_for(MIB, writer, reader)
        assert len({stream.id for stream in kept}) == 16


@pytest.mark.long
@pytest.mark.parametrize("protocol", NAMES)
def test_20_connections_that_nobody_reads_hold_16_mib_each_and_256_together(
    protocol: str, figure: Callable[[str], None]
) -> None:
    before = memory()
    with ExitStack() as stack:
        pairs = [stack.enter_context(ends(protocol)) for _ in range(20)]
        streams = []
        for client, server in pairs:
            writing = fill(client, 100, 1.0)
            streams += [server.accept_stream(WAIT) for _ in writing]
            for write in writing:
                assert isinstance(write.exception(60.0), wsmux.WsmuxError | TimeoutError | None)
        held = [server.stats().unread_bytes for _, server in pairs]
        figure(f"{max(held) / MIB:.1f} MiB at most, {sum(held) / MIB:.0f} MiB together")
        figure(f"the process grew by {(memory() - before) / MIB:.0f} MiB, both ends")
        min_window = 100 * 256 * 1024 if protocol == "yamux" else 0
        assert max(held) <= max(16 * MIB, min_window)
        assert sum(held) <= 256 * MIB
        for client, server in pairs:
            client.abort()
            server.abort()
