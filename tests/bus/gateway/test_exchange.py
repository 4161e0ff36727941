"""Two gateways on one relay: messages of programs, there and back, none lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.wire.keys import KeyType

from ...helpers.bus import relays
from ...helpers.bus.clients import WAIT
from ...helpers.bus.gateway_programs import Caller, Service, database, take_all
from ...helpers.bus.people import Person, Table, person, table_of
from ...helpers.marking import wide
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for

PAIRS = {kind: (person(1, kind), person(2, kind), person(3, kind)) for kind in KeyType}


@contextmanager
def gateway(server: RedisServer, relay: RelayServer, twins: Table, who: Person) -> Iterator[Peer]:
    url = database(server, who.id)
    with Peer(who.identity, relay.url, twins, url, twin=who.id, update=False) as made:
        made.wait_connected(WAIT)
        yield made


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        *((kind, 1) for kind in KeyType),
        (KeyType.ED25519, 200),
        pytest.param(KeyType.SR25519, 200, marks=pytest.mark.wide),
        pytest.param(KeyType.ED25519, 1000, marks=pytest.mark.wide),
        pytest.param(KeyType.SR25519, 1000, marks=pytest.mark.long),
    ],
)
def test_all_messages_are_answered_once(server: RedisServer, kind: KeyType, count: int) -> None:
    alice, bob, _ = PAIRS[kind]
    twins = table_of(alice, bob)
    with (
        relays.served(relays.relay(twins)) as relay,
        gateway(server, relay, twins, alice),
        gateway(server, relay, twins, bob),
        Service(database(server, 2), "testme"),
        Caller(database(server, 1)) as caller,
    ):
        for number in range(count):
            caller.push("testme", [2], number, ref=str(number), ret="answers", exp=120)
        found = take_all(caller, "answers", count)
        wait_for(lambda: caller.redis.dbsize() == 0)
    assert found == {f"{number} 2": 1 for number in range(count)}


@pytest.mark.parametrize("count", [1, 50, *wide(200), pytest.param(1000, marks=pytest.mark.long)])
def test_each_of_several_destinations_answers(server: RedisServer, count: int) -> None:
    people = PAIRS[KeyType.ED25519]
    alice, bob, carol = people
    twins = table_of(*people)
    with (
        relays.served(relays.relay(twins)) as relay,
        gateway(server, relay, twins, alice),
        gateway(server, relay, twins, bob),
        gateway(server, relay, twins, carol),
        Service(database(server, 2), "testme"),
        Service(database(server, 3), "testme"),
        Caller(database(server, 1)) as caller,
    ):
        for number in range(count):
            caller.push("testme", [2, 3], number, ref=str(number), ret="answers", exp=120)
        found = take_all(caller, "answers", 2 * count)
    assert found == {f"{number} {twin}": 1 for number in range(count) for twin in (2, 3)}


def test_a_key_that_is_not_the_twins_is_refused(server: RedisServer) -> None:
    alice, bob, carol = PAIRS[KeyType.ED25519]
    twins = table_of(alice, bob)
    thief = Person(1, carol.identity)
    with (
        relays.served(relays.relay(twins)) as relay,
        Peer(thief.identity, relay.url, twins, database(server, 1), twin=1, update=False) as made,
    ):
        wait_for(lambda: "signature is not of the account" in made.relays()[0].reason)
        assert "401" in made.relays()[0].reason
