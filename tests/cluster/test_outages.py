"""Processes that die, fork, or lose their Redis."""

from __future__ import annotations

import gc
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import wsmux
from wsmux.cluster import Cluster, NotConnected, TopicGap, Unreachable
from wsmux.cluster import cluster as cluster_module
from wsmux.cluster import directory as directory_module
from wsmux.cluster.directory import Directory
from wsmux.cluster.links import socket_folder
from wsmux.exceptions import ForkedError
from wsmux.runtime import unix_sockets

from ..helpers.cluster_nodes import LEASE, start_node
from ..helpers.redis_server import RedisServer
from ..helpers.timeouts import CONNECTS, WAIT
from ..helpers.waiting import wait_for, wait_for_value
from .conftest import Pairs


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Run a Redis that the test may kill."""
    with RedisServer(tmp_path) as server:
        yield server


def count(cluster: Cluster, pattern: str = "*") -> int:
    return len(cluster.who(pattern))


def asked(cluster: Cluster, name: str) -> bytes:
    with cluster.open_stream(name, header=b"ping", timeout=WAIT) as stream:
        stream.timeout = WAIT
        return stream.read(100)


def test_the_names_of_a_killed_process_end_with_its_lease(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "STEP", 2)
    many = [f"user:{number}" for number in range(7)]
    with Cluster(server.url, namespace=namespace, lease=LEASE) as cluster:
        process = start_node(server.url, namespace, *many)
        try:
            assert count(cluster) == 7
            assert asked(cluster, "user:3") == b"ping"
        finally:
            process.kill()
            process.communicate()
        with pytest.raises((Unreachable, NotConnected)):
            cluster.open_stream("user:3", timeout=WAIT)
        wait_for_value(lambda: count(cluster), 0)
        with server.client() as client:  # nothing is left but what this node has
            wait_for_value(
                lambda: sorted(
                    key.decode().rpartition(namespace)[2]
                    for key in client.scan_iter(f"wsmux:cluster:{namespace}:*")
                ),
                [":clock", f":node:{cluster.node}", ":nodes", ":seen"],
            )


@pytest.mark.parametrize("seconds", [-3600, -300, 300])
def test_the_names_of_a_killed_process_end_though_the_clock_of_redis_jumps(
    server: RedisServer, namespace: str, pairs: Pairs, seconds: int
) -> None:
    _, connection = pairs()
    with Cluster(server.url, namespace=namespace, lease=LEASE) as cluster:
        cluster.join(connection, "user:here")
        process = start_node(server.url, namespace, "user:killed")
        assert count(cluster) == 2
        process.kill()
        process.communicate()
        server.jump(seconds)
        wait_for_value(lambda: [each.name for each in cluster.who()], ["user:here"])
        wait_for_value(lambda: cluster.counts().nodes, 1)


def test_a_process_that_exits_without_leaving_is_forgotten_at_once(
    server: RedisServer, namespace: str
) -> None:
    with Cluster(server.url, namespace=namespace, lease=60.0) as cluster:
        process = start_node(server.url, namespace, "user:1", lease=60.0)
        (found,) = cluster.who()
        path = Path(socket_folder()) / f"{found.node}.sock"
        assert path.exists()
        process.send_signal(signal.SIGINT)  # unwinds the script, and leaves to ``atexit``
        process.communicate(timeout=WAIT)
        assert count(cluster) == 0
        assert not path.exists()


def test_the_socket_of_a_killed_process_is_removed(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_sockets, "LEFT_AFTER", -1.0)
    with Cluster(server.url, namespace=namespace) as cluster:
        process = start_node(server.url, namespace, "user:1")
        (found,) = cluster.who("user:1")
        process.kill()
        process.communicate()
        with Cluster(server.url, namespace=namespace) as other:
            assert other.node
            names = {path.stem for path in socket_folder().glob("*.sock")}
            assert found.node not in names
            assert {cluster.node, other.node} <= names


def test_a_successor_is_not_taken_for_a_killed_process(server: RedisServer, namespace: str) -> None:
    with Cluster(server.url, namespace=namespace) as cluster:
        old = start_node(server.url, namespace, "user:1", lease=60.0)
        old.kill()
        old.communicate()
        new = start_node(server.url, namespace, "user:1")
        try:
            assert len(cluster.who("user:1")) == 2  # until the lease of the old one ends
            assert asked(cluster, "user:1") == b"ping"
        finally:
            new.kill()
            new.communicate()


def test_a_node_whose_lease_has_ended_says_again_who_has_joined(
    server: RedisServer, namespace: str, pairs: Pairs
) -> None:
    with (
        Cluster(server.url, namespace=namespace, lease=LEASE) as one,
        Cluster(server.url, namespace=namespace, lease=LEASE) as two,
    ):
        _, connection = pairs()
        one.join(connection, "user:1")
        with server.client() as client:
            client.flushall()
            wait_for_value(lambda: count(two), 1)
            client.flushall()
            one.join(connection, "user:2")  # also without a lease
            wait_for_value(lambda: count(two), 2)  # the thread that renews it may be in between


@pytest.mark.parametrize("key", ["name:user:1", "names", "of:{}", "node:{}", "nodes"])
def test_a_key_that_redis_has_evicted_is_said_again(
    server: RedisServer, namespace: str, pairs: Pairs, key: str
) -> None:
    keys = f"wsmux:cluster:{namespace}:"
    with (
        Cluster(server.url, namespace=namespace, lease=LEASE) as one,
        Cluster(server.url, namespace=namespace, lease=LEASE) as two,
        server.client() as client,
    ):
        one.join(pairs()[1], "user:1")
        evicted = f"{keys}{key.format(one.node)}"
        wait_for_value(lambda: client.exists(evicted), 1)  # it announces itself in the background
        client.delete(evicted)
        wait_for_value(lambda: (client.exists(evicted), count(two)), (1, 1))
        two.open_stream("user:1", timeout=WAIT).close()
    with server.client() as client:
        assert not [each for each in client.scan_iter(f"{keys}*") if b"name" in each]


def test_who_goes_during_an_outage_is_remembered_up_to_a_bound(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Unreachable("Redis failed")

    monkeypatch.setattr(cluster_module, "MAX_UNSAID", 3)
    with (
        Cluster(server.url, namespace=namespace, lease=LEASE) as one,
        Cluster(server.url, namespace=namespace, lease=LEASE) as two,
    ):
        _, connection = pairs()
        joined = [one.join(connection, f"user:{number}") for number in range(9)]
        with monkeypatch.context() as away:
            for name in ("leave", "announce", "withdraw"):
                away.setattr(Directory, name, fail)
            for each in joined[:8]:
                one.leave(each)
        wait_for_value(lambda: [each.name for each in two.who()], ["user:8"])


def test_a_lease_is_renewed_while_many_names_end(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("announce", "leave"):
        real = getattr(Directory, name)

        def noted(*args: Any, name: str = name, real: Any = real) -> object:
            done.append(name)
            return real(*args)

        monkeypatch.setattr(Directory, name, noted)
    monkeypatch.setattr(cluster_module, "SAID", 2)
    with Cluster(server.url, namespace=namespace, lease=LEASE) as cluster:
        client, connection = pairs()
        for number in range(6):
            cluster.join(connection, f"user:{number}")
        client.close()
        wait_for_value(lambda: count(cluster), 0)
        assert done.count("leave") >= 3  # more if they were not all noticed together
        for at, name in enumerate(done):
            assert name == "announce" or done[at - 1] == "announce"


def test_a_lease_is_renewed_in_time_though_redis_takes_its_time(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, taken, done = 3600.0, [0.0], []

    def slow(directory: Directory) -> bool:
        taken[0] += lease / 2
        return False

    def noted(directory: Directory, *args: Any, real: Any = Directory.announce) -> object:
        done.append(taken[0])
        return real(directory, *args)

    late = SimpleNamespace(monotonic=lambda: time.monotonic() + taken[0])
    monkeypatch.setattr("wsmux.runtime.deadline.clock", late)
    monkeypatch.setattr(Directory, "sweep", slow)
    monkeypatch.setattr(Directory, "announce", noted)
    with Cluster(server.url, namespace=namespace, lease=lease) as cluster:
        assert cluster.node
        wait_for_value(lambda: {lease / 2, lease} <= set(done), True)
        monkeypatch.undo()


def test_what_is_no_member_holds_up_no_sweep(
    server: RedisServer, namespace: str, pairs: Pairs
) -> None:
    keys = f"wsmux:cluster:{namespace}:"
    dead = [digit * 32 for digit in "0123"]
    with server.client() as client:
        client.zadd(f"{keys}nodes", dict.fromkeys(dead, 0))
        client.set(f"{keys}of:{dead[0]}", "a text")
        client.sadd(f"{keys}of:{dead[1]}", "nonsense", "1 user:1")
        client.set(f"{keys}name:user:1", "a text")
        client.sadd(f"{keys}of:{dead[2]}", "1 user:2")
        client.hset(f"{keys}name:user:2", f"{dead[2]} 1", "1.0")
        with Cluster(server.url, namespace=namespace, lease=LEASE) as cluster:
            wait_for_value(lambda: client.zrange(f"{keys}nodes", 0, -1), [cluster.node.encode()])
            assert not client.exists(f"{keys}name:user:2")


def test_a_connection_that_ends_is_forgotten_without_leaving(
    server: RedisServer, namespace: str, pairs: Pairs
) -> None:
    with Cluster(server.url, namespace=namespace, lease=LEASE) as cluster:
        client, connection = pairs()
        cluster.join(connection, "user:1")
        client.close()
        wait_for_value(lambda: count(cluster), 0)


def test_a_connection_that_ends_while_redis_is_away_is_forgotten(own_redis: RedisServer) -> None:
    with Cluster(own_redis.url, lease=LEASE) as cluster:
        client, connection = wsmux.pair()
        cluster.join(connection, "user:1")
        own_redis.kill()
        client.close()
        assert connection.wait_closed(WAIT)
        ended = weakref.ref(connection)
        del client, connection
        wait_for(lambda: gc.collect() >= 0 and ended() is None)


def test_without_redis_names_of_this_process_are_found_and_the_rest_is_said_later(
    own_redis: RedisServer, pairs: Pairs
) -> None:
    with Cluster(own_redis.url, lease=LEASE) as one, Cluster(own_redis.url, lease=LEASE) as two:
        client, connection = pairs()
        presence = one.join(connection, "before")
        going_on = two.open_stream("before")
        theirs = client.accept_stream(WAIT)
        own_redis.kill()
        one.join(connection, "meanwhile")
        one.leave(presence)
        with one.open_stream("meanwhile", header=b"x") as stream:
            assert client.accept_stream(WAIT).read(1) == b"x"
            stream.close()
        for call in (
            lambda: two.open_stream("meanwhile"),
            two.who,
            lambda: two.publish("t", b""),
            lambda: two.subscribe("t"),
        ):
            with pytest.raises(Unreachable, match="Redis failed"):
                call()
        going_on.write(b"bytes do not need Redis")
        assert theirs.read(100) == b"bytes do not need Redis"
        own_redis.start()
        wait_for_value(lambda: [each.name for each in _who(two)], ["meanwhile"])


def _who(cluster: Cluster) -> list[object]:
    try:
        return list(cluster.who())
    except Unreachable:
        return []


def test_a_subscription_goes_on_when_redis_is_back(own_redis: RedisServer) -> None:
    with Cluster(own_redis.url, lease=LEASE) as one, Cluster(own_redis.url, lease=LEASE) as two:
        one.publish("news", b"before")
        with two.subscribe("news", since="oldest") as subscription:
            assert subscription.read(WAIT).data == b"before"
            own_redis.kill()
            with pytest.raises(TimeoutError):
                subscription.read(0.1)
            own_redis.start()
            position = one.publish("news", b"after")
            # This Redis had written nothing to disk, so the topic is another one, and says so.
            with pytest.raises(TopicGap, match="was begun again"):
                subscription.read(WAIT)
            assert subscription.read(WAIT) == ("news", position, b"after")


def test_a_redis_that_stands_still_is_waited_for(own_redis: RedisServer, pairs: Pairs) -> None:
    with Cluster(own_redis.url, lease=60.0) as one, Cluster(own_redis.url, lease=60.0) as two:
        _, connection = pairs()
        assert one.node != two.node
        own_redis.hold(1.0)
        one.join(connection, "user:1")
        assert count(two) == 1


def test_a_forked_child_is_another_node(server: RedisServer, namespace: str, pairs: Pairs) -> None:
    with Cluster(server.url, namespace=namespace) as cluster:
        _, connection = pairs()
        cluster.join(connection, "user:1")
        parent = cluster.node

        def tell() -> str:
            with cluster:
                return f"{cluster.node} {count(cluster)}"

        node, found = in_child(tell).split()
        assert node != parent
        assert found == "1"
        assert cluster.node == parent
        assert count(cluster) == 1


def in_child(action: Callable[[], str]) -> str:
    """Return what an action tells in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, action().encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        found = told.read()
    os.waitpid(child, 0)
    return found


def test_a_block_that_ends_in_a_forked_child_ends_nothing(
    server: RedisServer, namespace: str, pairs: Pairs
) -> None:
    with Cluster(server.url, namespace=namespace) as cluster, ExitStack() as block:
        _, connection = pairs()
        block.enter_context(cluster.member(connection, "user:1"))

        def end() -> str:
            cluster.join(pairs()[1], "user:1")
            block.close()
            return str(count(cluster))

        assert in_child(end) == "2"


@pytest.mark.parametrize("url", [True, False])
def test_a_subscription_says_in_a_forked_child_that_it_is_of_the_parent(
    server: RedisServer, namespace: str, url: bool
) -> None:
    with (
        Cluster(server.url if url else None, namespace=namespace) as cluster,
        cluster.subscribe("news", since="oldest") as subscription,
    ):
        cluster.publish("news", b"x")

        def read() -> str:
            try:
                return str(subscription.read(WAIT))
            except ForkedError as error:
                subscription.close()
                return str(error)

        assert "is of the parent process" in in_child(read)
        assert subscription.read(WAIT).data == b"x"


def test_a_node_that_stands_still_is_given_up_in_time(server: RedisServer, namespace: str) -> None:
    with Cluster(server.url, namespace=namespace) as cluster:
        process = start_node(server.url, namespace, "user:1", lease=60.0)
        try:
            assert asked(cluster, "user:1") == b"ping"
            process.send_signal(signal.SIGSTOP)
            stat = Path(f"/proc/{process.pid}/stat")
            wait_for_value(lambda: stat.read_text().rpartition(")")[2].split()[0], "T")
            with pytest.raises(Unreachable, match="gave no answer"):
                cluster.open_stream("user:1", timeout=CONNECTS)
            process.send_signal(signal.SIGCONT)
            assert asked(cluster, "user:1") == b"ping"
        finally:
            process.kill()
            process.communicate()
