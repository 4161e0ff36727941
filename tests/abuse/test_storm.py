"""Let a thousand clients lose one server at once: they come back spread out, and all get in (H19).

The schedules are simulated with the waits of the real clients and a seed, so that hours of them
take no time; the marker ``long`` adds clients over sockets.
"""

from __future__ import annotations

import heapq
import itertools
import random
import select
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import NamedTuple

import pytest

import wsmux
from wsmux import rpc
from wsmux.bus.session.relay_connection import FIRST_WAIT, LONGEST_WAIT, URGENT_WAIT
from wsmux.rpc.options import Options
from wsmux.rpc.session.reconnect_limiter import ReconnectLimiter
from wsmux.runtime.backoff import delay_after

from ..helpers.ports import free_port
from ..helpers.raw_peer import request, wait_for
from ..helpers.tables import each_case

CLIENTS = 1000

# Gives the seconds before the next attempt, at the time of the last one.
Waits = Callable[[float], float]


def river_waits(chance: random.Random) -> Waits:
    return ReconnectLimiter(Options(), chance.random).attempt


def relay_waits(chance: random.Random) -> Waits:
    failures = itertools.count(1)
    return lambda now: delay_after(next(failures), FIRST_WAIT, LONGEST_WAIT, chance=chance.random)


CLIENT_KINDS = {"river": river_waits, "relay": relay_waits}
LONGEST = {"river": Options().backoff_max + Options().backoff_jitter, "relay": LONGEST_WAIT}


class Storm(NamedTuple):
    """Hold when attempts reached the server, and when clients got in, since it was back."""

    attempts: list[float]
    joined: list[float]
    tries: int

    def most_within(self, seconds: float) -> int:
        """Return the most attempts within any span of so many seconds."""
        first = most = 0
        for last, moment in enumerate(self.attempts):
            while moment - self.attempts[first] > seconds:
                first += 1
            most = max(most, last - first + 1)
        return most


def storm(kind: str, outage: float, accepts: float = 1e9, seed: int = 7) -> Storm:
    """Have every client lose a server that is away for ``outage`` seconds.

    Args:
        accepts: clients a second that the server lets in; it turns away the others.
    """
    chance = random.Random(seed)
    clients = [CLIENT_KINDS[kind](chance) for _ in range(CLIENTS)]
    due = [(waits(0.0), number) for number, waits in enumerate(clients)]
    heapq.heapify(due)
    attempts, joined, tries, room, before = [], [], 0, accepts / 5, outage
    while due:
        now, number = heapq.heappop(due)
        tries += 1
        if now >= outage:
            attempts.append(now - outage)
            room, before = min(accepts / 5, room + (now - before) * accepts), now
            if room >= 1:
                room -= 1
                joined.append(now - outage)
                continue
        heapq.heappush(due, (now + clients[number](now), number))
    return Storm(attempts, joined, tries)


@pytest.mark.parametrize("kind", CLIENT_KINDS)
@pytest.mark.parametrize("outage", [10.0, 60.0, 120.0, 600.0])
def test_clients_come_back_over_the_whole_of_their_longest_wait(kind: str, outage: float) -> None:
    came = storm(kind, outage)
    assert came.most_within(0.2) <= CLIENTS // 20
    assert came.most_within(1.0) <= CLIENTS // 5
    assert came.joined[-1] <= LONGEST[kind]


@pytest.mark.parametrize("outage", [3.0, 25.0, 600.0])
def test_twelve_clients_whose_calls_wait_for_a_relay_are_back_within_its_wait(
    outage: float,
) -> None:
    for seed in range(100):
        chance = random.Random(seed)
        for _ in range(12):
            now, failures = 0.0, itertools.count(1)
            while now < outage:
                wait = delay_after(next(failures), FIRST_WAIT, URGENT_WAIT, chance=chance.random)
                now += wait
            assert now - outage <= URGENT_WAIT


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_short_outage_brings_them_back_soon(kind: str) -> None:
    came = storm(kind, 3.0)
    assert came.joined[CLIENTS * 95 // 100] <= 10.0
    assert came.most_within(0.2) <= CLIENTS // 5


@each_case
@pytest.mark.parametrize("outage", [0.0, 1.0, 3.0, 10.0, 60.0])
@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_those_that_are_turned_away_are_no_second_wave(kind: str, outage: float) -> None:
    """A server that lets in 100 a second sees fewer attempts every ten seconds; all get in."""
    came = storm(kind, outage, accepts=100.0)
    decades = [0] * 6
    for moment in came.attempts:
        decades[min(5, int(moment // 10))] += 1
    assert all(later < max(sooner, 50) for sooner, later in zip(decades, decades[1:], strict=False))
    assert came.joined[CLIENTS * 98 // 100] <= 30.0
    assert came.joined[-1] <= 30.0 + LONGEST[kind]
    assert came.tries <= 10 * CLIENTS + 3 * outage * CLIENTS / 10


def test_chance_is_what_spreads_them() -> None:
    """With no more of it than shipped clients have, ten times as many come together."""
    together = storm_of_shipped(120.0).most_within(0.2)
    assert together > CLIENTS // 4
    assert together > 10 * storm("river", 120.0).most_within(0.2)


def storm_of_shipped(outage: float) -> Storm:
    chance, options = random.Random(7), Options()
    attempts = []
    for _ in range(CLIENTS):
        now, longest = 0.0, options.backoff_base
        while now < outage:
            now += min(longest, options.backoff_max) + chance.random() * options.backoff_jitter
            longest *= 2
        attempts.append(now - outage)
    return Storm(sorted(attempts), attempts, 0)


# Over sockets


def upgraded(socks: Iterable[socket.socket], bound: float) -> float:
    """Wait for the 101 of each; return the seconds that took."""
    started, heads = time.monotonic(), dict.fromkeys(socks, b"")
    poller = select.poll()
    by_number = {sock.fileno(): sock for sock in heads}
    for number in by_number:
        poller.register(number, select.POLLIN)
    left = len(by_number)
    while left:
        assert time.monotonic() - started < bound, f"{left} clients have no answer"
        for number, _ in poller.poll(1000):
            sock = by_number[number]
            heads[sock] += sock.recv(4096)
            if b"\r\n\r\n" in heads[sock]:
                assert heads[sock].startswith(b"HTTP/1.1 101 "), heads[sock][:80]
                poller.unregister(number)
                left -= 1
    return time.monotonic() - started


def connected(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLOUT)
    return bool(poller.poll(1000))


def check_accepts(count: int, bound: float) -> float:
    with (
        wsmux.serve(wsmux.Connection.wait_closed, max_connections=count) as server,
        ExitStack() as stack,
    ):
        socks = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", server.port))
            socks.append(sock)
        for sock in socks:
            sock.settimeout(bound)
            wait_for(lambda sock=sock: connected(sock), "a connection")  # type: ignore[misc]
            sock.sendall(request(f"127.0.0.1:{server.port}"))
        return upgraded(socks, bound)


def test_a_server_takes_many_that_come_at_once() -> None:
    check_accepts(100, 30.0)


@pytest.mark.long
def test_a_server_takes_a_thousand_that_come_at_once_in_30_seconds(
    figure: Callable[[str], None],
) -> None:
    figure(f"{CLIENTS} clients accepted in {check_accepts(CLIENTS, 30.0):.2f} s")


def service() -> rpc.Service:
    made = rpc.Service("storm")

    @made.rpc()
    def echo(ctx: rpc.Context, init: object) -> object:
        return init

    return made


@pytest.fixture
def port() -> int:
    return free_port()


def check_restart(port: int, count: int, outage: float, bound: float) -> list[float]:
    """Restart a server of River clients; return how many were back after each 0.1 s.

    The first contact tells a client that its session is gone, so each needs two.
    """
    url = f"ws://127.0.0.1:{port}"
    options = rpc.Options(session_disconnect_grace=bound + outage, connection_timeout=bound)
    with ExitStack() as stack:
        server = rpc.serve([service()], port=port)
        clients = [
            stack.enter_context(rpc.connect(url, options=options, eager=True)) for _ in range(count)
        ]
        for client in clients:
            assert client.rpc("storm", "echo", 1, timeout=bound) == 1
        server.shutdown(timeout=0)
        waiting = time.monotonic() + outage
        wait_for(lambda: time.monotonic() >= waiting, "the end of the outage")
        with rpc.serve([service()], port=port) as again:
            back = time.monotonic()
            arrivals: list[float] = []
            while again.handler.sessions < count:
                assert time.monotonic() - back < bound, f"only {again.handler.sessions} are back"
                arrivals.append(float(again.handler.sessions))
                time.sleep(0.1)  # a sample of the curve, not an event to wait for
            for client in clients:
                assert client.rpc("storm", "echo", 2, timeout=bound) == 2
        return arrivals


def test_clients_find_a_server_that_was_restarted(port: int) -> None:
    check_restart(port, 10, 0.2, 30.0)


@pytest.mark.long
def test_200_clients_are_back_after_30_seconds_and_not_in_one_wave(
    port: int, figure: Callable[[str], None]
) -> None:
    arrivals = check_restart(port, 200, 5.0, 30.0 + 2 * LONGEST["river"])
    steps = [after - before for before, after in zip([0.0, *arrivals], arrivals, strict=False)]
    most = [sum(count < 200 * share for count in arrivals) / 10 for share in (0.5, 0.95, 1)]
    figure(f"half back in {most[0]} s, 95 % in {most[1]} s, 200 in {most[2]} s")
    figure(f"at most {max(steps):.0f} in 0.1 s")
    assert most[1] <= 30.0
    assert max(steps) <= 60
