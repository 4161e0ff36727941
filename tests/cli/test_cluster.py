"""``wsmux cluster``: what it prints, and how it fails."""

from __future__ import annotations

import json
import threading

import pytest

import wsmux
from wsmux.cluster import Cluster

from ..helpers.commands import run, subscribed
from ..helpers.redis_server import RedisServer, redis_server
from ..helpers.timeouts import WAIT

server = pytest.fixture(scope="module", name="server")(redis_server)


@pytest.mark.tools
def test_who_is_connected_and_a_stream_to_somebody(server: RedisServer) -> None:
    client, connection = wsmux.pair()
    with client, connection, Cluster(server.url) as cluster:
        with cluster.member(connection, "user:1", "admin"):
            redis = "--redis", server.url
            done = run("cluster", "who", "user:*", *redis)
            assert done.stdout.decode().split("\t")[:2] == ["user:1", cluster.node[:8]]
            done = run("cluster", "who", *redis, "--json")
            told = [json.loads(line) for line in done.stdout.splitlines()]
            assert [each["name"] for each in told] == ["admin", "user:1"]

            def answer() -> None:
                with client.accept_stream(WAIT) as stream:
                    stream.timeout = WAIT
                    stream.write(b"you said " + stream.readall())

            answering = threading.Thread(target=answer)
            answering.start()
            done = run("cluster", "open", "user:1", *redis, data=b"hello")
            answering.join(WAIT)
            assert (done.stdout, done.returncode) == (b"you said hello", 0)
        done = run("cluster", "open", "user:1", *redis, data=b"hello")
        assert done.returncode == 1
        assert done.stderr == b"wsmux cluster: nobody has joined as 'user:1'\n"


@pytest.mark.tools
def test_messages_are_published_and_printed(server: RedisServer) -> None:
    redis = "--redis", server.url, "--namespace", "told"
    oldest = "--since", "oldest", "--json"
    with subscribed(
        "cluster", "subscribe", "news", *redis, *oldest, says="after all that there was"
    ) as printed:
        done = run("cluster", "publish", "news", *redis, data=b"one\n\xff\n")
        positions = done.stdout.decode().split()
        assert [each.partition("-")[2] for each in positions] == ["1", "2"]
        told = [json.loads(printed.readline()) for _ in positions]
        assert told == [
            {"position": positions[0], "data": "one"},
            {"position": positions[1], "base64": "/w=="},
        ]
        done = run("cluster", "publish", "news", "a text", *redis, "--json")
        assert json.loads(done.stdout) == {"position": positions[0][:-1] + "3"}


@pytest.mark.tools
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("open",), b"name a connection: wsmux cluster open NAME"),
        (("subscribe",), b"name a topic: wsmux cluster subscribe NAME"),
        (("who", "a", "b"), b"a message is for 'wsmux cluster publish'"),
        (("who", "--redis", "http://x"), b"expected the URL of a Redis"),
        (("subscribe", "t", "--since", "noon"), b"'new', 'oldest' or a position"),
    ],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], told: bytes) -> None:
    done = run("cluster", *arguments)
    assert done.returncode == 2
    assert told in done.stderr


@pytest.mark.tools
def test_a_redis_that_is_away_is_told() -> None:
    done = run("cluster", "who", "--redis", "redis://127.0.0.1:1")
    assert done.returncode == 1
    assert b"Redis failed: Error 111" in done.stderr
