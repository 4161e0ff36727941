"""What Redis says under the keys of a cluster is not believed blindly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis as library

from wsmux.cluster import Cluster, NotConnected, Unreachable

from ..helpers.redis_server import RedisServer
from .conftest import Pairs


@pytest.fixture
def client(server: RedisServer) -> Iterator[library.Redis]:
    with server.client() as made:
        yield made


@pytest.fixture
def cluster(server: RedisServer, namespace: str) -> Iterator[Cluster]:
    with Cluster(server.url, namespace=namespace) as node:
        yield node


@pytest.mark.parametrize("since", [b"", b"yesterday", b"\xff"])
def test_a_member_without_a_time_is_left_out(
    client: library.Redis,
    cluster: Cluster,
    namespace: str,
    pairs: Pairs,
    since: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.join(pairs()[1], "user:1")
    client.hset(f"wsmux:cluster:{namespace}:name:user:1", f"{cluster.node} 99", since)
    assert [each.id for each in cluster.who("user:1")] == ["1"]
    assert "is left out" in caplog.text


@pytest.mark.parametrize("record", [b"{", b"[]", b'{"v": 1}', b"\xff", b"x" * 5000, b"[" * 2000])
def test_a_node_without_a_record_is_left_out(
    client: library.Redis, cluster: Cluster, namespace: str, record: bytes
) -> None:
    assert cluster.who() == []
    node = "0" * 32
    client.set(f"wsmux:cluster:{namespace}:node:{node}", record)
    client.hset(f"wsmux:cluster:{namespace}:name:user:1", f"{node} 1", "1.0")
    with pytest.raises(NotConnected, match="nobody has joined"):
        cluster.open_stream("user:1")


@pytest.mark.parametrize("key", ["name:user:1", "names"])
def test_a_key_of_another_type_is_an_error_with_its_reason(
    client: library.Redis, cluster: Cluster, namespace: str, key: str
) -> None:
    client.zadd(f"wsmux:cluster:{namespace}:names", {"user:1": 0})
    client.set(f"wsmux:cluster:{namespace}:{key}", "a text")
    with pytest.raises(Unreachable, match="WRONGTYPE"):
        cluster.who()


def test_a_member_that_is_none_is_left_out(
    client: library.Redis, cluster: Cluster, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.hset(f"wsmux:cluster:{namespace}:name:user:1", "nonsense", "1.0")
    with pytest.raises(NotConnected, match="nobody has joined"):
        cluster.open_stream("user:1")
    assert "is left out: b'nonsense', which joined at b'1.0', is no member" in caplog.text
