"""Topics in Redis: what it refuses, and what is left when a server or Redis itself is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.rpc import RiverError
from wsmux.spark.store.base import Committed, Retention
from wsmux.spark.topics import redis_store, redis_topics
from wsmux.spark.topics.redis_topics import RedisTopics

from ...helpers.commands import running
from ...helpers.redis_server import RedisServer
from ...helpers.spark.arrow_data import SCHEMA, ids, pa, rows
from ...helpers.spark.bulk import call, get, put, schema_of
from ...helpers.spark.clients import WAIT
from ...helpers.spark.format_servers import PATIENCE
from ...helpers.spark.topics import add, held

pytestmark = [pytest.mark.spark, pytest.mark.hang_bound(180)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), durable=True) as server:
        yield server


@pytest.fixture
def namespace() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def stores(server: RedisServer, namespace: str) -> Iterator[list[RedisTopics]]:
    """Return two stores of the same topics, as two servers have them, with a topic ``t``."""
    made = [RedisTopics(server.url, namespace=namespace) for _ in range(2)]
    made[0].create("t", SCHEMA, 2)
    yield made
    for each in made:
        each.close()


def parts(server: RedisServer, namespace: str) -> list[bytes]:
    """Return the keys of what is staged, or too large for a stream."""
    with closing(server.client()) as client:
        return list(client.scan_iter(f"wsmux:data:{namespace}:*:part:*"))


def staged(store: RedisTopics, number: int, batch: Any) -> tuple[str, Any]:
    txn = store.begin("t", "q", number, SCHEMA).txn
    part = store.open_part(txn, 0, 0, SCHEMA)
    part.write(batch)
    return txn, part.finish(100, 0)


def refused(code: str, function: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(RiverError) as caught:
        function(*arguments, **named)
    assert caught.value.code == code
    return caught.value.message


def test_a_topic_of_before_they_had_a_home_gets_one_by_a_sweep(
    server: RedisServer, namespace: str
) -> None:
    with closing(RedisTopics(server.url, namespace=namespace)) as store:
        store.create("t", SCHEMA)
        add(store, "t", 0, 10)
        with closing(server.client()) as client:
            client.hdel(f"wsmux:data:{namespace}:t:topic", "home")
        assert store.heads("t").home == ""
        assert held(store, "t") == list(range(10))
        store.expire(time.time())
        home = store.heads("t").home
        assert len(home) == 16
        store.expire(time.time())
        assert store.heads("t").home == home


@pytest.mark.parametrize("ahead", [1, 10], ids=["entries", "parts"])
def test_a_read_goes_on_in_no_topic_that_was_made_anew(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Neither behind its entries nor where the data of one, apart from it, are gone."""
    monkeypatch.setattr(redis_topics, "AHEAD", ahead)
    monkeypatch.setattr(redis_topics, "INLINE", 0)
    with closing(RedisTopics(server.url, namespace=namespace)) as store:
        store.create("t", SCHEMA)
        for number in range(3):
            add(store, "t", number, 10, first=10 * number)
        batches = store.read("t", 0, 0, 30).batches
        assert next(batches).num_rows == 10
        with closing(server.client()) as client:
            client.delete(*client.scan_iter(f"wsmux:data:{namespace}:t:*"))
        store.create("t", SCHEMA)
        for number in range(5):
            add(store, "t", number, 10, first=10 * number)
        with pytest.raises(RiverError, match="topic t was removed and made anew"):
            list(batches)


# What is refused at the start


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("appendfsync", "everysec", "set appendonly yes and appendfsync always, or give sync=Fal"),
        ("appendonly", "no", "Redis has appendonly no and appendfsync always, so a crash"),
        ("maxmemory-policy", "allkeys-lru", "may drop topics when memory is short: set noeviction"),
    ],
)
def test_a_redis_that_may_lose_commits_is_refused(
    server: RedisServer, name: str, value: str, words: str
) -> None:
    with closing(server.client()) as client:
        before = client.config_get(name)[name]
        client.config_set(name, value)
        try:
            assert words in refused("STORE_FAILED", RedisTopics, server.url)
        finally:
            client.config_set(name, before)


def test_one_that_loses_all_is_told_of_if_it_is_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(tmp_path) as server, closing(RedisTopics(server.url, sync=False)):
        assert "topics are lost when it ends" in caplog.text


def test_a_cluster_is_refused(tmp_path: Path) -> None:
    (tmp_path / "redis.conf").write_text("cluster-enabled yes\n")
    with RedisServer(tmp_path, configuration=tmp_path / "redis.conf") as server:
        message = refused("STORE_FAILED", RedisTopics, server.url)
    assert "not one in cluster mode" in message


def test_an_old_redis_is_refused(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "OLDEST", (99, 1))
    message = refused("STORE_FAILED", RedisTopics, server.url)
    assert message.startswith("topics need Redis 99.1 or later, not ")


def test_a_redis_that_hides_its_configuration_is_warned_of(
    server: RedisServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(server.client()) as client:
        rights = ["+@all", "-config"]
        client.acl_setuser("tenant", enabled=True, passwords=["+p"], keys=["*"], commands=rights)
    url = server.url.replace("//", "//tenant:p@")
    with closing(RedisTopics(url, namespace=namespace)) as store:
        store.create("t", SCHEMA)
        add(store, "t", 0, 10)
        assert held(store, "t") == list(range(10))
    assert "Redis does not tell its configuration" in caplog.text


def test_another_layout_is_refused(server: RedisServer, namespace: str) -> None:
    with closing(server.client()) as client:
        client.set(f"wsmux:data:{namespace}:layout", "2")
    message = refused("CORRUPT", RedisTopics, server.url, namespace=namespace)
    assert "layout b'2', and this version knows 1 only" in message


@pytest.mark.parametrize("options", [{"namespace": "a:b"}, {"ttl": 0}, {"timeout": 0}], ids=str)
def test_bad_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        RedisTopics("redis://127.0.0.1:1", **options)


# Sizes


def test_a_large_part_goes_in_chunks_and_goes_away(server: RedisServer, namespace: str) -> None:
    keep = Retention(hard_age=60.0)
    with closing(RedisTopics(server.url, namespace=namespace, retention=keep)) as store:
        schema = pa.schema([("data", pa.binary())])
        data = [os.urandom(3 * 1024 * 1024), b"x", os.urandom(1024 * 1024)]
        store.create("t", schema)
        txn = store.begin("t", "q", 0, schema).txn
        part = store.open_part(txn, 0, 0, schema)
        part.write(pa.record_batch([data], schema=schema))
        store.commit(txn, [part.finish(1, 1)])
        found = [each for batch in store.read("t", 0, 1, 3).batches for each in batch.to_pylist()]
        assert found == [{"data": each} for each in data[1:]]
        (key,) = parts(server, namespace)
        with closing(server.client()) as client:
            chunks = client.lrange(key, 0, -1)
        assert len(chunks) > 3
        assert max(len(each) for each in chunks) == redis_topics.CHUNK
        overtaken = store.read("t", 0, 0, 3)
        store.expire(time.time() + 120)
        assert parts(server, namespace) == []
        with pytest.raises(RiverError, match="is gone; the earliest is 3"):
            list(overtaken.batches)


def test_what_others_have_removed_or_damaged_is_told_of(
    server: RedisServer, namespace: str, stores: list[RedisTopics], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_topics, "INLINE", 0)
    add(stores[0], "t", 0, 10)
    (key,) = parts(server, namespace)
    with closing(server.client()) as client:
        client.lset(key, 0, b"garbage")
        message = refused("CORRUPT", held, stores[0], "t")
        assert message.startswith("rows of topic t before offset 10 are damaged in Redis")
        client.delete(key)
        message = refused("CORRUPT", held, stores[0], "t")
        assert message == "what holds offset 0 of partition 0 of topic t is missing in Redis"
        client.set(f"wsmux:data:{namespace}:t:rows:0", "x")
        assert "holds something else" in refused("CORRUPT", held, stores[0], "t")


def test_a_commit_without_memory_is_none(server: RedisServer, stores: list[RedisTopics]) -> None:
    txn, receipt = staged(stores[0], 0, rows(0, 10))
    with closing(server.client()) as client:
        client.config_set("maxmemory", 1)
        try:
            assert "see to its memory" in refused("STORE_FAILED", stores[0].commit, txn, [receipt])
        finally:
            client.config_set("maxmemory", 0)
    assert held(stores[1], "t") == []
    assert stores[1].commit(txn, [receipt]) == Committed(1, 10, 100)
    assert held(stores[0], "t") == list(range(10))


# Several servers


def test_of_two_who_commit_a_batch_at_once_one_counts(stores: list[RedisTopics]) -> None:
    both = threading.Barrier(2)

    def commit(store: RedisTopics, number: int) -> Committed:
        txn, receipt = staged(store, number, rows(10 * number, 10))
        both.wait(WAIT)
        return store.commit(txn, [receipt])

    with ThreadPoolExecutor(2) as pool:
        for number in range(10):
            one, other = pool.map(commit, stores, [number] * 2, timeout=WAIT)
            assert one == other == Committed(number + 1, 10, 100)
    assert held(stores[0], "t") == list(range(100))


def test_a_change_by_another_server_wakes_who_waits(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_topics, "LOOK_AGAIN", 2 * WAIT)
    with (
        closing(RedisTopics(server.url, namespace=namespace)) as one,
        closing(RedisTopics(server.url, namespace=namespace)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        one.create("t", SCHEMA)
        seen = one.heads("t")
        waiting = pool.submit(one.wait_heads, "t", seen, 2 * WAIT)
        add(other, "t", 0, 10)
        assert waiting.result(WAIT).latest == [10]


CHILD = """
import os, signal, sys
from tests.helpers.spark.arrow_data import SCHEMA, rows
from wsmux.spark import RedisTopics
store = RedisTopics(sys.argv[1], namespace=sys.argv[2])
txn = store.begin("t", "q", 0, SCHEMA).txn
part = store.open_part(txn, 0, 0, SCHEMA)
part.write(rows(100, 10))
part.finish(1, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_that_is_killed_before_its_commit_leaves_nothing(
    server: RedisServer, namespace: str, stores: list[RedisTopics]
) -> None:
    command = [sys.executable, "-c", CHILD, server.url, namespace]
    assert subprocess.run(command, timeout=PATIENCE, check=False).returncode == -9
    assert held(stores[0], "t") == []
    assert len(parts(server, namespace)) == 1
    assert add(stores[0], "t", 0, 10) == 10
    stores[1].expire(time.time() + 2 * redis_topics.DAY)
    assert parts(server, namespace) == []
    assert held(stores[1], "t") == list(range(10))


# Redis that is away


def test_redis_that_is_killed_comes_back_with_all(tmp_path: Path) -> None:
    with (
        RedisServer(tmp_path, durable=True) as server,
        closing(RedisTopics(server.url)) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        store.create("t", SCHEMA, 2)
        txn, receipt = staged(store, 0, rows(0, 10))
        open_txn, open_receipt = staged(store, 1, rows(10, 10))
        done = store.commit(txn, [receipt])
        server.kill()
        again = pool.submit(store.commit, txn, [receipt])
        server.start()
        assert again.result(WAIT) == done
        assert store.begin("t", "q", 0, SCHEMA).done
        assert store.commit(open_txn, [open_receipt]) == Committed(2, 10, 100)
        assert held(store, "t") == list(range(20))


def test_redis_that_stays_away_is_told_of(tmp_path: Path) -> None:
    with RedisServer(tmp_path, durable=True) as server:
        with closing(RedisTopics(server.url, timeout=0.1)) as store:
            store.create("t", SCHEMA)
            server.kill()
            assert "asking again is safe" in refused("STORE_FAILED", store.heads, "t")
        refused("STORE_FAILED", RedisTopics, server.url, timeout=0.1)


# Whole


def test_two_commands_share_topics(server: RedisServer, tmp_path: Path) -> None:
    def served(name: str) -> Any:
        directory = str(tmp_path / name)
        return running("serve-data", directory, "--port", "0", "--topics", server.url)

    name = f"t{uuid.uuid4().hex}"
    with served("one") as one, served("other") as other:
        urls = [one.strip(), other.strip()]
        with rpc.connect(urls[0]) as client, wsmux.connect(urls[0]) as connection:
            call(client, "topic.create", topic=name, schema=schema_of(SCHEMA))
            begun = call(client, "topic.begin", topic=name, schema=schema_of(SCHEMA))
            receipt = put(connection, begun["txn"], 0, rows(0, 10))
        with rpc.connect(urls[1]) as client, wsmux.connect(urls[1]) as connection:
            call(client, "topic.commit", txn=begun["txn"], receipts=[receipt])
            _, found = get(connection, topic=name, partition=0, start=0, end=10)
        assert ids(found) == list(range(10))
