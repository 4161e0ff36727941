"""What waits for other relays in a real Redis survives the relay."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as library

from wsmux.bus.federation import redis_queue as module
from wsmux.bus.federation.federation import Federation
from wsmux.bus.federation.queue import QueuedMessage
from wsmux.bus.federation.ranker import Ranker
from wsmux.bus.federation.redis_queue import GROUP, STREAM, RedisFederationQueue
from wsmux.bus.relay.queues import QueueUnavailable
from wsmux.bus.twins.records import Twin
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import request
from wsmux.storage.redis_client import redis_client

from ...helpers.bus.inside import queue_of
from ...helpers.bus.posts import Posts
from ...helpers.bus.twin_lists import ListedTwins
from ...helpers.redis_server import RedisServer
from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for

Make = Callable[[], RedisFederationQueue]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 5)
    monkeypatch.setattr(module, "KEEP_EVERY", 0.01)
    monkeypatch.setattr(module, "CLAIM_IDLE", 0.2)


@pytest.fixture
def client(server: RedisServer) -> Iterator[library.Redis]:
    made = server.client()
    made.flushall()
    yield made
    made.close()


@pytest.fixture
def make(server: RedisServer, client: library.Redis) -> Iterator[Make]:
    made: list[RedisFederationQueue] = []

    def queue() -> RedisFederationQueue:
        made.append(RedisFederationQueue(server.client()))
        return made[-1]

    yield queue
    for each in made:
        each.close()
        each.release()


def take(queue: RedisFederationQueue, count: int) -> list[QueuedMessage]:
    """Return so many entries, as soon as they are there."""
    taken: list[QueuedMessage] = []

    def enough() -> bool:
        taken.extend(queue.take(count - len(taken)))
        return len(taken) >= count

    wait_for(enough)
    return taken


def bodies(entries: list[QueuedMessage]) -> list[bytes]:
    return [entry.data for entry in entries]


def pending(client: library.Redis) -> int:
    return int(client.xpending(STREAM, GROUP)["pending"])  # type: ignore[index]


def test_the_stream_has_the_shape_that_known_relays_read(make: Make, client: library.Redis) -> None:
    make().put(b"envelope", ())
    ((_, fields),) = client.xrange("relay.federation.stream")
    assert fields == {b"msg": b"envelope"}


def test_entries_are_taken_in_order_and_once(make: Make) -> None:
    queue, other = make(), make()
    for number in range(10):
        queue.put(b"%d" % number, ())
    first = take(queue, 6)
    assert bodies(first + take(other, 4)) == [b"%d" % number for number in range(10)]
    assert list(queue.take(5)) == []


def test_what_was_there_before_the_group_is_taken(make: Make, client: library.Redis) -> None:
    client.xadd(STREAM, {"msg": "before"})
    assert bodies(take(make(), 1)) == [b"before"]


def test_a_group_that_known_relays_made_is_shared(make: Make, client: library.Redis) -> None:
    client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    queue = make()
    queue.put(b"envelope", ())
    assert bodies(take(queue, 1)) == [b"envelope"]


def test_what_is_done_is_acknowledged_and_deleted(make: Make, client: library.Redis) -> None:
    queue = make()
    queue.put(b"envelope", ())
    (entry,) = take(queue, 1)
    assert pending(client) == 1
    queue.done(entry.ticket)
    assert (pending(client), client.xlen(STREAM)) == (0, 0)


def test_an_entry_without_envelope_is_handed_out_empty(make: Make, client: library.Redis) -> None:
    queue = make()
    client.xadd(STREAM, {"other": "field"})
    assert bodies(take(queue, 1)) == [b""]


def test_with_a_limit_of_zero_nothing_is_taken(make: Make) -> None:
    queue = make()
    queue.put(b"envelope", ())
    assert list(queue.take(0)) == []
    assert bodies(take(queue, 1)) == [b"envelope"]


def test_what_a_crashed_relay_had_is_taken_again(make: Make) -> None:
    crashed = make()
    crashed.put(b"envelope", ())
    take(crashed, 1)
    assert bodies(take(make(), 1)) == [b"envelope"]


def test_what_is_held_is_left_alone(make: Make) -> None:
    holder, other = make(), make()
    holder.put(b"envelope", ())
    take(holder, 1)
    until = time.monotonic() + 3 * module.CLAIM_IDLE
    while time.monotonic() < until:
        assert list(holder.take(0)) == []
        assert list(other.take(1)) == []


def test_what_is_held_is_not_taken_twice_by_its_holder(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLAIM_IDLE", 0.0)
    queue = make()
    queue.put(b"envelope", ())
    take(queue, 1)
    assert [list(queue.take(1)) for _ in range(10)] == [[]] * 10


def test_what_known_relays_hold_is_left_to_them_for_longer(
    make: Make, client: library.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make()
    queue.put(b"theirs", ())
    list(queue.take(0))  # makes the group
    client.xreadgroup(GROUP, "relay-0", {STREAM: ">"})
    until = time.monotonic() + 2 * module.CLAIM_IDLE
    while time.monotonic() < until:
        assert list(queue.take(1)) == []
    monkeypatch.setattr(module, "CLAIM_FOREIGN", module.CLAIM_IDLE)
    assert bodies(take(queue, 1)) == [b"theirs"]


def test_a_redis_that_lost_its_data_is_used_on(make: Make, client: library.Redis) -> None:
    queue = make()
    queue.put(b"before", ())
    take(queue, 1)
    client.flushall()
    queue.put(b"after", ())
    assert bodies(take(queue, 1)) == [b"after"]


def test_a_full_stream_refuses_what_is_new_and_keeps_what_it_has(
    make: Make, client: library.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    queue = make()
    for number in range(3):
        queue.put(b"%d" % number, ())
    for _ in range(2):
        with pytest.raises(QueueUnavailable, match="3 messages or .* the limit of this relay"):
            queue.put(b"more", ())
    assert 0 < int(client.pttl(module.FULL)) <= module.FULL_TIME
    entries = take(queue, 3)
    assert bodies(entries) == [b"0", b"1", b"2"]
    queue.done(entries[1].ticket)
    wait_for(lambda: not client.exists(module.FULL))
    queue.put(b"more", ())
    assert [fields[b"msg"] for _, fields in client.xrange(STREAM)] == [b"0", b"2", b"more"]


def test_the_bytes_of_a_stream_are_bounded(
    make: Make, client: library.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 300_000)
    monkeypatch.setattr(module, "FULL_TIME", 1)
    queue = make()
    queue.put(bytes(200_000), ())
    with pytest.raises(QueueUnavailable, match="or 300000 bytes wait"):
        queue.put(bytes(200_000), ())
    assert client.xlen(STREAM) == 1
    for _ in range(5):  # what is done makes room, however much was added in all
        queue.done(take(queue, 1)[0].ticket)
        wait_for(lambda: not client.exists(module.FULL))
        queue.put(bytes(200_000), ())
    assert client.xlen(STREAM) == 1


@pytest.mark.parametrize("waiting", [False, True], ids=["all", "but one"])
def test_what_known_relays_have_acknowledged_and_left_makes_room(
    make: Make, client: library.Redis, monkeypatch: pytest.MonkeyPatch, waiting: bool
) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    queue = make()
    list(queue.take(0))  # makes the group
    for number in range(3):
        queue.put(b"%d" % number, ())
    reply: Any = client.xreadgroup(GROUP, "relay-0", {STREAM: ">"})
    ids = [each for each, _ in reply[0][1]]
    client.xack(STREAM, GROUP, *(ids[:2] if waiting else ids))
    queue.put(b"more", ())
    kept = [fields[b"msg"] for _, fields in client.xrange(STREAM)]
    assert kept == [b"2", b"more"]
    assert bodies(take(queue, 1)) == [b"more"]


def test_the_bytes_of_a_stream_that_has_too_many_entries_are_not_counted_anew(
    make: Make, client: library.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    queue = make()
    list(queue.take(0))  # makes the group
    for _ in range(2):
        queue.put(b"old", ())
    reply: Any = client.xreadgroup(GROUP, "relay-0", {STREAM: ">"})
    client.xack(STREAM, GROUP, *(each for each, _ in reply[0][1]))
    client.set(module.BYTES, 1_000_000)
    queue.put(b"new", ())
    assert int(client.get(module.BYTES) or 0) == 1_000_000 + len(b"new") + 64


def test_what_nobody_has_taken_is_not_dropped_from_a_stream(
    make: Make, client: library.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    queue = make()
    for number in range(3):
        queue.put(b"%d" % number, ())
    client.xgroup_create(STREAM, "others", id="$")
    with pytest.raises(QueueUnavailable, match="the limit of this relay"):
        queue.put(b"more", ())
    assert bodies(take(queue, 3)) == [b"0", b"1", b"2"]


def test_closed_queues_take_and_keep_nothing(make: Make) -> None:
    queue = make()
    queue.put(b"envelope", ())
    queue.close()
    assert list(queue.take(1)) == []
    with pytest.raises(QueueUnavailable, match="is shutting down"):
        queue.put(b"another", ())


def test_a_redis_that_is_away_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PUT_TIME", 0.2)
    queue = RedisFederationQueue(redis_client("redis://127.0.0.1:1/0"))
    with pytest.raises(QueueUnavailable, match="Redis failed"):
        queue.put(b"envelope", ())
    assert list(queue.take(1)) == []
    queue.close()
    queue.release()


def test_nothing_is_lost_when_redis_is_killed(tmp_path: Path) -> None:
    with RedisServer(tmp_path, durable=True) as server:
        queue = RedisFederationQueue(server.client())
        for number in range(3):
            queue.put(b"%d" % number, ())
        first, second = take(queue, 2)
        server.kill()
        queue.done(first.ticket)
        assert list(queue.take(5)) == []
        server.start()
        assert bodies(take(queue, 1)) == [b"2"]
        client = server.client()
        wait_for(lambda: not queue.take(0) and client.xlen(STREAM) == 2)
        queue.done(second.ticket)
        assert client.xlen(STREAM) == 1
        client.close()
        queue.close()
        queue.release()


def test_a_federation_goes_on_with_what_another_left(make: Make, client: library.Redis) -> None:
    posts, gate = Posts(), threading.Event()
    posts.gates["a.test"] = gate
    twins = ListedTwins([Twin(2, bytes(32), ("a.test",))])
    envelopes = [
        request(f"u{number}", Address(1), Address(2), "do", int(time.time()), 60)
        for number in range(20)
    ]

    def federation() -> Federation:
        return Federation(twins, Ranker(lambda: 0.5), posts, make(), lambda address, envelope: None)

    crashed = federation()
    for envelope in envelopes:
        crashed.submit(envelope, envelope.SerializeToString(), ("a.test",))
    wait_for(lambda: crashed.held == 20)
    queue_of(crashed).close()  # its feeder stops; the workers hang
    after = federation()
    wait_for(lambda: after.held == 20)
    gate.set()
    wait_for(lambda: not after.held and client.xlen(STREAM) == 0)
    assert set(posts.bodies()) == {envelope.SerializeToString() for envelope in envelopes}
    after.close(WAIT)
    crashed.close(WAIT)
