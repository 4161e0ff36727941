"""Give the tests a real Redis, and queues in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest
import redis as library

from wsmux.bus.relay.redis_queues import RedisQueues
from wsmux.bus.wire.address import Address
from wsmux.runtime.deadline import Deadline

from ..helpers.bus.session_queues import WAIT
from ..helpers.redis_server import RedisServer, redis_server

server = pytest.fixture(scope="module", name="server")(redis_server)

_twins = count(1)


@pytest.fixture
def make_queues(server: RedisServer) -> Iterator[Callable[[], RedisQueues]]:
    made: list[RedisQueues] = []

    def queues() -> RedisQueues:
        made.append(RedisQueues(server.client()))
        return made[-1]

    yield queues
    for each in made:
        each.close(Deadline(WAIT))


@pytest.fixture
def client(server: RedisServer) -> Iterator[library.Redis]:
    made = server.client()
    yield made
    made.close()


@pytest.fixture
def address() -> Address:
    return Address(next(_twins), "session")
