"""Calls of clients while what carries them is killed or stopped: answered, or a typed error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from wsmux.bus.client import Client
from wsmux.bus.twins.records import twin_record

from ..helpers.bus.clients import ALICE, BOB
from ..helpers.bus.kill_loops import COUNTS, HOLD, Calls, times
from ..helpers.bus.people import DOMAIN, table_of
from ..helpers.bus.relay_process import RelayProcess
from ..helpers.redis_server import RedisServer


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path, durable=True) as made:
        yield made


@pytest.fixture
def relay(redis: RedisServer, tmp_path: Path) -> Iterator[RelayProcess]:
    twins = tmp_path / "twins.json"
    twins.write_text(
        json.dumps([twin_record(twin) for twin in table_of(ALICE, BOB).twins.values()])
    )
    with RelayProcess(DOMAIN, twins, tmp_path / "log", f"--redis={redis.url}") as made:
        yield made


@pytest.fixture
def calls(relay: RelayProcess) -> Iterator[Callable[[int], Calls]]:
    with ExitStack() as stack:

        def make(count: int) -> Calls:
            twins = table_of(ALICE, BOB)
            bob = Client(BOB.identity, relay.url, twins, twin=2, gateway=True)
            alice = Client(ALICE.identity, relay.url, twins, twin=1)
            return Calls(stack.enter_context(alice), stack.enter_context(bob), count)

        yield make


@COUNTS
def test_a_killed_relay_loses_no_call(
    relay: RelayProcess, calls: Callable[[int], Calls], count: int
) -> None:
    def kill() -> None:
        relay.kill()
        relay.start()

    tally = calls(count).check([kill] * times(1000))
    assert tally.errors == []
    assert tally.runs == dict.fromkeys(range(count), 1)


@COUNTS
def test_a_stopped_relay_loses_no_call(
    relay: RelayProcess, calls: Callable[[int], Calls], count: int
) -> None:
    tally = calls(count).check([lambda: relay.hold(HOLD)] * times(count))
    assert tally.errors == []
    assert tally.runs == dict.fromkeys(range(count), 1)


@COUNTS
@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_redis_may_fail_under_calls(
    redis: RedisServer, calls: Callable[[int], Calls], count: int, fault: str
) -> None:
    def harm() -> None:
        if fault == "stopped":
            redis.hold(HOLD)
        else:
            redis.kill()
            redis.start()

    tally = calls(count).check([harm] * times(count))
    assert tally.errors == []
    assert tally.runs == dict.fromkeys(range(count), 1)
