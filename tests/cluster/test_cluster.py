"""Names, streams and topics of a cluster: of one process, on one host, and as between hosts."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import wsmux
from wsmux.cluster import Cluster, ClusterError, NotConnected, Presence, TopicGap, Unreachable
from wsmux.cluster import cluster as cluster_module
from wsmux.cluster import members as members_module
from wsmux.cluster.directory import Directory
from wsmux.cluster.links import socket_folder
from wsmux.cluster.records import Node
from wsmux.cluster.splicer import Splicer
from wsmux.exceptions import ConcurrencyError, StreamReset
from wsmux.runtime.parking import OneShotEvent

from ..helpers import process_scripts
from ..helpers.interrupts import interrupted_at
from ..helpers.marking import wide
from ..helpers.redis_server import RedisServer
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for, wait_for_value
from .conftest import KEY, Pairs

Nodes = tuple[Cluster, Cluster]


def names(found: list[Presence]) -> list[str]:
    return sorted(each.name for each in found)


@pytest.fixture
def accepted() -> Iterator[ExitStack]:
    with ExitStack() as streams:
        yield streams


# Names


def test_who_has_joined_is_found_until_it_leaves(nodes: Nodes, pairs: Pairs) -> None:
    one, two = nodes
    _, connection = pairs()
    with one.member(connection, "user:1", "user:2", "admin"):
        for node in nodes:
            assert names(node.who()) == ["admin", "user:1", "user:2"]
            assert names(node.who("user:*")) == ["user:1", "user:2"]
            assert names(node.who("user:1")) == ["user:1"]
            assert names(node.who("user")) == names(node.who("x*")) == []
            assert len(node.who(most=2)) == 2
        (found,) = two.who("admin")
        assert found.node == one.node
    assert one.who() == two.who() == []


def test_several_connections_may_have_one_name(nodes: Nodes, pairs: Pairs) -> None:
    one, two = nodes
    (_, first), (_, second) = pairs(), pairs()
    presence = one.join(first, "user:1")
    two.join(second, "user:1")
    assert len(one.who("user:1")) == 2
    one.leave(presence)
    one.leave(presence)
    wait_for(lambda: len(one.who("user:1")) == 1)  # at once, unless Redis was too busy to answer


def test_nobody_leaves_for_another_process(
    server: RedisServer, namespace: str, pairs: Pairs
) -> None:
    with (
        Cluster(server.url, namespace=namespace) as one,
        Cluster(server.url, namespace=namespace) as two,
    ):
        ours, theirs = one.join(pairs()[1], "user:1"), two.join(pairs()[1], "user:1")
        assert ours.id == theirs.id
        with pytest.raises(ValueError, match="only that one can end it"):
            one.leave(theirs)
        for node in (one, two):
            assert sorted(node.who()) == sorted([ours, theirs])
            node.open_stream("user:1").close()


def test_a_connection_that_has_ended_is_no_longer_found(
    nodes: Nodes, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    client, connection = pairs()
    one.join(connection, "user:1")
    client.close()
    wait_for(lambda: connection.closed)
    with pytest.raises(NotConnected):
        two.open_stream("user:1")


def test_names_and_their_number_are_bounded(
    nodes: Nodes, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    _, connection = pairs()
    for call in (one.who, one.open_stream):
        with pytest.raises(ValueError, match="1 to 256 bytes"):
            call("x" * 257)
    with pytest.raises(ValueError, match="cannot end with"):
        one.join(connection, "user:*")
    monkeypatch.setattr(members_module, "MAX_OF_NAME", 1)
    one.join(connection, "user:1")
    with pytest.raises(ClusterError, match="1 of them as 'user:1'"):
        one.join(connection, "user:1")
    monkeypatch.setattr(members_module, "MAX_MEMBERS", 2)
    with (
        pytest.raises(ClusterError, match="2 connections of this process"),
        one.member(connection, "user:2", "user:3"),
    ):
        pytest.fail("it has joined")
    assert names(two.who()) == ["user:1"]


# Streams


@pytest.mark.parametrize(("bound", "names"), [("MAX_OF_NAME", "aaa"), ("MAX_MEMBERS", "abc")])
def test_connections_that_have_ended_count_no_longer(
    nodes: Nodes, pairs: Pairs, monkeypatch: pytest.MonkeyPatch, bound: str, names: str
) -> None:
    one, two = nodes
    monkeypatch.setattr(members_module, bound, 2)
    for name in names:
        client, connection = pairs()
        one.join(connection, name)
        client.close()
        assert connection.wait_closed(WAIT)
    one.join(pairs()[1], "d")
    two.open_stream("d").close()


def test_without_redis_whoever_joins_forgets_connections_that_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = [0.0]
    late = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])
    monkeypatch.setattr("wsmux.runtime.deadline.clock", late)
    with Cluster(lease=3600.0) as cluster:
        client, connection = wsmux.pair()
        cluster.join(connection, "a")
        client.close()
        assert connection.wait_closed(WAIT)
        ended = weakref.ref(connection)
        del client, connection
        passed[0] += 3600.0
        with closing(wsmux.pair()[0]) as other:
            cluster.join(other, "b")
            wait_for(lambda: gc.collect() >= 0 and ended() is None)


def test_connections_that_end_during_an_outage_are_remembered_up_to_a_bound(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "MAX_UNSAID", 3)
    with Cluster(server.url, namespace=namespace, lease=1.0) as one:
        node: Any = one._running()
        ends = [pairs() for _ in range(9)]
        for number, (_, connection) in enumerate(ends):
            one.join(connection, f"user:{number}")
        with monkeypatch.context() as away:
            for name in ("leave", "announce", "withdraw"):
                away.setattr(Directory, name, unreachable)
            for client, _ in ends[:8]:
                client.close()
            wait_for_value(lambda: node._members.names(9)[1], ["user:8"])
            assert len(node._unsaid) <= 3
        wait_for_value(lambda: names(one.who()), ["user:8"])


def unreachable(*_: object) -> None:
    raise Unreachable("Redis failed")


def write_all(stream: wsmux.Stream, data: bytes) -> None:
    stream.write(data)
    stream.close_write()


def test_a_stream_reaches_whoever_has_the_name(
    nodes: Nodes, pairs: Pairs, accepted: ExitStack
) -> None:
    one, two = nodes
    client, connection = pairs()
    one.join(connection, "user:1")
    for opening in (two, one):
        ours = accepted.enter_context(opening.open_stream("user:1", header=b"a header"))
        theirs = accepted.enter_context(client.accept_stream(WAIT))
        ours.timeout = theirs.timeout = WAIT
        writing = threading.Thread(target=write_all, args=(ours, b"x" * 3_000_000))
        writing.start()
        assert theirs.read(8) == b"a header"
        assert theirs.readall() == b"x" * 3_000_000
        writing.join()
        theirs.write(b"an answer")
        theirs.close_write()
        assert ours.readall() == b"an answer"


def test_one_connection_of_several_is_chosen(
    nodes: Nodes, pairs: Pairs, accepted: ExitStack
) -> None:
    one, two = nodes
    clients = []
    for _ in range(3):
        client, connection = pairs()
        one.join(connection, "user:1")
        clients.append(client)
    found = sorted(two.who("user:1"), key=lambda each: int(each.id))
    for presence, client in zip(found, clients, strict=True):
        accepted.enter_context(two.open_stream(presence, header=b"x"))
        assert accepted.enter_context(client.accept_stream(WAIT)).read(1) == b"x"
    gone = found[0]._replace(id="99")
    with pytest.raises(NotConnected):
        two.open_stream(gone)


def test_nothing_reaches_a_connection_by_a_name_that_it_has_just_left(
    nodes: Nodes, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    client, connection = pairs()
    presence = two.join(connection, "user:1")
    opens = connection.open_stream

    def leaves_before(timeout: float | None) -> wsmux.Stream:
        two.leave(presence)  # it was found already
        return opens(timeout)

    monkeypatch.setattr(connection, "open_stream", leaves_before)
    with pytest.raises(NotConnected, match="has just left"):
        one.open_stream("user:1", timeout=WAIT, header=b"for user:1")
    monkeypatch.undo()
    two.join(connection, "user:2")
    with one.open_stream("user:2", timeout=WAIT, header=b"for user:2"):
        read = b""
        while not read:  # the one before may be accepted before its reset has come
            with client.accept_stream(WAIT) as stream, suppress(wsmux.StreamReset):
                stream.timeout = WAIT
                read = stream.read(10)
    assert read == b"for user:2"


def test_a_reset_reaches_the_far_end(nodes: Nodes, pairs: Pairs, accepted: ExitStack) -> None:
    one, two = nodes
    client, connection = pairs()
    one.join(connection, "user:1")
    for back in (False, True):
        ours = accepted.enter_context(two.open_stream("user:1"))
        theirs = accepted.enter_context(client.accept_stream(WAIT))
        ours.timeout = theirs.timeout = WAIT
        resetting, other = (theirs, ours) if back else (ours, theirs)
        resetting.reset(77)
        with pytest.raises(StreamReset) as caught:
            other.read(1)
        assert caught.value.code == 77


def test_the_end_of_a_connection_ends_its_streams_at_the_far_end(
    nodes: Nodes, pairs: Pairs, accepted: ExitStack
) -> None:
    one, two = nodes
    client, connection = pairs()
    other, second = pairs()
    one.join(connection, "user:1")
    one.join(second, "user:2")
    lost = accepted.enter_context(two.open_stream("user:1"))
    kept = accepted.enter_context(two.open_stream("user:2"))
    theirs = accepted.enter_context(client.accept_stream(WAIT))
    theirs.write(b"the last words")
    lost.timeout = kept.timeout = WAIT
    assert lost.fill(bytearray(14)) == 14
    client.abort()
    with pytest.raises((StreamReset, wsmux.ConnectionClosed)):
        lost.read(1)
    kept.write(b"still here")
    assert accepted.enter_context(other.accept_stream(WAIT)).read(100) == b"still here"


def test_whoever_does_not_read_holds_back_the_writer_and_nobody_else(
    nodes: Nodes, pairs: Pairs, accepted: ExitStack
) -> None:
    one, two = nodes
    client, connection = pairs()
    one.join(connection, "user:1")
    slow = accepted.enter_context(two.open_stream("user:1"))
    unread = accepted.enter_context(client.accept_stream(WAIT))
    slow.timeout = 0.2
    with pytest.raises(wsmux.WriteTimeout) as caught:
        slow.write(bytes(64 << 20))
    assert caught.value.bytes_written < 16 << 20
    quick = accepted.enter_context(two.open_stream("user:1", header=b"quick"))
    assert accepted.enter_context(client.accept_stream(WAIT)).read(5) == b"quick"
    quick.close()
    slow.timeout = WAIT
    slow.close_write()
    unread.timeout = WAIT
    assert len(unread.readall()) == caught.value.bytes_written


def test_nobody_has_the_name(nodes: Nodes) -> None:
    with pytest.raises(NotConnected, match="nobody has joined as 'user:1'"):
        nodes[1].open_stream("user:1")


def test_two_streams_are_joined(nodes: Nodes, pairs: Pairs, accepted: ExitStack) -> None:
    one, two = nodes
    (alice, first), (bob, second) = pairs(), pairs()
    one.join(second, "bob")
    asking = accepted.enter_context(alice.open_stream())
    asking.write(b"bob\n")
    incoming = first.accept_stream(WAIT)
    assert incoming.read(4) == b"bob\n"
    two.relay(incoming, two.open_stream("bob"))
    asking.timeout = WAIT
    asking.write(b"hello bob")
    answering = accepted.enter_context(bob.accept_stream(WAIT))
    assert answering.read(100) == b"hello bob"
    answering.write(b"hello alice")
    answering.close()
    assert asking.readall() == b"hello alice"


def test_many_threads_open_streams_to_many_connections(nodes: Nodes, pairs: Pairs) -> None:
    clients: dict[str, wsmux.Connection] = {}
    for number in range(8):
        client, connection = pairs()
        nodes[number % 2].join(connection, f"user:{number}")
        clients[f"user:{number}"] = client
    failed: list[BaseException] = []

    def talk(node: Cluster, name: str) -> None:
        try:
            for turn in range(5):
                with node.open_stream(name, header=f"{name} {turn}\n".encode()) as stream:
                    stream.timeout = WAIT
                    stream.close_write()
                    assert stream.readall() == f"{name} {turn}\n".encode()
        except BaseException as error:
            failed.append(error)

    def echo(client: wsmux.Connection) -> None:
        for _ in range(10):
            with client.accept_stream(WAIT) as stream:
                stream.timeout = WAIT
                stream.write(stream.readall())

    threads = [threading.Thread(target=echo, args=(each,)) for each in clients.values()]
    threads += [
        threading.Thread(target=talk, args=(node, name)) for node in nodes for name in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert failed == []


# Topics


def test_a_message_reaches_all_subscriptions(nodes: Nodes) -> None:
    one, two = nodes
    one.publish("news", b"too early")
    with one.subscribe("news") as first, two.subscribe("news") as second:
        for number in range(3):
            position = two.publish("news", b"%d" % number)
            for each in (first, second):
                message = each.read(WAIT)
                assert message == ("news", position, b"%d" % number)
                assert each.position == position
        with pytest.raises(TimeoutError):
            first.read(0)


def test_a_subscription_begins_where_it_is_told(nodes: Nodes) -> None:
    one, two = nodes
    positions = [one.publish("news", b"%d" % number) for number in range(4)]
    with two.subscribe("news", since="oldest") as all_of_them:
        assert all_of_them.position is None
        assert [all_of_them.read(WAIT).data for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    with two.subscribe("news", since=str(positions[1])) as some:
        assert [some.read(WAIT).position for _ in range(2)] == positions[2:]
    with two.subscribe("later", since="oldest") as later:
        one.publish("later", b"first")
        assert later.read(WAIT).data == b"first"


def test_the_loss_of_a_first_message_is_told(server: RedisServer, namespace: str) -> None:
    with (
        Cluster(server.url, namespace=namespace) as cluster,
        server.client() as client,
        cluster.subscribe("news") as news,
    ):
        with pytest.raises(TimeoutError):
            news.read(0)
        cluster.publish("news", b"lost")
        client.flushall()
        cluster.publish("news", b"found")
        with pytest.raises(TopicGap) as gap:
            news.read(WAIT)
        assert gap.value.count is None
        assert news.read(WAIT).data == b"found"


def test_a_reader_waits_for_a_message(nodes: Nodes) -> None:
    one, two = nodes
    found: list[Any] = []
    with two.subscribe("news") as subscription:
        reading = threading.Thread(target=lambda: found.append(subscription.read(WAIT)))
        reading.start()
        one.publish("news", b"at last")
        reading.join(WAIT)
    assert [each.data for each in found] == [b"at last"]


def test_closing_ends_a_waiting_reader(nodes: Nodes) -> None:
    subscription = nodes[0].subscribe("news")
    found: list[Any] = []
    reading = threading.Thread(target=lambda: found.extend(subscription))
    reading.start()
    wait_for(lambda: _is_read(subscription))
    subscription.close()
    reading.join(WAIT)
    assert not reading.is_alive()
    assert found == []
    with pytest.raises(ValueError, match="is closed"):
        subscription.read(0)


def _is_read(subscription: Any) -> bool:
    try:
        subscription.read(0)
    except ConcurrencyError:
        return True
    except TimeoutError:
        return False
    pytest.fail("a message came")


def test_an_interrupted_read_loses_no_more_than_its_message() -> None:
    with Cluster() as cluster, cluster.subscribe("news") as subscription:
        number, interrupted = 0, True
        while interrupted:
            number += 1
            for _ in range(2):
                cluster.publish("news", b"%d" % number)
            interrupted = interrupted_at(number, lambda: subscription.read(WAIT))
            assert subscription.read(0).data == b"%d" % number
            last = cluster.publish("news", b"last")
            while subscription.position != last:
                subscription.read(0)
        assert number > 5


@pytest.mark.parametrize("nodes", ["unix", *wide("alone")], indirect=True)
def test_dropped_messages_are_told(nodes: Nodes) -> None:
    one, two = nodes
    first = one.publish("news", b"0")
    for number in range(1, 10_050):
        one.publish("news", b"%d" % number)
    with two.subscribe("news", since=first) as subscription:
        with pytest.raises(TopicGap) as caught:
            subscription.read(WAIT)
        assert caught.value.count == 49
        assert subscription.read(WAIT).data == b"50"


def test_what_cannot_be_published_is_refused(nodes: Nodes) -> None:
    one, _ = nodes
    with pytest.raises(TypeError, match="must be bytes, not str"):
        one.publish("news", "text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 1048576 bytes, not 1048577"):
        one.publish("news", bytes((1 << 20) + 1))
    with pytest.raises(ValueError, match="a topic"):
        one.publish("", b"")
    with pytest.raises(ValueError, match="'new', 'oldest' or a position"):
        one.subscribe("news", since="yesterday")


# Coming and going


def test_whoever_has_left_is_of_no_use(nodes: Nodes, pairs: Pairs) -> None:
    one, two = nodes
    _, connection = pairs()
    with one.member(connection, "user:1"):
        one.close()
    for call in (one.who, lambda: one.open_stream("user:1"), lambda: one.publish("t", b"")):
        with pytest.raises(ValueError, match="was left"):
            call()
    if two is not one:
        assert two.who() == []


def test_leaving_ends_streams_at_both_ends(nodes: Nodes, pairs: Pairs, accepted: ExitStack) -> None:
    one, two = nodes
    client, connection = pairs()
    asking, incoming = pairs()
    one.join(connection, "user:1")
    ours = accepted.enter_context(two.open_stream("user:1", header=b"x"))
    theirs = accepted.enter_context(client.accept_stream(WAIT))
    far = accepted.enter_context(asking.open_stream())
    far.write(b"x")
    one.relay(incoming.accept_stream(WAIT), one.open_stream("user:1"))
    near = accepted.enter_context(client.accept_stream(WAIT))
    for each in (ours, theirs, far, near):
        each.timeout = WAIT
    assert (theirs.read(1), near.read(1)) == (b"x", b"x")
    one.close()
    # A stream within one process is of its two ends alone, unless it is relayed.
    for each in (far, near) if one is two else (far, near, theirs, ours):
        with pytest.raises((StreamReset, wsmux.ConnectionClosed)):
            each.read(1)
    assert client.ping(timeout=WAIT) > 0


def test_leaving_ends_subscriptions(nodes: Nodes) -> None:
    node = nodes[0]
    subscription = node.subscribe("news")
    found: list[Any] = []
    reading = threading.Thread(target=lambda: found.extend(subscription))
    reading.start()
    wait_for(lambda: _is_read(subscription))
    node.close()
    reading.join(WAIT)
    assert not reading.is_alive()
    assert found == []
    with pytest.raises(ValueError, match="was left"):
        subscription.read(0)


def threads_of_clusters() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("wsmux-cluster")]


def test_a_connection_that_ends_as_it_joins_is_forgotten(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(server.url, namespace=namespace) as cluster:
        node: Any = cluster._running()
        join = node._directory.join

        def late(id: str, presences: list[Presence]) -> bool:
            for each in presences:  # as the thread of the lease does for those that have ended
                node.remove(each)
            return bool(join(id, presences))

        monkeypatch.setattr(node._directory, "join", late)
        cluster.join(pairs()[1], "user:1")
        assert cluster.who() == []


def test_nobody_joins_behind_the_end(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Cluster(server.url, namespace=namespace) as cluster,
        Cluster(server.url, namespace=namespace) as other,
    ):
        node: Any = cluster._running()
        join = node._directory.join

        def late(id: str, presences: list[Presence]) -> bool:
            if threading.current_thread() is threading.main_thread():  # not that of the lease
                cluster.close()
            return bool(join(id, presences))

        monkeypatch.setattr(node._directory, "join", late)
        with pytest.raises(ValueError, match="was left"):
            cluster.join(pairs()[1], "user:1")
        assert other.who() == []


def test_what_redis_has_lost_twice_is_said_again(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "SAID", 1)
    with (
        Cluster(server.url, namespace=namespace, lease=1.0) as one,
        Cluster(server.url, namespace=namespace, lease=1.0) as two,
        server.client() as client,
    ):
        for name in ("user:1", "user:2", "user:3"):
            one.join(pairs()[1], name)
        fails = iter([client.flushall, lambda: 1 / 0])
        directory_join = Directory.join

        def join(directory: Directory, node: str, presences: Sequence[Presence]) -> bool:
            if node == one.node:  # it is said again: the first is lost, the second not heard
                next(fails, lambda: None)()
            return directory_join(directory, node, presences)

        monkeypatch.setattr(Directory, "join", join)
        monkeypatch.setattr(cluster_module._Running, "_repair", lambda node: None)
        client.flushall()
        wait_for_value(lambda: len(two.who()), 3)


def announces(
    monkeypatch: pytest.MonkeyPatch, announced: Callable[[Callable[[], bool]], bool]
) -> None:
    """Have ``announced`` called instead, with what renews the lease."""
    announce = Directory.announce

    def instead(directory: Directory, node: Node, lease: float) -> bool:
        return announced(lambda: announce(directory, node, lease))

    monkeypatch.setattr(Directory, "announce", instead)
    monkeypatch.setattr(cluster_module._Running, "_repair", lambda node: None)


def test_a_loss_that_is_noticed_while_another_thread_renews_the_lease_is_said_again(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    renews, go = OneShotEvent(), OneShotEvent()

    def announced(announce: Callable[[], bool]) -> bool:
        if threading.current_thread().name == "wsmux-cluster-lease":
            renews.set()
            assert go.wait(WAIT)
        return announce()

    announces(monkeypatch, announced)
    with Cluster(server.url, namespace=namespace) as one, server.client() as client:
        assert one.who() == []
        assert renews.wait(WAIT)
        one.join(pairs()[1], "user:1")
        client.flushall()
        go.set()
        wait_for_value(lambda: names(one.who()), ["user:1"])


def test_a_loss_whose_notice_was_lost_is_said_again(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = OneShotEvent()

    def announced(announce: Callable[[], bool]) -> bool:
        known = announce()
        if not known and joined:
            lost.set()
            raise Unreachable("the answer was lost")
        return known

    joined: list[Presence] = []
    announces(monkeypatch, announced)
    with (
        Cluster(server.url, namespace=namespace, lease=1.0) as one,
        server.client() as client,
    ):
        joined.append(one.join(pairs()[1], "user:1"))
        client.flushall()
        assert lost.wait(WAIT)
        wait_for_value(lambda: names(one.who()), ["user:1"])


def test_an_interrupted_end_can_be_repeated(
    server: RedisServer, namespace: str, pairs: Pairs
) -> None:
    _, connection = pairs()
    number, interrupted = 1, True
    with Cluster(server.url, namespace=namespace) as other:
        while interrupted:
            cluster = Cluster(server.url, namespace=namespace)
            cluster.join(connection, "user:1")
            cluster.subscribe("news").close()
            path = socket_folder() / f"{cluster.node}.sock"
            assert path.exists()
            interrupted = interrupted_at(number, cluster.close)
            cluster.close()
            assert other.who("user:1") == []
            assert not path.exists()
            number += 7  # each step would take minutes
    wait_for_value(threads_of_clusters, [])
    assert number > 100


# At some points of the call, and in wide runs at all.
@pytest.mark.parametrize("stride", ["23", *wide("1")])
@pytest.mark.parametrize("kind", ["cluster", "beginning cluster"])
def test_a_signal_handler_may_close_a_cluster_that_is_just_being_closed(
    server: RedisServer, kind: str, stride: str
) -> None:
    process_scripts.run("interrupt_end", kind, stride, server.url)


def test_an_end_that_a_signal_handler_repeats_and_breaks_off_can_be_repeated(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(splicer: Splicer) -> None:
        monkeypatch.undo()
        cluster.close()
        raise KeyboardInterrupt

    cluster = Cluster()
    _, connection = pairs()
    cluster.relay(connection.open_stream(), connection.open_stream())
    assert threads_of_clusters()
    monkeypatch.setattr(Splicer, "close", handle)
    with pytest.raises(KeyboardInterrupt):
        cluster.close()
    cluster.close()
    assert not threads_of_clusters()


def test_an_interrupted_wait_for_the_end_takes_nothing_from_it(
    server: RedisServer,
    namespace: str,
    pairs: Pairs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = threading.Event()
    real = Directory.withdraw

    def withdraw(directory: Directory, node: Node) -> None:
        asked.set()
        real(directory, node)

    def join() -> None:
        assert asked.wait(WAIT)
        raise KeyboardInterrupt

    _, connection = pairs()
    monkeypatch.setattr(Directory, "withdraw", withdraw)
    cluster = Cluster(server.url, namespace=namespace)
    cluster.join(connection, "user:1")
    (thread,) = (each for each in threading.enumerate() if each.name == "wsmux-cluster-lease")
    with server.client() as client, monkeypatch.context() as interrupts:
        interrupts.setattr(thread, "join", join)
        client.client_pause(int(WAIT * 1000), all=False)
        try:
            with pytest.raises(KeyboardInterrupt):
                cluster.close()
        finally:
            client.client_unpause()
    cluster.close()
    with Cluster(server.url, namespace=namespace) as other:
        assert other.who("user:1") == []
    assert not [each for each in caplog.messages if each.startswith("this node is found until")]


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of the sockets, which is of this test alone."""
    with tempfile.TemporaryDirectory(prefix="w") as made:  # the path of a socket has to be short
        monkeypatch.setattr(tempfile, "gettempdir", lambda: made)
        yield socket_folder()


@pytest.mark.parametrize("module", ["wsmux.endpoints.acceptor", "wsmux.cluster.cluster"])
def test_a_cluster_that_cannot_begin_leaves_nothing(
    server: RedisServer,
    namespace: str,
    sockets: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise wsmux.NoThreadError(f"{thread.name} cannot be started")

    with Cluster(server.url, namespace=namespace) as cluster:
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.start_thread", fail)
            with pytest.raises(wsmux.NoThreadError):
                cluster.who()
        assert list(sockets.iterdir()) == []
        assert cluster.who() == []


def open_sockets() -> int:
    """Count the descriptors of sockets, which unlike those of parked threads are not kept."""
    count = 0
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # it was that of the listing, or was closed meanwhile
            count += os.readlink(f"/proc/self/fd/{each}").startswith("socket:")
    return count


def test_coming_and_going_leaves_nothing(server: RedisServer, namespace: str, pairs: Pairs) -> None:
    _, connection = pairs()

    def come_and_go(node: Cluster) -> None:
        with node, node.member(connection, "user:1"), other.open_stream("user:1") as stream:
            stream.write(b"x")

    with Cluster(server.url, namespace=namespace) as other:
        come_and_go(Cluster(server.url, namespace=namespace))
        before = open_sockets()
        for _ in range(50):
            come_and_go(Cluster(server.url, namespace=namespace))
        wait_for(lambda: open_sockets() < before + 10)  # a few are kept, to Redis
        assert other.who() == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "http://localhost"}, "expected the URL of a Redis, such as redis://"),
        ({"namespace": ""}, "namespace has 1 to 256 bytes"),
        ({"listen": "127.0.0.1:0"}, "listen= needs key="),
        ({"listen": "127.0.0.1", "key": KEY}, "listen must be host:port"),
        ({"listen": "a:b", "key": KEY}, "listen must be host:port"),
        ({"key": "short"}, "at least 16 bytes"),
        ({"lease": 0.5}, "lease must be 1 to 3600 seconds"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Cluster(**options)


def test_its_text_has_no_password() -> None:
    assert repr(Cluster("redis://user:secret@host:1/2")) == "<Cluster default of host:1/2>"
    assert repr(Cluster()) == "<Cluster default of this process>"


def test_namespaces_do_not_know_each_other(server: RedisServer, pairs: Pairs) -> None:
    _, connection = pairs()
    with Cluster(server.url, namespace="a") as one, Cluster(server.url, namespace="b") as two:
        one.join(connection, "user:1")
        assert two.who() == []
        with pytest.raises(NotConnected):
            two.open_stream("user:1")


def test_a_node_of_another_host_needs_an_address_and_a_key(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = iter(["one", "two", "three", "four"])
    monkeypatch.setattr("wsmux.cluster.cluster.host_id", lambda: next(hosts))
    _, connection = pairs()
    with (
        Cluster(server.url, namespace=namespace) as silent,
        Cluster(server.url, namespace=namespace, key=KEY, listen="127.0.0.1:0") as listening,
        Cluster(server.url, namespace=namespace) as keyless,
        Cluster(server.url, namespace=namespace, key=f"another {KEY}") as stranger,
    ):
        silent.join(connection, "user:1")
        listening.join(connection, "user:2")
        with pytest.raises(Unreachable, match="give it listen="):
            keyless.open_stream("user:1")
        with pytest.raises(Unreachable, match="no key= to show"):
            keyless.open_stream("user:2")
        with pytest.raises(NotConnected, match="nobody has joined"):  # it believes no record
            stranger.open_stream("user:2")
