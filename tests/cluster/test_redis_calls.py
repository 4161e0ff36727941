"""Calls of Redis that are interrupted, given up, or come to nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import wsmux
from wsmux.cluster import Cluster, NotConnected, Unreachable
from wsmux.cluster import redis_calls as redis_calls_module
from wsmux.cluster.redis_calls import RedisCalls
from wsmux.storage.redis_client import redis_client

from ..helpers.cluster_nodes import LEASE
from ..helpers.interrupts import interrupted_at
from ..helpers.redis_server import RedisServer
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for, wait_for_value
from .conftest import Pairs

ECHO = "return ARGV[1]"


@pytest.fixture
def calls(server: RedisServer) -> Iterator[RedisCalls]:
    with server.client() as client:
        made = RedisCalls(client)
        yield made
        made.close()


def test_whoever_is_interrupted_leaves_no_answer_to_others(calls: RedisCalls) -> None:
    number, interrupted = 0, True
    while interrupted:
        number += 1
        interrupted = interrupted_at(number, lambda: calls.run(ECHO, (), (b"unwanted",)))
        for text in (b"one", b"two"):
            assert calls.run(ECHO, (), (text,)) == text
    assert number > 20


def test_threads_get_their_own_answers(calls: RedisCalls) -> None:
    failed: list[bytes] = []

    def ask(thread: int) -> None:
        for number in range(50):
            text = b"%d %d" % (thread, number)
            if calls.run(ECHO, (), (text,)) != text:
                failed.append(text)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert failed == []
    assert len(calls._threads) <= redis_calls_module.THREADS


def test_a_redis_that_stands_still_is_waited_for_no_longer_than_told() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Cluster(f"redis://127.0.0.1:{silent.getsockname()[1]}") as cluster,
    ):
        with pytest.raises(Unreachable, match="not answered in time"):
            cluster.open_stream("user:2", timeout=0.05)
        with wsmux.deadline(0.05), pytest.raises(Unreachable, match="not answered in time"):
            cluster.who()


def test_a_join_that_was_given_up_and_runs_behind_the_leave_is_taken_back(
    server: RedisServer, namespace: str, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    joins, left, joined = threading.Semaphore(1), threading.Event(), threading.Event()
    make = redis_calls_module._Pending.make

    def late(pending: redis_calls_module._Pending, client: Any) -> None:
        held = "user:1" in pending.call[2] and joins.acquire(blocking=False)
        assert not held or left.wait(WAIT)
        make(pending, client)
        if held:
            joined.set()

    with (
        Cluster(server.url, namespace=namespace, lease=LEASE) as one,
        Cluster(server.url, namespace=namespace, lease=LEASE) as two,
    ):
        _, connection = pairs()
        one.join(connection, "user:2")
        monkeypatch.setattr(redis_calls_module._Pending, "make", late)
        with wsmux.deadline(0.2):
            presence = one.join(connection, "user:1")
        one.leave(presence)
        left.set()
        assert joined.wait(WAIT)
        wait_for_value(lambda: [each.name for each in two.who()], ["user:2"])


def test_calls_beyond_the_bound_are_refused(
    calls: RedisCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_calls_module, "MAX_WAITING", 0)
    with pytest.raises(Unreachable, match="not answered 0 calls"):
        calls.run(ECHO, (), (b"x",))


def test_the_end_waits_for_what_is_under_way_and_refuses_the_rest(server: RedisServer) -> None:
    with server.client() as client:
        calls = RedisCalls(client)
        assert calls.run("redis.call('SET', 'begun', 'x')", (), ()) is None
        calls.close()
        calls.close()
        with pytest.raises(Unreachable, match="has left"):
            calls.run(ECHO, (), (b"x",))
        assert not calls._threads


def test_an_idle_thread_ends(calls: RedisCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_calls_module, "IDLE", 0.01)
    assert calls.run(ECHO, (), (b"x",)) == b"x"
    wait_for(lambda: not calls._threads)
    assert calls.run(ECHO, (), (b"y",)) == b"y"


@pytest.mark.parametrize("reply", [b":x\r\n", b"*1\r\n", b"\x00\xff\r\n", b"HTTP/1.1 400\r\n\r\n"])
def test_what_is_no_redis_is_unreachable(reply: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        served = threading.Thread(target=_answer_all, args=(listener, reply))
        served.start()
        with redis_client(f"redis://127.0.0.1:{port}") as client:
            calls = RedisCalls(client)
            with pytest.raises(Unreachable, match="Redis failed"):
                calls.run(ECHO, (), (b"x",))
            calls.close()
        listener.shutdown(socket.SHUT_RDWR)
        served.join(WAIT)


@pytest.mark.parametrize("result", [None, b"OK", 5, [], [5], [b"x"] * 3, [[b"x"]] * 4, [b"x", []]])
def test_a_result_of_another_form_is_no_answer(
    server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch, result: Any
) -> None:
    with Cluster(server.url, namespace=namespace) as cluster:
        subscription = cluster.subscribe("news", since="oldest")
        monkeypatch.setattr(RedisCalls, "run", lambda *_: result)
        for call in (
            cluster.who,
            lambda: cluster.open_stream("user:1", timeout=WAIT),
            lambda: cluster.publish("news", b"x"),
            lambda: subscription.read(0),
        ):
            with suppress(NotConnected, Unreachable, TimeoutError):
                call()


def _answer_all(listener: socket.socket, reply: bytes) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        with sock:
            sock.recv(65536)
            sock.sendall(reply)
