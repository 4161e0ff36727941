"""Topics in memory and in Redis: the same promises, and the bounds of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from itertools import count

import pytest

from wsmux.bus.relay.redis_topics import RedisTopics
from wsmux.bus.relay.topic_log import OVERHEAD, Retention
from wsmux.bus.relay.topic_store import (
    ANYBODY,
    NOWHERE,
    MemoryTopics,
    NewMessage,
    TopicFull,
    TopicStore,
)
from wsmux.bus.wire.topics import NEW, OLDEST, START, Position
from wsmux.runtime.deadline import Deadline

from ...helpers.redis_server import RedisServer
from ...helpers.timeouts import WAIT

Make = Callable[..., TopicStore]

_names = count(1)


@pytest.fixture(params=["memory", "redis"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[TopicStore] = []

    def store(retention: Retention | None = None, **bounds: int) -> TopicStore:
        if request.param == "memory":
            made.append(MemoryTopics(retention, **bounds))
        else:
            server: RedisServer = request.getfixturevalue("server")
            client = server.client()
            client.flushdb()
            made.append(RedisTopics(client, retention, **bounds))
        return made[-1]

    yield store
    for each in made:
        each.close(Deadline(WAIT))


def publish(store: TopicStore, topic: str, data: bytes, **fields: object) -> Position:
    key = fields.pop("key", f"1:{next(_names)}")
    end = fields.pop("end", int(time.time()) + 60)
    twin = fields.pop("twin", 1)
    assert not fields
    return store.append(NewMessage(topic, twin, key, data, end), Deadline(WAIT))  # type: ignore[arg-type]


def read(
    store: TopicStore, topic: str, after: Position | str = START, credit: int = 100
) -> list[bytes]:
    return list(store.read(topic, after, credit, Deadline(WAIT)).envelopes)


def test_what_is_published_is_read_from_any_position(make: Make) -> None:
    store = make()
    positions = [publish(store, "news", b"%d" % number) for number in range(40)]
    assert positions == sorted(set(positions))
    everything = [b"%d" % number for number in range(40)]
    assert read(store, "news") == everything
    for number, position in enumerate(positions):
        assert read(store, "news", position) == everything[number + 1 :]
        assert read(store, "news", position, 3) == everything[number + 1 : number + 4]


def test_topics_do_not_know_each_other(make: Make) -> None:
    store = make()
    publish(store, "one", b"1")
    publish(store, "two", b"2")
    assert (read(store, "one"), read(store, "two")) == ([b"1"], [b"2"])


def test_a_topic_without_messages_is_nowhere(make: Make) -> None:
    store = make()
    for place in (NEW, OLDEST, START, Position(5, 5)):
        batch = store.read("news", place, 10, Deadline(WAIT))
        assert (batch.epoch, batch.first, list(batch.envelopes)) == (
            NOWHERE.epoch,
            NOWHERE.first,
            [],
        )


def test_both_ends_have_a_position(make: Make) -> None:
    store = make(Retention(messages=2))
    first, *_, last = [publish(store, "news", b"%d" % number) for number in range(5)]
    oldest = store.read("news", OLDEST, 0, Deadline(WAIT))
    assert (oldest.epoch, oldest.first) == (first.epoch, 4)
    assert store.read("news", NEW, 0, Deadline(WAIT)).end() == last


def test_a_copy_gets_the_position_of_the_first(make: Make) -> None:
    store = make(Retention(messages=1))
    first = publish(store, "news", b"a", key="1:a")
    assert publish(store, "news", b"a", key="1:a") == first
    publish(store, "news", b"b")
    assert publish(store, "news", b"a", key="1:a") == first
    assert read(store, "news") == [b"b"]
    assert publish(store, "other", b"a", key="1:a").number == 1
    assert read(store, "other") == [b"a"]


def test_what_is_dropped_leaves_its_numbers(make: Make) -> None:
    store = make(Retention(messages=3))
    positions = [publish(store, "news", b"%d" % number) for number in range(10)]
    batch = store.read("news", positions[1], 100, Deadline(WAIT))
    assert (batch.first, list(batch.envelopes)) == (8, [b"7", b"8", b"9"])


def test_large_messages_drop_more(make: Make) -> None:
    store = make(Retention(size=3 * (OVERHEAD + 100)))
    for _ in range(5):
        publish(store, "news", bytes(100))
    assert len(read(store, "news")) == 3
    publish(store, "news", bytes(300))
    assert [len(each) for each in read(store, "news")] == [100, 300]


def test_a_topic_above_the_bounds_is_not_created(make: Make) -> None:
    store = make(max_topics=3, max_of_twin=2)
    for name in ("a", "b"):
        publish(store, name, b"x", twin=1)
    with pytest.raises(TopicFull, match="twin 1 has created 2 topics.*--topic"):
        publish(store, "c", b"x", twin=1)
    publish(store, "c", b"x", twin=2)
    with pytest.raises(TopicFull, match="there are 3 topics"):
        publish(store, "d", b"x", twin=2)
    publish(store, "a", b"y", twin=1)


def test_topics_of_the_relay_count_for_no_twin(make: Make) -> None:
    store = make(max_of_twin=1)
    for name in ("a", "b", "c"):
        publish(store, name, b"x", twin=ANYBODY)
    publish(store, "d", b"x", twin=1)
    with pytest.raises(TopicFull):
        publish(store, "e", b"x", twin=1)


def test_topics_of_the_relay_are_created_whatever_others_have_used_up(make: Make) -> None:
    store = make(max_topics=1)
    publish(store, "a", b"x", twin=1)
    publish(store, "b", b"x", twin=ANYBODY)
    with pytest.raises(TopicFull, match="there are 1 topics"):
        publish(store, "c", b"x", twin=2)


def test_who_watches_hears_of_each_topic(make: Make) -> None:
    store = make()
    heard: list[str] = []
    done = threading.Event()

    def changed(topics: Collection[str] | None) -> None:
        heard.extend(["a", "b"] if topics is None else topics)
        if {"a", "b"} <= set(heard):
            done.set()

    store.watch(changed)
    publish(store, "a", b"x")
    publish(store, "b", b"x")
    assert done.wait(WAIT)


def test_threads_that_publish_at_once_lose_and_double_nothing(make: Make) -> None:
    store = make()
    positions: list[Position] = []

    def work(number: int) -> None:
        positions.extend(publish(store, "news", b"%d:%d" % (number, each)) for each in range(50))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(each.number for each in positions) == list(range(1, 201))
    assert len(set(read(store, "news", START, 1000))) == 200


def test_the_largest_topic_makes_room_for_all() -> None:
    store = MemoryTopics(max_bytes=10 * (1000 + OVERHEAD))
    publish(store, "small", b"x")
    for _ in range(30):
        publish(store, "large", bytes(1000), end=int(time.time()) + 1)
    assert read(store, "small") == [b"x"]
    assert 0 < len(read(store, "large")) < 10


def test_topics_that_keep_nothing_make_room_for_others() -> None:
    now = 1000.0
    store = MemoryTopics(Retention(age=5), max_topics=2, max_of_twin=1, clock=lambda: now)
    publish(store, "a", b"x", twin=1, end=1010)
    with pytest.raises(TopicFull):
        publish(store, "b", b"x", twin=1, end=1010)
    publish(store, "b", b"x", twin=2, end=1010)
    now = 1009.0
    with pytest.raises(TopicFull):
        publish(store, "c", b"x", twin=3, end=1010)
    now = 1010.0
    publish(store, "c", b"x", twin=1, end=1020)
    assert repr(store) == "<MemoryTopics topics=1>"


def test_publications_that_cannot_be_remembered_are_refused(make: Make) -> None:
    store = make(remembered=2)
    publish(store, "news", b"x", key="1:a")
    publish(store, "news", b"x", key="1:b")
    with pytest.raises(TopicFull, match="shorter timeout"):
        publish(store, "news", b"x", key="1:c")
    assert publish(store, "news", b"x", key="1:a").number == 1


def test_publications_of_a_flooded_topic_leave_others_their_share() -> None:
    now = 1000.0
    store = MemoryTopics(remembered_in_all=10, clock=lambda: now)
    for name in ("a", "b"):
        publish(store, name, b"x", end=1010)
    for _ in range(8):
        publish(store, "flooded", b"x", end=1010)
    with pytest.raises(TopicFull, match="3 messages were published to 'flooded'"):
        publish(store, "flooded", b"x", end=1010)
    for _ in range(2):
        publish(store, "a", b"x", end=1010)
    with pytest.raises(TopicFull):
        publish(store, "a", b"x", end=1010)
    assert len(read(store, "flooded")) == 8
    now = 1010.0
    publish(store, "flooded", b"x", end=1020)


def test_the_copy_in_a_child_is_empty() -> None:
    store = MemoryTopics()
    publish(store, "news", b"x")
    store.forked()
    assert read(store, "news") == []
