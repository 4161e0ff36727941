"""Names, topics and namespaces with whatever they may have in them are exact, others refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from wsmux.cluster import Cluster
from wsmux.cluster.records import key_prefix

from ..helpers.redis_server import RedisServer
from ..helpers.tables import each_case
from ..helpers.timeouts import WAIT
from .conftest import Pairs

# Each is another one, though some look alike, or would be alike in keys, patterns or scripts.
ODD = ["x" * 256, "x" * 255, "é" * 128, "é", "e\u0301", "E\u0301", "日本語", "🦀", "\ufffd"]
ODD += [" ", "  ", " a", "a", "a ", "a b", "A", "\xa0", "a\u2028b", "\u202eab", "\U0010ffff", "0"]
ODD += [":", "a:b", "a:b:", "node:a", "of:a", "name:a", "names", "nodes", "bell", "log:a", "a:log"]
ODD += ["topic:a", "a%3Ab", "%", "%s", "%d+", ".+", "^a$", "(a", "[a", "+", "-", "(", "[", "{a}"]
ODD += ["*a", "a*b", "**b", "?", "a?b", "[a-z]", "\\", "a\\*b", "'", '"', "';", "$1", "#", "../a"]
ODD += ["\u200b", "None", "1-1", "new", "oldest", "true", "wsmux:cluster:default:nodes"]

REFUSED = ["", "x" * 257, "é" * 129, "\x00", "a\x00b", "a\nb", "a\rb", "\x1b[2J", "\x7f", "\x85"]
REFUSED += ["\ud800", "a\udcff", "a*", "*"]


def test_each_odd_name_is_another_one(nodes: tuple[Cluster, Cluster], pairs: Pairs) -> None:
    one, two = nodes
    clients = {}
    for name in ODD:
        clients[name], connection = pairs()
        one.join(connection, name)
    for name, client in clients.items():
        assert [each.name for each in two.who(name)] == [name]
        with two.open_stream(name, header=name.encode(), timeout=WAIT) as stream:
            stream.close_write()
            with client.accept_stream(WAIT) as got:
                got.timeout = WAIT
                assert got.read().decode() == name
    assert sorted(each.name for each in two.who()) == sorted(ODD)
    for prefix in {name[:size] for name in ODD for size in (1, 2, 5)}:
        if not prefix.endswith("*"):
            found = [each.name for each in two.who(f"{prefix}*")]
            assert sorted(found) == sorted(name for name in ODD if name.startswith(prefix))


def test_each_odd_topic_is_another_one(nodes: tuple[Cluster, Cluster]) -> None:
    one, two = nodes
    for _ in range(2):
        for topic in ODD:
            one.publish(topic, topic.encode())
    for topic in ODD:
        with two.subscribe(topic, since="oldest") as found:
            told = [found.read(WAIT) for _ in range(2)]
            assert [(each.topic, each.data.decode(), each.position.number) for each in told] == [
                (topic, topic, 1),
                (topic, topic, 2),
            ]
            with pytest.raises(TimeoutError):
                found.read(0.0)


CALLS: dict[str, Callable[[Cluster, Any, Any], object]] = {
    "join": lambda cluster, name, connection: cluster.join(connection, name),
    "member": lambda cluster, name, connection: cluster.member(connection, name).__enter__(),
    "open_stream": lambda cluster, name, _: cluster.open_stream(name, timeout=WAIT),
    "publish": lambda cluster, name, _: cluster.publish(name, b""),
    "subscribe": lambda cluster, name, _: cluster.subscribe(name),
    "who": lambda cluster, name, _: cluster.who(name),
    "namespace": lambda _, name, __: Cluster(namespace=name),
}


@each_case
@pytest.mark.parametrize("call", list(CALLS))
@pytest.mark.parametrize("name", [*REFUSED, None, 42, b"user:1", ["a"]])
def test_a_name_that_is_none_is_refused(call: str, name: Any, pairs: Pairs) -> None:
    if call == "who" and name in ("a*", "*"):
        return  # there it has a meaning
    expected = ValueError if isinstance(name, str) else TypeError
    with Cluster() as cluster, pytest.raises(expected, match="must be|has 1 to 256|cannot"):
        CALLS[call](cluster, name, pairs()[1])


def test_each_odd_namespace_is_another_cluster(server: RedisServer, pairs: Pairs) -> None:
    # With the colons as they are, a key of one would be another key of the other.
    spaces = ["a", "a:name:b", "a%3Aname%3Ab", "A", "a:", ":", "%", "é", "e\u0301"]
    assert len({key_prefix(space) for space in spaces}) == len(spaces)
    with ExitStack() as stack:
        clusters = {
            space: stack.enter_context(Cluster(server.url, namespace=space)) for space in spaces
        }
        names = {space: ["b:nodes", "b:names", f"of {len(space)}"] for space in spaces}
        for space, cluster in clusters.items():
            for name in names[space]:
                cluster.join(pairs()[1], name)
        for space, cluster in clusters.items():
            assert sorted(each.name for each in cluster.who()) == sorted(names[space])
            assert cluster.counts(timeout=WAIT).nodes == 1
