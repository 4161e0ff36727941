"""A gateway that is killed at any moment: what programs asked is answered once all the same."""

from __future__ import annotations

import base64
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import EXPIRED
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.gateway.list_client import GatewayClient
from wsmux.bus.twins.records import twin_record
from wsmux.storage.redis_client import FAILURES

from ...helpers.bus import relays
from ...helpers.bus.clients import ALICE, BOB, WAIT
from ...helpers.bus.gateway_process import GatewayProcess
from ...helpers.bus.gateway_programs import Caller, Service, database, take_all
from ...helpers.bus.kill_loops import CALLERS, COUNTS, HOLD, Calls, Tally, do_harm, times
from ...helpers.bus.people import DOMAIN, table_of
from ...helpers.bus.relay_process import RelayProcess
from ...helpers.marking import wide
from ...helpers.redis_server import RedisServer

# Seconds that a request lives: longer than all of them take on a busy machine.
LIFE = 120

# Answers that three killed gateways may have had in their sockets, where a relay on a busy machine
# had not read them yet.
MOST_LOST = 24


@COUNTS
@pytest.mark.parametrize("fault", ["killed", *wide("stopped")])
def test_a_gateway_of_a_caller_loses_nothing(
    server: RedisServer, tmp_path: Path, count: int, fault: str
) -> None:
    twins = table_of(ALICE, BOB)
    tally = Tally(count)

    def serve(number: int) -> int:
        tally.runs[number] += 1
        return number

    redis = database(server, 1)
    with (
        relays.served(relays.relay(twins)) as relay,
        Client(BOB.identity, relay.url, twins, twin=2, gateway=True) as bob,
        Caller(redis) as caller,
    ):
        bob.serve({"work": serve}, workers=1)
        gateway = GatewayProcess(tmp_path, twins, relay.url, redis)
        harm = gateway.kill if fault == "killed" else lambda: gateway.hold(HOLD)
        with gateway.running():
            for number in range(count):
                caller.push("work", [2], number, ref=str(number), ret="answers", exp=600)
            do_harm([harm] * times(count), lambda: len(tally.runs), count)
            found = take_all(caller, "answers", count)
            tally.answered = len(found)
            tally.check()
            assert gateway.end(signal.SIGINT) == 130
        left = [key for key in caller.redis.scan_iter() if b"answers" not in key]
    assert found == {f"{number} 2": 1 for number in range(count)}
    assert tally.runs == dict.fromkeys(range(count), 1)
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
        self.callers, self.services = database(server, 1), database(server, 2)
        self.relay = enter(
            RelayProcess(DOMAIN, records, folder / "log", f"--redis={database(server, 0)}")
        )
        enter(Peer(ALICE.identity, self.relay.url, twins, self.callers, twin=1, update=False))
        self.gateway = GatewayProcess(folder, twins, self.relay.url, self.services, BOB)
        enter(self.gateway.running())

    def check(self, count: int, faults: list[Callable[[], None]]) -> list[dict[str, Any]]:
        """Ask so often, doing harm at even distances; return the errors among the answers."""
        tally = Tally(count)
        with Service(self.services, "work") as service, Caller(self.callers) as caller:
            for number in range(count):
                caller.push("work", [2], number, ref=str(number), ret="answers", exp=LIFE)
            do_harm(faults, lambda: len(service.requests), count)
            found = [caller.answer("answers", LIFE + WAIT) for _ in range(count)]
        assert sorted(int(each["ref"]) for each in found) == list(range(count))
        errors = [each["err"] for each in found if each["err"] is not None]
        tally.answered, tally.errors = count - len(errors), [*errors]
        tally.runs.update(int(base64.b64decode(each["dat"])) for each in service.requests)
        tally.check()
        assert {error["code"] for error in errors} <= {EXPIRED}, errors
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

    def kill_redis(self) -> None:
        self.redis.kill()
        self.redis.start()

    def stop_redis(self) -> None:
        self.redis.hold(HOLD)

    def wait_for_redis(self) -> None:
        with self.redis.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except FAILURES:
                    time.sleep(0.05)


@pytest.fixture
def way(tmp_path: Path) -> Iterator[Way]:
    with ExitStack() as stack:
        yield Way(tmp_path, stack)


@COUNTS
def test_a_killed_gateway_of_a_service_leaves_no_caller_without_an_answer(
    way: Way, count: int
) -> None:
    errors = way.check(count, [way.kill_gateway] * times(1000))
    assert len(errors) <= MOST_LOST, errors


@COUNTS
@pytest.mark.parametrize("fault", [Way.kill_relay, *wide(Way.stop_gateway, Way.stop_relay)])
def test_what_is_between_two_programs_may_fail(
    way: Way, count: int, fault: Callable[[Way], None]
) -> None:
    assert way.check(count, [lambda: fault(way)] * times(count)) == []


@COUNTS
@pytest.mark.parametrize("fault", [Way.kill_redis, *wide(Way.stop_redis)])
def test_redis_of_two_gateways_and_a_relay_may_fail(
    way: Way, count: int, fault: Callable[[Way], None]
) -> None:
    with GatewayClient(way.callers) as caller, GatewayClient(way.services) as service:
        calls = Calls(caller, service, count, recovered=way.wait_for_redis)
        tally = calls.check([lambda: fault(way)] * times(count))
    # What Redis had in hand when it failed: of each caller and worker, the request or the answer.
    assert len(tally.errors) <= 2 * CALLERS * times(count), tally.errors
