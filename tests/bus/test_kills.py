"""Calls of clients while what carries them is killed or stopped: answered, or a typed error."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import BusError
from wsmux.bus.twins.records import twin_record

from ..helpers.bus.clients import ALICE, BOB, WAIT
from ..helpers.bus.people import DOMAIN, table_of
from ..helpers.bus.relay_process import RelayProcess
from ..helpers.redis_server import RedisServer
from ..helpers.waiting import wait_for

CALLERS, TIMES = 8, 3

# Seconds for which something is stopped: as long as a reply of Redis may take.
HOLD = 3.0

COUNTS = pytest.mark.parametrize(
    "count", [200, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.hang_bound(300)])]
)


class Calls:
    """Make so many calls from one twin to another, of several callers at once."""

    def __init__(self, caller: Client, service: Client, count: int) -> None:
        self.runs: Counter[int] = Counter()
        self.failures: list[BusError] = []
        self._caller = caller
        self._count = count
        self._lock = threading.Lock()
        self._numbers = iter(range(count))
        self._threads = [threading.Thread(target=self._run) for _ in range(CALLERS)]
        service.serve({"work": self._work}, workers=CALLERS)

    def check(self, faults: list[Callable[[], None]]) -> None:
        """Make the calls, and do harm at even distances; each call must have ended at the end."""
        for thread in self._threads:
            thread.start()
        for part, fault in enumerate(faults, 1):
            reached = part * self._count // (len(faults) + 1)
            wait_for(lambda reached=reached: len(self.runs) >= reached)  # type: ignore[misc]
            fault()
        for thread in self._threads:
            thread.join(3 * WAIT)
            assert not thread.is_alive(), "a call never ended"
        assert max(self.runs.values()) == 1, "a request ran twice"

    def _work(self, number: int) -> int:
        with self._lock:
            self.runs[number] += 1
        return number

    def _run(self) -> None:
        while True:
            with self._lock:
                number = next(self._numbers, None)
            if number is None:
                return
            try:
                assert self._caller.call(2, "work", number, timeout=WAIT) == number
            except BusError as error:
                self.failures.append(error)


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

    made = calls(count)
    made.check([kill] * TIMES)
    assert made.failures == []
    assert made.runs == dict.fromkeys(range(count), 1)


@COUNTS
def test_a_stopped_relay_loses_no_call(
    relay: RelayProcess, calls: Callable[[int], Calls], count: int
) -> None:
    made = calls(count)
    made.check([lambda: relay.hold(HOLD)] * (TIMES if count >= 1000 else 1))
    assert made.failures == []
    assert made.runs == dict.fromkeys(range(count), 1)


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

    made = calls(count)
    made.check([harm] * (TIMES if count >= 1000 else 1))
    assert made.failures == []
    assert made.runs == dict.fromkeys(range(count), 1)
