"""Go over bad paths, made by ``FaultProxy``: slow, late, uneven, dead for a while.

What they do to rates and latency is for the long tests, which print their figures.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import mean, median

import pytest

import wsmux
from wsmux.testing import FaultProxy, Faults

from ..helpers.fixtures import Tell
from ..helpers.inside import send_rate_of
from ..helpers.load.measuring import MB, per_cent
from ..helpers.raw_peer import in_thread, wait_for
from ..helpers.timeouts import WAIT
from ..helpers.wires import NAMES

IN_WIRES = pytest.mark.parametrize("protocol", NAMES)

# Bytes a second of 10 Mbit/s, and of the path that control frames must be quick on. What the path
# itself holds is kept small, since it delays everything whatever the sender does.
TEN_MBIT = 1_250_000
SLOW = 2 * MB
NARROW = 16 * 1024

CHUNK = 64 * 1024
BULK = random.Random(3).randbytes(10 * MB)

# Faster than the default, so that a late answer would show; the longest round trip is 3.5 s.
ALERT = wsmux.Config(ping_interval=1.0, ping_timeout=5.0)


@contextmanager
def over(
    protocol: str,
    faults: Faults,
    config: wsmux.Config | None = None,
    socket_buffer: int = 64 * 1024,
) -> Iterator[tuple[wsmux.Connection, FaultProxy]]:
    """Connect to a server over a path that has the same faults in both directions."""
    with (
        wsmux.serve(stream_handler=serve, protocols=[protocol], config=config) as server,
        FaultProxy(server.port, up=faults, down=faults, socket_buffer=socket_buffer) as proxy,
        wsmux.connect(proxy.url, protocol=protocol, config=config, timeout=WAIT) as connection,
    ):
        yield connection, proxy


def serve(stream: wsmux.Stream) -> None:
    """Do what the first byte says: echo, pour without end, or answer with a digest."""
    stream.timeout = WAIT
    kind = stream.read(1)
    if kind == b"e":
        while data := stream.read(CHUNK):
            stream.write(data)
    elif kind == b"p":
        while True:
            stream.write(bytes(CHUNK))
    else:
        digest = hashlib.sha256()
        while data := stream.read(CHUNK):
            digest.update(data)
        stream.write(digest.digest())


def opened(connection: wsmux.Connection, kind: bytes) -> wsmux.Stream:
    stream = connection.open_stream(WAIT)
    stream.timeout = WAIT
    stream.write(kind)
    return stream


def upload(connection: wsmux.Connection, data: bytes) -> float:
    """Carry bytes and check the digest; return the seconds that took."""
    start = time.monotonic()
    with opened(connection, b"h") as stream:
        stream.write(data)
        stream.close_write()
        assert stream.read() == hashlib.sha256(data).digest()
    return time.monotonic() - start


def echo(stream: wsmux.Stream, data: bytes) -> float:
    start = time.monotonic()
    stream.write(data)
    left = len(data)
    while left:
        chunk = stream.read(left)
        assert chunk
        left -= len(chunk)
    return time.monotonic() - start


def pour(stream: wsmux.Stream, stop: threading.Event) -> int:
    written = 0
    while not stop.is_set():
        written += stream.write(bytes(CHUNK))
    stream.reset()
    return written


def sent_during(connection: wsmux.Connection, exchange: Callable[[], object]) -> int:
    """Return the least that went out while one of five exchanges took place.

    On a loaded machine their own thread is late at times.
    """
    counts = []
    for _ in range(5):
        before = connection.stats().bytes_sent
        exchange()
        counts.append(connection.stats().bytes_sent - before)
    return min(counts)


@contextmanager
def repeating(*steps: Callable[[], object], pauses: tuple[float, ...]) -> Iterator[list[int]]:
    """Take steps in turn, a pause before each, for as long as the block lasts; yield the count."""
    stop, taken = threading.Event(), [0]

    def go_round() -> None:
        while True:
            for step, pause in zip(steps, pauses, strict=True):
                if stop.wait(pause):
                    return
                step()
                taken[0] += 1

    going = in_thread(go_round)
    try:
        yield taken
    finally:
        stop.set()
        going.result(WAIT)


@IN_WIRES
def test_a_transfer_survives_a_path_that_is_dead_at_times(protocol: str) -> None:
    with over(protocol, Faults(rate=4 * MB)) as (connection, proxy):
        with repeating(proxy.freeze, proxy.thaw, pauses=(0.1, 0.05)) as steps:
            upload(connection, BULK[: MB // 2])
            while steps[0] < 1:  # the other thread came late
                upload(connection, BULK[: MB // 2])
            proxy.thaw()
        assert proxy.accepted == 1
        assert not connection.closed


@IN_WIRES
def test_a_late_and_uneven_path_changes_no_byte_and_ends_nothing(protocol: str) -> None:
    config = wsmux.Config(ping_interval=0.05, ping_timeout=2.0)
    with over(protocol, Faults(latency=0.02, jitter=0.04), config) as (connection, _):
        upload(connection, BULK[: MB // 4])
        assert not connection.closed


def test_pings_go_first_under_bulk() -> None:
    """A ping waits for what the system and the path hold, not for the send queue."""
    faults = Faults(rate=SLOW, buffer=NARROW)
    with over("wsmux", faults, socket_buffer=NARROW) as (connection, _):
        stop = threading.Event()
        pouring = [in_thread(pour, opened(connection, b"h"), stop) for _ in range(8)]
        wait_for(lambda: connection.stats().waiting_for_room)
        during = sent_during(connection, lambda: connection.ping(WAIT))
        stop.set()
        for each in pouring:
            each.result(WAIT)
        assert during < connection.config.max_send_queue


@IN_WIRES
def test_short_messages_go_first_under_bulk(protocol: str) -> None:
    """One waits for what the system and the path hold, not for ten writers and their queue."""
    faults = Faults(rate=2 * SLOW, buffer=NARROW)
    with over(protocol, faults, socket_buffer=NARROW) as (connection, _):
        stop = threading.Event()
        interactive = opened(connection, b"e")
        pouring = [in_thread(pour, opened(connection, b"h"), stop) for _ in range(10)]
        wait_for(lambda: connection.stats().waiting_for_room)
        during = sent_during(connection, lambda: echo(interactive, BULK[:64]))
        stop.set()
        for each in pouring:
            each.result(WAIT)
        assert during < connection.config.max_send_queue


def test_turns_are_short_on_a_slow_path() -> None:
    with over("wsmux", Faults(rate=SLOW, buffer=NARROW), socket_buffer=NARROW) as (connection, _):
        stop = threading.Event()
        drain = send_rate_of(connection)
        pouring = in_thread(pour, opened(connection, b"h"), stop)
        wait_for(lambda: drain.slow)
        stop.set()
        pouring.result(WAIT)
        assert drain.quantum < connection.config.max_frame_size


# Figures


@pytest.mark.long
@IN_WIRES
def test_10_mb_over_a_path_5_s_on_and_2_s_off(protocol: str, tell: Tell) -> None:
    with over(protocol, Faults(rate=TEN_MBIT)) as (connection, proxy):
        with repeating(proxy.freeze, proxy.thaw, pauses=(5.0, 2.0)) as steps:
            seconds = upload(connection, BULK)
        proxy.thaw()
        tell(f"{protocol}: 10 MB in {seconds:.1f} s with {steps[0]} changes, 1 connection")
        assert steps[0] >= 2
        assert proxy.accepted == 1


@pytest.mark.long
@IN_WIRES
def test_a_path_with_750_ms_of_delay(protocol: str, tell: Tell) -> None:
    with over(protocol, Faults(latency=0.75, rate=TEN_MBIT), ALERT) as (connection, _):
        seconds = upload(connection, BULK[:MB])
        tell(f"{protocol}: 1 MB in {seconds:.1f} s, ping {connection.ping(WAIT):.2f} s")
        assert not connection.closed


@pytest.mark.long
@pytest.mark.hang_bound(900.0)
@pytest.mark.parametrize("protocol", ["wsmux", "yamux"])
def test_ten_minutes_of_jitter_end_no_connection(protocol: str, tell: Tell) -> None:
    """Every pause from nothing to seven seconds is taken, so pings and bytes alternate."""
    with over(protocol, Faults(latency=0.02, jitter=1.0), ALERT) as (connection, proxy):
        stream, chance, echoes = opened(connection, b"e"), random.Random(4), 0
        end = time.monotonic() + 600
        while time.monotonic() < end:
            echo(stream, BULK[: chance.randrange(1, 20_000)])
            echoes += 1
            time.sleep(chance.choice((0.0, 0.5, 3.0, 7.0)))
        tell(f"{protocol}: {echoes} echoes, {proxy.accepted} connection")
        assert not connection.closed
        assert proxy.accepted == 1


@pytest.mark.long
@IN_WIRES
@pytest.mark.parametrize("way", ["up", "down"])
def test_pings_are_quick_under_bulk_over_2_mb_a_second(way: str, protocol: str, tell: Tell) -> None:
    faults = Faults(rate=SLOW, buffer=NARROW)
    with over(protocol, faults, socket_buffer=NARROW) as (connection, proxy):
        stop = threading.Event()
        if way == "up":
            moving = in_thread(pour, opened(connection, b"h"), stop)
        else:
            moving = in_thread(take_until, opened(connection, b"p"), stop)
        time.sleep(1.0)  # real time: the queues fill
        pings = []
        for _ in range(200):
            pings.append(connection.ping(WAIT) * 1000)
            time.sleep(0.02)
        stop.set()
        moving.result(WAIT)
        moved = proxy.counters(way).forwarded / MB
        tell(
            f"{protocol} {way}: ping p50 {median(pings):.0f} ms, p99 {per_cent(pings, 99):.0f} ms, "
            f"with {moved:.0f} MB moved"
        )
        assert per_cent(pings, 99) <= 100


def take_until(stream: wsmux.Stream, stop: threading.Event) -> None:
    while not stop.is_set():
        assert stream.read(CHUNK)
    stream.reset()


@pytest.mark.long
@IN_WIRES
def test_ten_bulk_streams_share_evenly_beside_an_interactive_one(protocol: str, tell: Tell) -> None:
    faults = Faults(rate=SLOW, buffer=NARROW)
    with (
        over(protocol, faults, socket_buffer=NARROW) as (connection, _),
        ThreadPoolExecutor(10) as threads,
    ):
        stop = threading.Event()
        pouring = [threads.submit(pour, opened(connection, b"h"), stop) for _ in range(10)]
        with opened(connection, b"e") as interactive:
            end = time.monotonic() + 20
            echoes = []
            while time.monotonic() < end:
                echoes.append(echo(interactive, BULK[:64]) * 1000)
                time.sleep(0.02)
        stop.set()
        rates = [each.result() for each in pouring]
        jain = sum(rates) ** 2 / (10 * sum(rate**2 for rate in rates))
        chunk = CHUNK / SLOW * 1000
        tell(
            f"{protocol}: Jain {jain:.4f}; interactive p50 {median(echoes):.0f} ms, "
            f"p99 {per_cent(echoes, 99):.0f} ms, a chunk takes {chunk:.0f} ms"
        )
        assert jain >= 0.95
        assert median(echoes) <= 2 * chunk


@pytest.mark.long
@IN_WIRES
def test_goodput_of_10_mbit_a_second(protocol: str, tell: Tell) -> None:
    with over(protocol, Faults(rate=TEN_MBIT)) as (connection, _):
        rates = [len(BULK) * 8 / upload(connection, BULK) / 1000 for _ in range(5)]
        spread = (max(rates) - min(rates)) / mean(rates)
        tell(
            f"{protocol}: {', '.join(f'{rate:.0f}' for rate in rates)} kbit/s, spread {spread:.1%}"
        )
        assert min(rates) >= 9300
        assert spread <= 0.05
