"""A thread that cannot be started costs a typed error once; nothing waits for ever for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from wsmux.bus import GatewayClient
from wsmux.bus.client import Client
from wsmux.bus.errors import UNAVAILABLE, CallTimeout
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.relay.redis_queues import RedisQueues
from wsmux.bus.relay.redis_topics import RedisTopics
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import Kind, kind_of
from wsmux.bus.wire.names import shared_address
from wsmux.exceptions import NoThreadError
from wsmux.runtime.deadline import Deadline

from ..helpers.bus.clients import ALICE, WAIT, all_connected, calling, known, staged
from ..helpers.bus.gateway_programs import database
from ..helpers.bus.people import Table
from ..helpers.bus.relays import Node, identity, relay, served
from ..helpers.bus.relays import Table as Known
from ..helpers.bus.scripted_relay import StageRelay
from ..helpers.bus.session_queues import nothing, put, take_all
from ..helpers.redis_server import RedisServer, redis_server
from ..helpers.thread_shortage import Refuse, refusing
from ..helpers.waiting import wait_for

refuse = pytest.fixture(refusing)
stage = pytest.fixture(staged)
twins = pytest.fixture(known)


@pytest.fixture
def alice(stage: StageRelay, twins: Table) -> Iterator[Client]:
    yield from calling(stage, twins)


server = pytest.fixture(scope="module")(redis_server)


def running(pattern: str) -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith(pattern)]


# Clients


@pytest.mark.parametrize("thread", ["*-clock", "wsmux-bus-127.0.0.1"])
def test_a_call_without_a_thread_fails_and_the_next_one_ends_in_time(
    alice: Client, refuse: Refuse, thread: str
) -> None:
    refuse(thread)
    with pytest.raises(NoThreadError, match="cannot be started"):
        alice.call(2, "add", [1], timeout=WAIT)
    alice.wait_connected(WAIT)
    with pytest.raises(CallTimeout, match="timed out waiting for the answer"):
        alice.submit(2, "add", [1], timeout=0.3).result(WAIT)
    assert "0 calls under way" in repr(alice)
    alice.close()
    assert running(alice.name) == []


def test_a_client_that_never_got_a_clock_is_closed(alice: Client, refuse: Refuse) -> None:
    refuse("*-clock")
    with pytest.raises(NoThreadError):
        alice.call(2, "add", [1], timeout=WAIT)
    alice.close()
    assert all(each.reason == "closed by this side" for each in alice.relays())
    with pytest.raises(ValueError, match="closed"):
        alice.call(2, "add", [1], timeout=WAIT)


def test_each_relay_gets_its_thread_later(stage: StageRelay, twins: Table, refuse: Refuse) -> None:
    with (
        StageRelay() as other,
        Client(ALICE.identity, [stage.url, other.url], twins, twin=1) as made,
    ):
        refuse("wsmux-bus-127.0.0.1")
        with pytest.raises(NoThreadError):
            made.wait_connected(WAIT)
        made.wait_connected(WAIT)
        wait_for(lambda: all_connected(made))


@pytest.mark.parametrize("thread", ["wsmux-bus-127.0.0.1", "*-standing"])
def test_what_could_not_be_served_is_served_when_it_is_tried_again(
    refuse: Refuse, thread: str
) -> None:
    with (
        served() as server,
        Client(identity(1), server.url, Known(), twin=1, name="billing") as made,
        Client(identity(2), server.url, Known(), twin=2) as other,
    ):
        refuse(thread)
        with pytest.raises(NoThreadError):
            made.serve({"add": sum})
        made.serve({"add": sum})
        wait_for(lambda: any(each.joined for each in made.joined()))
        assert other.call("billing", "add", [1, 2], timeout=WAIT) == 3


# Gateways and programs beside them


THREADS = ["wsmux-bus-127.0.0.1", "*-start", "*-local", "*-reply", "*-unserved", "*-expiry"]


@pytest.mark.parametrize("thread", THREADS)
def test_a_gateway_that_gets_too_few_threads_ends_those_that_it_got(
    server: RedisServer, stage: StageRelay, twins: Table, refuse: Refuse, thread: str
) -> None:
    refuse(thread)

    def begin() -> Peer:
        url = database(server, 1)
        return Peer(ALICE.identity, stage.url, twins, url, twin=1, update=False)

    with pytest.raises(NoThreadError, match="cannot be started"):
        begin()
    assert running("wsmux-bus-peer-1") == []
    wait_for(lambda: stage.connected() == [])
    with begin() as gateway:
        gateway.wait_connected(WAIT)


def test_a_program_that_gets_no_thread_serves_when_it_tries_again(
    server: RedisServer, refuse: Refuse
) -> None:
    program = GatewayClient(database(server, 1))
    refuse("wsmux-bus-lists-take")
    with pytest.raises(NoThreadError, match="wsmux-bus-lists-take cannot be started"):
        program.serve({"add": sum})
    program.serve({"add": sum})
    program.close()
    assert running("wsmux-bus-lists") == []


def test_a_program_that_never_got_a_thread_is_closed(server: RedisServer, refuse: Refuse) -> None:
    program = GatewayClient(database(server, 1))
    refuse("wsmux-bus-lists-take")
    with pytest.raises(NoThreadError):
        program.serve({"add": sum})
    program.close()


# Relays


def test_a_name_that_nobody_could_look_after_is_not_claimed(refuse: Refuse) -> None:
    made = relay()
    refuse("wsmux-relay-names")
    with served(made) as server:
        with Node(server, 2, "w") as worker:
            worker.ask(Address(0), command="relay.join", plain=b'{"name": "billing"}')
            refused = worker.take()
            assert (kind_of(refused), refused.error.code) == (Kind.ERROR, UNAVAILABLE)
            assert "cannot look after names" in refused.error.message
        wait_for(lambda: not len(made.sessions))
        assert not made.names.takes(shared_address(2, "billing"))
        with Node(server, 3, "w") as worker:
            worker.ask(Address(0), command="relay.join", plain=b'{"name": "billing"}')
            assert kind_of(worker.take()) is Kind.RESPONSE


def test_a_session_whose_queue_nobody_could_read_leaves_the_earlier_one(
    server: RedisServer, refuse: Refuse
) -> None:
    queues = RedisQueues(server.client())
    session = Address(1, "s")
    refuse("wsmux-redis-reader-1")
    with pytest.raises(NoThreadError, match="wsmux-redis-reader-1 cannot be started"):
        queues.open(session, nothing)
    mailbox = queues.open(session, nothing)
    put(queues, session, "hello")
    assert [each.data for each in take_all(mailbox, 1)] == [b"hello"]
    queues.close(Deadline(WAIT))
    assert running("wsmux-redis") == []


@pytest.mark.parametrize("thread", ["wsmux-redis-names_run", "wsmux-redis-names_listen"])
def test_a_name_whose_queue_nobody_could_read_is_read_later(
    server: RedisServer, refuse: Refuse, thread: str
) -> None:
    queues = RedisQueues(server.client())
    name = shared_address(1, "billing")
    refuse(thread)
    with pytest.raises(NoThreadError):
        queues.open_shared(name, nothing)
    mailbox = queues.open_shared(name, nothing)
    put(queues, name, "hello", source=2)
    assert [each.data for each in take_all(mailbox, 1)] == [b"hello"]
    queues.close(Deadline(WAIT))
    assert running("wsmux-redis") == []


def test_topics_that_nobody_listens_to_are_closed(server: RedisServer, refuse: Refuse) -> None:
    topics = RedisTopics(server.client())
    refuse("wsmux-redis-topics")
    with pytest.raises(NoThreadError):
        topics.watch(lambda names: None)
    topics.close(Deadline(WAIT))
