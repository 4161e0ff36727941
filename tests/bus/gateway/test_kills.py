"""A gateway that is killed at any moment: what programs asked is answered once all the same."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import EXPIRED
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.twins.records import twin_record

from ...helpers.bus import relays
from ...helpers.bus.clients import ALICE, BOB, WAIT
from ...helpers.bus.gateway_process import GatewayProcess
from ...helpers.bus.gateway_programs import Caller, Service, database, take_all
from ...helpers.bus.people import DOMAIN, table_of
from ...helpers.bus.relay_process import RelayProcess
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for

# Seconds that a request lives: longer than a gateway is away.
LIFE = 30

# How often something fails under a thousand calls, and seconds for which it is stopped.
TIMES, HOLD = 3, 3.0

# Answers that three killed gateways may have had in their sockets.
MOST_LOST = 8

COUNTS = pytest.mark.parametrize(
    "count", [200, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.hang_bound(300)])]
)


@COUNTS
def test_a_killed_gateway_loses_nothing(server: RedisServer, tmp_path: Path, count: int) -> None:
    twins = table_of(ALICE, BOB)
    runs: Counter[int] = Counter()
    reached = [threading.Event() for _ in range(3)]

    def serve(number: int) -> int:
        runs[number] += 1
        for part, event in enumerate(reached, 1):
            if len(runs) >= part * count // 4:
                event.set()
        return number

    redis = database(server, 1)
    with (
        relays.served(relays.relay(twins)) as relay,
        Client(BOB.identity, relay.url, twins, twin=2, gateway=True) as bob,
        Caller(redis) as caller,
    ):
        bob.serve({"work": serve}, workers=1)
        gateway = GatewayProcess(tmp_path, twins, relay.url, redis)
        with gateway.running():
            for number in range(count):
                caller.push("work", [2], number, ref=str(number), ret="answers", exp=600)
            for event in reached:
                assert event.wait(2 * WAIT)
                gateway.kill()
            found = take_all(caller, "answers", count)
            assert gateway.end(signal.SIGINT) == 130
        left = [key for key in caller.redis.scan_iter() if b"answers" not in key]
    assert found == {f"{number} 2": 1 for number in range(count)}
    assert runs == dict.fromkeys(range(count), 1)
    assert left == []


class Way:
    """Have a program of twin 1 ask a service of twin 2, over two gateways and a relay.

    The gateway of the service, the relay and Redis, which all three use, can be killed and stopped.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        twins = table_of(ALICE, BOB)
        records = folder / "all.json"
        records.write_text(json.dumps([twin_record(twin) for twin in twins.twins.values()]))
        enter = stack.enter_context
        self.redis = server = enter(RedisServer(folder, durable=True))
        self._url = database(server, 1)
        self.relay = enter(
            RelayProcess(DOMAIN, records, folder / "log", f"--redis={database(server, 0)}")
        )
        enter(Peer(ALICE.identity, self.relay.url, twins, self._url, twin=1, update=False))
        self._service = enter(Service(database(server, 2), "work"))
        self.gateway = GatewayProcess(folder, twins, self.relay.url, database(server, 2), BOB)
        enter(self.gateway.running())

    def check(self, count: int, faults: list[Callable[[], None]]) -> list[dict[str, Any]]:
        """Ask so often, doing harm at even distances; return the errors among the answers."""
        with Caller(self._url) as caller:
            for number in range(count):
                caller.push("work", [2], number, ref=str(number), ret="answers", exp=LIFE)
            for part, fault in enumerate(faults, 1):
                reached = part * count // (len(faults) + 1)
                wait_for(
                    lambda reached=reached: len(self._service.requests) >= reached  # type: ignore[misc]
                )
                fault()
        with Caller(self._url) as caller:
            found = [caller.answer("answers", 2 * LIFE) for _ in range(count)]
        assert sorted(int(each["ref"]) for each in found) == list(range(count))
        runs = Counter(each["dat"] for each in self._service.requests)
        assert set(runs.values()) == {1}
        errors = [each["err"] for each in found if each["err"] is not None]
        assert {error["code"] for error in errors} <= {EXPIRED}
        return errors

    def kill_gateway(self) -> None:
        self.gateway.kill()

    def stop_gateway(self) -> None:
        self.gateway.hold(HOLD)

    def kill_relay(self) -> None:
        self.relay.kill()
        self.relay.start()

    def stop_relay(self) -> None:
        self.relay.hold(HOLD)


@pytest.fixture
def way(tmp_path: Path) -> Iterator[Way]:
    with ExitStack() as stack:
        yield Way(tmp_path, stack)


@COUNTS
def test_a_killed_gateway_of_a_service_leaves_no_caller_without_an_answer(
    way: Way, count: int
) -> None:
    errors = way.check(count, [way.kill_gateway] * TIMES)
    assert len(errors) <= MOST_LOST, errors


@COUNTS
@pytest.mark.parametrize("fault", [Way.stop_gateway, Way.kill_relay, Way.stop_relay])
def test_what_is_between_two_programs_may_fail(
    way: Way, count: int, fault: Callable[[Way], None]
) -> None:
    faults = [lambda: fault(way)] * (TIMES if count >= 1000 else 1)
    assert way.check(count, faults) == []
