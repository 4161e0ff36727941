"""What a node does with what other processes send it."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux.cluster import Cluster, NotConnected, Unreachable
from wsmux.cluster import links as links_module
from wsmux.cluster.records import Node, Presence, link_token
from wsmux.diagnostics.status import STALLED_AFTER
from wsmux.runtime.deadline import Deadline

from ..helpers.cluster_nodes import asked, of
from ..helpers.interrupts import interrupted_at
from ..helpers.redis_server import RedisServer
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for
from .conftest import KEY, Pairs


@pytest.fixture
def cluster(server: RedisServer, namespace: str) -> Iterator[Cluster]:
    with Cluster(server.url, namespace=namespace, key=KEY, listen="127.0.0.1:0") as node:
        yield node


@pytest.fixture
def node(server: RedisServer, namespace: str, cluster: Cluster, pairs: Pairs) -> Node:
    """Return what the cluster has said of itself in Redis."""
    cluster.join(pairs()[0], "somebody")  # so that it has announced itself
    with server.client() as client:
        record = client.get(f"wsmux:cluster:{namespace}:node:{cluster.node}")
    assert isinstance(record, bytes)
    fields = json.loads(record)
    return Node(*(fields[name] for name in Node._fields))


@pytest.fixture
def link(node: Node) -> Iterator[wsmux.Connection]:
    """Return a link to the node, as another one has it."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(node.path)
    with wsmux.from_socket(sock, role="client") as connection:
        yield connection


def message(fields: Any) -> bytes:
    data = json.dumps(fields).encode()
    return struct.pack(">I", len(data)) + data


def answer(link: wsmux.Connection, sent: bytes) -> Any:
    """Return the answer to a request, ``None`` if the stream is reset."""
    with link.open_stream() as stream:
        stream.timeout = WAIT
        try:
            stream.write(sent)
            return json.loads(stream.read()[4:])
        except wsmux.StreamReset:
            return None


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">I", 4097),
        struct.pack(">I", 2**32 - 1),
        message([]),
        message({}),
        message({"v": 2}),
        struct.pack(">I", 3) + b"{{{",
        struct.pack(">I", 1) + b"\xff",
        struct.pack(">I", 4000) + b"[" * 4000,
    ],
)
def test_what_is_no_request_is_reset(link: wsmux.Connection, sent: bytes) -> None:
    assert answer(link, sent) is None
    assert link.ping(timeout=WAIT) > 0


def test_a_request_that_does_not_come_is_given_up(
    monkeypatch: pytest.MonkeyPatch, link: wsmux.Connection
) -> None:
    monkeypatch.setattr(links_module, "ANSWER_TIME", 0.05)
    assert answer(link, b"\x00") is None


def test_a_request_that_comes_byte_by_byte_is_given_up(
    monkeypatch: pytest.MonkeyPatch, link: wsmux.Connection
) -> None:
    monkeypatch.setattr(links_module, "ANSWER_TIME", 0.2)
    with link.open_stream() as stream:
        stream.timeout = 0.02
        with pytest.raises(wsmux.StreamReset):
            _dribble(stream, struct.pack(">I", 1000) + bytes(500))


def _dribble(stream: wsmux.Stream, data: bytes) -> None:
    for byte in data:
        with suppress(TimeoutError):
            stream.write(bytes([byte]))
            stream.read(1)


def test_a_client_that_is_slow_holds_back_no_other(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving: list[links_module.LinkServer] = []
    serve = links_module.LinkServer._serve

    def noted(each: links_module.LinkServer, link: wsmux.Connection) -> None:
        serving.append(each)
        serve(each, link)

    monkeypatch.setattr(links_module.LinkServer, "_serve", noted)
    monkeypatch.setattr(links_module, "ANSWERERS", 2)
    with (
        ExitStack() as held,
        Cluster(server.url, namespace=namespace) as one,
        Cluster(server.url, namespace=namespace) as two,
    ):
        one.join(pairs()[1], "quick")
        silent, sock = socket.socketpair()
        held.callback(silent.close)
        slow = wsmux.from_socket(sock, role="server", config=wsmux.Config(max_pending_opens=1))
        held.callback(slow.abort)
        one.join(slow, "slow")
        held.enter_context(two.open_stream("slow", timeout=WAIT))
        asked = [threading.Thread(target=_cannot_be_reached, args=(two, "slow")) for _ in range(4)]
        for each in asked:
            each.start()
        wait_for(lambda: any(each._waiting == 4 for each in serving))
        # Before the first of the others is given up.
        two.open_stream("quick", timeout=links_module.ANSWER_TIME / 2).close()
        slow.abort()
        for each in asked:
            each.join(WAIT)
            assert not each.is_alive()


def _cannot_be_reached(cluster: Cluster, name: str) -> None:
    with pytest.raises((NotConnected, Unreachable)):
        cluster.open_stream(name, timeout=WAIT)


@pytest.mark.parametrize(
    ("path", "url"), [("a\0b", ""), ("x" * 200, ""), ("", "ftp://host"), ("", "ws://[")]
)
def test_a_node_of_an_odd_address_cannot_be_reached(path: str, url: str) -> None:
    node = Node("1" * 32, "other" if url else "host", path, url)
    links = links_module.Links("a" * 32, "host", KEY.encode(), None)
    with pytest.raises(Unreachable, match="cannot be reached"):
        links.open(Presence("user:1", node.id, "1", 0.0), node, Deadline(WAIT))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"node": "another", "name": "user:1", "member": "1"},
        {"name": "user:1", "member": "1"},
        {"name": 5, "member": None},
    ],
)
def test_a_request_for_nobody_is_answered(link: wsmux.Connection, fields: dict[str, Any]) -> None:
    told = answer(link, message({"v": 1} | fields))
    assert told["error"] == "not-connected"


@pytest.mark.parametrize("after", [2.5, "x", None, -1])
def test_a_question_for_the_status_is_answered(
    link: wsmux.Connection, node: Node, after: Any
) -> None:
    question = {"v": 1, "node": node.id, "ask": "status", "stalled_after": after}
    told = answer(link, message(question))
    assert told["status"]["process"] == os.getpid()
    assert told["status"]["stalled_after"] == (2.5 if after == 2.5 else STALLED_AFTER)
    assert answer(link, message(question | {"node": "another"}))["error"] == "not-connected"


def test_a_node_of_an_earlier_version_is_told_of_without_its_status(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def earlier(_: object, stream: wsmux.Stream, *__: object) -> None:
        # What it answers to a request without a name, as it takes this one for.
        stream.write(message({"v": 1, "error": "not-connected", "text": "it has left"}))
        stream.close()

    monkeypatch.setattr(links_module.LinkServer, "_tell", earlier)
    with (
        Cluster(server.url, namespace=namespace) as cluster,
        Cluster(server.url, namespace=namespace, lease=60.0) as other,
        server.client() as client,
    ):
        asked(cluster, other)
        key = f"wsmux:cluster:{namespace}:node:{other.node}"
        record = client.get(key)
        assert isinstance(record, bytes)
        fields = json.loads(record)
        del fields["process"]
        client.set(key, json.dumps(fields), keepttl=True)
        told = of(cluster.status(timeout=WAIT), other.node)
    assert (told.host, told.pid, told.renewed, told.status) == (None, None, None, None)
    assert told.why == "it is of an earlier version, which does not tell its status"


def test_an_answer_above_the_bound_is_not_read(
    monkeypatch: pytest.MonkeyPatch, server: RedisServer, namespace: str, node: Node
) -> None:
    monkeypatch.setattr(links_module, "MAX_STATUS", -links_module.MAX_MESSAGE)
    links = links_module.Links("a" * 32, node.host, KEY.encode(), None)
    try:
        with pytest.raises(Unreachable, match="0 at most were expected"):
            links.ask_status(node, 1.0, Deadline(WAIT))
    finally:
        links.close()


def test_requests_beyond_the_bound_are_reset(
    monkeypatch: pytest.MonkeyPatch, link: wsmux.Connection
) -> None:
    monkeypatch.setattr(links_module, "MAX_WAITING", 0)
    assert answer(link, message({"v": 1})) is None


def test_the_socket_is_for_this_user_alone(node: Node) -> None:
    folder = Path(node.path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_uid == os.getuid()


def test_a_folder_that_others_can_open_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(links_module.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"wsmux-cluster-{os.getuid()}"
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="only this user can access"):
        links_module.socket_folder()


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer x", f"Bearer {link_token(b'another key 1234', 'a', 'b', 1e9)}"],
)
def test_a_stranger_is_refused_at_the_door(node: Node, authorization: str) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    with pytest.raises(wsmux.HandshakeError) as caught:
        wsmux.connect(node.url, headers=headers)
    assert caught.value.status == 401


def test_a_client_that_takes_no_streams_cannot_be_reached(
    server: RedisServer, namespace: str, cluster: Cluster, pairs: Pairs
) -> None:
    client, connection = pairs()
    cluster.join(connection, "user:1")
    client.go_away()
    with Cluster(server.url, namespace=namespace, key=KEY) as other, pytest.raises(NotConnected):
        _until_gone(other)


def _until_gone(other: Cluster) -> None:
    """Open streams until the client's word has reached the node."""
    for _ in range(1000):
        other.open_stream("user:1", timeout=WAIT).close()


def test_an_interrupted_attempt_leaves_the_link_usable() -> None:
    link, (connection, other) = links_module.Link(), wsmux.pair()
    with connection, other:
        number, interrupted = 0, True
        while interrupted:
            number += 1
            link = links_module.Link()
            interrupted = interrupted_at(
                number, lambda link=link: link.connected(lambda _: connection, Deadline(WAIT))
            )
            assert link.connected(lambda _: connection, Deadline(0.0)) is connection
        assert number > 5


@pytest.mark.parametrize("ended", ["closed", "forgotten"])
def test_a_link_that_has_ended_holds_no_connection(ended: str) -> None:
    link, (connection, other) = links_module.Link(), wsmux.pair()
    with connection, other:

        def dial(_: Deadline) -> wsmux.Connection:
            assert not link.end_unused()  # while it is made
            link.close()
            return connection

        if ended == "closed":
            assert link.connected(dial, Deadline(WAIT)) is None
        else:
            assert link.end_unused()
            assert link.connected(lambda _: connection, Deadline(WAIT)) is None
            link.close()
            return
        assert connection.closed


def test_links_without_a_connection_are_forgotten(tmp_path: Path) -> None:
    links = links_module.Links("a" * 32, "host", None, None)
    for number in range(3):
        node = Node(f"{number:032}", "host", str(tmp_path / "nobody.sock"), "")
        with pytest.raises(Unreachable, match="No such file"):
            links.open(Presence("user:1", node.id, "1", 0.0), node, Deadline(WAIT))
        links.drop_ended()
        assert links._links == {}


def test_a_node_without_a_socket_cannot_be_reached(
    server: RedisServer, namespace: str, cluster: Cluster, pairs: Pairs, node: Node
) -> None:
    _, connection = pairs()
    cluster.join(connection, "user:1")
    os.unlink(node.path)
    with (
        Cluster(server.url, namespace=namespace, key=KEY) as other,
        pytest.raises(Unreachable, match="No such file"),
    ):
        other.open_stream("user:1")
