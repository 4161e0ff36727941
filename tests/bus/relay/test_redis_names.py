"""Claims of names in Redis: relays see each other's, and nothing is left of one that was killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis as library

from wsmux.bus.errors import NAME_TAKEN, TOO_MANY
from wsmux.bus.relay import redis_names
from wsmux.bus.relay.control import Refusal
from wsmux.bus.relay.queues import QueueUnavailable
from wsmux.bus.relay.redis_names import RedisNames
from wsmux.bus.wire.names import Presence

from ...helpers.bus.session_queues import WAIT
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for


def refused(store: RedisNames, name: str, owner: int) -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        store.join(name, owner, "s")
    return caught.value.code, caught.value.text


def workers(found: Presence | None) -> list[str | None]:
    return [] if found is None else [each.session for each in found.workers]


@pytest.fixture
def relays(server: RedisServer, client: library.Redis) -> Iterator[tuple[RedisNames, RedisNames]]:
    client.flushall()
    made = RedisNames(server.client()), RedisNames(server.client())
    yield made
    for each in made:
        each.close()


def test_relays_know_of_each_others_workers(relays: tuple[RedisNames, RedisNames]) -> None:
    one, other = relays
    one.join("billing", 2, "a")
    assert workers(other.join("billing", 2, "b")) == ["a", "b"]
    assert workers(one.look("billing")) == ["a", "b"]
    assert refused(other, "billing", 3)[0] == NAME_TAKEN
    other.join("billing", 2, "a")  # a client of both relays
    one.leave("billing", 2, "a")
    assert workers(one.look("billing")) == ["b", "a"]
    other.leave("billing", 2, "a")
    assert workers(one.look("billing")) == ["b"]


def test_only_so_many_glances_are_kept(
    relays: tuple[RedisNames, RedisNames], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_names, "MAX_GLANCES", 1)
    one, _ = relays
    for name in ("a", "b", "c"):
        one.join(name, 2, "s")
        assert workers(one.glance(name)) == ["s"]


def test_the_workers_of_a_killed_relay_are_forgotten_and_those_of_another_stay(
    relays: tuple[RedisNames, RedisNames], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_names, "LEASE", 1.0)
    monkeypatch.setattr(redis_names, "RENEWAL", 0.1)
    living, killed = relays
    killed.join("billing", 2, "dead")
    living.join("billing", 2, "alive")

    def only_one() -> bool:
        living.keep()
        return workers(living.look("billing")) == ["alive"]

    wait_for(only_one, WAIT)
    assert workers(living.join("billing", 2, "new")) == ["alive", "new"]


def test_a_dead_worker_makes_room_for_another(
    relays: tuple[RedisNames, RedisNames], server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_names, "LEASE", 1.0)
    made = RedisNames(server.client(), max_workers=1)
    relays[1].join("billing", 2, "dead")
    assert refused(made, "billing", 2)[0] == TOO_MANY
    wait_for(lambda: workers(made.look("billing")) == [], WAIT)
    assert workers(made.join("billing", 2, "new")) == ["new"]
    made.close()


def test_a_claim_that_redis_lost_is_made_again_or_given_up(
    relays: tuple[RedisNames, RedisNames],
    client: library.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(redis_names, "RENEWAL", 0.0)
    one, other = relays
    one.keep()
    one.join("billing", 2, "a")
    client.flushall()
    one.keep()
    assert workers(other.look("billing")) == ["a"]
    client.flushall()
    other.join("billing", 3, "x")
    one.keep()
    assert "lost its claim: the name 'billing' belongs to twin 3" in caplog.text


def test_without_redis_nothing_is_known(tmp_path_factory: pytest.TempPathFactory) -> None:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        store = RedisNames(server.client())
        store.join("billing", 2, "a")
        server.kill()
        for ask in (
            lambda: store.look("billing"),
            lambda: store.join("billing", 2, "b"),
            lambda: store.leave("billing", 2, "a"),
        ):
            with pytest.raises(QueueUnavailable, match="names are not known: Redis failed"):
                ask()
        store.close()


def test_renewing_says_that_redis_is_gone(tmp_path_factory: pytest.TempPathFactory) -> None:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        store = RedisNames(server.client())
        store.join("billing", 2, "a")
        server.kill()
        with pytest.raises(QueueUnavailable, match="Redis failed"):
            store.keep()
        store.close()
