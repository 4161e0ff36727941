"""A relay with Redis that is killed: what it has queued for twins reaches them all the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import CallTimeout
from wsmux.bus.twins.records import twin_record
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import parse
from wsmux.storage.redis_client import redis_client

from ...helpers.bus.relay_process import RelayProcess
from ...helpers.bus.relays import DOMAIN, Node, Table, identity, raw
from ...helpers.raw_peer import BINARY, PING, RawPeer, wait_for
from ...helpers.redis_server import RedisServer
from ...helpers.timeouts import WAIT

# Messages for a twin that reads slowly, and their bytes: far above what sockets hold.
COUNT, SIZE = 1000, 8 * 1024


@pytest.fixture
def relay(server: RedisServer, tmp_path: Path) -> Iterator[RelayProcess]:
    with redis_client(server.url) as client:
        client.flushall()
    twins = tmp_path / "twins.json"
    twins.write_text(json.dumps([twin_record(twin) for twin in Table().twins.values()]))
    with RelayProcess(DOMAIN, twins, tmp_path / "log", f"--redis={server.url}") as made:
        yield made


@pytest.fixture
def other(relay: RelayProcess, server: RedisServer, tmp_path: Path) -> Iterator[RelayProcess]:
    """Run a relay beside the first, with the same Redis."""
    twins, log = tmp_path / "twins.json", tmp_path / "other.log"
    with RelayProcess(DOMAIN, twins, log, f"--redis={server.url}") as made:
        yield made


def joined(twin: int, *relays: RelayProcess) -> Client:
    return Client(identity(twin), [each.url for each in relays], Table(), twin=twin)


def numbers(peer: RawPeer, count: int) -> list[int]:
    """Return the numbers of so many messages, which are not acknowledged."""
    found: list[int] = []
    while len(found) < count:
        frame = peer.recv_frame()
        if frame.opcode == BINARY:
            found.append(int(parse(frame.payload).uid))
        else:
            assert frame.opcode == PING
    return found


def test_a_killed_relay_loses_nothing_of_a_slow_twin(relay: RelayProcess) -> None:
    two = Address(2)
    with raw(relay, 2, buffer=4096) as slow, Node(relay, 1) as one:
        for number in range(COUNT):
            one.ask(two, uid=str(number), plain=bytes(SIZE))
        one.nothing()  # the relay has taken all
        before = numbers(slow, 100)
        relay.kill()
        relay.start()
    with Node(relay, 2) as again:
        after = [int(again.take().uid) for _ in range(COUNT)]
    assert before == list(range(100))
    assert after == list(range(COUNT))  # in order, those that were not acknowledged once more


def test_what_is_acknowledged_leaves_redis(relay: RelayProcess, server: RedisServer) -> None:
    with redis_client(server.url) as client, Node(relay, 1) as one, Node(relay, 2) as two:
        for number in range(200):
            one.ask(two.address, uid=str(number), plain=bytes(1024))
        assert [two.take().uid for _ in range(200)] == [str(n) for n in range(200)]
        wait_for(lambda: not client.xlen(two.address.stream_key()), "an empty stream")


def test_a_message_that_is_read_and_not_acknowledged_comes_again(
    relay: RelayProcess, server: RedisServer
) -> None:
    with raw(relay, 2) as mute, Node(relay, 1) as one:
        one.ask(Address(2), uid="7")
        assert numbers(mute, 1) == [7]
    with redis_client(server.url) as client, Node(relay, 2) as two:
        assert two.take().uid == "7"
        wait_for(lambda: not client.xlen(Address(2).stream_key()), "an empty stream")
    with Node(relay, 2) as two:
        two.nothing()


def test_a_killed_relay_loses_and_doubles_no_message_of_a_topic(relay: RelayProcess) -> None:
    with joined(1, relay) as alice, joined(2, relay) as bob, bob.subscribe("news") as news:
        got = []
        for number in range(40):
            if number in (10, 20):
                publisher = threading.Thread(target=alice.publish, args=("news", "killed"))
                publisher.start()
                relay.kill()
                relay.start()
                publisher.join(WAIT)
            alice.publish("news", number, timeout=WAIT)
            if number % 3 == 2:
                got += [news.read(WAIT).payload for _ in range(2)]
        while len(got) < 42:
            got.append(news.read(WAIT).payload)
        assert [each for each in got if each != "killed"] == list(range(40))
        assert got.count("killed") == 2
        with pytest.raises(CallTimeout):
            news.read(0.1)


def test_relays_of_one_redis_have_the_same_topics(relay: RelayProcess, other: RelayProcess) -> None:
    with joined(1, other) as alice, joined(2, relay, other) as bob, bob.subscribe("news") as news:
        for number in range(10):
            alice.publish("news", number)
        assert [news.read(WAIT).payload for _ in range(5)] == list(range(5))
        relay.kill()
        last = alice.publish("news", 10)
        rest = [news.read(WAIT) for _ in range(6)]
        assert [each.payload for each in rest] == list(range(5, 11))
        assert rest[-1].position == last
