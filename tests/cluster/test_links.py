"""What a node does with what other processes send it."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux.cluster import Cluster, NotConnected, Unreachable
from wsmux.cluster import links as links_module
from wsmux.cluster.records import Node, Presence, link_token
from wsmux.config import MIB, SMALLEST_WINDOW
from wsmux.diagnostics.status import STALLED_AFTER
from wsmux.mux.stream_table import PRESSURE
from wsmux.protocols.base import Role
from wsmux.protocols.native import NativeProtocol
from wsmux.runtime.deadline import Deadline

from ..helpers.cluster_nodes import asked, of
from ..helpers.interrupts import interrupted_at
from ..helpers.marking import wide
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
    serve = links_module.LinkServer.serve

    def noted(each: links_module.LinkServer, link: wsmux.Connection) -> None:
        serving.append(each)
        serve(each, link)

    monkeypatch.setattr(links_module.LinkServer, "serve", noted)
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
    links = links_module.Links("a" * 32, "host", KEY.encode(), None, print)
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
    links = links_module.Links("a" * 32, node.host, KEY.encode(), None, print)
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
    link, (connection, other) = links_module.Link(True), wsmux.pair()
    with connection, other:
        number, interrupted = 0, True
        while interrupted:
            number += 1
            link = links_module.Link(True)
            interrupted = interrupted_at(
                number, lambda link=link: link.connected(lambda _: connection, Deadline(WAIT))
            )
            assert link.connected(lambda _: connection, Deadline(0.0)) is connection
        assert number > 5


@pytest.mark.parametrize("ended", ["closed", "forgotten"])
def test_a_link_that_has_ended_holds_no_connection(ended: str) -> None:
    link, (connection, other) = links_module.Link(True), wsmux.pair()
    with connection, other:

        def dial(_: Deadline) -> wsmux.Connection:
            assert not link.end_unused()  # while it is made
            link.close()
            assert link.end_unused()  # which does not revoke that
            return connection

        if ended == "closed":
            assert link.connected(dial, Deadline(WAIT)) is None
        else:
            assert link.end_unused()
            assert link.connected(lambda _: connection, Deadline(WAIT)) is None
            link.close()
            return
        assert connection.closed


def test_a_link_that_breaks_behind_another_one_is_forgotten() -> None:
    link, (ours, far), (theirs, other) = links_module.Link(False), wsmux.pair(), wsmux.pair()
    with far, other:
        assert link.connected(lambda _: ours, Deadline(WAIT)) is ours
        stream = ours.open_stream()
        assert link.adopt(theirs)
        assert not link.end_unused()
        ours.abort()
        assert not link.end_unused()  # as the other one is used
        theirs.abort()
        assert link.end_unused()
        stream.close()


def test_links_without_a_connection_are_forgotten(tmp_path: Path) -> None:
    links = links_module.Links("a" * 32, "host", None, None, print)
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


# One link of two nodes


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[wsmux.Connection]:
    """Return the links that nodes have dialled, in order."""
    made: list[wsmux.Connection] = []
    dial = links_module.Links._dialled

    def noted(links: links_module.Links, node: Node, deadline: Deadline) -> wsmux.Connection:
        made.append(connection := dial(links, node, deadline))
        return connection

    monkeypatch.setattr(links_module.Links, "_dialled", noted)
    return made


class Both:
    """Hold two nodes, of which each has a client, and open streams from each to the other's."""

    def __init__(self, one: Cluster, two: Cluster, pairs: Pairs) -> None:
        self.nodes = {"user:2": one, "user:1": two}  # by whom they open streams to
        self.clients = {}
        for name, node in (("user:1", one), ("user:2", two)):
            self.clients[name], connection = pairs()
            node.join(connection, name)

    def open(self, name: str) -> tuple[wsmux.Stream, wsmux.Stream]:
        stream = self.nodes[name].open_stream(name, timeout=WAIT)
        far = self.clients[name].accept_stream(WAIT)
        stream.timeout = far.timeout = WAIT
        return stream, far

    def reach_each_other(self) -> None:
        for name in self.nodes:
            exchange(*self.open(name))


def exchange(stream: wsmux.Stream, far: wsmux.Stream) -> None:
    with stream, far:
        stream.write(b"there")
        assert far.read(5) == b"there"
        far.write(b"back")
        assert stream.read(4) == b"back"


def open_ones(links: list[wsmux.Connection]) -> int:
    return sum(not each.closed for each in links)


@pytest.mark.parametrize("nodes", ["unix", "hosts", *wide("tls")], indirect=True)
def test_two_nodes_have_one_link(
    nodes: tuple[Cluster, Cluster], pairs: Pairs, dialled: list[wsmux.Connection]
) -> None:
    both = Both(*nodes, pairs)
    both.reach_each_other()
    both.reach_each_other()
    assert len(dialled) == 1


@pytest.mark.parametrize("nodes", ["unix", "hosts"], indirect=True)
def test_a_link_that_breaks_ends_its_streams_and_is_made_anew(
    nodes: tuple[Cluster, Cluster], pairs: Pairs, dialled: list[wsmux.Connection]
) -> None:
    both = Both(*nodes, pairs)
    with ExitStack() as held:
        streams = [held.enter_context(each) for name in both.nodes for each in both.open(name)]
        dialled[0].abort()
        for each in streams:
            with pytest.raises((wsmux.StreamReset, wsmux.ConnectionClosed)):
                each.read()
    both.reach_each_other()
    assert len(dialled) == 2


def test_a_node_that_comes_back_gets_a_link_of_its_own(
    server: RedisServer, namespace: str, pairs: Pairs, dialled: list[wsmux.Connection]
) -> None:
    with Cluster(server.url, namespace=namespace) as one:
        for number in range(1, 4):
            with Cluster(server.url, namespace=namespace) as two:
                Both(one, two, pairs).reach_each_other()
            assert (len(dialled), open_ones(dialled)) == (number, 0)


def test_nodes_that_dial_each_other_at_once_keep_one_link_and_lose_no_stream(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, wsmux.Connection] = {}
    met = threading.Barrier(2)
    tended = threading.Semaphore(0)
    dial, drop = links_module.Links._dialled, links_module.Links.drop_ended

    def together(links: links_module.Links, node: Node, deadline: Deadline) -> wsmux.Connection:
        made[node.id] = dial(links, node, deadline)
        met.wait(WAIT)
        return made[node.id]

    def noted(links: links_module.Links) -> None:
        drop(links)
        tended.release()

    monkeypatch.setattr(links_module.Links, "_dialled", together)
    monkeypatch.setattr(links_module.Links, "drop_ended", noted)
    with (
        Cluster(server.url, namespace=namespace, lease=1.0) as one,
        Cluster(server.url, namespace=namespace, lease=1.0) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        both = Both(one, two, pairs)
        streams = list(pool.map(both.open, both.nodes))
        for _ in range(6):  # as a rule by each of them, while the streams are open
            assert tended.acquire(timeout=WAIT)
        for pair in streams:
            exchange(*pair)
        kept, other = (made[each] for each in sorted((two.node, one.node), reverse=True))
        wait_for(lambda: other.closed)
        assert not kept.closed
        both.reach_each_other()  # without dialling, which would wait for another one
        assert not kept.closed


def test_a_node_of_an_earlier_version_dials_a_link_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
    server: RedisServer,
    namespace: str,
    pairs: Pairs,
    dialled: list[wsmux.Connection],
) -> None:
    left = {"error": "not-connected", "text": "it has left"}
    monkeypatch.setattr(links_module.LinkServer, "_share", lambda *_: left)
    with (
        Cluster(server.url, namespace=namespace) as one,
        Cluster(server.url, namespace=namespace) as two,
    ):
        Both(one, two, pairs).reach_each_other()
        assert open_ones(dialled) == 2


def test_a_request_whose_link_breaks_is_made_once_more(
    monkeypatch: pytest.MonkeyPatch,
    server: RedisServer,
    namespace: str,
    pairs: Pairs,
    dialled: list[wsmux.Connection],
) -> None:
    with (
        Cluster(server.url, namespace=namespace) as one,
        Cluster(server.url, namespace=namespace) as two,
    ):
        both = Both(one, two, pairs)
        both.reach_each_other()
        act = links_module.LinkServer._action
        breaks = threading.Semaphore(1)

        def action(each: Any, link: wsmux.Connection, *request: Any) -> Any:
            if breaks.acquire(blocking=False):
                link.abort()
            return act(each, link, *request)

        monkeypatch.setattr(links_module.LinkServer, "_action", action)
        both.reach_each_other()
        assert len(dialled) == 2


@pytest.mark.parametrize("nodes", ["hosts"], indirect=True)
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"ok": True}, "does not have the key"),
        ({"ok": True, "token": link_token(b"another key 1234", "a", "b", 1e9)}, "have the key"),
    ],
)
def test_whoever_does_not_have_the_key_opens_no_streams_on_a_link(
    nodes: tuple[Cluster, Cluster],
    pairs: Pairs,
    dialled: list[wsmux.Connection],
    monkeypatch: pytest.MonkeyPatch,
    answer: dict[str, Any],
    told: str,
) -> None:
    monkeypatch.setattr(links_module.LinkServer, "_share", lambda *_: answer)
    both = Both(*nodes, pairs)
    with pytest.raises(Unreachable, match=told):
        both.open("user:1")
    assert dialled[0].closed


@pytest.mark.parametrize("nodes", ["hosts"], indirect=True)
def test_whoever_has_the_key_says_by_it_who_he_is(
    nodes: tuple[Cluster, Cluster],
    pairs: Pairs,
    dialled: list[wsmux.Connection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other(*_: object) -> dict[str, Any]:
        now = time.time()
        return {"ok": True, "token": link_token(KEY.encode(), "1" * 32, nodes[0].node, now)}

    monkeypatch.setattr(links_module.LinkServer, "_share", other)
    both = Both(*nodes, pairs)
    with pytest.raises(Unreachable, match="it says that it is node 11111111"):
        both.open("user:2")
    assert dialled[0].closed


@pytest.mark.parametrize("source", ["b" * 32, None])
def test_a_link_is_of_the_node_whose_token_was_shown(node: Node, source: object) -> None:
    token = link_token(KEY.encode(), "a" * 32, node.id, time.time())
    with wsmux.connect(node.url, headers={"Authorization": f"Bearer {token}"}) as link:
        told = answer(link, message({"v": 1, "ask": "share", "node": node.id, "from": source}))
    assert told["error"] == "unreachable"
    assert "of node aaaa" in told["text"]


def test_a_link_that_the_other_node_has_dialled_is_used_when_an_attempt_fails() -> None:
    link, (connection, other) = links_module.Link(True), wsmux.pair()
    with connection, other:

        def dial(_: Deadline) -> wsmux.Connection:
            assert link.adopt(connection)
            raise ConnectionRefusedError("nobody listens")

        assert link.connected(dial, Deadline(WAIT)) is connection
        link.close()
        assert connection.closed
        assert not link.adopt(other)


def test_a_node_that_has_left_shares_no_links() -> None:
    links = links_module.Links("a" * 32, "host", None, None, print)
    links.close()
    connection, other = wsmux.pair()
    with connection, other, pytest.raises(wsmux.HandshakeError, match="has left the cluster"):
        links.adopt("b" * 32, connection)


# What a few clients may do to the streams of all others on a link


def request(
    link: wsmux.Connection, node: Node, cluster: Cluster, pairs: Pairs
) -> tuple[wsmux.Stream, wsmux.Stream]:
    """Open a stream on a link to a client of the node, and return both ends."""
    client, connection = pairs()
    presence = cluster.join(connection, "user:1")
    stream = link.open_stream()
    stream.timeout = WAIT
    stream.write(message({"v": 1, "node": node.id, "name": "user:1", "member": presence.id}))
    (size,) = struct.unpack(">I", stream.read(4))
    assert json.loads(stream.read(size))["ok"] is True
    far = client.accept_stream(WAIT)
    far.timeout = WAIT
    return stream, far


def test_streams_that_are_opened_and_reset_end_no_others(
    link: wsmux.Connection, node: Node, cluster: Cluster, pairs: Pairs
) -> None:
    other = request(link, node, cluster, pairs)
    for _ in range(1500):
        link.open_stream(WAIT).reset()
    exchange(*other)


def test_a_link_outlives_the_end_of_all_streams_at_once_that_are_written_to() -> None:
    config = links_module.LINK
    one, two = NativeProtocol(Role.CLIENT, config), NativeProtocol(Role.SERVER, config)
    ids = [one.open_stream() for _ in range(config.max_streams)]
    deliver(one.control_to_send(), two)
    for each in ids:
        two.accept(each, config.receive_window)
    deliver(two.control_to_send(), one)
    for each in ids:
        assert one.send_data(each, b"on its way") == 10
        two.reset_write(each, 0)
        two.reset_read(each, 0)
    deliver(one.data_to_send(), two)
    deliver([*two.control_to_send(), *two.data_to_send()], one)
    deliver([*one.control_to_send(), *one.data_to_send()], two)
    assert (one.open_streams(), two.open_streams()) == (0, 0)


def deliver(messages: list[tuple[Any, Any]], to: NativeProtocol) -> None:
    for head, body in messages:
        to.receive_data(bytes(head) + bytes(body))


def test_a_node_that_is_late_to_read_may_end_many_streams() -> None:
    ours, before = socket.socketpair()
    behind, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    reads = threading.Event()
    reads.set()
    many = wsmux.Config(max_pending_opens=10_000)
    with ExitStack() as held, before, behind:
        link = held.enter_context(wsmux.from_socket(ours, role="server", config=links_module.LINK))
        peer = held.enter_context(wsmux.from_socket(theirs, role="client", config=many))
        for source, target, gate in ((before, behind, reads), (behind, before, None)):
            thread = threading.Thread(target=_carry, args=(source, target, gate), daemon=True)
            thread.start()
        with peer.open_stream() as stream:
            stream.write(b"before")
            taken = link.accept_stream(WAIT)
            taken.timeout = stream.timeout = WAIT
            assert taken.read(6) == b"before"
            reads.clear()
            for _ in range(links_module.MAX_STREAMS):
                peer.open_stream(WAIT).reset()
            stream.write(b"behind")
            assert taken.read(6) == b"behind"
            reads.set()
            exchange(stream, taken)


def _carry(source: socket.socket, target: socket.socket, gate: threading.Event | None) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            if gate is not None:
                gate.wait(WAIT)
            target.sendall(data)


SIZE = 450_000  # of bytes; more than the window of a client, and less than two


def test_clients_that_do_not_read_hold_back_their_own_writers_alone(
    server: RedisServer, namespace: str, pairs: Pairs, dialled: list[wsmux.Connection]
) -> None:
    clients = [pairs() for _ in range(3)]
    with (
        Cluster(server.url, namespace=namespace) as one,
        Cluster(server.url, namespace=namespace) as two,
        ThreadPoolExecutor(90) as pool,
    ):
        for number, (_, connection) in enumerate(clients):
            one.join(connection, f"user:{number}")
        streams = [
            (two.open_stream(f"user:{number}", timeout=WAIT), client.accept_stream(WAIT))
            for number, (client, _) in enumerate(clients)
            for _ in range(30)
        ]
        written = [pool.submit(near.write, bytes(SIZE)) for near, _ in streams]
        window = 30 * wsmux.Config().receive_window
        for client, _ in clients:
            wait_for(lambda client=client: client.stats().unread_bytes == window)
        wait_for(
            lambda: dialled[0].stats().waiting_writers + sum(each.done() for each in written) == 90
        )
        exchange(two.open_stream("user:0", timeout=WAIT), clients[0][0].accept_stream(WAIT))
        for (_, far), each in zip(streams, written, strict=True):
            far.timeout = WAIT
            assert far.fill(bytearray(SIZE)) == SIZE
            assert each.result(WAIT) == SIZE


def test_no_stream_is_reset_though_all_windows_of_a_link_are_full() -> None:
    most = 2 * MIB + 2 * 64 * SMALLEST_WINDOW
    config = replace(
        links_module.LINK,
        max_streams=64,
        max_window_bytes=2 * MIB,
        max_connection_buffer=most + MIB,
    )
    near, far = wsmux.pair(config=config)
    first, size = 64 * 1024, 512 * 1024
    with near, far, ThreadPoolExecutor(128) as pool:
        streams = [(near.open_stream(WAIT), far.accept_stream(WAIT)) for _ in range(64)]
        streams += [(near.accept_stream(WAIT), each) for each in opened(far, 64)]
        written = [pool.submit(writer.write, bytes(size)) for _, writer in streams]
        for reader, _ in streams:  # so that windows grow
            reader.timeout = WAIT
            assert reader.fill(bytearray(first)) == first
        wait_for(lambda: far.stats().waiting_writers + sum(each.done() for each in written) == 128)
        assert near.stats().unread_bytes <= most
        for (reader, _), each in zip(streams, written, strict=True):
            assert reader.fill(bytearray(size - first)) == size - first
            assert each.result(WAIT) == size


def test_all_windows_of_a_link_fit_what_it_may_hold() -> None:
    config = links_module.LINK
    assert config.max_window_bytes is not None
    smallest = 2 * config.max_streams * SMALLEST_WINDOW
    ended = links_module.MAX_OF_CLIENT * SMALLEST_WINDOW
    assert config.max_window_bytes + smallest + ended <= config.max_connection_buffer
    # And one link leaves others what the process may hold.
    assert config.max_connection_buffer <= config.max_process_buffer * PRESSURE


def opened(connection: wsmux.Connection, count: int) -> list[wsmux.Stream]:
    return [connection.open_stream(WAIT) for _ in range(count)]


def test_a_stream_that_a_full_link_has_no_place_for_is_refused(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "LINK", replace(links_module.LINK, max_streams=2))
    client, connection = pairs()
    with (
        Cluster(server.url, namespace=namespace) as one,
        Cluster(server.url, namespace=namespace) as two,
        ExitStack() as held,
    ):
        one.join(connection, "user:1")
        for _ in range(2):
            stream = held.enter_context(two.open_stream("user:1", timeout=WAIT))
            far = held.enter_context(client.accept_stream(WAIT))
        with pytest.raises(Unreachable, match="nobody took it there"):
            two.open_stream("user:1", timeout=WAIT)
        stream.timeout = far.timeout = WAIT
        exchange(stream, far)


def test_no_client_takes_more_streams_than_its_own_share(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "MAX_OF_CLIENT", 2)
    client, connection = pairs()
    with (
        Cluster(server.url, namespace=namespace) as one,
        Cluster(server.url, namespace=namespace) as two,
        ExitStack() as held,
    ):
        one.join(connection, "user:1")
        for _ in range(2):
            stream = held.enter_context(two.open_stream("user:1", timeout=WAIT))
            held.enter_context(client.accept_stream(WAIT))
        with pytest.raises(Unreachable, match="it has 2 streams open, and 2 are the most"):
            two.open_stream("user:1", timeout=WAIT)
        stream.reset()
        wait_for(lambda: connection.stats().streams == 1)
        two.open_stream("user:1", timeout=WAIT).close()
