"""Two federated relays are killed in turn while three twins call each other.

Twin 1 is on the relay of a.test, twin 2 on that of b.test, and twin 3 on both. Every call is
answered, or fails with a typed error by the time its request has expired; none is run or answered
twice. Twins are clients of the bus, or speak with envelopes of the tests' own.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import pytest

from wsmux.bus.errors import BusError
from wsmux.bus.twins.records import Twin, TwinDirectory, twin_record
from wsmux.bus.twins.sources import FileTwins
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.client_twins import ClientTwin
from ...helpers.bus.raw_twins import RawTwin
from ...helpers.bus.relay_process import RelayProcess
from ...helpers.bus.relays import identity
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for

# Seconds that a request lives: longer than a relay is away, and what a lost call costs the test.
LIFE = 8
JOIN = 100.0

RELAYS = {1: ("a.test",), 2: ("b.test",), 3: ("a.test", "b.test")}
PAIRS = [(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)]
CALLERS = 3  # of each pair

_numbers = itertools.count()  # no payload comes twice


class Calling(Protocol):
    """One twin; see ``RawTwin``."""

    handled: Counter[str]
    answers: Counter[str]
    refused: list[BusError]

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def is_connected(self) -> bool:
        """Return whether every link stands."""

    def call(self, twin: int, payload: bytes, life: int) -> bytes:
        """Ask another twin to echo."""


Kind = Callable[[int, Sequence[str], TwinDirectory], Calling]


def raw(number: int, urls: Sequence[str], directory: TwinDirectory) -> Calling:
    """A twin that speaks with envelopes of its own, in the clear."""
    return RawTwin(number, urls, lambda twin: directory.get(twin, Deadline(LIFE)))


class Outcome(NamedTuple):
    """How a call ended."""

    pair: tuple[int, int]
    failure: BusError | None


class Calls:
    """Make calls of every pair at once, and count how they end."""

    def __init__(self, twins: dict[int, Calling]) -> None:
        self._twins = twins
        self._lock = threading.Lock()
        self.outcomes: list[Outcome] = []

    def run(self, total: int) -> list[threading.Thread]:
        """Start so many calls; return the threads that make them."""
        each = -(-total // (len(PAIRS) * CALLERS))
        threads = [
            threading.Thread(target=self._call, args=(pair, each))
            for pair in PAIRS
            for _ in range(CALLERS)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _call(self, pair: tuple[int, int], count: int) -> None:
        source, destination = pair
        for _ in range(count):
            payload = json.dumps([source, next(_numbers)]).encode()
            failure = None
            try:
                assert self._twins[source].call(destination, payload, LIFE) == payload
            except BusError as error:
                failure = error
            with self._lock:
                self.outcomes.append(Outcome(pair, failure))

    def ended(self) -> int:
        with self._lock:
            return len(self.outcomes)

    def failures(self) -> list[BusError]:
        with self._lock:
            return [each.failure for each in self.outcomes if each.failure]


class Network(NamedTuple):
    """Hold two relays and three twins."""

    relays: tuple[RelayProcess, RelayProcess]
    twins: dict[int, Calling]

    def are_connected(self) -> bool:
        return all(twin.is_connected() for twin in self.twins.values())


Make = Callable[..., Network]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(kind: Kind, *options: tuple[str, ...]) -> Network:
            file = tmp_path / "twins.json"
            known = [record(number, relays, kind) for number, relays in RELAYS.items()]
            file.write_text(json.dumps([twin_record(twin) for twin in known]))
            first, second = (
                RelayProcess(domain, file, tmp_path / f"{domain}.log", *more)
                for domain, more in zip(("a.test", "b.test"), options, strict=True)
            )
            for relay, other in ((first, second), (second, first)):
                relay.routes = {other.domain: f"http://127.0.0.1:{other.port}/"}
                stack.enter_context(relay)
            urls = {"a.test": first.url, "b.test": second.url}
            directory = FileTwins(file)
            twins = {
                number: stack.enter_context(
                    kind(number, [urls[domain] for domain in relays], directory)
                )
                for number, relays in RELAYS.items()
            }
            made = Network((first, second), twins)
            wait_for(made.are_connected)
            return made

        yield make


def record(number: int, relays: tuple[str, ...], kind: Kind) -> Twin:
    """Return what the directory knows; clients encrypt."""
    keys = identity(number)
    return Twin(number, keys.account, relays, None if kind is raw else keys.e2e_public)


def kill_each_in_turn(network: Network, calls: Calls, ended: tuple[int, int]) -> None:
    """Kill each relay once so many calls have ended, and start it again while others go on."""
    for relay, count in zip(network.relays, ended, strict=True):
        wait_for(lambda count=count: calls.ended() >= count, JOIN)  # type: ignore[misc]
        relay.kill()
        relay.start()
        wait_for(network.are_connected, JOIN)


def check(network: Network, total: int, ended: tuple[int, int]) -> None:
    calls = Calls(network.twins)
    threads = calls.run(total)
    kill_each_in_turn(network, calls, ended)
    for thread in threads:
        thread.join(JOIN)
        assert not thread.is_alive(), "a call never ended"
    assert calls.ended() >= total
    # A relay takes with it what it had in hand, which is one call of each caller at most. What it
    # had not, a caller may send again.
    lost = Counter(str(failure) for failure in calls.failures() if not failure.retry_safe)
    assert lost.total() <= len(network.relays) * len(threads), lost
    later = Calls(network.twins)
    for thread in later.run(2 * len(threads)):
        thread.join(JOIN)
    assert not later.failures()  # all is well again
    for twin in network.twins.values():
        assert set(twin.handled.values()) <= {1}
        assert set(twin.answers.values()) <= {1}
        assert {error.code for error in twin.refused} <= {102}  # it expired on its way


def test_calls_survive_each_relay(network: Make) -> None:
    check(network(ClientTwin, (), ()), 150, (30, 30))


@pytest.mark.long
@pytest.mark.hang_bound(200)
@pytest.mark.parametrize("kind", [raw, ClientTwin])
def test_a_thousand_calls_survive_each_relay(network: Make, kind: Kind) -> None:
    check(network(kind, (), ()), 1000, (200, 600))


@pytest.mark.long
@pytest.mark.hang_bound(200)
@pytest.mark.parametrize("kind", [raw, ClientTwin])
def test_a_thousand_calls_survive_each_relay_that_keeps_what_waits_in_redis(
    network: Make, server: RedisServer, kind: Kind
) -> None:
    first, second = server.url, server.url.removesuffix("0") + "1"  # each has its own
    check(network(kind, (f"--redis={first}",), (f"--redis={second}",)), 1000, (200, 600))
