"""Set the stage for gateways: Redis, a relay, twins, and programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wsmux.bus.client import Client
from wsmux.bus.gateway import list_client, redis_store
from wsmux.bus.gateway.gateway import Peer

from ...helpers.bus.clients import ALICE, BOB, client, known, serving, staged
from ...helpers.bus.gateway_programs import Caller, database
from ...helpers.bus.gateways import gateway
from ...helpers.bus.people import Table
from ...helpers.bus.scripted_relay import StageRelay
from ...helpers.redis_server import RedisServer, redis_server

server = pytest.fixture(scope="module")(redis_server)
relay = pytest.fixture(staged)
twins = pytest.fixture(known)


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> Iterator[None]:
    """Begin with an empty Redis, where a test has one."""
    if "server" not in request.fixturenames:
        yield
        return
    redis = request.getfixturevalue("server").client()
    redis.flushall()
    yield
    redis.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let gateways, clients and services see soon that they were closed."""
    monkeypatch.setattr(redis_store, "LOOK", 0.05)
    monkeypatch.setattr(list_client, "LOOK", 0.05)


@pytest.fixture
def alice(server: RedisServer, relay: StageRelay, twins: Table) -> Iterator[Peer]:
    with gateway(server, relay, twins, ALICE) as made:
        yield made


@pytest.fixture
def caller(server: RedisServer) -> Iterator[Caller]:
    with Caller(database(server, 1)) as made:
        yield made


bob = pytest.fixture(serving)


@pytest.fixture
def asker(relay: StageRelay, twins: Table) -> Iterator[Client]:
    """Ask as twin 2."""
    with client(relay, twins, BOB) as made:
        yield made
