"""Topics in Redis: several relays, lost data, and a Redis that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from pathlib import Path
from random import Random

import pytest

from wsmux.bus.relay import redis_topics
from wsmux.bus.relay.queues import QueueUnavailable
from wsmux.bus.relay.redis_topics import RedisTopics
from wsmux.bus.relay.topic_log import OVERHEAD, Retention, TopicLog
from wsmux.bus.relay.topic_store import NewMessage
from wsmux.bus.wire.topics import NEW, OLDEST, START, Position, gap
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.inside import known_topics
from ...helpers.redis_server import RedisServer
from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for


def publish(store: RedisTopics, topic: str, data: bytes, key: str, life: int = 60) -> Position:
    message = NewMessage(topic, 1, key, data, int(time.time()) + life)
    return store.append(message, Deadline(WAIT))


def read(store: RedisTopics, topic: str, after: Position = START) -> list[bytes]:
    return list(store.read(topic, after, 100, Deadline(WAIT)).envelopes)


def test_redis_keeps_what_the_log_in_memory_does(server: RedisServer) -> None:
    random = Random(1)
    retention = Retention(messages=5, size=1500)
    client = server.client()
    client.flushdb()
    store = RedisTopics(client, retention)
    model = TopicLog(0, retention)
    now = int(time.time())
    known = [START]
    try:
        for step in range(300):
            if random.random() < 0.5:
                key, data = f"1:{random.randrange(200)}", bytes(random.randrange(600))
                expected = model.append(key, data, now + 600, now)
                position = publish(store, "news", data, key, 600)
                assert expected is not None
                assert position.number == expected.number, step
                known.append(position)
            else:
                place = random.choice([OLDEST, NEW, *known[-8:]])
                twin = Position(0, place.number) if isinstance(place, Position) else place
                credit = random.randrange(8)
                batch = store.read("news", place, credit, Deadline(WAIT))
                assert tuple(batch[1:]) == tuple(model.read(twin, credit, now)[1:]), step
    finally:
        store.close(Deadline(WAIT))


def test_two_relays_see_one_log_and_hear_of_each_other(server: RedisServer) -> None:
    one, two = RedisTopics(server.client()), RedisTopics(server.client())
    heard: list[str] = []
    two.watch(lambda topics: heard.extend(topics or ()))
    try:
        first = publish(one, "shared", b"1", "1:a")
        assert publish(two, "shared", b"1", "1:a") == first
        publish(two, "shared", b"2", "2:a")
        assert read(one, "shared") == read(two, "shared") == [b"1", b"2"]
        wait_for(lambda: "shared" in heard, WAIT)
    finally:
        one.close(Deadline(WAIT))
        two.close(Deadline(WAIT))


def test_age_drops_messages_of_a_topic_that_nobody_publishes_to(server: RedisServer) -> None:
    store = RedisTopics(server.client(), Retention(age=0.05))
    try:
        position = publish(store, "aged", b"x", "1:a")
        wait_for(lambda: read(store, "aged") == [], WAIT)
        batch = store.read("aged", START, 10, Deadline(WAIT))
        assert batch.end() == position
    finally:
        store.close(Deadline(WAIT))


def test_a_log_that_was_lost_is_another(server: RedisServer) -> None:
    store = RedisTopics(server.client())
    try:
        old = publish(store, "lost", b"x", "1:a")
        with server.client() as client:
            client.flushdb()
            time_then = client.time()
            wait_for(lambda: client.time() > time_then, WAIT)
        new = publish(store, "lost", b"y", "1:b")
        assert (new.number, old.number) == (1, 1)
        missing = gap("lost", old, store.read("lost", old, 10, Deadline(WAIT)))
        assert missing is not None
        assert missing.count is None
    finally:
        store.close(Deadline(WAIT))


@pytest.mark.parametrize("appends", [False, True])
def test_a_log_that_comes_back_older_is_another(server: RedisServer, appends: bool) -> None:
    """Let Redis lose the last two of five messages, as it may when its system is killed."""
    store = RedisTopics(server.client())
    other = RedisTopics(server.client())  # of a relay that has not seen the newest messages
    topic = f"older-{appends}"
    try:
        for number in range(3):
            publish(store, topic, b"%d" % number, f"1:{number}")
        assert len(read(other, topic)) == 3
        with server.client() as client:
            kept = {key: client.dump(key) for key in client.keys(f"wsmux:topic:{topic}*")}
            for number in (3, 4):
                old = publish(store, topic, b"%d" % number, f"1:{number}")
            for key, value in kept.items():
                client.restore(key, 0, value, replace=True)
        if appends:
            new = publish(store, topic, b"new", "1:new")
            assert new > old
            assert new.number == 4
        batch = store.read(topic, old, 10, Deadline(WAIT))
        assert list(batch.envelopes) == [b"0", b"1", b"2", b"new"][: 3 + appends]
        missing = gap(topic, old, batch)
        assert missing is not None
        assert missing.count is None
        assert other.read(topic, old, 10, Deadline(WAIT)) == batch
        assert publish(other, topic, b"last", "2:last") == batch.end()._replace(number=4 + appends)
        assert read(store, topic, batch.end()) == [b"last"]
    finally:
        store.close(Deadline(WAIT))
        other.close(Deadline(WAIT))


def test_who_reads_far_ahead_begins_no_other_log(server: RedisServer) -> None:
    store = RedisTopics(server.client())
    try:
        first = publish(store, "ahead", b"1", "1:a")
        assert read(store, "ahead", first._replace(number=10**14)) == []
        assert publish(store, "ahead", b"2", "1:b") == first._replace(number=2)
    finally:
        store.close(Deadline(WAIT))


def test_what_is_known_of_topics_is_bounded(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_topics, "KNOWN", 2)
    store = RedisTopics(server.client())
    try:
        for topic in ("a", "b", "c"):
            publish(store, topic, b"1", "1:a")
        assert read(store, "nobody's") == []
        assert known_topics(store) == ["b", "c"]
    finally:
        store.close(Deadline(WAIT))


def test_a_killed_redis_keeps_the_log_and_says_that_all_may_have_changed(tmp_path: Path) -> None:
    with RedisServer(tmp_path, durable=True) as server:
        store = RedisTopics(server.client())
        heard: list[Collection[str] | None] = []
        store.watch(heard.append)
        try:
            first = publish(store, "news", b"1", "1:a")
            server.kill()
            with pytest.raises(QueueUnavailable, match="Redis failed"):
                store.read("news", START, 10, Deadline(0.1))
            failed = threading.Thread(target=server.start)
            failed.start()
            assert publish(store, "news", b"1", "1:a") == first
            failed.join(WAIT)
            assert read(store, "news") == [b"1"]
            wait_for(lambda: None in heard, WAIT)
        finally:
            store.close(Deadline(WAIT))


def test_a_redis_without_memory_refuses_messages_and_is_read(server: RedisServer) -> None:
    store = RedisTopics(server.client())
    short = RedisTopics(server.client(), Retention(messages=1))
    try:
        for number in range(3):
            publish(store, "full", b"%d" % number, f"1:{number}")
        with server.client() as client:
            client.config_set("maxmemory", 1)
            try:
                message = NewMessage("full", 1, "1:3", b"3", int(time.time()) + 60)
                with pytest.raises(QueueUnavailable, match="maxmemory"):
                    store.append(message, Deadline(0))
                assert read(store, "full") == [b"0", b"1", b"2"]
                assert read(short, "full") == [b"2"]  # it drops two
            finally:
                client.config_set("maxmemory", 0)
            assert store.append(message, Deadline(WAIT)).number == 4
            assert read(short, "full") == [b"3"]
            assert int(client.hget("wsmux:topic:full:log", "bytes") or 0) == OVERHEAD + 1
    finally:
        store.close(Deadline(WAIT))
        short.close(Deadline(WAIT))


def test_who_watches_and_fails_hears_of_the_next(server: RedisServer) -> None:
    store = RedisTopics(server.client())
    heard: list[Collection[str] | None] = []

    def changed(topics: Collection[str] | None) -> None:
        heard.append(topics)
        raise RuntimeError("the reader fails")

    store.watch(changed)
    try:
        publish(store, "fails", b"x", "1:a")
        wait_for(lambda: len(heard) > 0, WAIT)
        publish(store, "fails", b"x", "1:b")
        wait_for(lambda: len(heard) > 1, WAIT)
    finally:
        store.close(Deadline(WAIT))
