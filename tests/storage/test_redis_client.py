"""Connections to Redis: bounded, and without repeats that nobody asked for."""

from __future__ import annotations

import importlib
import sys

import pytest
import redis as library

from wsmux.storage import redis_client as module
from wsmux.storage.redis_client import (
    FAILURES,
    cause,
    explain,
    is_wrong_type,
    redis_client,
    run_together,
)

from ..helpers.redis_server import RedisServer


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost", "redis:/x", "6379"])
def test_what_is_no_url_of_redis_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="^expected the URL of a Redis, such as redis://"):
        redis_client(url)


def test_a_server_that_is_away_fails_at_once() -> None:
    client = redis_client("redis://127.0.0.1:1/0")
    with pytest.raises(FAILURES, match="refused"):
        client.ping()
    client.close()


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch, server: RedisServer) -> None:
    monkeypatch.setattr(module, "POOL_TIME", 0.01)
    client = redis_client(server.url, connections=1)
    connection = client.connection_pool.get_connection()
    with pytest.raises(library.ConnectionError, match="No connection available"):
        client.ping()
    client.connection_pool.release(connection)
    assert client.ping()
    client.close()


def test_a_failure_without_words_is_named() -> None:
    assert explain(library.TimeoutError()) == "Redis failed: TimeoutError"


@pytest.mark.parametrize("transaction", [False, True])
def test_an_error_does_not_repeat_what_was_written(server: RedisServer, transaction: bool) -> None:
    client = server.client()
    client.set("text", "x")
    pipeline = client.pipeline(transaction=transaction)
    pipeline.lpush("text", "a secret")
    with pytest.raises(library.ResponseError, match="a secret") as caught:
        pipeline.execute()
    assert cause(caught.value).startswith("WRONGTYPE Operation")
    assert explain(caught.value).startswith("Redis failed: WRONGTYPE Operation")
    assert is_wrong_type(caught.value)
    client.close()


def test_a_key_of_another_type_in_a_script_of_redis_6_is_one() -> None:
    text = (
        "Error running script (call to f_8e64a9b2ee2ef67cd34f): @user_script:15: "
        "WRONGTYPE Operation against a key holding the wrong kind of value"
    )
    assert is_wrong_type(library.ResponseError(text))


@pytest.mark.parametrize("error", [library.ResponseError("OOM"), library.TimeoutError("WRONGTYPE")])
def test_other_errors_are_no_wrong_type(error: Exception) -> None:
    assert not is_wrong_type(error)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "wsmux.storage.redis_client")
    with pytest.raises(ImportError, match=r"wsmux-streams\[bus\]"):
        importlib.import_module("wsmux.storage.redis_client")


def test_a_script_is_sent_once_and_each_command_has_its_result(server: RedisServer) -> None:
    commands = [("EVAL", "return ARGV[1]", 0, each) for each in ("a", "b")]
    with redis_client(server.url) as client:
        client.flushall()
        client.script_flush()
        for _ in range(2):
            told = run_together(client, [commands[0], ("LPUSH", "list", 1), commands[1]])
            assert [told[0], told[2]] == [b"a", b"b"]
        assert client.llen("list") == 2
        (failed, worked) = run_together(client, [("GET", "list"), commands[0]])
        assert is_wrong_type(failed)
        assert worked == b"a"
        evals = client.info("commandstats")["cmdstat_eval"]["calls"]
        run_together(client, commands)
        assert client.info("commandstats")["cmdstat_eval"]["calls"] == evals
