"""All streams of sessions in Redis together have a bound, whoever names them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis as library

from wsmux.bus.relay import redis_sizes
from wsmux.bus.relay.queues import LIFE
from wsmux.bus.relay.redis_queues import RedisQueues
from wsmux.bus.wire.address import Address
from wsmux.config import KIB, MIB
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.session_queues import WAIT, Taker, put
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for

BOUND = MIB


@pytest.fixture
def queues(server: RedisServer, client: library.Redis) -> Iterator[RedisQueues]:
    client.flushall()
    made = RedisQueues(server.client(), max_bytes=BOUND)
    yield made
    made.close(Deadline(WAIT))


def used(client: library.Redis) -> int:
    """Return the bytes of all streams."""
    keys = client.scan_iter("stream:*", count=1000)
    return sum(int(client.memory_usage(key, samples=0) or 0) for key in keys)


def counted(client: library.Redis) -> tuple[int, int]:
    """Return the bytes of all streams as they are counted, as a sum and one by one."""
    each = client.zrange(redis_sizes.SIZES, 0, -1, withscores=True)
    return int(client.get(redis_sizes.TOTAL) or 0), int(sum(size for _, size in each))


def names(client: library.Redis) -> set[bytes]:
    return set(client.scan_iter("stream:*", count=1000))


def test_one_session_that_is_flooded_loses_what_is_oldest(
    queues: RedisQueues, client: library.Redis
) -> None:
    put(queues, Address(3), "other")
    for number in range(100):
        put(queues, Address(2), f"{number:06}" + "x" * 100_000)
        assert used(client) <= BOUND
    kept = [fields[b"_"][:6] for _, fields in client.xrange("stream:2")]
    assert kept == [b"%06d" % number for number in range(100 - len(kept), 100)]
    assert len(kept) >= 4
    assert client.xlen("stream:3") == 1


def test_many_sessions_that_are_flooded_have_the_same_bound(
    queues: RedisQueues, client: library.Redis
) -> None:
    for number in range(100):
        put(queues, Address(2, f"a{number}"), "x" * 100_000)
        assert used(client) <= BOUND
    assert client.xlen("stream:2:a99") == 1
    assert len(names(client)) >= 8


def test_many_sessions_with_one_small_envelope_have_it_too(
    queues: RedisQueues, client: library.Redis
) -> None:
    for number in range(2000):
        put(queues, Address(2, f"a{number}"), "x")
    assert used(client) <= BOUND
    assert len(names(client)) >= 150
    total, each = counted(client)
    assert total == each


def test_what_was_delivered_counts_no_more(queues: RedisQueues, client: library.Redis) -> None:
    taker = Taker(queues, Address(2))
    put(queues, Address(3), "x" * 400 * KIB)
    for number in range(20):
        put(queues, Address(2), "x" * 100 * KIB)
        wait_for(lambda number=number: len(taker.data()) == number + 1)
        wait_for(lambda: client.xlen("stream:2") == 0)
    wait_for(lambda: counted(client)[0] < 600 * KIB)
    assert client.xlen("stream:3") == 1
    taker.close()


def test_deletions_from_a_stream_that_is_not_counted_leave_nothing(
    queues: RedisQueues, client: library.Redis
) -> None:
    client.xadd("stream:2", {"_": b"x"})
    taker = Taker(queues, Address(2))
    wait_for(lambda: taker.data())
    wait_for(lambda: client.xlen("stream:2") == 0)
    assert not client.exists(redis_sizes.TOTAL)
    taker.close()


def test_what_other_programs_removed_costs_nobody_anything(
    queues: RedisQueues, client: library.Redis
) -> None:
    put(queues, Address(3), "x" * 300 * KIB)
    for number in range(9):
        put(queues, Address(2, f"a{number}"), "x" * 200 * KIB)
        client.delete(f"stream:2:a{number}")
    assert client.xlen("stream:3") == 1


def test_what_ended_by_itself_costs_nobody_anything(
    queues: RedisQueues, client: library.Redis
) -> None:
    put(queues, Address(3), "x" * 300 * KIB)
    for number in range(3):
        put(queues, Address(2, f"a{number}"), "x" * 200 * KIB)
        key = f"stream:2:a{number}"
        client.delete(key)
        client.zincrby(redis_sizes.ENDS, -LIFE, key)
    put(queues, Address(4), "x")
    assert client.zrange(redis_sizes.SIZES, 0, -1) == [b"stream:4", b"stream:3"]
    total, each = counted(client)
    assert total == each


def test_a_key_that_became_another_one_is_forgotten(
    queues: RedisQueues, client: library.Redis
) -> None:
    put(queues, Address(3), "x" * 300 * KIB)
    client.set("stream:3", "x" * 900 * KIB)
    put(queues, Address(2), "x" * 600 * KIB)
    assert client.zrange(redis_sizes.SIZES, 0, -1) == [b"stream:2"]
    assert client.get("stream:3") is not None


def test_one_envelope_above_the_bound_leaves_nothing(
    queues: RedisQueues, client: library.Redis
) -> None:
    put(queues, Address(2), "x" * 2 * BOUND)
    assert names(client) == set()
    assert counted(client) == (0, 0)


def test_the_counts_end_with_the_streams(queues: RedisQueues, client: library.Redis) -> None:
    put(queues, Address(2), "x")
    for key in (redis_sizes.SIZES, redis_sizes.ENDS, redis_sizes.TOTAL):
        assert LIFE - 60 < int(client.ttl(key)) <= LIFE
