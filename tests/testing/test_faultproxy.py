"""Carry plain TCP through the fault proxy, and see each fault do what it says, and nothing else."""

from __future__ import annotations

import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from wsmux.testing import FaultProxy, Faults
from wsmux.testing.link import MAX_FLIGHT

from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for

KIB = 1024
DATA = random.Random(5).randbytes(300 * KIB)

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.settimeout(WAIT)
        yield sock


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


@contextmanager
def joined(listener: socket.socket, proxy: FaultProxy) -> Iterator[Ends]:
    """Connect through the proxy; both ends are closed afterwards."""
    with socket.create_connection((proxy.host, proxy.port), WAIT) as near:
        far, _ = listener.accept()
        with far:
            far.settimeout(WAIT)
            yield near, far


def read_all(sock: socket.socket) -> bytes:
    """Read to the end of file."""
    return b"".join(iter(lambda: sock.recv(64 * KIB), b""))


def read_until_reset(sock: socket.socket) -> bytes:
    """Read to a reset, which must come."""
    chunks = []
    try:
        while chunk := sock.recv(64 * KIB):
            chunks.append(chunk)
    except ConnectionResetError:
        return b"".join(chunks)
    raise AssertionError("the end of file came instead of a reset")


def refused(proxy: FaultProxy) -> bool:
    """Return whether a connection is reset at once, however soon its end notices."""
    try:
        with socket.create_connection((proxy.host, proxy.port), WAIT) as near:
            return read_until_reset(near) == b""
    except ConnectionResetError:
        return True


def exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        assert chunk
        data += chunk
    return data


@contextmanager
def sending(sock: socket.socket, data: bytes, then_end: bool = True) -> Iterator[None]:
    """Send in a thread, until it is done or the connection ends."""

    def send() -> None:
        with suppress(OSError):
            sock.sendall(data)
            if then_end:
                sock.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT)
        assert not thread.is_alive()


PASSING = {
    "nothing": Faults(),
    "latency": Faults(latency=0.005),
    "jitter": Faults(latency=0.001, jitter=0.005),
    "rate": Faults(rate=5_000_000),
    "slices": Faults(slice=777),
    "coalescing": Faults(coalesce=64 * KIB),
    "all": Faults(latency=0.002, jitter=0.002, rate=8_000_000, slice=1000, coalesce=10_000),
}


@pytest.mark.parametrize("faults", PASSING.values(), ids=PASSING)
@pytest.mark.parametrize("socket_buffer", [4 * KIB, 64 * KIB, None])
def test_bytes_and_ends_pass_unchanged_both_ways(
    listener: socket.socket, faults: Faults, socket_buffer: int | None
) -> None:
    with (
        FaultProxy(port_of(listener), up=faults, down=faults, socket_buffer=socket_buffer) as proxy,
        joined(listener, proxy) as (near, far),
    ):
        with sending(near, DATA):
            assert read_all(far) == DATA
            with sending(far, DATA[::-1]):
                assert read_all(near) == DATA[::-1]
        assert proxy.counters("up") == (len(DATA), len(DATA), 0, 0)
        assert proxy.counters("down") == (len(DATA), len(DATA), 0, 0)
        wait_for(lambda: proxy.connections == 0)


def test_slices_to_one_byte_pass(listener: socket.socket) -> None:
    with (
        FaultProxy(port_of(listener), up=Faults(slice=1)) as proxy,
        joined(listener, proxy) as (near, far),
        sending(near, DATA[:2000]),
    ):
        assert read_all(far) == DATA[:2000]


def test_gathered_bytes_arrive_in_one_piece(listener: socket.socket) -> None:
    with (
        FaultProxy(port_of(listener), up=Faults(coalesce=1000, coalesce_wait=WAIT)) as proxy,
        joined(listener, proxy) as (near, far),
    ):
        for start in range(0, 900, 100):
            near.sendall(DATA[start : start + 100])
        wait_for(lambda: proxy.counters("up").received == 900)
        assert proxy.counters("up").forwarded == 0
        near.sendall(DATA[900:1000])
        assert far.recv(5000) == DATA[:1000]


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("count", [1, 2, 4095, 65_536, 100_001])
def test_a_cut_with_fin_comes_behind_exactly_so_many_bytes(
    listener: socket.socket, way: str, count: int
) -> None:
    with FaultProxy(port_of(listener)) as proxy:
        proxy.cut_after(count, way=way)
        with joined(listener, proxy) as (near, far):
            sender, receiver = (near, far) if way == "up" else (far, near)
            with sending(sender, DATA, then_end=False):
                assert read_all(receiver) == DATA[:count]
                assert read_all(sender) == b""
            assert not proxy.cutting
            assert proxy.counters(way).forwarded == count


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("count", [1, 4095, 100_001])
def test_a_cut_with_a_reset_comes_behind_exactly_so_many_bytes(
    listener: socket.socket, way: str, count: int
) -> None:
    with FaultProxy(port_of(listener)) as proxy:
        proxy.cut_after(count, way=way, how="rst")
        with joined(listener, proxy) as (near, far):
            sender, receiver = (near, far) if way == "up" else (far, near)
            with sending(sender, DATA, then_end=False):
                assert read_until_reset(receiver) == DATA[:count]
                wait_for(lambda: proxy.connections == 0)


def test_cuts_follow_each_other_over_several_connections(listener: socket.socket) -> None:
    with FaultProxy(port_of(listener)) as proxy:
        proxy.cut_after(10, 20, 30, way="up")
        for count in (10, 20, 30):
            with joined(listener, proxy) as (near, far), sending(near, DATA, then_end=False):
                assert read_all(far) == DATA[:count]
        with joined(listener, proxy) as (near, far), sending(near, DATA):
            assert read_all(far) == DATA
        assert proxy.accepted == 4


def test_a_reset_now_ends_all_connections(listener: socket.socket) -> None:
    with (
        FaultProxy(port_of(listener)) as proxy,
        joined(listener, proxy) as one,
        joined(listener, proxy) as other,
    ):
        for near, far in (one, other):
            near.sendall(b"up")
            assert exactly(far, 2) == b"up"
        proxy.reset()
        for sock in (*one, *other):
            assert read_until_reset(sock) == b""


def test_resets_and_half_closes_of_the_ends_pass(listener: socket.socket) -> None:
    with FaultProxy(port_of(listener)) as proxy, joined(listener, proxy) as (near, far):
        near.sendall(b"last")
        near.shutdown(socket.SHUT_WR)
        assert read_all(far) == b"last"
        far.sendall(b"still here")
        assert exactly(near, 10) == b"still here"
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        assert read_until_reset(near) == b""


def test_nothing_passes_while_frozen_and_nothing_is_lost(listener: socket.socket) -> None:
    with (
        FaultProxy(port_of(listener)) as proxy,
        joined(listener, proxy) as (near, far),
    ):
        proxy.freeze()
        with sending(near, DATA), socket.create_connection((proxy.host, proxy.port), WAIT) as late:
            late.sendall(b"late")
            assert not select.select([far, listener], [], [], 0.1)[0]
            assert proxy.counters("up").received == 0
            assert proxy.accepted == 1
            proxy.thaw()
            assert read_all(far) == DATA
            with listener.accept()[0] as later:
                assert exactly(later, 4) == b"late"


def test_one_way_alone_can_stand_still(listener: socket.socket) -> None:
    with FaultProxy(port_of(listener)) as proxy, joined(listener, proxy) as (near, far):
        proxy.freeze("up")
        near.sendall(b"later")
        far.sendall(b"now")
        assert exactly(near, 3) == b"now"
        assert not select.select([far], [], [], 0.05)[0]
        proxy.thaw()
        assert exactly(far, 5) == b"later"


def test_lost_bytes_are_taken_and_dropped(listener: socket.socket) -> None:
    with FaultProxy(port_of(listener)) as proxy, joined(listener, proxy) as (near, far):
        proxy.lose("up")
        near.sendall(DATA)
        wait_for(lambda: proxy.counters("up").lost == len(DATA))
        proxy.lose()
        near.sendall(b"after")
        assert exactly(far, 5) == b"after"


def test_a_half_close_ends_one_way_and_leaves_the_other(listener: socket.socket) -> None:
    with FaultProxy(port_of(listener)) as proxy, joined(listener, proxy) as (near, far):
        near.sendall(b"first")
        assert exactly(far, 5) == b"first"
        proxy.half_close("up")
        assert read_all(far) == b""
        near.sendall(b"into the void")
        wait_for(lambda: proxy.counters("up").lost == 13)
        far.sendall(b"down")
        assert exactly(near, 4) == b"down"


def test_one_byte_is_changed_where_asked(listener: socket.socket) -> None:
    with FaultProxy(port_of(listener)) as proxy, joined(listener, proxy) as (near, far):
        proxy.corrupt_after(100_000, way="up", mask=0x01)
        proxy.corrupt_after(7, way="up")
        with sending(near, DATA):
            received = read_all(far)
        changed = {i: DATA[i] ^ received[i] for i in range(len(DATA)) if DATA[i] != received[i]}
        assert changed == {7: 0xFF, 100_000: 0x01}
        assert proxy.counters("up").corrupted == 2


def test_new_connections_are_reset_while_refusing(listener: socket.socket) -> None:
    with FaultProxy(port_of(listener)) as proxy:
        proxy.refusing = True
        assert refused(proxy)
        proxy.refusing = False
        assert (proxy.refused, proxy.accepted) == (1, 0)
        with joined(listener, proxy) as (near, far):
            near.sendall(b"x")
            assert far.recv(1) == b"x"


def test_a_server_that_is_not_there_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = port_of(free)
    with FaultProxy(port) as proxy:
        assert refused(proxy)
        wait_for(lambda: proxy.refused == 1)


def test_a_receiver_who_does_not_read_stops_the_sender(listener: socket.socket) -> None:
    """Latency does not change that: what is due and not taken counts.

    The sender gives each piece the time to be due, since what is under way is bounded otherwise.
    A proxy that comes late still takes many at once.
    """
    for faults in (Faults(), Faults(latency=0.001), Faults(rate=1e9)):
        with (
            FaultProxy(port_of(listener), up=faults, socket_buffer=16 * KIB) as proxy,
            joined(listener, proxy) as (near, _),
        ):
            near.setblocking(False)
            taken = 0
            while select.select([], [near], [], 0.2)[1]:
                taken += near.send(DATA[: 16 * KIB])
                assert taken < 64 * 1024 * KIB
                time.sleep(2 * faults.latency)
            held = proxy.counters("up").received - proxy.counters("up").forwarded
            assert held <= (MAX_FLIGHT // 4 if faults.latency else 3 * faults.buffer)


def test_latency_and_jitter_delay_each_byte_and_keep_the_order(listener: socket.socket) -> None:
    with (
        FaultProxy(port_of(listener), up=Faults(latency=0.05, jitter=0.02)) as proxy,
        joined(listener, proxy) as (near, far),
    ):
        for number in range(5):
            start = time.monotonic()
            near.sendall(bytes((number,)))
            assert exactly(far, 1) == bytes((number,))
            assert time.monotonic() - start >= 0.05


@pytest.mark.long
@pytest.mark.parametrize("rate", [100_000, 1_250_000, 10_000_000])
@pytest.mark.parametrize("latency", [0.0, 0.1])
def test_goodput_is_within_five_percent_of_the_rate(
    listener: socket.socket, rate: int, latency: float, capsys: pytest.CaptureFixture[str]
) -> None:
    data = os.urandom(int(rate * 1.5))
    with (
        FaultProxy(port_of(listener), up=Faults(rate=rate, latency=latency)) as proxy,
        joined(listener, proxy) as (near, far),
        sending(near, data),
    ):
        exactly(far, rate // 10)
        start, size = time.monotonic(), 0
        while chunk := far.recv(64 * KIB):
            size += len(chunk)
        seconds = time.monotonic() - start
    with capsys.disabled():
        print(f"\n{rate} B/s, {latency} s late: {size / seconds / rate:.1%}")  # noqa: T201
    assert size / seconds == pytest.approx(rate, rel=0.05)


def test_wrong_numbers_and_names_are_refused(listener: socket.socket) -> None:
    with pytest.raises(ValueError, match="latency must be at least 0, not -1"):
        Faults(latency=-1)
    with pytest.raises(ValueError, match="rate must be above 0, not 0"):
        Faults(rate=0)
    with pytest.raises(ValueError, match="socket_buffer must be above 0, not 0"):
        FaultProxy(1, socket_buffer=0)
    with FaultProxy(port_of(listener)) as proxy:
        wrong: list[Callable[[], object]] = [
            lambda: proxy.cut_after(0),
            lambda: proxy.corrupt_after(-1),
            lambda: proxy.corrupt_after(1, mask=256),
            lambda: proxy.freeze("sideways"),
            lambda: proxy.counters("sideways"),
        ]
        for call in wrong:
            with pytest.raises(ValueError, match="must be|come after"):
                call()


def test_a_closed_proxy_says_so(listener: socket.socket) -> None:
    proxy = FaultProxy(port_of(listener))
    proxy.close()
    proxy.close()
    with pytest.raises(RuntimeError, match="the proxy is closed"):
        proxy.cut()
