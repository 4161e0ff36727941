"""Where topics are kept: in memory and in Redis, by the same rules."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from wsmux.cluster import ClusterError, Position, Retention
from wsmux.cluster import redis_topics as redis_topics_module
from wsmux.cluster import topics as topics_module
from wsmux.cluster.positions import NOTHING
from wsmux.cluster.redis_calls import RedisCalls
from wsmux.cluster.redis_topics import RedisTopics
from wsmux.cluster.topics import MemoryTopics, TopicStore
from wsmux.runtime.deadline import Deadline

from ..helpers.redis_server import RedisServer
from ..helpers.timeouts import WAIT

MakeStore = Callable[[Retention], TopicStore]


@pytest.fixture(params=["memory", "redis"])
def make_store(request: pytest.FixtureRequest, namespace: str) -> Iterator[MakeStore]:
    made: list[TopicStore] = []

    def memory(retention: Retention) -> TopicStore:
        made.append(MemoryTopics(retention))
        return made[-1]

    if request.param == "memory":
        yield memory
        return
    server: RedisServer = request.getfixturevalue("server")
    with server.client() as client:

        def redis(retention: Retention) -> TopicStore:
            made.append(RedisTopics(client, calls, namespace, retention))
            return made[-1]

        calls = RedisCalls(client)
        yield redis
        for each in made:
            each.close()
        calls.close()


def test_messages_come_back_in_order(make_store: MakeStore) -> None:
    store = make_store(Retention())
    for after in (None, NOTHING):
        empty = store.read("t", after)
        assert (empty.last.number, list(empty.messages)) == (0, [])
    positions = [store.append("t", b"%d" % number) for number in range(3)]
    assert [each.number for each in positions] == [1, 2, 3]
    kept = [(position, b"%d" % number) for number, position in enumerate(positions)]
    for after, expected in [(NOTHING, kept), *((each, kept[each.number :]) for each in positions)]:
        batch = store.read("t", after)
        assert list(batch.messages) == expected
        assert (batch.last, batch.oldest) == (positions[-1], positions[0])
    batch = store.read("t", None)
    assert (batch.last, list(batch.messages), batch.oldest) == (positions[2], [], positions[0])


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(messages=3), [7, 8, 9]),
        (Retention(size=25), [8, 9]),
        (Retention(size=5), [9]),  # one message is kept in any case
    ],
)
def test_the_oldest_are_dropped(
    make_store: MakeStore, retention: Retention, kept: list[int]
) -> None:
    store = make_store(retention)
    positions = [store.append("t", b"%010d" % number) for number in range(10)]
    batch = store.read("t", positions[0])
    assert [int(data) for _, data in batch.messages] == kept
    assert batch.oldest == positions[kept[0]]


def test_a_read_is_bounded(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (topics_module, redis_topics_module):
        monkeypatch.setattr(each, "READ_MESSAGES", 3)
        monkeypatch.setattr(each, "READ_SIZE", 100)
    store = make_store(Retention())
    for size in (60, 60, 300, 1, 1, 1, 1):
        store.append("t", bytes(size))
    sizes, after = [], NOTHING
    while messages := store.read("t", after).messages:
        sizes.append([len(data) for _, data in messages])
        after = messages[-1][0]
    assert sizes == [[60], [60], [300], [1, 1, 1], [1]]


def test_positions_of_another_epoch_find_what_is_behind(make_store: MakeStore) -> None:
    store = make_store(Retention())
    first = store.append("t", b"x")
    assert store.read("t", Position(first.epoch - 1, 99)).messages == [(first, b"x")]
    assert list(store.read("t", Position(first.epoch + 1, 0)).messages) == []


def test_a_waiting_reader_is_woken(make_store: MakeStore) -> None:
    store = make_store(Retention())
    changes = store.changes("t")
    waiting = threading.Thread(target=store.wait, args=("t", changes, Deadline(WAIT)))
    waiting.start()
    store.append("other", b"x")
    store.append("t", b"x")
    waiting.join(WAIT)
    assert not waiting.is_alive()


def test_topics_without_redis_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "MAX_TOPICS", 2)
    store = MemoryTopics(Retention())
    for topic in ("a", "b", "a"):
        before = store.changes(topic)
        store.append(topic, b"")
        assert store.changes(topic) != before
    with pytest.raises(ClusterError, match="2 topics are the most"):
        store.append("c", b"")


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that moves the clock of what is kept in memory."""
    passed = [0.0]
    late = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])
    monkeypatch.setattr(topics_module, "clock", late)

    def move(seconds: float) -> None:
        passed[0] += seconds

    return move


def test_idle_topics_without_redis_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch, later: Callable[[float], None]
) -> None:
    monkeypatch.setattr(topics_module, "MAX_TOPICS", 2)
    store = MemoryTopics(Retention(idle=600.0))
    store.append("a", b"")
    store.append("b", b"")
    later(400.0)
    store.append("a", b"")
    later(400.0)
    store.append("c", b"")  # in the place of "b"
    with pytest.raises(ClusterError, match="2 topics are the most"):
        store.append("b", b"")
    assert [len(store.read(topic, NOTHING).messages) for topic in "abc"] == [2, 0, 1]


def test_a_topic_without_redis_is_forgotten_when_it_is_idle(
    later: Callable[[float], None],
) -> None:
    store = MemoryTopics(Retention(idle=600.0))
    position = store.append("t", b"x")
    later(600.0)
    assert store.read("t", NOTHING) == (NOTHING, (), NOTHING)
    again = store.append("t", b"y")
    assert (again.epoch > position.epoch, again.number) == (True, 1)
    assert store.read("t", position).messages == [(again, b"y")]


def test_an_idle_topic_without_redis_goes_on_while_it_is_read(
    later: Callable[[float], None],
) -> None:
    store = MemoryTopics(Retention(size=3, idle=600.0))
    position = store.append("t", b"x")
    for _ in range(3):
        later(400.0)
        store.append("other", b"")
        assert store.read("t", position).messages == []
    following = position._replace(number=2)
    assert store.read("t", NOTHING) == (position, [], following)
    assert [store.append("t", b"yy"), store.append("t", b"z")][0] == following
    assert len(store.read("t", position).messages) == 2  # what was forgotten does not count


def test_a_reader_that_waits_reads_again_before_its_topic_is_idle() -> None:
    store = MemoryTopics(Retention(idle=0.1))
    changes, deadline = store.changes("t"), Deadline(WAIT)
    store.wait("t", changes, deadline)
    assert not deadline.expired()
    store.wait("t", changes, Deadline(None))
    store.wait("t", changes, Deadline(0.0))


def test_a_topic_of_redis_is_forgotten_when_it_is_idle(server: RedisServer, namespace: str) -> None:
    with server.client() as client:
        calls = RedisCalls(client)
        store = RedisTopics(client, calls, namespace, Retention(idle=60.0))
        store.append("t", b"x")
        calls.close()
        for kind in ("topic", "log"):
            left = client.pttl(f"wsmux:cluster:{namespace}:{kind}:t")
            assert isinstance(left, int)
            assert 0 < left <= 60_000


def test_a_topic_begins_with_its_first_reader(server: RedisServer, namespace: str) -> None:
    with server.client() as client:
        calls = RedisCalls(client)
        store = RedisTopics(client, calls, namespace, Retention(idle=60.0))
        empty = store.read("t", None).last
        assert store.read("t", empty).last == empty
        left = client.pttl(f"wsmux:cluster:{namespace}:log:t")
        assert isinstance(left, int)
        assert 0 < left <= 60_000
        assert store.append("t", b"x") == (empty.epoch, 1)
        client.flushall()
        assert store.append("t", b"y") > (empty.epoch, 1)
        calls.close()


def test_what_was_forgotten_does_not_count(server: RedisServer, namespace: str) -> None:
    with server.client() as client:
        calls = RedisCalls(client)
        store = RedisTopics(client, calls, namespace, Retention(size=25))
        for _ in range(2):
            store.append("t", b"forgotten")
        client.delete(f"wsmux:cluster:{namespace}:topic:t")  # as after its time, but for its log
        kept = [store.append("t", b"0123456789") for _ in range(2)]
        batch = store.read("t", kept[0]._replace(number=0))
        assert [position for position, _ in batch.messages] == kept
        assert [each.number for each in kept] == [3, 4]
        calls.close()


@pytest.mark.parametrize("id", ["1-1", f"{1 << 50}-1"])
def test_a_topic_whose_log_was_evicted_begins_again(
    server: RedisServer, namespace: str, id: str
) -> None:
    with server.client() as client:
        calls = RedisCalls(client)
        store = RedisTopics(client, calls, namespace, Retention())
        client.xadd(f"wsmux:cluster:{namespace}:topic:t", {"d": b"old"}, id=id)
        position = store.append("t", b"new")
        assert store.read("t", NOTHING) == (position, [(position, b"new")], position)
        calls.close()
