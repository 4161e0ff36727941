"""Run gateways of the twins of these tests, and look into their databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.gateway.redis_store import ASKED
from wsmux.bus.wire.address import Address

from ..redis_server import RedisServer
from ..waiting import wait_for
from .gateway_programs import Caller, database
from .people import Person, Table
from .scripted_relay import StageRelay

__all__ = ["gateway", "lists"]

# What Redis says of the life of a key without an end.
FOREVER = -1


@contextmanager
def gateway(
    server: RedisServer, relay: StageRelay, twins: Table, who: Person, **options: Any
) -> Iterator[Peer]:
    """Run the gateway of a twin on the database of its number."""
    options = {"update": False, "twin": who.id} | options
    url = database(server, who.id)
    with Peer(who.identity, relay.url, twins, url, **options) as made:
        if relay.refusal is None:
            wait_for(lambda: Address(who.id) in relay.connected())
        yield made


def lists(server: RedisServer, number: int) -> dict[str, str]:
    """Return the keys of a database and their kinds, without records that only wait to expire."""
    with Caller(database(server, number)) as each:
        keys = [key.decode() for key in each.redis.scan_iter()]
        assert all(each.redis.ttl(key) != FOREVER for key in keys if key.startswith(ASKED))
        return {key: each.redis.type(key).decode() for key in keys if not key.startswith(ASKED)}
