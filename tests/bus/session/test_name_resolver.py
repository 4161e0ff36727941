"""Who has a name is asked of relays and remembered for a while, unless it is pinned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import BusError, CallTimeout, NobodyJoined, RelayRefused
from wsmux.bus.relay.relay import Relay
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.session import name_resolver
from wsmux.bus.session.name_resolver import presence_of
from wsmux.bus.wire.envelope import relay_error
from wsmux.bus.wire.messages import Envelope
from wsmux.bus.wire.names import Presence, Worker

from ...helpers.bus.clients import WAIT, all_connected, staged
from ...helpers.bus.inside import links_of
from ...helpers.bus.relays import Table, identity, relay, served
from ...helpers.bus.scripted_relay import StageRelay
from ...helpers.tables import each_case
from ...helpers.waiting import wait_for

stage = pytest.fixture(staged)

GOOD = {"owner": 2, "since": 1.5, "workers": [{"session": "a", "since": 2}]}


def test_what_a_relay_says_is_read() -> None:
    assert presence_of("billing", GOOD) == Presence("billing", 2, 1.5, (Worker("a", 2.0),))
    gateway = {**GOOD, "workers": [{"session": None, "since": 2}]}
    assert presence_of("billing", gateway).workers == (Worker(None, 2.0),)


@each_case
@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        "text",
        {},
        {**GOOD, "owner": "2"},
        {**GOOD, "owner": True},
        {**GOOD, "owner": 0},
        {**GOOD, "owner": 2**32},
        {**GOOD, "since": None},
        {**GOOD, "since": "x"},
        {**GOOD, "workers": None},
        {**GOOD, "workers": [{}]},
        {**GOOD, "workers": [{"session": 5, "since": 1}]},
        {**GOOD, "workers": [{"session": "a", "since": "b"}]},
    ],
)
def test_what_is_no_presence_is_refused(said: object) -> None:
    with pytest.raises(RelayRefused, match="said about 'billing' what is none"):
        presence_of("billing", said)


class Asked:
    """Count what a relay is asked."""

    def __init__(self, made: Relay) -> None:
        self.count: Counter[str] = Counter()
        answer = made.control.answer

        def counted(session: object, envelope: Envelope, now: int) -> Envelope:
            self.count[envelope.request.command] += 1
            return answer(session, envelope, now)  # type: ignore[arg-type]

        made.control.answer = counted  # type: ignore[method-assign, assignment]


@pytest.fixture
def made() -> Relay:
    return relay()


@pytest.fixture
def asked(made: Relay) -> Asked:
    return Asked(made)


@pytest.fixture
def server(made: Relay, asked: Asked) -> Iterator[RelayServer]:
    with served(made) as running:
        yield running


@pytest.fixture
def worker(server: RelayServer) -> Iterator[Client]:
    with Client(identity(2), server.url, Table(), twin=2) as made:
        made.serve({"add": sum})
        made.join("billing", timeout=WAIT)
        yield made


def test_an_owner_is_remembered_for_a_while(
    worker: Client, server: RelayServer, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(identity(1), server.url, Table(), twin=1) as caller:
        for _ in range(3):
            assert caller.call("billing", "add", [1, 2], timeout=WAIT) == 3
        assert asked.count["relay.who"] == 1
    monkeypatch.setattr(name_resolver, "CACHED", 0.0)
    with Client(identity(1), server.url, Table(), twin=1) as caller:
        for _ in range(3):
            assert caller.call("billing", "add", [1, 2], timeout=WAIT) == 3
        assert asked.count["relay.who"] == 4


def test_only_so_many_owners_are_remembered(
    worker: Client, server: RelayServer, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_resolver, "MAX_CACHED", 1)
    worker.join("other", timeout=WAIT)
    with Client(identity(1), server.url, Table(), twin=1) as caller:
        for name in ("billing", "other", "other", "billing"):
            assert caller.call(name, "add", [1, 2], timeout=WAIT) == 3
        assert asked.count["relay.who"] == 3


def test_a_pinned_name_is_asked_of_nobody(
    worker: Client, server: RelayServer, asked: Asked
) -> None:
    with Client(identity(1), server.url, Table(), twin=1, names={"billing": 2}) as caller:
        assert caller.call("billing", "add", [1, 2], timeout=WAIT) == 3
        assert asked.count["relay.who"] == 0
    with pytest.raises(ValueError, match="expected a name"):
        Client(identity(1), server.url, Table(), twin=1, names={"5": 2})


def test_each_relay_is_asked_and_calls_go_through_the_one_that_knows(
    worker: Client, server: RelayServer
) -> None:
    with served() as other, ExitStack() as stack:
        urls = [other.url, server.url]
        caller = stack.enter_context(Client(identity(1), urls, Table(), twin=1))
        caller.wait_connected(WAIT)
        wait_for(lambda: all_connected(caller), WAIT)
        assert caller.who("billing", timeout=WAIT).owner == 2
        for _ in range(5):
            assert caller.call("billing", "add", [1, 2], timeout=WAIT) == 3
            assert caller.call(worker.address, "add", [1, 2], timeout=WAIT) == 3
        with pytest.raises(NobodyJoined):
            caller.call("nobody", "add", timeout=WAIT)


def test_a_relay_that_is_lost_is_asked_no_more(worker: Client, server: RelayServer) -> None:
    with served() as other, Client(identity(1), [other.url, server.url], Table(), twin=1) as caller:
        caller.wait_connected(WAIT)
        wait_for(lambda: all_connected(caller), WAIT)
        links_of(caller)[0].hold("the test cuts it")
        assert caller.call("billing", "add", [1, 2], timeout=WAIT) == 3


def test_a_relay_that_does_not_answer_leaves_time_for_another(
    stage: StageRelay, worker: Client, server: RelayServer
) -> None:
    stage.change = lambda _: []
    with Client(identity(1), [stage.url, server.url], Table(), twin=1) as caller:
        caller.wait_connected(WAIT)
        wait_for(lambda: all_connected(caller), WAIT)
        assert caller.who("billing", timeout=2.0).owner == 2


def test_a_look_up_that_fails_may_be_made_again(stage: StageRelay) -> None:
    stage.change = lambda _: []
    with Client(identity(1), stage.url, Table(), twin=1) as caller:
        caller.wait_connected(WAIT)
        with pytest.raises(CallTimeout, match="did not answer") as caught:
            caller.call("billing", "add", timeout=0.1)
        assert caught.value.retry_safe
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(caller.who, "billing", timeout=WAIT)
            wait_for(lambda: len(stage.passed) == 2, WAIT)
            stage.cut()
            with pytest.raises(BusError, match="the connection ended") as lost:
                asked.result(WAIT)
        assert lost.value.retry_safe


def test_a_relay_that_knows_names_counts_more_than_one_that_does_not(
    stage: StageRelay, server: RelayServer
) -> None:
    stage.change = lambda envelope: [
        relay_error(envelope, "missing destination", envelope.timestamp)
    ]
    urls = [stage.url, server.url]
    with Client(identity(1), urls, Table(), twin=1) as caller:
        caller.wait_connected(WAIT)
        wait_for(lambda: all_connected(caller), WAIT)
        with pytest.raises(NobodyJoined):
            caller.who("billing", timeout=WAIT)
    with Client(identity(1), stage.url, Table(), twin=1) as caller:
        with pytest.raises(RelayRefused, match="knows no requests to itself") as caught:
            caller.who("billing", timeout=WAIT)
        assert caught.value.code == 501
