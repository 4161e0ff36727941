"""Clients of the bus for tests: one that calls as twin 1, one that serves as twin 2."""

from __future__ import annotations

from collections.abc import Iterator

from wsmux.bus.client import Client
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.session.relay_connection import LinkState
from wsmux.bus.wire.keys import KeyType

from ..timeouts import WAIT
from .people import Person, Table, person, table_of
from .scripted_relay import StageRelay

__all__ = [
    "ALICE",
    "BOB",
    "CAROL",
    "WAIT",
    "all_connected",
    "calling",
    "client",
    "known",
    "serving",
    "staged",
]

ALICE, BOB, CAROL = person(1), person(2, KeyType.SR25519), person(3)


def client(relay: StageRelay, twins: Table, who: Person = ALICE, **options: object) -> Client:
    """Return a client of a twin."""
    return Client(who.identity, relay.url, twins, twin=who.id, **options)  # type: ignore[arg-type]


def all_connected(*whose: Client | Peer) -> bool:
    """Return whether each knows every relay of its own to be there; it takes the first of those."""
    states = {relay.state for each in whose for relay in each.relays()}
    return states == {LinkState.CONNECTED}


# Test modules make fixtures of these, named relay, twins, alice and bob.


def staged() -> Iterator[StageRelay]:
    with StageRelay() as made:
        yield made


def known() -> Table:
    return table_of(ALICE, BOB, CAROL)


def calling(relay: StageRelay, twins: Table) -> Iterator[Client]:
    with client(relay, twins) as made:
        yield made


def serving(relay: StageRelay, twins: Table) -> Iterator[Client]:
    """Serve as twin 2 itself."""
    with client(relay, twins, BOB, gateway=True) as made:
        made.serve({"add": sum, "echo": lambda payload: payload})
        yield made
