"""What a cluster tells of all its nodes: who they are, what they do, and which do not answer."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux.cluster import Cluster, ClusterCounts, NodeStatus, Unreachable
from wsmux.cluster import cluster as cluster_module
from wsmux.cluster import status as status_module
from wsmux.cluster.directory import REMEMBERED, Directory
from wsmux.cluster.links import Links
from wsmux.cluster.records import Known, Listed, Node, NodeProcess
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.thread_pool import ThreadPool

from ..helpers.cluster_nodes import asked, of, start_node
from ..helpers.redis_server import RedisServer
from ..helpers.timeouts import CONNECTS, WAIT
from ..helpers.waiting import wait_for, wait_for_value
from .conftest import KEY, Pairs


def shown(node: NodeStatus) -> list[str]:
    assert node.status is not None, node.why
    return [each["name"] for each in node.status["connections"]]


def test_each_node_tells_what_has_joined_there(
    nodes: tuple[Cluster, Cluster], pairs: Pairs
) -> None:
    one, two = nodes
    connection = pairs()[1]
    with two.member(connection, "user:1", "admin"):
        status = asked(one, two)
        told = of(status, two.node)
        assert shown(told) == [connection.name]
        assert (told.members, told.names, told.why) == (2, ["admin", "user:1"], "")
        assert (told.host, told.pid) == (socket.gethostname(), os.getpid())
        assert len(status.nodes) == len({one.node, two.node})
        assert json.loads(json.dumps(status.document()))["nodes_left_out"] == 0
    assert (told.renewed is None) == (one is two)  # without Redis there is no lease
    assert shown(of(one.status(timeout=WAIT), two.node)) == []


def test_what_was_named_is_told_whether_it_has_joined_or_not(pairs: Pairs) -> None:
    named, joined = pairs()[1], pairs()[1]
    with Cluster(connections=[named]) as cluster, cluster.member(joined, "user:1"):
        (node,) = cluster.status().nodes
    assert shown(node) == [named.name]
    assert node.members == 1


def test_what_stands_still_is_told_of_a_connection_elsewhere(
    server: RedisServer, namespace: str, pairs: Pairs
) -> None:
    client, connection = pairs()
    with (
        Cluster(server.url, namespace=namespace) as one,
        Cluster(server.url, namespace=namespace) as two,
        two.member(connection, "user:1"),
        client.open_stream(WAIT) as stream,
    ):
        stream.write(b"x")
        wait_for(lambda: connection.stats().unread_bytes == 1)
        wait_for(lambda: connection.explain()[0].seconds > 0)
        node = of(asked(one, two, stalled_after=1e-9), two.node)
        assert node.status is not None
        assert node.status["stalled_after"] == 1e-9
        assert node.status["connections"][0]["stalled"] > 0
        node = of(asked(one, two, stalled_after=3600.0), two.node)
        assert node.status is not None
        assert node.status["connections"][0]["stalled"] is None


def test_a_stopped_process_is_told_of_without_its_status(
    server: RedisServer, namespace: str
) -> None:
    with Cluster(server.url, namespace=namespace) as cluster:
        process = start_node(server.url, namespace, "user:1", lease=60.0)
        try:
            (presence,) = cluster.who("user:1")
            assert len(shown(of(cluster.status(timeout=WAIT), presence.node))) == 1
            process.send_signal(signal.SIGSTOP)
            stat = Path(f"/proc/{process.pid}/stat")
            wait_for_value(lambda: stat.read_text().rpartition(")")[2].split()[0], "T")
            # The others answer long before, and are told of.
            status = cluster.status(timeout=CONNECTS)
            node = of(status, presence.node)
            assert (node.pid, node.names, node.status) == (process.pid, ["user:1"], None)
            assert node.why == "no answer within 3 s: its process may stand still"
            assert node.renewed is not None
            assert of(status, cluster.node).why == ""
            process.send_signal(signal.SIGCONT)
            wait_for(lambda: of(cluster.status(timeout=WAIT), presence.node).status)
        finally:
            process.kill()
            process.communicate()


def test_a_node_whose_lease_has_ended_is_remembered_and_one_that_has_left_is_not(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    withdraw = Directory.withdraw
    with Cluster(server.url, namespace=namespace) as cluster, server.client() as client:
        with Cluster(server.url, namespace=namespace) as left:
            asked(cluster, left)
        with Cluster(server.url, namespace=namespace, lease=1.0) as killed:
            asked(cluster, killed)
            node = killed.node
            monkeypatch.setattr(Directory, "withdraw", lambda *_: None)
        monkeypatch.setattr(Directory, "withdraw", withdraw)
        wait_for(lambda: cluster.counts().lost == 1)
        status = cluster.status(timeout=WAIT)
        assert {each.node for each in status.nodes} == {cluster.node, node}
        told = of(status, node)
        assert (told.pid, told.status) == (os.getpid(), None)
        assert re.fullmatch(
            "its lease ended [0-9]+ s ago: it was killed, stands still, or cannot reach Redis",
            told.why,
        )
        assert told.renewed is not None
        assert told.renewed > 1.0
        assert cluster.counts().nodes == 1
        # What nobody with this key has said is left out, and so is what is too old.
        seen = f"wsmux:cluster:{namespace}:seen"
        ((record, end),) = client.zrange(seen, 0, 0, withscores=True)  # type: ignore[misc]
        client.zadd(seen, {b"nonsense": end, record: end - 1000 * (REMEMBERED + 1)})
        assert cluster.counts().lost == 0


def test_a_status_of_another_version_is_not_shown(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Links, "ask_status", lambda *_: {"version": 9})
    with (
        Cluster(server.url, namespace=namespace) as one,
        Cluster(server.url, namespace=namespace) as two,
    ):
        node = of(asked(one, two), two.node)
    assert (node.status, node.why) == (None, "its status is of version 9, this is for 1")


def test_a_status_that_fails_is_told_and_logged_where_it_failed(
    server: RedisServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> list[wsmux.Connection]:
        raise LookupError("of the application")

    with (
        Cluster(server.url, namespace=namespace, connections=fails) as one,
        Cluster(server.url, namespace=namespace) as two,
    ):
        assert of(asked(two, one), one.node).why == "its status cannot be told: see its log"
        assert of(one.status(timeout=WAIT), one.node).why == (
            "asking it has failed: see the log of who asked"
        )
    assert "of the application" in caplog.text


def test_a_node_with_another_key_is_told_of_with_the_reason(
    server: RedisServer, namespace: str
) -> None:
    with (
        Cluster(server.url, namespace=namespace, key=KEY) as one,
        Cluster(server.url, namespace=namespace, key="another key 1234") as two,
    ):
        node = of(asked(one, two), two.node)
    assert (node.host, node.status) == (None, None)
    assert "is not signed with this key" in node.why


def test_nodes_and_names_beyond_the_most_are_counted(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "MAX_NODES", 2)
    monkeypatch.setattr(cluster_module, "MAX_NAMES", 3)
    connection = pairs()[1]
    with (
        Cluster(server.url, namespace=namespace, lease=60.0) as one,
        Cluster(server.url, namespace=namespace, lease=50.0) as two,
        Cluster(server.url, namespace=namespace, lease=40.0) as three,
        three.member(connection, *map(str, range(7))),
    ):
        assert one.node != two.node
        wait_for(lambda: two.status(timeout=WAIT).left_out == 1)
        told = one.status(timeout=WAIT)
        # Its own, and of the others the one whose lease ends first.
        assert {each.node for each in told.nodes} == {one.node, three.node}
        assert of(told, three.node).members == 7
        assert len(of(told, three.node).names) == 3


def test_nodes_that_do_not_answer_leave_some_unasked_but_all_are_told_of() -> None:
    go, deadline = threading.Event(), Deadline(1.0)

    def ask(node: Node) -> dict[str, Any]:
        assert go.wait(WAIT)
        raise Unreachable("it gave no answer") from TimeoutError()

    known = [
        Known(str(number), Node(str(number), "", "", ""), None, "", None, 0, [])
        for number in range(3)
    ]
    pool = ThreadPool(1, "test")
    try:
        told = status_module.ask_all(known, pool, ask, deadline, 1.0)
    finally:
        go.set()
        pool.close()
        pool.join(Deadline(WAIT))
    assert [each.node for each in told] == ["0", "1", "2"]
    assert told[0].why == "no answer within 1 s: its process may stand still"
    for each in told[1:]:
        assert each.why.startswith("it was not asked within 1 s")


def test_nodes_are_counted_by_what_redis_knows(pairs: Pairs) -> None:
    process = NodeProcess(1, "web-1", 15.0)
    fresh = Known("a", None, process, "", 7.5, 3, [])
    late = fresh._replace(renewed=7.6)
    earlier = fresh._replace(renewed=None, process=None)
    counts = status_module.count(Listed([fresh, late, earlier], 2, [late]))
    assert counts == ClusterCounts(nodes=5, overdue=1, lost=1, members=9, renewed_max=7.6)
    with Cluster() as cluster, cluster.member(pairs()[1], "user:1"):
        assert cluster.counts() == ClusterCounts(
            nodes=1, overdue=0, lost=0, members=1, renewed_max=0.0
        )


@pytest.mark.parametrize("options", [{"timeout": 0.0}, {"stalled_after": -1.0}])
def test_times_are_above_zero(options: dict[str, float]) -> None:
    with Cluster() as cluster, pytest.raises(ValueError, match="must be above 0 s"):
        cluster.status(**options)
