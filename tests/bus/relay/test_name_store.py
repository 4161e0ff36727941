"""Who owns a name, in memory and in Redis: the first one, while it has workers and some time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wsmux.bus.errors import NAME_TAKEN, TOO_MANY
from wsmux.bus.relay.control import Refusal
from wsmux.bus.relay.name_store import MemoryNames, NameStore
from wsmux.bus.relay.redis_names import RedisNames
from wsmux.bus.wire.names import Presence

from ...helpers.bus.session_queues import WAIT
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for

Make = Callable[..., NameStore]


@pytest.fixture(params=["memory", "redis"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[NameStore] = []

    def store(**options: Any) -> NameStore:
        if request.param == "memory":
            made.append(MemoryNames(**options))
        else:
            server: RedisServer = request.getfixturevalue("server")
            request.getfixturevalue("client").flushall()
            made.append(RedisNames(server.client(), **options))
        return made[-1]

    yield store
    for each in made:
        each.close()


def refused(store: NameStore, name: str, owner: int, session: str | None = "s") -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        store.join(name, owner, session)
    return caught.value.code, caught.value.text


def workers(found: Presence | None) -> list[str | None]:
    return [] if found is None else [each.session for each in found.workers]


def test_the_first_twin_claims_a_name(make: Make) -> None:
    store = make()
    assert store.look("billing") is None
    made = store.join("billing", 2, "a")
    assert (made.name, made.owner, workers(made)) == ("billing", 2, ["a"])
    assert made.since == made.workers[0].since
    assert workers(store.join("billing", 2, None)) == ["a", None]
    found = store.look("billing")
    assert found is not None
    assert (found.owner, found.since, workers(found)) == (2, made.since, ["a", None])
    assert refused(store, "billing", 3) == (NAME_TAKEN, "the name 'billing' belongs to twin 2")
    assert store.look("billings") is None


def test_joining_again_changes_nothing(make: Make) -> None:
    store = make()
    first = store.join("billing", 2, "a")
    assert store.join("billing", 2, "a") == first


def test_a_connection_that_ends_removes_no_other_of_its_session(make: Make) -> None:
    """As after a takeover, where the new one joins before the end of the old one is noted."""
    store = make()
    since = store.join("billing", 2, "a", 1).workers[0].since
    found = store.join("billing", 2, "a", 2)
    assert [(each.session, each.since) for each in found.workers] == [("a", since)]
    store.leave("billing", 2, "a", 1)
    assert workers(store.look("billing")) == ["a"]
    store.leave("billing", 2, "a", 1)
    store.leave("billing", 2, "a", 2)
    assert workers(store.look("billing")) == []


def test_a_name_without_workers_is_kept_for_a_while(make: Make) -> None:
    store = make(grace=1)
    since = store.join("billing", 2, "a").since
    store.leave("billing", 2, "b")
    store.leave("billing", 3, "a")
    assert workers(store.look("billing")) == ["a"]
    store.leave("billing", 2, "a")
    assert store.look("billing") == Presence("billing", 2, since)
    assert refused(store, "billing", 3)[0] == NAME_TAKEN
    wait_for(lambda: store.look("billing") is None, WAIT)
    assert store.join("billing", 3, "x").owner == 3
    store.leave("nobody", 2, "a")


def test_a_worker_that_comes_back_keeps_the_name(make: Make) -> None:
    store = make()
    since = store.join("billing", 2, "a").since
    store.leave("billing", 2, "a")
    assert store.join("billing", 2, "b").since == since


def test_the_names_of_one_twin_are_bounded(make: Make) -> None:
    store = make(max_names_of_twin=2, grace=1)
    store.join("one", 2, "a")
    store.join("two", 2, "a")
    code, text = refused(store, "three", 2)
    assert (code, text.endswith("has 2 names already")) == (TOO_MANY, True)
    store.join("three", 3, "a")
    store.join("one", 2, "b")
    store.leave("two", 2, "a")
    assert refused(store, "four", 2)[0] == TOO_MANY

    def joined() -> bool:
        try:
            store.join("four", 2, "a")
        except Refusal:
            return False
        return True

    wait_for(joined, WAIT)


def test_all_names_are_bounded(make: Make) -> None:
    store = make(max_names=2)
    store.join("one", 2, "a")
    store.join("two", 3, "a")
    assert refused(store, "three", 4) == (TOO_MANY, "this relay keeps at most 2 names")


def test_the_workers_of_a_name_are_bounded(make: Make) -> None:
    store = make(max_workers=2)
    store.join("one", 2, "a")
    store.join("one", 2, "b")
    store.join("one", 2, "b")
    assert refused(store, "one", 2, "c") == (TOO_MANY, "'one' has 2 workers already")
    store.leave("one", 2, "a")
    assert workers(store.join("one", 2, "c")) == ["b", "c"]


def test_a_glance_sees_what_this_relay_has_changed(make: Make) -> None:
    store = make()
    assert store.glance("billing") is None
    store.join("billing", 2, "a")
    assert workers(store.glance("billing")) == ["a"]
    assert workers(store.glance("billing")) == ["a"]
    store.leave("billing", 2, "a")
    assert workers(store.glance("billing")) == []


def test_many_that_join_at_once_have_one_owner(make: Make) -> None:
    store, begin = make(), threading.Barrier(8)
    owners: list[int] = []
    refusals: list[int] = []

    def join(owner: int) -> None:
        begin.wait(WAIT)
        try:
            owners.append(store.join("billing", owner, "s").owner)
        except Refusal as refusal:
            refusals.append(refusal.code)

    threads = [threading.Thread(target=join, args=(owner,)) for owner in range(1, 9)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT)
    assert len(owners) == 1
    assert refusals == 7 * [NAME_TAKEN]
