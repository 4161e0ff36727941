"""A Redis that is 200 ms away: each promise holds, and no call takes a round trip too many."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import wsmux
from wsmux.cluster import Cluster, NotConnected, Retention, TopicGap, Unreachable
from wsmux.cluster.redis_calls import RedisCalls
from wsmux.endpoints import shared_limits
from wsmux.endpoints.user_limits import Users
from wsmux.testing import FaultProxy, Faults

from ..helpers.redis_server import RedisServer
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for, wait_for_value
from .conftest import Pairs

# Seconds of each way, and of both.
WAY = Faults(latency=0.1)
ROUND = 0.2

# Seconds of a lease: it is renewed after a third, and what a node does then takes four round trips.
LEASE = 3.0


@pytest.fixture
def far(server: RedisServer) -> Iterator[str]:
    """Return the URL of the Redis behind a long way."""
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    with FaultProxy(port, up=WAY, down=WAY) as proxy:
        yield f"redis://127.0.0.1:{proxy.port}/0"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Return how many round trips each thread has asked for."""
    told: Counter[int] = Counter()
    real = RedisCalls.run

    def run(self: RedisCalls, *call: Any) -> Any:
        told[threading.get_ident()] += 1
        return real(self, *call)

    monkeypatch.setattr(RedisCalls, "run", run)
    return told


def test_each_call_takes_one_round_trip(
    far: str, namespace: str, pairs: Pairs, asked: Counter[int]
) -> None:
    client, connection = pairs()
    with Cluster(far, namespace=namespace) as one, Cluster(far, namespace=namespace) as two:
        wait_for(lambda: two.counts().nodes == (one.node != two.node) + 1)

        def trips(call: Callable[[], Any]) -> tuple[int, Any]:
            before, begun = asked[threading.get_ident()], time.monotonic()
            result = call()
            count = asked[threading.get_ident()] - before
            assert time.monotonic() - begun >= ROUND * count  # it is that far
            return count, result

        count, presence = trips(lambda: one.join(connection, "user:1"))
        assert count == 1
        two.open_stream("user:1", timeout=WAIT).close()  # and makes the link
        for to in ("user:1", presence):
            count, stream = trips(lambda to=to: two.open_stream(to, header=b"x", timeout=WAIT))
            assert count == 1
            stream.close()
        count, stream = trips(lambda: one.open_stream("user:1", timeout=WAIT))
        assert count == 0  # it is here
        stream.close()
        for call in (
            lambda: two.who("user:*"),
            lambda: two.publish("t", b"1"),
            lambda: one.subscribe("t").close(),
            lambda: two.counts(timeout=WAIT),
            lambda: one.leave(presence),
        ):
            assert trips(call)[0] == 1
        with pytest.raises(NotConnected):
            two.open_stream("user:1", timeout=WAIT)
    assert client.stats().streams_opened >= 0


def test_a_new_connection_says_nothing_before_its_first_call(
    far: str, namespace: str, server: RedisServer
) -> None:
    with server.client() as client:
        client.config_resetstat()
        with Cluster(far, namespace=namespace) as cluster:
            cluster.publish("t", b"x")
        told, failed = client.info("commandstats"), client.info("errorstats")
    assert not [each for each in told if "client" in each or "hello" in each]
    # What a Redis does not know is counted as an error alone; of the scripts it is told then.
    assert set(failed) <= {"errorstat_NOSCRIPT"}


@pytest.mark.long
def test_a_timeout_that_is_shorter_is_kept_and_the_next_call_gets_its_own_answer(
    far: str, namespace: str, pairs: Pairs
) -> None:
    _, connection = pairs()
    with Cluster(far, namespace=namespace) as one, Cluster(far, namespace=namespace) as two:
        one.join(connection, "user:1")
        for _ in range(3):
            with pytest.raises(Unreachable, match="in time"):
                two.open_stream("user:1", timeout=ROUND / 4)
            assert [each.name for each in two.who("user:*")] == ["user:1"]
        two.open_stream("user:1", timeout=WAIT).close()


@pytest.mark.long
def test_no_lease_is_ever_seen_to_end(
    far: str, namespace: str, server: RedisServer, pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"namespace": namespace, "lease": LEASE}
    with (
        Cluster(far, **options) as one,
        Cluster(far, **options) as two,
        Cluster(server.url, **options) as near,
    ):
        for number, each in enumerate((one, two)):
            each.join(pairs()[1], f"user:{number}")
        renewed: set[float] = set()
        ends = time.monotonic() + 1.5 * LEASE
        while time.monotonic() < ends:
            assert [each.name for each in near.who()] == ["user:0", "user:1"]
            counts = near.counts(timeout=WAIT)
            assert (counts.lost, counts.members) == (0, 2)
            renewed.add(counts.renewed_max)
        assert len(renewed) > 3
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.long
def test_who_leaves_is_gone_when_the_call_has_returned(
    far: str, namespace: str, server: RedisServer, pairs: Pairs
) -> None:
    with Cluster(server.url, namespace=namespace) as near:
        with Cluster(far, namespace=namespace) as one:
            with one.member(pairs()[1], "user:1", "user:2"):
                assert len(near.who()) == 2
            assert near.who() == []
            one.join(pairs()[1], "user:3")
        assert near.who() == []
        assert near.counts(timeout=WAIT).lost == 0


@pytest.mark.long
def test_many_threads_wait_at_the_same_time(far: str, namespace: str, pairs: Pairs) -> None:
    client, connection = pairs()
    with Cluster(far, namespace=namespace) as one, Cluster(far, namespace=namespace) as two:
        one.join(connection, "user:1")
        streams: list[wsmux.Stream] = []

        def opened() -> None:
            streams.append(two.open_stream("user:1", timeout=WAIT))

        threads = [threading.Thread(target=opened) for _ in range(40)]  # more than connections
        for each in threads:
            each.start()
        for each in threads:
            each.join(WAIT)
        assert len(streams) == len(threads)
        for stream in streams:
            stream.close()
    assert client.stats().streams_opened >= 0


def test_messages_come_in_order_and_gaps_are_told(
    far: str, namespace: str, server: RedisServer
) -> None:
    options: dict[str, Any] = {"namespace": namespace, "retention": Retention(messages=3)}
    with Cluster(far, **options) as one, Cluster(server.url, **options) as near:
        with one.subscribe("t") as new:
            for number in range(1, 11):
                near.publish("t", b"%d" % number)
            with pytest.raises(TopicGap) as found:
                new.read(WAIT)
            assert found.value.count == 7
            assert [new.read(WAIT).data for _ in range(3)] == [b"8", b"9", b"10"]
            # Whoever waits hears the bell, while others publish faster than it can be asked.
            sent, got, missed = 200, 0, 0
            publisher = threading.Thread(
                target=lambda: [near.publish("t", b"%d" % number) for number in range(sent)]
            )
            publisher.start()
            before = new.position
            assert before is not None
            while got + missed < sent:
                try:
                    message = new.read(WAIT)
                except TopicGap as gap:
                    missed += gap.count or sent  # which is too many, if it is not known
                else:
                    assert message.position.number == before.number + got + missed + 1
                    assert message.data == b"%d" % (got + missed)
                    got += 1
            publisher.join(WAIT)
            assert got + missed == sent
            assert got
            assert missed
        last = one.publish("t", b"far")
        with near.subscribe("t", since=f"{last.epoch}-{last.number - 1}") as old:
            assert old.read(WAIT).data == b"far"


def test_users_are_counted_together(
    far: str, namespace: str, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "ASK_TIME", WAIT)  # for a machine that is busy
    limits = {"namespace": namespace, "connections": 2, "connects_per_minute": 10}
    one, two, near = (
        Users(wsmux.UserLimits(redis=url, **limits))  # type: ignore[arg-type]
        for url in (far, far, server.url)
    )
    try:
        places = [each.enter("ann") for each in (one, two)]
        for each in (one, two, near):
            with pytest.raises(wsmux.HandshakeError, match="2 connections of this user are open"):
                each.enter("ann")
        for place in places:
            place.leave()

        def again() -> bool:
            try:
                near.enter("ann").leave()
            except wsmux.HandshakeError:
                return False
            return True

        wait_for(again)
        with server.client() as client:
            wait_for_value(lambda: bool(client.keys(f"wsmux:limits:{namespace}:*")), True)
    finally:
        for counts in (one, two, near):
            counts.close()
