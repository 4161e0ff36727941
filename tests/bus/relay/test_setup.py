"""Whole relays: federated with another, on Redis, beside another on the same Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import NameTaken
from wsmux.bus.relay import router
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.relay.setup import serve_relay
from wsmux.bus.wire.address import Address, put_address
from wsmux.bus.wire.envelope import Kind, digest, kind_of, response
from wsmux.storage.redis_client import redis_client

from ...helpers.bus.relays import DOMAIN, Node, Table, ask, fetch, get, identity, metric
from ...helpers.ports import free_port
from ...helpers.raw_peer import WAIT, wait_for
from ...helpers.redis_server import RedisServer, redis_server

running_redis = pytest.fixture(scope="module", name="running_redis")(redis_server)

A, B, BOTH = ("a.test",), ("b.test",), ("a.test", "b.test")
TWINS = {1: A, 2: B, 3: BOTH, 4: ("gone.test", "b.test"), 5: ("gone.test",)}


@pytest.fixture
def redis(running_redis: RedisServer) -> RedisServer:
    """Return a Redis that holds nothing: what tests leave unacknowledged would come again."""
    with redis_client(running_redis.url) as client:
        client.flushall()
    return running_redis


@contextmanager
def serving(
    domain: str = DOMAIN, twins: Table | None = None, **options: Any
) -> Iterator[RelayServer]:
    server = serve_relay([domain], twins or Table(), **options)
    try:
        yield server
    finally:
        server.shutdown(timeout=WAIT)


def http(server: RelayServer) -> str:
    return server.url.replace("ws:", "http:") + "/"


@contextmanager
def federated(**options: Any) -> Iterator[tuple[RelayServer, RelayServer]]:
    """Run two relays, of which a.test knows the way to b.test; gone.test answers nothing."""
    table = Table(TWINS)
    with serving("b.test", table) as b:
        routes = {"b.test": http(b), "gone.test": "http://127.0.0.1:1/"}
        with serving("a.test", table, routes=routes, **options) as a:
            yield a, b


# Federation


def test_an_envelope_reaches_a_twin_of_another_relay_byte_by_byte() -> None:
    with federated() as (a, b), Node(a, 1) as one, Node(b, 2, "s") as two:
        envelope = one.ask(two.address)
        assert two.next() == envelope.SerializeToString()
        # The answer to the POST comes behind it.
        wait_for(lambda: metric(a, 'federation_message_success{relay="b.test"}') == 1, "202")


def test_an_envelope_waits_at_the_other_relay() -> None:
    with federated() as (a, b), Node(a, 1) as one:
        one.ask(Address(2), uid="waiting")
        wait_for(lambda: metric(a, 'federation_message_success{relay="b.test"}') == 1, "202")
        with Node(b, 2) as two:
            assert two.take().uid == "waiting"


def test_fail_fast_is_told_over_relays() -> None:
    with federated() as (a, _), Node(a, 1) as one:
        envelope = one.ask(Address(2), tags="fail-fast")
        expected = f"remote relay rejected permanently: {router.OFFLINE}"
        assert one.refused() == (envelope.uid, expected)


def test_a_relay_that_is_gone_is_passed_over() -> None:
    with federated() as (a, b), Node(a, 1) as one, Node(b, 4) as four:
        one.ask(four.address, uid="over b")
        assert four.take().uid == "over b"


def test_an_envelope_that_no_relay_takes_expires_and_its_requester_is_told() -> None:
    with federated() as (a, _), Node(a, 1) as one:
        envelope = one.ask(Address(5), life=2)
        assert one.refused() == (envelope.uid, router.EXPIRED)


def test_a_posted_envelope_must_be_signed_by_its_source() -> None:
    with serving() as server, Node(server, 2) as two:
        envelope = ask(Address(1), two.address)
        assert fetch(http(server), envelope.SerializeToString())[0] == 202
        assert two.take() == envelope
        envelope.signature = identity(3).sign(digest(envelope))
        status, text, _ = fetch(http(server), envelope.SerializeToString())
        assert (status, b"signature" in text) == (401, True)
        two.nothing()


def forged(kind: str) -> bytes:
    """Return what claims to come from a relay."""
    envelope = ask(Address(1), Address(2))
    envelope.ClearField("source")
    envelope.ClearField("signature")
    getattr(envelope, kind).SetInParent()
    return envelope.SerializeToString()


@pytest.mark.parametrize("kind", ["request", "response", "error", "pong", "ping"])
def test_nobody_may_post_in_a_relays_name(kind: str) -> None:
    with serving() as server, Node(server, 2) as two:
        assert fetch(http(server), forged(kind))[0] in (400, 401, 403)
        two.nothing()


@pytest.mark.parametrize("body", [b"", b"\xff", b"{}", b"\x0a\x05abc"])
def test_what_is_no_envelope_is_not_taken(body: bytes) -> None:
    with serving() as server:
        assert fetch(http(server), body)[0] == 400


def test_what_another_relay_posts_is_limited_by_source() -> None:
    with serving(limit=(2, 10_000)) as server, Node(server, 2) as two:
        sent = [ask(Address(1), two.address) for _ in range(6)]
        statuses = [fetch(http(server), each.SerializeToString())[0] for each in sent]
        # A minute may end in between.
        assert statuses[:2] == [202, 202]
        assert 429 in statuses
        other = ask(Address(3), two.address)
        assert fetch(http(server), other.SerializeToString())[0] == 202


# Redis


def test_a_relay_keeps_what_waits_in_redis(redis: RedisServer) -> None:
    key = Address(2, "kept").stream_key()
    with serving(redis=redis.url) as server, Node(server, 1) as one:
        sent = [one.ask(Address(2, "kept")).uid for _ in range(150)]
        one.nothing()
        with redis_client(redis.url) as client:
            assert client.xlen(key) == 150
    with serving(redis=redis.url) as server, Node(server, 2, "kept") as two:
        assert [two.take().uid for _ in sent] == sent
        with redis_client(redis.url) as client:
            wait_for(lambda: client.xlen(key) == 0, "acknowledgements")


def test_two_relays_share_a_redis(redis: RedisServer) -> None:
    with (
        serving(redis=redis.url) as first,
        serving(redis=redis.url) as second,
        Node(first, 1) as one,
        Node(second, 2) as two,
    ):
        sent = [one.ask(two.address).uid for _ in range(100)]
        assert [two.take().uid for _ in sent] == sent
        two.put(response(ask(one.address, two.address), two.address, int(time.time()), 60))
        assert kind_of(one.take()) is Kind.RESPONSE


def test_what_ran_out_in_redis_is_told_to_the_requester(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(redis=redis.url) as server, Node(server, 1) as one:
        short = one.ask(Address(2, "late"), life=30)
        one.nothing()
        now = time.time()
        monkeypatch.setattr("wsmux.bus.relay.sessions.time.time", lambda: now + 31)
        with Node(server, 2, "late"):
            assert one.refused() == (short.uid, router.EXPIRED)


def test_garbage_in_redis_is_dropped(redis: RedisServer) -> None:
    address = Address(2, "garbage")
    with serving(redis=redis.url) as server, redis_client(redis.url) as client:
        client.xadd(address.stream_key(), {"_": b"\xff\xff"})
        client.xadd(address.stream_key(), {"other": b"x"})
        with Node(server, 1) as one:
            one.ask(address, uid="behind")
            with Node(server, 2, "garbage") as two:
                assert two.take().uid == "behind"
                wait_for(lambda: client.xlen(address.stream_key()) == 0, "an empty stream")


FAST = pytest.mark.parametrize("fast", [False, True], ids=["stored", "fast"])


@FAST
def test_a_key_that_is_no_stream_harms_its_session_alone(
    redis: RedisServer, caplog: pytest.LogCaptureFixture, fast: bool
) -> None:
    with serving(redis=redis.url, fast=fast) as server, Node(server, 1) as one:
        with redis_client(redis.url) as client:
            client.set("stream:2", "text")
        asked = one.ask(Address(2)).uid
        uid, text = one.refused()
        assert (uid, text.startswith("cannot queue for 2: WRONGTYPE")) == (asked, True)
        assert get(server, "/healthz")[0] == 200
        with Node(server, 2) as two, Node(server, 3) as three:
            wait_for(lambda: "b'stream:2' is not a stream" in caplog.text)
            one.ask(two.address, uid="on")
            if fast:
                assert two.take().uid == "on"
            else:
                assert one.refused()[0] == "on"
            one.ask(three.address, uid="on")
            assert three.take().uid == "on"
            one.nothing()


@FAST
def test_a_redis_that_is_away_is_told(tmp_path: Path, fast: bool) -> None:
    with (
        RedisServer(tmp_path) as lost,
        serving(redis=lost.url, fast=fast) as server,
        Node(server, 1) as one,
        Node(server, 2) as two,
    ):
        two.nothing()
        lost.kill()
        envelope = one.ask(Address(3))
        uid, text = one.refused()
        assert (uid, "Redis failed" in text) == (envelope.uid, True)
        one.ask(two.address, uid="direct")
        if fast:
            assert two.take().uid == "direct"
        else:
            assert one.refused()[0] == "direct"
        assert get(server, "/healthz")[0] == 503
        lost.start()
        one.ask(Address(3), uid="again")
        with Node(server, 3) as three:
            assert three.take().uid == "again"
        wait_for(lambda: get(server, "/healthz")[0] == 200, "health")


@FAST
def test_who_connects_while_redis_is_away_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    """What its queue holds cannot be known, so nothing of others may be sent past it."""
    for module in ("relay", "sessions"):
        monkeypatch.setattr(f"wsmux.bus.relay.{module}.PUT_TIME", 0.2)
    with RedisServer(tmp_path) as lost, serving(redis=lost.url, fast=fast) as server:
        lost.kill()
        with Node(server, 1) as one, Node(server, 2) as two:
            two.nothing()
            for target in (one.address, two.address, Address(3)):
                envelope = one.ask(target)
                uid, text = one.refused()
                assert (uid, "Redis failed" in text) == (envelope.uid, True)
            two.nothing()


def test_a_wrong_source_cannot_reach_the_queues(redis: RedisServer) -> None:
    with serving(redis=redis.url) as server, Node(server, 1) as one:
        envelope = ask(one.address, Address(2, "wrong"))
        put_address(envelope.source, Address(3))
        one.put(envelope)
        one.refused()
        with redis_client(redis.url) as client:
            assert not client.exists(Address(2, "wrong").stream_key())


# Names


def test_a_pinned_name_is_called_through_another_relay() -> None:
    table, port = Table(TWINS), free_port()
    back = {"a.test": f"http://127.0.0.1:{port}/"}
    with (
        serving("b.test", table, routes=back) as b,
        serving("a.test", table, routes={"b.test": http(b)}, port=port) as a,
        Client(identity(2), b.url, table, twin=2) as worker,
        Client(identity(1), a.url, table, twin=1, names={"billing": 2}) as caller,
    ):
        worker.serve({"add": sum})
        worker.join("billing", timeout=WAIT)
        assert caller.call("billing", "add", [1, 2], timeout=WAIT) == 3
        wait_for(lambda: metric(b, "relay_name_pending") == 0, WAIT)


def test_a_relay_keeps_names_for_twins() -> None:
    with serving(names={"billing": 2}) as server, Client(identity(3), server.url, Table()) as other:
        other.serve({"add": sum})
        with pytest.raises(NameTaken, match="belongs to twin 2"):
            other.join("billing", timeout=WAIT)


# Arguments


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"limit": (0, 5)}, "above 0"),
        ({"ranker_period": 0}, "above 0"),
        ({"routes": {"a b": "http://x/"}}, "expected the domain of a relay"),
        ({"routes": {"a.test": "ws://x/"}}, "expected a route http"),
        ({"redis": "nonsense"}, "URL of a Redis"),
        ({"names": {"5": 1}}, "expected a name"),
    ],
)
def test_wrong_arguments_are_told(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        serve_relay([DOMAIN], Table(), **options)


def test_a_wrong_domain_leaves_nothing_behind(redis: RedisServer) -> None:
    with pytest.raises(ValueError, match="expected the domain of a relay"):
        serve_relay(["a b"], Table(), redis=redis.url)


def test_a_port_that_is_taken_leaves_nothing_behind(redis: RedisServer) -> None:
    with serving() as server, pytest.raises(OSError, match="in use"):
        serve_relay([DOMAIN], Table(), port=server.port, redis=redis.url)
