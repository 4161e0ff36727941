"""Give the tests clusters of each kind: in one process, over Unix sockets, and as between hosts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import wsmux
from wsmux.cluster import Cluster
from wsmux.cluster import cluster as cluster_module

from ..helpers.certificates import Certificates
from ..helpers.redis_server import RedisServer, redis_server

server = pytest.fixture(scope="module", name="server")(redis_server)

KEY = "a secret of this test"

_namespaces = (f"test-{number}" for number in itertools.count())

Pairs = Callable[[], tuple[wsmux.Connection, wsmux.Connection]]


@pytest.fixture
def namespace() -> str:
    return next(_namespaces)


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    """Return a function that makes a client's and a server's end, and ends all of them."""
    with ExitStack() as made:

        def pair() -> tuple[wsmux.Connection, wsmux.Connection]:
            client, serving = wsmux.pair()
            made.callback(serving.abort)
            made.callback(client.abort)
            return client, serving

        yield pair


@pytest.fixture(params=["alone", "unix", "hosts", "tls"])
def nodes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> Iterator[tuple[Cluster, Cluster]]:
    """Return two nodes of a cluster; one twice if it is of one process alone."""
    kind = request.param
    if kind == "alone":
        with Cluster() as node:
            yield node, node
        return
    server: RedisServer = request.getfixturevalue("server")
    options: dict[str, Any] = {"namespace": namespace}
    if kind != "unix":
        hosts = (f"host-{number}" for number in itertools.count())
        monkeypatch.setattr(cluster_module, "host_id", lambda: next(hosts))
        options |= {"key": KEY, "listen": "127.0.0.1:0"}
    if kind == "tls":
        certificates: Certificates = request.getfixturevalue("certificates")
        options |= {
            "server_ssl": certificates.server,
            "client_ssl": certificates.client,
        }
    with Cluster(server.url, **options) as one, Cluster(server.url, **options) as two:
        yield one, two
