"""Show the numbers of real connections in Prometheus's text."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from flask import Flask
from prometheus_client import CollectorRegistry, generate_latest

import wsmux
from wsmux import rpc
from wsmux.cluster import Cluster, Unreachable
from wsmux.flask import Mux
from wsmux.prometheus import collector

from .helpers.cluster_nodes import asked
from .helpers.raw_peer import wait_for
from .helpers.redis_server import RedisServer, redis_server
from .helpers.werkzeug_server import serving
from .helpers.wsgi_apps import WAIT

redis = pytest.fixture(scope="module", name="redis")(redis_server)

CLIENT = '{protocol="wsmux",role="client"}'


def shown(registry: CollectorRegistry) -> dict[str, float]:
    """Return each series with its value."""
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def talk(client: wsmux.Connection, server: wsmux.Connection, size: int) -> None:
    with client.open_stream(WAIT) as stream, server.accept_stream(WAIT) as theirs:
        stream.write(bytes(size))
        stream.close_write()
        theirs.read()


def test_connections_are_summed_by_role_and_wire() -> None:
    registry = CollectorRegistry()
    pairs = [wsmux.pair() for _ in range(2)]
    collector([client for client, _ in pairs], registry)
    for client, server in pairs:
        talk(client, server, 1000)
    client, server = pairs[0]
    with client.open_stream(WAIT) as stream:
        stream.write(b"unread")
        wait_for(lambda: server.stats().unread_bytes)
        told = shown(registry)
    for client, server in pairs:
        client.close()
        server.close()
    assert told[f"wsmux_connections{CLIENT}"] == 2
    assert told[f"wsmux_streams_opened_total{CLIENT}"] == 3
    assert told[f"wsmux_streams{CLIENT}"] == 1
    assert told[f"wsmux_sent_bytes_total{CLIENT}"] > 2000
    assert told[f"wsmux_rtt_max_seconds{CLIENT}"] == 0


def test_what_ended_connections_did_still_counts_once() -> None:
    registry = CollectorRegistry()
    client, server = wsmux.pair()
    given = [client]
    collector(lambda: given, registry)
    talk(client, server, 1000)
    before = shown(registry)
    client.close()
    server.close()
    for _ in range(2):
        told = shown(registry)
        total = f"wsmux_streams_opened_total{CLIENT}"
        assert told[total] == before[total] == 1
        assert told[f"wsmux_sent_bytes_total{CLIENT}"] >= before[f"wsmux_sent_bytes_total{CLIENT}"]
        assert f"wsmux_connections{CLIENT}" not in told
    given.clear()
    assert shown(registry)[f"wsmux_streams_opened_total{CLIENT}"] == 1


def test_a_connection_that_was_added_is_seen_though_it_ended_between_two_looks() -> None:
    registry = CollectorRegistry()
    numbers = collector(registry=registry)
    client, server = wsmux.pair()
    numbers.add(client)
    talk(client, server, 10)
    client.close()
    server.close()
    assert shown(registry)[f"wsmux_streams_opened_total{CLIENT}"] == 1


def test_a_second_collector_in_a_registry_is_refused_and_names_follow_the_conventions() -> None:
    registry = CollectorRegistry()
    collector(registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        collector(registry=registry)
    text = generate_latest(registry).decode()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert all(name.startswith("wsmux_") for name in names)
    assert "wsmux_received_bytes_total" in names


def test_a_server_is_shown_with_each_connection_that_it_serves() -> None:
    registry = CollectorRegistry()
    with wsmux.serve(lambda connection: connection.wait_closed()) as server:
        collector(server, registry)
        assert "wsmux_connections" not in "".join(shown(registry))
        with wsmux.connect(server.url), wsmux.connect(server.url):
            wait_for(lambda: len(server.connections) == 2)
            assert shown(registry)['wsmux_connections{protocol="wsmux",role="server"}'] == 2


def test_a_mux_is_shown_with_each_connection_that_it_serves() -> None:
    registry = CollectorRegistry()
    app = Flask("app")
    mux = Mux(app)
    mux.stream_route("/")(lambda stream: None)
    collector(mux, registry)
    with serving(app) as place, wsmux.connect(f"ws://127.0.0.1:{place}"):
        wait_for(lambda: len(mux.connections) == 1)
        assert shown(registry)['wsmux_connections{protocol="wsmux",role="server"}'] == 1


def test_one_connection_is_shown_by_itself() -> None:
    registry = CollectorRegistry()
    client, server = wsmux.pair()
    with client, server:
        collector(client, registry)
        assert shown(registry)[f"wsmux_connections{CLIENT}"] == 1


def test_a_server_is_not_kept_alive_by_its_collector() -> None:
    class Serving:
        connections = ()
        stopping = False

    there, registry = Serving(), CollectorRegistry()
    gone = weakref.ref(there)
    collector(there, registry)
    del there
    assert gone() is None
    assert shown(registry) == {}


def test_what_is_put_into_a_collection_later_is_shown() -> None:
    registry = CollectorRegistry()
    given: list[wsmux.Connection] = []
    collector(given, registry)
    client, server = wsmux.pair()
    with client, server:
        given.append(client)
        assert shown(registry)[f"wsmux_connections{CLIENT}"] == 1


def test_servers_and_connections_may_be_shown_together() -> None:
    registry = CollectorRegistry()
    with (
        wsmux.serve(wsmux.Connection.wait_closed) as one,
        wsmux.serve(wsmux.Connection.wait_closed) as other,
        wsmux.connect(one.url) as first,
        wsmux.connect(other.url) as second,
    ):
        wait_for(lambda: one.connections and other.connections)
        collector([one, other, first, *one.connections], registry)
        told = shown(registry)
        assert told[f"wsmux_connections{CLIENT}"] == 1
        assert told[f"wsmux_connections{CLIENT.replace('client', 'server')}"] == 2
        assert not second.closed
    wait_for(lambda: f"wsmux_connections{CLIENT}" not in shown(registry))


@pytest.mark.parametrize("wrong", [None, 5, wsmux.Server, ["ws://127.0.0.1/"], "ws://"], ids=repr)
def test_what_names_no_connections_is_refused_at_once_and_nothing_is_registered(wrong: Any) -> None:
    registry = CollectorRegistry()
    with pytest.raises(TypeError, match="connection"):
        collector(wrong, registry)
    assert shown(registry) == {}
    with pytest.raises(TypeError, match="expected a connection"):
        collector(registry=registry).add("ws://127.0.0.1/")  # type: ignore[arg-type]


@pytest.mark.parametrize("streams", [False, True], ids=["nothing", "a connection"])
def test_a_function_that_returns_no_connections_is_told_so_when_it_is_asked(streams: bool) -> None:
    registry = CollectorRegistry()
    client, server = wsmux.pair()
    with client, server:
        collector(lambda: client if streams else None, registry)  # type: ignore[arg-type,return-value]
        with pytest.raises(TypeError, match="expected a connection, a Server"):
            shown(registry)


def test_sessions_are_summed_by_role() -> None:
    registry = CollectorRegistry()
    service = rpc.Service("test")

    @service.upload()
    def keeps(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> None:
        ctx.ended.wait(WAIT)

    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        collector([server, client], registry)
        assert not any(name.startswith("wsmux_river") for name in shown(registry))
        upload = client.upload("test", "keeps", None, WAIT)
        upload.write("x" * 100)
        wait_for(lambda: sum(each.unread_messages for each in server.list_sessions()) == 1)
        with rpc.connect(server.url) as idle:
            idle.wait_connected(WAIT)
            told = shown(registry)
        upload.cancel()
    assert told['wsmux_river_sessions{role="server",state="connected"}'] == 2
    assert told['wsmux_river_sessions{role="client",state="connected"}'] == 1
    assert told['wsmux_river_calls{role="server"}'] == 1
    assert told['wsmux_river_handlers{role="server"}'] == 1
    assert told['wsmux_river_waiting_calls{role="server"}'] == 0
    assert told['wsmux_river_unread_messages{role="server"}'] == 1
    assert told['wsmux_river_unread_bytes{role="server"}'] > 100
    assert told['wsmux_river_unacknowledged_messages{role="client"}'] >= 0
    assert told['wsmux_river_unacknowledged_bytes{role="client"}'] >= 0


def test_a_cluster_is_counted_without_asking_its_processes(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    client, server = wsmux.pair()
    with (
        client,
        server,
        Cluster(redis.url) as one,
        Cluster(redis.url) as two,
        two.member(server, "user:1", "admin"),
    ):
        collector(cluster=one, registry=registry)
        asked(one, two)
        monkeypatch.setattr(Cluster, "status", None)
        told = shown(registry)
    assert told["wsmux_cluster_reachable"] == 1
    assert told["wsmux_cluster_nodes"] == 2
    assert told["wsmux_cluster_nodes_overdue"] == 0
    assert told["wsmux_cluster_nodes_lost"] == 0
    assert told["wsmux_cluster_members"] == 2
    assert 0 <= told["wsmux_cluster_lease_age_max_seconds"] < WAIT


@pytest.mark.parametrize("error", [Unreachable("Redis failed"), ValueError("it was left")])
def test_a_cluster_that_is_away_leaves_the_other_numbers(error: Exception) -> None:
    class Away:
        def counts(self) -> Any:
            raise error

    registry = CollectorRegistry()
    client, server = wsmux.pair()
    with client, server:
        collector([client], registry, cluster=Away())
        told = shown(registry)
    assert told["wsmux_cluster_reachable"] == 0
    assert told[f"wsmux_connections{CLIENT}"] == 1
    assert "wsmux_cluster_nodes" not in told


def test_what_is_no_cluster_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a wsmux.cluster.Cluster, not str"):
        collector(registry=CollectorRegistry(), cluster="redis://localhost")  # type: ignore[arg-type]
