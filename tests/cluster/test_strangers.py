"""A Redis whose keys others write to: what is not ours is an error that says so, or left out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis as library

from wsmux.cluster import Cluster, ClusterError, NotConnected, Retention
from wsmux.cluster import redis_topics as redis_topics_module

from ..helpers.cluster_nodes import LEASE
from ..helpers.redis_server import RedisServer
from ..helpers.tables import each_case
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for
from .conftest import Pairs

STRANGER = "0" * 32

# How others may make a key of each type.
TYPES: dict[str, Callable[[library.Redis, str], Any]] = {
    "string": lambda client, key: client.set(key, b"\xffa text"),
    "number": lambda client, key: client.set(key, "9" * 400),
    "list": lambda client, key: client.rpush(key, "a", "b"),
    "set": lambda client, key: client.sadd(key, "a", b"\xff"),
    "sorted set": lambda client, key: client.zadd(key, {b"\xff": 1e300, "a": float("inf"), "b": 0}),
    "hash": lambda client, key: client.hset(key, mapping={"epoch": "x", "next": "y", b"\xff": ""}),
    "stream": lambda client, key: client.xadd(key, {"a": "b"}),
}


@pytest.fixture
def client(server: RedisServer) -> Iterator[library.Redis]:
    with server.client() as made:
        yield made


@pytest.fixture
def prefix(namespace: str) -> str:
    return f"wsmux:cluster:{namespace}:"


@pytest.fixture
def nodes(server: RedisServer, namespace: str) -> Iterator[tuple[Cluster, Cluster]]:
    """Return two nodes whose leases are renewed three times in a second."""
    options: dict[str, Any] = {"namespace": namespace, "lease": LEASE}
    with Cluster(server.url, **options) as one, Cluster(server.url, **options) as two:
        yield one, two


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have readers who do not hear the bell look again soon, and who listens stop soon."""
    monkeypatch.setattr(redis_topics_module, "LOOK", 0.05)
    monkeypatch.setattr(redis_topics_module, "BLOCK", 50)


KEYS = ["node:{}", "of:{}", "nodes", "seen", "clock", "names", "name:user:1"]
KEYS += ["bell", "topic:t", "log:t"]


@each_case
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", ["string", "hash"])
def test_a_key_of_others_makes_nothing_worse_than_an_error(
    key: str, kind: str, server: RedisServer, pairs: Pairs, quick_looks: None
) -> None:
    check_key_of_others(key, kind, server, pairs)


@pytest.mark.wide
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", list(TYPES))
def test_a_key_of_others_of_any_type_does_neither(
    key: str, kind: str, server: RedisServer, pairs: Pairs, quick_looks: None
) -> None:
    check_key_of_others(key, kind, server, pairs)


def check_key_of_others(key: str, kind: str, server: RedisServer, pairs: Pairs) -> None:
    namespace = f"{key.partition(':')[0]}-{kind}"
    prefix = f"wsmux:cluster:{namespace}:"
    ours, theirs = pairs()
    with (
        server.client() as client,
        Cluster(server.url, namespace=namespace, lease=LEASE) as one,
    ):
        one.join(theirs, "user:1")
        one.publish("t", b"before")
        taken = f"{prefix}{key.format(one.node)}"
        with client.pipeline() as both:  # nothing of ours may come in between
            both.delete(taken)
            TYPES[kind](both, taken)
            both.execute()
        with Cluster(server.url, namespace=namespace, lease=LEASE) as two:
            calls: list[Callable[[], object]] = [
                lambda: one.join(theirs, "user:1"),
                lambda: two.join(theirs, "user:2"),
                lambda: two.open_stream("user:1", timeout=WAIT).close(),
                lambda: two.who(),
                lambda: two.status(timeout=WAIT),
                lambda: two.counts(timeout=WAIT),
                lambda: two.publish("t", b"x"),
                lambda: two.subscribe("t").close(),
                lambda: two.subscribe("t", since="oldest").read(0.01),
                lambda: one.open_stream("user:1", timeout=WAIT).close(),  # of this process
            ]
            for call in calls[:-1]:
                with suppress(ClusterError, TimeoutError):
                    call()
            calls[-1]()
            # Once they have taken it away, all is as before, so no thread has ended.
            client.delete(taken)
            wait_for(lambda: {each.name for each in two.who()} == {"user:1", "user:2"})
            two.open_stream("user:1", timeout=WAIT).close()
            wait_for(lambda: two.counts().nodes == 2)
            begun = two.subscribe("t")
            one.publish("t", b"after")
            assert begun.read(WAIT).data == b"after"
    assert ours.stats().streams_opened >= 0


@each_case
@pytest.mark.parametrize(
    "value", [b"", b"soon", b"nan", b"inf", b"-5", b"1e99", b"9" * 16, b"9" * 400, b"\xff"]
)
def test_a_time_that_is_none_ends_no_lease(
    value: bytes, client: library.Redis, server: RedisServer, pairs: Pairs
) -> None:
    namespace = f"clock-{value[:9]!r}"
    key = f"wsmux:cluster:{namespace}:clock"
    with (
        Cluster(server.url, namespace=namespace) as one,
        Cluster(server.url, namespace=namespace) as two,
    ):
        two.join(pairs()[1], "user:2")
        client.set(key, value)
        one.join(pairs()[1], "user:1")  # announces this node
        assert client.get(key) != value
        left = client.pttl(f"wsmux:cluster:{namespace}:node:{two.node}")
        assert isinstance(left, int)
        assert left > 1000
        assert len(two.who()) == 2


def test_what_is_no_member_of_a_name_hides_none(
    client: library.Redis,
    prefix: str,
    nodes: tuple[Cluster, Cluster],
    pairs: Pairs,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, two = nodes
    member = one.join(pairs()[1], "user:1")
    client.rpush(f"{prefix}node:{STRANGER}", "a list")
    record = client.get(f"{prefix}node:{one.node}")
    assert isinstance(record, bytes)
    client.set(f"{prefix}node:{'1' * 32}", record)  # that of another node
    odd = ["nonsense", "", f"{one.node}", f"{one.node} x", f"{one.node[:8]} 1", f"{STRANGER} 1"]
    odd += [f"{'1' * 32} {member.id}"]
    client.hset(f"{prefix}name:user:1", mapping=dict.fromkeys(odd, "9e99"))
    client.hset(f"{prefix}name:user:1", mapping={f"{one.node} 77": "inf", b"\xff\xfe 1": "1"})
    client.zadd(f"{prefix}names", {b"\xff": 0, "": 0, "a\nb": 0, "x" * 999: 0, "user:0": 0})
    for name in ("a\nb", "x" * 999):
        client.hset(f"{prefix}name:{name}", f"{one.node} 5", "1")
    client.set(f"{prefix}node:", "of nobody")
    two.open_stream("user:1", timeout=WAIT).close()
    assert "is left out" in caplog.text
    assert [each for each in two.who("user:*") if each.node != "1" * 32] == [member]
    assert {each.name for each in two.who()} == {"user:1"}
    with pytest.raises(NotConnected):
        two.open_stream("user:0", timeout=WAIT)


def test_what_is_no_node_is_told_of_or_left_out(
    client: library.Redis, prefix: str, nodes: tuple[Cluster, Cluster]
) -> None:
    one, two = nodes
    wait_for(lambda: two.counts().nodes == 2 or one.node == two.node)
    later = (time.time() + 600) * 1000
    client.zadd(f"{prefix}nodes", {b"\xff": later, STRANGER: later, "gone": later, "late": 5})
    client.set(prefix.encode() + b"node:\xff", "garbage")
    client.rpush(f"{prefix}node:{STRANGER}", "a list")
    client.zadd(f"{prefix}seen", {b"\xff": (time.time() - 5) * 1000, "x": float("inf")})
    status = two.status(timeout=WAIT)
    assert {each.node: bool(each.status) for each in status.nodes} == {
        one.node: True,
        two.node: True,
        "\ufffd": False,
    }
    wait_for(lambda: client.zscore(f"{prefix}nodes", "late") is None)  # it is swept


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize(
    "fields", [{"a": "b"}, {"d": "as ours"}, {"d": "as ours", "e": "more"}], ids=str
)
@pytest.mark.parametrize("id", ["*", f"{(1 << 64) - 1}-{(1 << 64) - 1}"])
def test_entries_of_others_are_given_to_nobody(
    client: library.Redis,
    prefix: str,
    nodes: tuple[Cluster, Cluster],
    fields: dict[str, str],
    id: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, two = nodes
    with one.subscribe("t") as new:
        first = two.publish("t", b"1")
        client.xadd(f"{prefix}topic:t", fields, id=id)  # type: ignore[arg-type]
        with one.subscribe("t", since="oldest") as old:
            assert [each.read(WAIT).data for each in (new, old)] == [b"1", b"1"]
            for each in (new, old):
                with pytest.raises(TimeoutError):
                    each.read(0.0)
            positions = [two.publish("t", data) for data in (b"2", b"3")]
            assert positions == [(first.epoch, 2), (first.epoch, 3)]
            for each in (new, old):
                assert [each.read(WAIT).data for _ in range(2)] == [b"2", b"3"]
    assert caplog.text.count("1 entries of others were removed from topic 't'") == 1
    assert client.xlen(f"{prefix}topic:t") == 3


@pytest.mark.usefixtures("quick_looks")
def test_entries_of_others_between_two_epochs_are_passed_over(
    client: library.Redis, prefix: str, server: RedisServer, namespace: str
) -> None:
    with Cluster(server.url, namespace=namespace, retention=Retention(messages=2)) as cluster:
        first = cluster.publish("t", b"1")
        client.xadd(f"{prefix}topic:t", {"a": "b"}, id=f"{first.epoch}-5")
        client.hset(f"{prefix}log:t", "run", "another one")  # as after a restart of Redis
        second = cluster.publish("t", b"2")
        assert second > first
        third = cluster.publish("t", b"3")
        # What others have is dropped as what is ours, but is not counted.
        assert client.hget(f"{prefix}log:t", "bytes") == b"2"
        with cluster.subscribe("t", since="oldest") as old:
            assert [old.read(WAIT).position for _ in range(2)] == [second, third]


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize("kind", [*TYPES, "exhausted"])
def test_a_bell_of_others_does_not_stop_a_topic(
    client: library.Redis,
    prefix: str,
    nodes: tuple[Cluster, Cluster],
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    last = f"{(1 << 64) - 1}-{(1 << 64) - 1}"
    one, two = nodes
    with one.subscribe("t") as new:
        with pytest.raises(TimeoutError):
            new.read(0.0)  # the bell is listened to
        client.delete(f"{prefix}bell")
        if kind == "exhausted":
            client.xadd(f"{prefix}bell", {"t": b"\xff"}, id=last)
        else:
            TYPES[kind](client, f"{prefix}bell")
        for data in (b"1", b"2", b"3"):
            two.publish("t", data)
            assert new.read(WAIT).data == data
        wrong = kind not in ("stream", "exhausted")
        if wrong:
            wait_for(lambda: "followed by looking alone" in caplog.text)
        client.delete(f"{prefix}bell")
        two.publish("t", b"4")
        assert new.read(WAIT).data == b"4"
    told = [each for each in caplog.records if each.getMessage().startswith("topics are followed")]
    assert len([each for each in told if each.levelname == "WARNING"]) == wrong
    assert not [each for each in threading.enumerate() if each.name == "wsmux-cluster-topics"][2:]


def test_a_topic_that_cannot_be_read_is_told_once(
    client: library.Redis,
    prefix: str,
    nodes: tuple[Cluster, Cluster],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(redis_topics_module, "LOOK", 0.01)
    one, two = nodes
    with one.subscribe("t") as new:
        client.set(f"{prefix}topic:t", "a text")
        for _ in range(2):
            with pytest.raises(TimeoutError):
                new.read(1.2)  # lines of one cause are a second apart, anyhow
        client.delete(f"{prefix}topic:t")
        two.publish("t", b"1")
        assert new.read(WAIT).data == b"1"
    assert caplog.text.count("is read again and again: Redis failed: WRONGTYPE") == 1
