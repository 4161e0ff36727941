"""Put our gateway and a real Redis between programs and the shipped npm package.

The programs are those of the gateway's own tests: they know nothing but lists in Redis.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import wsmux
from wsmux.bus.wire.address import Address

from ..helpers.bus.gateway_programs import Caller, Service, database
from ..helpers.interop.link import MIB, WAIT
from ..helpers.interop.peer_process import PeerError, PeerProcess
from ..helpers.interop.rmb_link import (
    PAYLOAD,
    SEALED,
    RmbLink,
    by_pair,
    number_of,
    rmb_marks,
    sealing,
)
from ..helpers.redis_server import RedisServer
from ..helpers.waiting import wait_for

pytestmark = rmb_marks

sealed = pytest.fixture(params=SEALED)(sealing)

# Databases of the server: those of relays, and the gateway's. Relays that share one would take
# each other's messages.
RELAY, FIRST, SECOND, GATEWAY = 1, 2, 3, 4


@pytest.fixture
def link(rmb_peer: PeerProcess, redis_server: RedisServer) -> Iterator[RmbLink]:
    """Run one relay, which keeps in Redis what waits."""
    redis = redis_server.client()
    redis.flushall()
    redis.close()
    with RmbLink(rmb_peer) as made:
        made.relay(redis=database(redis_server, RELAY))
        yield made


@pytest.fixture
def redis(redis_server: RedisServer) -> str:
    return database(redis_server, GATEWAY)


@pytest.fixture
def program(redis: str) -> Iterator[Caller]:
    with Caller(redis) as made:
        yield made


@by_pair
def test_npm_calls_a_program(link: RmbLink, redis: str, npm: str, ours: str, sealed: bool) -> None:
    link.gateway(ours, redis)
    caller = link.npm(npm, session="calls")
    with Service(redis, "echo") as service:
        assert caller.call(number_of(ours), "echo", PAYLOAD) == PAYLOAD
    (request,) = service.requests
    assert request["src"] == str(Address(number_of(npm), "calls"))
    assert (request["cmd"], request["shm"]) == ("echo", "application/json")
    assert [answer["sealed"] for answer in caller.answers()] == [sealed]


@by_pair
def test_a_program_calls_npm(
    link: RmbLink, redis: str, program: Caller, npm: str, ours: str, sealed: bool
) -> None:
    link.gateway(ours, redis)
    service = link.npm(npm)
    answer = program.ask("echo", [number_of(npm)], PAYLOAD)
    assert json.loads(answer["dat"]) == PAYLOAD
    assert (answer["ref"], answer["err"]) == ("mine", None)
    assert answer["src"] == str(number_of(npm))
    (request,) = service.do("requests")
    assert (request["verified"], request["sealed"]) == (True, sealed)
    assert request["source"] == {"twin": number_of(ours), "session": None}


def test_a_program_asks_several_twins_at_once(link: RmbLink, redis: str, program: Caller) -> None:
    link.gateway("alice", redis)
    twins = [number_of(name) for name in ("carol", "dave", "erin")]
    for name in ("carol", "dave", "erin"):
        link.npm(name)
    ret = program.push("echo", twins, PAYLOAD)
    answers = [program.answer(ret) for _ in twins]
    assert sorted(answer["src"] for answer in answers) == sorted(map(str, twins))
    assert [json.loads(answer["dat"]) for answer in answers] == [PAYLOAD] * len(twins)


def test_errors_of_npm_reach_the_program(link: RmbLink, redis: str, program: Caller) -> None:
    link.gateway("alice", redis)
    link.npm("carol")
    answer = program.ask("fail", [number_of("carol")], "luck")
    assert answer["err"] == {"code": 7, "message": 'no "luck"'}
    assert answer["src"] == str(number_of("carol"))


def test_errors_of_a_program_reach_npm(link: RmbLink, redis: str) -> None:
    link.gateway("alice", redis)
    caller = link.npm("carol")
    error = {"code": 42, "message": "not today"}
    with (
        Service(redis, "echo", lambda request: {"err": error, "dat": ""}),
        pytest.raises(PeerError) as caught,
    ):
        caller.call(number_of("alice"), "echo", 1)
    assert caught.value.error["message"] == "42 not today"


@pytest.mark.parametrize("name", ["alice", "carol"])
def test_npm_asks_the_gateway_for_its_version(link: RmbLink, redis: str, name: str) -> None:
    link.gateway("bob", redis)
    caller = link.npm(name)
    assert caller.call(number_of("bob"), "rmb.version", "") == wsmux.__version__
    with pytest.raises(PeerError, match="500 the gateway has no command 'rmb.other'"):
        caller.call(number_of("bob"), "rmb.other", "")


def test_a_command_that_nobody_serves_runs_out_at_npm(link: RmbLink, redis: str) -> None:
    link.gateway("bob", redis)
    # Its own time is up with the request's, so either may come first.
    either = "Didn't get a response after 1 seconds|102 no service of the gateway took 'missing'"
    with pytest.raises(PeerError, match=either):
        link.npm("alice").call(number_of("bob"), "missing", 1, minutes=1 / 60)


def test_what_a_program_asked_waits_for_npm(
    link: RmbLink, redis_server: RedisServer, redis: str, program: Caller
) -> None:
    link.gateway("alice", redis)
    ret = program.push("echo", [number_of("carol")], "late")
    waiting = f"stream:{number_of('carol')}"
    with Caller(database(redis_server, RELAY)) as relay:
        wait_for(lambda: relay.redis.exists(waiting), WAIT)
    link.npm("carol")
    assert json.loads(program.answer(ret)["dat"]) == "late"


def test_npm_and_programs_call_each_other_at_once(
    link: RmbLink, redis: str, program: Caller
) -> None:
    count = 8
    link.gateway("alice", redis)
    npm = link.npm("carol")
    with Service(redis, "echo"):
        rets = [program.push("echo", [number_of("carol")], number) for number in range(count)]
        answers = npm.do("callMany", to=number_of("alice"), run="echo", count=count)
    assert answers == [{"answer": number} for number in range(count)]
    assert [json.loads(program.answer(ret)["dat"]) for ret in rets] == [*range(count)]


def test_large_payloads_pass_both_ways(
    link: RmbLink, redis: str, program: Caller, sealed: bool
) -> None:
    large = "0123456789abcdef" * (MIB // 16)
    link.gateway("alice", redis)
    npm = link.npm("carol")
    with Service(redis, "echo"):
        assert npm.call(number_of("alice"), "echo", large) == large
    answer = program.ask("echo", [number_of("carol")], large)
    assert json.loads(answer["dat"]) == large


def test_npm_and_a_program_call_each_other_over_two_relays(
    link: RmbLink, redis_server: RedisServer, redis: str, program: Caller
) -> None:
    link.place("alice", "a.test")
    link.place("carol", "b.test")
    here, there = link.pair_of_relays(database(redis_server, FIRST), database(redis_server, SECOND))
    link.gateway("alice", redis, here)
    npm = link.npm("carol", None, there)
    with Service(redis, "echo"):
        assert npm.call(number_of("alice"), "echo", PAYLOAD) == PAYLOAD
    assert json.loads(program.ask("echo", [number_of("carol")], PAYLOAD)["dat"]) == PAYLOAD
