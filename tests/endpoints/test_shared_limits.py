"""What one user may do over all processes that share a Redis; here, each ``Users`` is a process."""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import wsmux
from wsmux.endpoints import shared_limits, user_limits
from wsmux.endpoints.user_limits import Users
from wsmux.exceptions import NoThreadError
from wsmux.runtime.threads import start_thread

from ..helpers.ports import free_port
from ..helpers.redis_server import RedisServer, redis_server
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for, wait_for_value

server = pytest.fixture(scope="module", name="server")(redis_server)

_namespaces = (f"test-{number}" for number in itertools.count())

Process = Callable[..., Users]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a Redis that has not much of the processor."""
    monkeypatch.setattr(shared_limits, "ASK_TIME", WAIT)


@pytest.fixture
def namespace() -> str:
    return next(_namespaces)


@pytest.fixture
def process(namespace: str) -> Iterator[Process]:
    """Return a function that makes the counts of another process, and closes all."""
    with ExitStack() as made:

        def begin(url: str, **limits: Any) -> Users:
            found = Users(wsmux.UserLimits(redis=url, namespace=namespace, **limits))
            made.callback(found.close)
            return found

        yield begin


@pytest.fixture
def keys(server: RedisServer, namespace: str) -> Iterator[Callable[[], dict[str, list[str]]]]:
    """Return a function that tells the keys of this test, and the members of each."""
    with server.client() as client:

        def look() -> dict[str, list[str]]:
            found = client.scan_iter(f"wsmux:limits:{namespace}:*")
            return {
                key.decode(): [
                    member.decode() for member in client.zrange(key, 0, -1) if member != b"clock"
                ]
                for key in found
            }

        yield look


def refused(counts: Users, name: str = "ann") -> wsmux.HandshakeError:
    with pytest.raises(wsmux.HandshakeError) as caught:
        counts.enter(name)
    assert caught.value.status == 429
    return caught.value


def entered(counts: Users, name: str = "ann") -> bool:
    try:
        counts.enter(name)
    except wsmux.HandshakeError:
        return False
    return True


def test_connections_are_counted_in_all_processes(server: RedisServer, process: Process) -> None:
    one, two = (process(server.url, connections=2) for _ in range(2))
    first, _ = one.enter("ann"), two.enter("ann")
    for counts in (one, two):
        error = refused(counts)
        assert str(error) == "2 connections of this user are open; close some"
        assert error.retry_after == 5
        counts.enter("bob")
    first.leave()
    wait_for(lambda: entered(two))
    refused(one)


def test_connections_of_a_minute_are_counted_in_all_processes(
    server: RedisServer, process: Process
) -> None:
    one, two = (process(server.url, connects_per_minute=3) for _ in range(2))
    for counts in (one, two, one):
        counts.enter("ann").leave()
    for counts in (one, two):
        error = refused(counts)
        assert error.retry_after is not None
        assert 0 < error.retry_after <= 20
    two.enter("bob").leave()


def test_who_has_returned_has_begun_nothing_in_any_process(
    server: RedisServer, process: Process
) -> None:
    one, two = (process(server.url, connects_per_minute=2) for _ in range(2))
    one.enter("ann")
    for _ in range(10):
        two.enter("ann", may_return=True).returned()
    wait_for(lambda: entered(two))
    refused(one)


def test_who_may_begin_no_more_in_any_process_may_still_return(
    server: RedisServer, process: Process
) -> None:
    one, two = (process(server.url, connects_per_minute=1, connections=5) for _ in range(2))
    first = one.enter("ann")
    for _ in range(10):
        place = two.enter("ann", may_return=True)
        assert place.returns
        place.returned()
    with pytest.raises(wsmux.HandshakeError, match="1 connections in a minute"):
        two.enter("ann", may_return=True)
    refused(two)
    first.leave()
    assert len(two) == 1  # it has returned often, and that is remembered
    refused(one)


def test_what_another_process_prevents_is_not_counted_here(
    server: RedisServer, process: Process
) -> None:
    one, two = (process(server.url, connections=1, connects_per_minute=3) for _ in range(2))
    place = one.enter("ann")
    for _ in range(20):
        refused(two)
    place.leave()
    wait_for(lambda: entered(two))


def test_a_client_may_return_where_no_place_is_free_in_any_process(
    server: RedisServer, process: Process
) -> None:
    one, two = (process(server.url, connections=1) for _ in range(2))
    place = one.enter("ann", may_return=True)
    assert not place.returns
    for counts in (one, two):
        again = counts.enter("ann", may_return=True)
        assert again.returns
        again.leave()
        refused(counts)
    place.leave()
    wait_for(lambda: entered(two))


# Seconds for what happens at once, fewer than the half minute after which one of two is free again.
SOON = 25.0


def test_who_has_returned_where_no_place_is_free_has_begun_nothing(
    server: RedisServer, process: Process
) -> None:
    one, two = (process(server.url, connections=1, connects_per_minute=2) for _ in range(2))
    place = one.enter("ann")
    for _ in range(3):
        again = two.enter("ann", may_return=True)
        assert again.returns
        again.returned()
    place.leave()
    wait_for(lambda: entered(two), SOON)


def test_who_is_refused_where_too_many_wait_to_return_has_begun_nothing(
    server: RedisServer, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_limits, "RETURNING", 0)
    one, two = (process(server.url, connections=1, connects_per_minute=2) for _ in range(2))
    place = one.enter("ann")
    with pytest.raises(wsmux.HandshakeError, match="of this user are open"):
        two.enter("ann", may_return=True)
    place.leave()
    wait_for(lambda: entered(two), SOON)


def test_what_is_given_back_is_told_though_the_thread_has_ended(
    server: RedisServer, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (process(server.url, connections=1, connects_per_minute=2) for _ in range(2))
    place = one.enter("ann")
    monkeypatch.setattr(shared_limits, "IDLE", 0.0)
    again = two.enter("ann", may_return=True)
    assert again.returns
    wait_for(lambda: thread_names().count("wsmux-user-limits") == 1)  # that of the first one
    again.returned()
    place.leave()
    wait_for(lambda: entered(one), SOON)


def test_no_more_wait_to_return_than_a_few_where_another_process_is_full(
    server: RedisServer, process: Process
) -> None:
    one, other = (process(server.url, connections=1) for _ in range(2))
    place = one.enter("ann")
    returning = [other.enter("ann", may_return=True) for _ in range(2)]
    assert all(each.returns for each in returning)
    with pytest.raises(wsmux.HandshakeError, match="of this user are open"):
        other.enter("ann", may_return=True)
    for each in (*returning, place):
        each.leave()
    assert len(other) == len(one) == 0
    wait_for(lambda: entered(other))


@pytest.mark.parametrize("seconds", [-3600, -300, 300])
def test_nobody_is_shut_out_by_a_clock_that_jumps(
    server: RedisServer, process: Process, keys: Callable[[], dict[str, list[str]]], seconds: int
) -> None:
    counts = process(server.url, connections=2, connects_per_minute=4, streams_per_minute=1_000_000)
    place = counts.enter("ann")
    assert place.take_stream()
    wait_for(lambda: "streams" in next(iter(keys().values())))
    server.jump(seconds)
    other = process(server.url, connections=2, connects_per_minute=4, streams_per_minute=1_000_000)
    beside = other.enter("ann")
    wait_for(beside.take_stream)
    if seconds < 0:
        refused(other)  # both are counted
    beside.leave()
    other.enter("ann").leave()


def test_a_process_learns_at_the_door_what_streams_others_have_taken(
    server: RedisServer, process: Process, keys: Callable[[], dict[str, list[str]]]
) -> None:
    one, two = (process(server.url, streams_per_minute=3) for _ in range(2))
    place = one.enter("ann")
    assert [place.take_stream() for _ in range(4)] == [True, True, True, False]
    wait_for_value(keys_members(keys), [["streams"]])
    assert not two.enter("ann").take_stream()
    assert two.enter("bob").take_stream()


def keys_members(keys: Callable[[], dict[str, list[str]]]) -> Callable[[], list[list[str]]]:
    return lambda: list(keys().values())


def test_a_process_learns_it_of_connections_that_are_open_too(
    server: RedisServer, process: Process, keys: Callable[[], dict[str, list[str]]]
) -> None:
    counts = process(server.url, streams_per_minute=1_000_000, connections=5)
    place = counts.enter("ann")
    (key,) = keys()
    with server.client() as client:
        seconds, _ = client.time()
        client.zadd(key, {"streams": (seconds + 120) * 1000})
    wait_for(lambda: not place.take_stream())


def test_the_keys_of_a_user_do_not_grow(
    server: RedisServer, process: Process, keys: Callable[[], dict[str, list[str]]]
) -> None:
    counts = process(
        server.url, connections=3, connects_per_minute=1_000_000, streams_per_minute=1_000_000
    )
    for _ in range(100):
        place = counts.enter("ann")
        place.take_stream()
        wait_for(left(place, keys))
    names = ["ann", "ann:streams", "ann\n", "a" * 1_000_000, "\udcff", "*"]
    for name in names:
        counts.enter(name)
    found = keys()
    assert len(found) == len(names)
    assert len({len(key) for key in found}) == 1
    assert all(len(members) <= 3 + 2 for members in found.values())
    with server.client() as client:
        for key in found:
            assert 0 < client.pttl(key) <= 60_001


def left(place: Any, keys: Callable[[], dict[str, list[str]]]) -> Callable[[], bool]:
    """Leave, and return what tells whether Redis knows."""
    place.leave()
    return lambda: all(set(members) <= {"connects", "streams"} for members in keys().values())


def test_what_a_process_counted_ends_with_its_lease(
    server: RedisServer, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "LEASE", 0.2)
    monkeypatch.setattr(shared_limits, "RENEWAL", 1000.0)  # as if it had been killed
    one, two = (process(server.url, connections=1) for _ in range(2))
    one.enter("ann")
    wait_for(lambda: entered(two))


@pytest.mark.parametrize("clock", [float("inf"), 9e17, -1.0])
@pytest.mark.parametrize(
    "kind", ["string", "list", "set", "hash", "stream", "sorted set", "sorted set of times"]
)
def test_a_key_of_others_is_put_right(
    kind: str,
    clock: float,
    server: RedisServer,
    process: Process,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = f"wsmux:limits:{namespace}:{hashlib.sha256(b'ann').hexdigest()}"
    with server.client() as client:
        make: dict[str, Callable[[], object]] = {
            "string": lambda: client.set(key, b"\xff"),
            "list": lambda: client.rpush(key, "a"),
            "set": lambda: client.sadd(key, "a"),
            "hash": lambda: client.hset(key, "a", "b"),
            "stream": lambda: client.xadd(key, {"a": "b"}),
            "sorted set": lambda: client.zadd(key, {b"\xff": float("inf"), "clock": clock}),
            "sorted set of times": lambda: client.zadd(
                key, {"a": 9e18, "b": -5.0, "streams": float("inf"), "connects": 1e300}
            ),
        }
        make[kind]()
        one, two = (
            process(server.url, connections=1, connects_per_minute=5, streams_per_minute=5)
            for _ in range(2)
        )
        place = one.enter("ann")
        refused(two)
        place.leave()
        wait_for(lambda: entered(two))
        assert client.type(key) == b"zset"
    assert "counted in this process alone" not in caplog.text


def test_what_redis_has_forgotten_is_told_again(
    server: RedisServer,
    process: Process,
    keys: Callable[[], dict[str, list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_limits, "RENEWAL", 0.02)
    one, two = (process(server.url, connections=1) for _ in range(2))
    one.enter("ann")
    ((key, members),) = keys().items()
    with server.client() as client:
        client.delete(key)
    wait_for_value(lambda: keys().get(key), members)
    refused(two)


def test_the_end_of_a_process_ends_what_it_counted(
    server: RedisServer, process: Process, keys: Callable[[], dict[str, list[str]]]
) -> None:
    one, two = (process(server.url, connections=1) for _ in range(2))
    place = one.enter("ann")
    one.close()
    wait_for(lambda: not keys())  # it has a millisecond to live, of its last time
    place.leave()  # as the thread of its connection does, a moment later
    two.enter("ann")
    one.enter("ann")  # it counts for itself now
    one.close()


def test_servers_share_a_user_and_one_that_ends_gives_him_back(
    server: RedisServer, namespace: str
) -> None:
    limits = wsmux.UserLimits(redis=server.url, namespace=namespace, connections=1)

    def serve() -> wsmux.Server:
        return wsmux.serve(
            wsmux.Connection.wait_closed, authorize=lambda request: "ann", user_limits=limits
        )

    with serve() as two:
        with serve() as one, wsmux.connect(one.url, timeout=WAIT):
            with pytest.raises(wsmux.HandshakeError, match="of this user are open") as caught:
                wsmux.connect(two.url, timeout=WAIT)
            assert (caught.value.status, caught.value.retry_after) == (429, 5)
            one.shutdown(0)
        wsmux.connect(two.url, timeout=WAIT).close()


# Without Redis


def test_a_door_does_not_wait_for_a_redis_that_stands_still(
    tmp_path: Path,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stated = 0.5
    with RedisServer(tmp_path) as own, own.client() as client:
        counts = process(own.url, connections=21)
        counts.enter("ann")
        (key,) = client.keys()
        monkeypatch.setattr(shared_limits, "ASK_TIME", stated)
        with own.standing_still():
            began = time.monotonic()
            for _ in range(20):
                counts.enter("ann")
            took = time.monotonic() - began
            refused(counts)
            counts.enter("bob")
        # One wait of half a second, and not twenty; a client of Redis waits for three.
        assert took < 20 * stated
        assert "alone for 5 s: Redis has not answered in 0.5 s" in caplog.text
        monkeypatch.setattr(shared_limits, "PAUSE", 0.0)
        wait_for_value(lambda: client.zcard(key), 21 + 1)  # and the clock


def test_without_redis_each_process_counts_for_itself(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    counts = process(f"redis://127.0.0.1:{free_port()}", connections=2, streams_per_minute=1)
    places = [counts.enter("ann"), counts.enter("ann")]
    assert [places[0].take_stream(), places[1].take_stream()] == [True, False]
    refused(counts)
    places[0].leave()
    counts.enter("ann")
    assert "user limits are counted in this process alone" in caplog.text


ODD: list[Any] = [
    b"?",
    None,
    [b"in"],
    [b"in", b"soon"],
    [b"maybe", b"0"],
    ArithmeticError("a reply that no Redis gives"),
]


@pytest.mark.parametrize("reply", ODD, ids=repr)
def test_what_is_no_answer_is_none(
    reply: Any, process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_limits, "run_together", lambda client, commands: [reply])
    counts = process("redis://127.0.0.1:1", connections=1)
    counts.enter("ann")
    refused(counts)
    assert "user limits are counted in this process alone" in caplog.text


def test_it_is_told_when_all_is_well_again(
    server: RedisServer,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts = process(server.url, connections=5)
    with caplog.at_level(logging.INFO, "wsmux"), monkeypatch.context() as broken:
        broken.setattr(shared_limits, "PAUSE", 0.0)
        broken.setattr(shared_limits, "run_together", lambda client, commands: [None])
        counts.enter("ann")
        broken.undo()
        counts.enter("ann")
        wait_for(lambda: "shared with other processes again" in caplog.text)


def test_without_a_thread_each_process_counts_for_itself(
    server: RedisServer,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(thread: object) -> None:
        raise NoThreadError("there is none")

    monkeypatch.setattr(shared_limits, "start_thread", fail)
    counts = process(server.url, connections=1)
    counts.enter("ann")
    refused(counts)
    assert "for 5 s: there is none" in caplog.text


def test_no_more_wait_than_allowed(
    server: RedisServer, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "MAX_WAITING", 0)
    counts = process(server.url, connections=1)
    counts.enter("ann")
    refused(counts)


def test_a_forked_child_counts_anew(server: RedisServer, process: Process) -> None:
    limits = wsmux.UserLimits(redis=server.url, connections=1)
    counts = shared_limits.SharedCounts(limits, lambda user, ahead: None)
    assert counts.enter("fork", False)[1] == shared_limits.Answer("in", 0.0)
    first = counts.enter("fork", False)
    assert first[1] == shared_limits.Answer("full", 0.0)
    counts.close()
    counts.forked()
    second = counts.enter("fork", False)
    assert second[1] == shared_limits.Answer("in", 0.0)
    assert first[0][:16] != second[0][:16]
    counts.close()


@pytest.mark.parametrize("url", ["redis://host:port", "redis://:hidden/word@host"])
def test_a_url_of_something_else_is_refused_at_once(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"^UserLimits.redis: expected the URL of a Redis"
    ) as caught:
        Users(wsmux.UserLimits(redis=url))
    assert "hidden" not in "".join(traceback.format_exception(caught.value))


def test_the_end_may_come_while_the_thread_begins(
    server: RedisServer, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = process(server.url, connections=1)

    def end(thread: threading.Thread) -> None:
        counts.close()
        start_thread(thread)
        thread.join(WAIT)

    monkeypatch.setattr(shared_limits, "start_thread", end)
    counts.enter("ann").leave()


def test_the_thread_ends_when_there_is_nothing_to_count(
    server: RedisServer, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "IDLE", 0.0)
    limits = wsmux.UserLimits(redis=server.url, connections=1, namespace="idle")
    counts = shared_limits.SharedCounts(limits, lambda user, ahead: None)
    connection, answer = counts.enter("ann", False)
    assert answer is not None
    assert "wsmux-user-limits" in thread_names(), "there is a lease to renew"
    counts.leave("ann", connection)
    wait_for(lambda: "wsmux-user-limits" not in thread_names(), WAIT)


def thread_names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]
