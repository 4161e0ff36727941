"""``python -m benchmarks --bus``, too short to mean anything."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from benchmarks.bus.client import EchoClient, Trips
from benchmarks.bus.moving import (
    COUNT,
    Numbered,
    identity,
    messages_per_second,
    open_link,
    small_request,
)
from benchmarks.bus.server import echo, relay
from benchmarks.measures import BUS_MEASURES
from benchmarks.peers import find_peers
from benchmarks.processes import Worker
from benchmarks.programs import redis
from benchmarks.results import Pass
from benchmarks.targets import TARGETS, judge
from wsmux.bus.wire.address import Address
from wsmux.cli.terminal import CommandError
from wsmux.runtime.deadline import Deadline
from wsmux.storage.redis_client import FAILURES, redis_client

from ..helpers.benchmark_commands import run
from ..helpers.programs import needs
from ..helpers.scripted import WAIT

pytestmark = pytest.mark.tools

TINY = ("--bus", "--repetitions", "1", "--seconds", "0.02", "--pin", "no")


@pytest.fixture
def redis_there() -> None:
    needs("redis-server")


@pytest.fixture
def url() -> Iterator[str]:
    with relay() as address:
        yield address


@pytest.fixture
def echo_url() -> Iterator[str]:
    with echo() as address:
        yield address


@pytest.mark.parametrize(
    ("peers", "measures", "kind"),
    [
        ("link-echo,relay", "twins-1,twins-100", "ratio to link-echo"),
        ("raw-trips,relay", "trip,call", "ratio to raw-trips"),
        ("relay", "idle-twin", "KiB"),
        ("relay-limit", "flood", "%"),
    ],
)
def test_every_figure_is_taken_and_judged(peers: str, measures: str, kind: str) -> None:
    done = run(*TINY, "--peers", peers, "--measures", measures, "--json")
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    (each,) = result["passes"]
    assert each["failures"] == []
    assert list(each["measures"]) == measures.split(",")
    for measure in each["measures"].values():
        assert list(measure["variants"]) == peers.split(",")
        assert all(figures["min"] is not None for figures in measure["variants"].values())
    judged = [(target["measure"], target["kind"]) for target in result["targets"]]
    assert judged == [(name, kind) for name in measures.split(",")]


@pytest.mark.usefixtures("redis_there")
def test_a_relay_with_redis_is_held_to_one_without() -> None:
    measures = "twins-1,kept"
    done = run(*TINY, "--peers", "relay,relay-redis", "--measures", measures, "--json")
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert result["passes"][0]["failures"] == []
    assert {(target["measure"], target["kind"]) for target in result["targets"]} == {
        ("twins-1", "ratio to relay"),
        ("kept", "ratio to relay"),
    }


def test_a_table_is_for_people_and_says_why_there_is_no_redis() -> None:
    done = run(*TINY, "--measures", "twins-10,trip", env={**os.environ, "PATH": os.devnull})
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert "relay-redis is left out: there is no redis-server here" in done.stderr.decode()
    assert "messages, 10 twins, /s" in text
    assert "x raw-trips, wanted at most 3" in text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--protocol", "yamux"), "relays, which have no wire to choose"),
        (("--rpc",), "one after the other"),
        (("--spark",), "--bus and --spark are measured one after the other"),
        (("--measures", "opens"), "no measure 'opens'; there are twins-1"),
        (("--peers", "river"), "no variant 'river'; there are"),
    ],
)
def test_wrong_usage_is_told(options: tuple[str, ...], reason: str) -> None:
    done = run(*TINY, *options)
    assert done.returncode == 2
    assert reason in done.stderr.decode()


def test_nothing_to_measure_is_a_failure() -> None:
    done = run(*TINY, without=("base58", "websocket"))
    assert done.returncode == 1
    assert "nothing is left to measure" in done.stderr.decode()


def test_every_target_of_the_bus_can_be_measured() -> None:
    peers = find_peers()
    targets = [target for target in TARGETS if target.measure in BUS_MEASURES]
    assert len(targets) == 11
    for target in targets:
        for name in filter(None, (target.variant, target.base)):
            assert target.measure not in peers[name].leaves_out


def test_a_flood_that_others_feel_misses_its_target() -> None:
    (verdict,) = judge(
        [Pass(pinned=True, figures={"flood": {"relay-limit": [119.0, 130.0, 121.0]}})]
    )
    assert not verdict.met
    assert "121 %, wanted at most 120" in str(verdict)


def test_every_process_knows_the_same_twins() -> None:
    twins, now = Numbered(), Deadline(WAIT)
    twin = twins.get(7, now)
    assert twin is not None
    assert twin.account == identity(7).account
    assert twins.find(identity(7).account, now) == twin
    assert twins.get(0, now) is twins.get(COUNT + 1, now) is None


def test_an_echo_has_fewer_figures(echo_url: str) -> None:
    client = EchoClient(echo_url)
    assert client.trip_p50(0) > 0
    for figure in ("call", "flood", "kept", "idle-twin"):
        with pytest.raises(AttributeError, match="'EchoClient' object has no attribute"):
            BUS_MEASURES[figure].run(client, 0.01, {})


def test_a_line_has_no_twins(echo_url: str) -> None:
    with find_peers()["raw-trips"].connect((echo_url,)) as client:
        assert client.call_p50(0) > 0
        with pytest.raises(AttributeError, match="no attribute 'messages'"):
            BUS_MEASURES["twins-1"].run(client, 0.01, {})


# What goes wrong


def test_another_message_than_the_wanted_one_fails(url: str) -> None:
    address, other = Address(1, "one"), Address(2, "other")
    trips = Trips(url, address, address)
    with closing(trips):
        trips.exchange()
        link = open_link(url, other)
        link.send_nowait(small_request(other, address))
        messages = link.messages()
        link.hang_up()
        assert list(messages) == []
        with pytest.raises(RuntimeError, match="another message came back"):
            trips.exchange()


def test_messages_of_a_relay_that_refuses_them_fail() -> None:
    with (
        relay(limit=(1, 10_000)) as address,
        pytest.raises(RuntimeError, match="none of the bench"),
    ):
        messages_per_second(address, 2, 0.05)


def test_a_flood_begins_and_stops() -> None:
    with relay(limit=(10, 10_000)) as address, Worker("bus.moving", "flooder", address) as flood:
        for _ in range(3):
            flood.ask()


def test_a_companion_that_ends_is_no_answer() -> None:
    with pytest.raises(CommandError, match="a process ended with status 1"):
        Worker("bus.moving", "returner", "nowhere")


@pytest.mark.usefixtures("redis_there")
def test_redis_ends_with_the_block() -> None:
    with redis() as address:
        client = redis_client(address)
        assert client.ping()
    with pytest.raises(FAILURES):
        client.ping()
    client.close()


def test_a_redis_that_does_not_begin_is_a_failure() -> None:
    with pytest.raises(RuntimeError, match="Redis does not answer"), redis("false"):
        pytest.fail("it has begun")
