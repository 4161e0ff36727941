"""Requests of other twins: what services are given, and what is refused."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from wsmux import __version__
from wsmux.bus.client import Client
from wsmux.bus.errors import BAD_SIGNATURE, EXPIRED, TOO_MANY, BusError, CallTimeout
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.gateway.redis_store import LIST_LIFE
from wsmux.bus.session.identity_session import clock
from wsmux.bus.wire import envelope as envelopes
from wsmux.bus.wire.address import Address

from ...helpers.bus.clients import WAIT
from ...helpers.bus.gateway_programs import Caller, Service, database
from ...helpers.bus.gateways import lists
from ...helpers.bus.people import Table, person
from ...helpers.bus.scripted_relay import StageRelay
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for


def test_a_request_reaches_its_service(alice: Peer, asker: Client, server: RedisServer) -> None:
    with Service(database(server, 1), "calc.add") as service:
        assert asker.call(1, "calc.add", [1, 2], timeout=WAIT, tags="a") == [1, 2]
    found = service.requests[0]
    assert 0 < found.pop("exp") <= WAIT + 1
    assert abs(found.pop("now") - time.time()) < 60
    assert len(found.pop("ref")) == 36
    assert found == {
        "ver": 1,
        "src": str(asker.address),
        "cmd": "calc.add",
        "dat": base64.b64encode(b"[1,2]").decode(),
        "tag": "a",
        "ret": "msgbus.system.reply",
        "shm": "application/json",
    }


def test_a_service_may_answer_with_an_error(
    alice: Peer, asker: Client, server: RedisServer
) -> None:
    wrong = {"err": {"code": 7, "message": "no"}, "dat": ""}
    with (
        Service(database(server, 1), "fail", lambda request: wrong),
        pytest.raises(BusError, match="no") as caught,
    ):
        asker.call(1, "fail", timeout=WAIT)
    assert caught.value.code == 7


@pytest.mark.parametrize(
    "changes", [{"dst": "x"}, {"dst": "99"}, {"ref": None}, {"now": 1}, {"dat": "*"}, {"dst": ""}]
)
def test_an_answer_that_goes_nowhere_is_dropped(
    alice: Peer, asker: Client, server: RedisServer, changes: dict[str, Any]
) -> None:
    answers = iter([changes, {}])
    with Service(database(server, 1), "echo", lambda request: next(answers)):
        lost = asker.submit(1, "echo", timeout=WAIT)
        assert asker.call(1, "echo", 1, timeout=WAIT) == 1
    assert not lost.done()
    wait_for(lambda: lists(server, 1) == {})


def test_a_request_that_comes_again_is_answered_again_and_not_run(
    alice: Peer, server: RedisServer, relay: StageRelay, asker: Client
) -> None:
    with Service(database(server, 1), "echo") as service:
        assert asker.call(1, "echo", 1, timeout=WAIT) == 1
        request, first = relay.passed
        relay.deliver(request)
        wait_for(lambda: len(relay.passed) == 3)
    assert len(service.requests) == 1
    assert relay.passed[2].SerializeToString() == first.SerializeToString()


@pytest.mark.parametrize("command", ["system.local", "backlog.u-1", "a b", "x" * 129, "ä"])
def test_no_request_goes_to_lists_of_the_system(
    alice: Peer, asker: Client, server: RedisServer, command: str
) -> None:
    with pytest.raises(BusError, match="command"):
        asker.call(1, command, timeout=WAIT)
    assert lists(server, 1) == {}


def test_lists_keep_the_newest(
    alice: Peer, asker: Client, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wsmux.bus.gateway.redis_store.MAX_LIST", 3)
    for number in range(5):
        asker.submit(1, "slow", number, timeout=WAIT)
        newest = [base64.b64encode(str(n).encode()).decode() for n in range(number, -1, -1)]
        wait_for(lambda newest=newest: kept(server) == newest[:3])


def kept(server: RedisServer) -> list[str]:
    with Caller(database(server, 1)) as each:
        return [json.loads(raw)["dat"] for raw in each.redis.lrange("msgbus.slow", 0, -1)]


def test_the_gateway_tells_its_version(alice: Peer, asker: Client) -> None:
    assert asker.call(1, "rmb.version", timeout=WAIT) == __version__


def test_the_gateway_has_no_other_command(alice: Peer, asker: Client) -> None:
    with pytest.raises(BusError, match="no command 'rmb.stop'"):
        asker.call(1, "rmb.stop", timeout=WAIT)


def test_a_wrong_signature_is_answered_with_its_code(
    alice: Peer, relay: StageRelay, twins: Table
) -> None:
    with (
        Client(person(8).identity, relay.url, twins, twin=2) as thief,
        pytest.raises(BusError) as caught,
    ):
        thief.call(1, "echo", timeout=WAIT)
    assert caught.value.code == BAD_SIGNATURE


def test_a_command_that_nobody_serves_is_answered_before_it_expires(
    alice: Peer, asker: Client, server: RedisServer
) -> None:
    with pytest.raises(BusError, match="no service of the gateway took 'nothing'") as caught:
        asker.call(1, "nothing", timeout=3)
    assert (caught.value.code, caught.value.twin, caught.value.retry_safe) == (EXPIRED, 1, True)
    assert not isinstance(caught.value, CallTimeout)
    assert lists(server, 1) == {}


def test_what_a_service_has_taken_is_not_withdrawn(
    alice: Peer, asker: Client, server: RedisServer
) -> None:
    def slow(request: dict[str, Any]) -> dict[str, Any]:
        time.sleep(3.0)  # past the half of the request's life
        return {}

    with Service(database(server, 1), "slow", slow):
        assert asker.call(1, "slow", 1, timeout=5) == 1


def test_a_request_without_room_is_answered_at_once_and_leaves_its_list(
    alice: Peer, asker: Client, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wsmux.bus.gateway.unserved.MAX_WATCHED", 0)
    with pytest.raises(BusError, match="twin 2 has more requests than any other") as caught:
        asker.call(1, "nothing", timeout=WAIT)
    assert (caught.value.code, caught.value.twin) == (TOO_MANY, 1)
    assert lists(server, 1) == {}


def test_a_list_that_nobody_reads_ends_with_its_requests(
    alice: Peer, asker: Client, server: RedisServer
) -> None:
    asker.submit(1, "nothing", timeout=WAIT)
    with Caller(database(server, 1)) as each:
        wait_for(lambda: each.redis.llen("msgbus.nothing") == 1)
        assert 0 < each.redis.ttl("msgbus.nothing") <= LIST_LIFE


def test_twin_0_cannot_ask(
    alice: Peer, relay: StageRelay, server: RedisServer, asker: Client
) -> None:
    made = envelopes.request("u", Address(2), Address(1), "echo", clock(), 60, plain=b"1")
    made.ClearField("source")
    relay.deliver(made)
    assert asker.call(1, "rmb.version", timeout=WAIT)
    assert lists(server, 1) == {}
