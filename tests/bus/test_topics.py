"""Publish and subscribe over real relays: order, loss, copies, credit, gaps and refusals."""

from __future__ import annotations

import os
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from wsmux.bus import topics
from wsmux.bus.client import Client
from wsmux.bus.errors import (
    FROM_RELAY,
    TOO_MANY,
    UNKNOWN_COMMAND,
    BusError,
    CallTimeout,
    RelayRefused,
    TwinsUnavailable,
)
from wsmux.bus.relay.queues import QueueUnavailable
from wsmux.bus.relay.rate_limiter import FixedWindow
from wsmux.bus.relay.relay import Relay
from wsmux.bus.relay.router import MISSING_DESTINATION
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.relay.topic_log import Retention
from wsmux.bus.relay.topic_store import MemoryTopics, NewMessage
from wsmux.bus.topics import Subscription, TopicMessage
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import parse, relay_error, relay_response
from wsmux.bus.wire.messages import Envelope
from wsmux.bus.wire.topics import (
    MAX_DATA,
    Batch,
    MessageRefused,
    Position,
    TopicGap,
    read_answer_body,
)
from wsmux.exceptions import ForkedError
from wsmux.runtime.deadline import Deadline

from ..helpers.bus.publications import publication
from ..helpers.bus.relays import Table, identity, metric, relay, served
from ..helpers.bus.scripted_relay import StageRelay
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def made() -> Relay:
    return relay(topics=MemoryTopics(Retention(messages=20)), publishers={"orders": [1]})


@pytest.fixture
def server(made: Relay, stack: ExitStack) -> RelayServer:
    return stack.enter_context(served(made))


Connect = Callable[..., Client]


@pytest.fixture
def connect(server: RelayServer, stack: ExitStack) -> Connect:
    def client(twin: int, twins: Table | None = None, **options: Any) -> Client:
        made = Client(identity(twin), server.url, twins or Table(), twin=twin, **options)
        return stack.enter_context(made)

    return client


def joined(server: RelayServer, twin: int) -> Client:
    return Client(identity(twin), server.url, Table(), twin=twin)


def payloads(subscription: Subscription, count: int) -> list[Any]:
    return [subscription.read(WAIT).payload for _ in range(count)]


def test_what_is_published_is_read_in_order_by_all(connect: Connect) -> None:
    alice, bob, carol = connect(1), connect(2, session="s"), connect(3)
    with bob.subscribe("news") as first, carol.subscribe("news") as second:
        positions = [alice.publish("news", {"n": number}) for number in range(5)]
        for subscription in (first, second):
            messages = [subscription.read(WAIT) for _ in range(5)]
            assert [each.payload for each in messages] == [{"n": number} for number in range(5)]
            assert [each.position for each in messages] == positions == sorted(positions)
            assert {each.source for each in messages} == {alice.address}
            assert {each.topic for each in messages} == {"news"}
            assert all(abs(each.time - time.time()) < WAIT for each in messages)


def test_a_reader_waits_for_what_is_published_later(connect: Connect) -> None:
    alice, bob = connect(1), connect(2)
    subscription = bob.subscribe("news")
    got: list[TopicMessage] = []
    reader = threading.Thread(target=lambda: got.append(subscription.read(WAIT)))
    reader.start()
    alice.publish("news", "later")
    reader.join(WAIT)
    assert [each.payload for each in got] == ["later"]


def test_a_subscription_starts_where_it_is_told(connect: Connect) -> None:
    alice, bob = connect(1), connect(2)
    positions = [alice.publish("news", number) for number in range(4)]
    with bob.subscribe("news", start="oldest") as subscription:
        assert payloads(subscription, 4) == [0, 1, 2, 3]
        assert subscription.position == positions[3]
    for start in (positions[1], str(positions[1])):
        with bob.subscribe("news", start=start) as subscription:
            assert payloads(subscription, 2) == [2, 3]
    with bob.subscribe("news") as subscription, pytest.raises(CallTimeout, match="'news'"):
        subscription.read(0)


def test_bytes_of_any_type_arrive(connect: Connect) -> None:
    alice, bob = connect(1), connect(2)
    data = bytes(range(256)) * (MAX_DATA // 256)
    with bob.subscribe("files") as subscription:
        alice.publish_raw("files", data, "application/octet-stream")
        message = subscription.read(WAIT)
        assert (message.data, message.schema) == (data, "application/octet-stream")
        with pytest.raises(BusError, match="not JSON"):
            _ = message.payload
    with pytest.raises(ValueError, match="publish where it is kept"):
        alice.publish_raw("files", data + b"x")


def test_many_messages_pass_a_small_credit(connect: Connect) -> None:
    alice, bob = connect(1), connect(2)
    with bob.subscribe("news", credit=3) as subscription:
        for number in range(20):
            alice.publish("news", number)
        assert payloads(subscription, 20) == list(range(20))


def test_iteration_ends_when_another_thread_closes(connect: Connect) -> None:
    alice, bob = connect(1), connect(2)
    subscription = bob.subscribe("news")
    got: list[Any] = []
    one = threading.Event()

    def read() -> None:
        for message in subscription:
            got.append(message.payload)
            one.set()

    reader = threading.Thread(target=read)
    reader.start()
    alice.publish("news", 1)
    assert one.wait(WAIT)
    assert repr(subscription).endswith("-1>")
    subscription.close()
    subscription.close()
    reader.join(WAIT)
    assert got == [1]
    assert subscription.closed
    with pytest.raises(ValueError, match="closed"):
        subscription.read(WAIT)


def test_a_closed_subscription_leaves_nothing_at_the_relay(
    connect: Connect, server: RelayServer
) -> None:
    bob = connect(2)
    subscription = bob.subscribe("news")
    with pytest.raises(CallTimeout):
        subscription.read(0)
    wait_for(lambda: metric(server, "relay_topic_readers") == 1, WAIT)
    subscription.close()
    wait_for(lambda: metric(server, "relay_topic_readers") == 0, WAIT)
    with bob.subscribe("news") as other:
        with pytest.raises(CallTimeout):
            other.read(0)
        wait_for(lambda: metric(server, "relay_topic_readers") == 1, WAIT)
        bob.close()
        wait_for(lambda: metric(server, "relay_topic_readers") == 0, WAIT)
        with pytest.raises(ValueError, match="client is closed"):
            other.read(WAIT)


def test_a_slow_reader_is_held_by_credit_and_hears_of_a_gap(
    connect: Connect, server: RelayServer
) -> None:
    alice, bob = connect(1), connect(2)
    with bob.subscribe("news", credit=4) as subscription:
        alice.publish("news", 0)
        assert payloads(subscription, 1) == [0]
        # What waits is answered with the next message, before the relay drops any.
        wait_for(lambda: metric(server, "relay_topic_readers") == 1, WAIT)
        positions = [alice.publish("news", 1)]
        wait_for(lambda: metric(server, "relay_topic_readers") == 0, WAIT)
        positions += [alice.publish("news", number) for number in range(2, 61)]
        seen: list[Any] = []
        gaps: list[TopicGap] = []
        while len(seen) + sum(each.count or 0 for each in gaps) < 60:
            try:
                seen.append(subscription.read(WAIT).payload)
            except TopicGap as error:
                gaps.append(error)
        (missed,) = gaps
        assert missed.count is not None
        # What it had room for has come; the relay kept the newest 20.
        before = 60 - 20 - missed.count
        assert 0 <= before <= 4
        assert seen == [*range(1, before + 1), *range(41, 61)]
        assert missed.before == positions[40]
        assert str(missed.count) in str(missed)
        assert "read faster" in str(missed)
    assert metric(server, "relay_topic_gaps_total") == 1
    assert metric(server, "relay_topic_messages_total") == 61


def test_a_lost_connection_loses_and_doubles_nothing(made: Relay, connect: Connect) -> None:
    alice, bob = connect(1), connect(2, session="s")
    got: list[Any] = []
    with bob.subscribe("news", credit=2) as subscription:
        for number in range(15):
            alice.publish("news", number, timeout=WAIT)
            if number in (4, 9):
                for session in made.sessions.all():
                    session.link.abort()
            if number % 2:
                got += payloads(subscription, 2)
        got += payloads(subscription, 1)
        assert got == list(range(15))
        with pytest.raises(CallTimeout):
            subscription.read(0.1)


def test_a_twin_that_may_not_publish_is_told_how(connect: Connect) -> None:
    alice, bob = connect(1), connect(2)
    with bob.subscribe("orders") as subscription:
        alice.publish("orders", 1)
        with pytest.raises(
            RelayRefused, match="twin 2 may not publish to 'orders'.*--topic"
        ) as refused:
            bob.publish("orders", 2)
        assert refused.value.code == 403
        assert refused.value.retry_safe
        assert payloads(subscription, 1) == [1]


def test_what_is_no_topic_or_place_is_refused_here(connect: Connect) -> None:
    alice = connect(1)
    for name in ("", "a b", "x" * 65, "ä", "a:b", "1"):
        with pytest.raises(ValueError, match="name of a topic"):
            alice.publish(name, 1)
        with pytest.raises(ValueError, match="name of a topic"):
            alice.subscribe(name)
    with pytest.raises(ValueError, match="'new', 'oldest' or a position"):
        alice.subscribe("news", start="yesterday")
    for credit in (0, 1001):
        with pytest.raises(ValueError, match="credit from 1 to 1000"):
            alice.subscribe("news", credit=credit)
    with pytest.raises(ValueError, match="timeout"):
        alice.publish("news", 1, timeout=0)


def test_subscriptions_of_a_connection_are_bounded(connect: Connect) -> None:
    bob = connect(2)
    many = [bob.subscribe("news") for _ in range(65)]
    for subscription in many[:64]:
        with pytest.raises(CallTimeout):
            subscription.read(0)
    with pytest.raises(RelayRefused, match="64 subscriptions.*close some") as refused:
        many[64].read(WAIT)
    assert refused.value.code == TOO_MANY


class Meddling(MemoryTopics):
    """Keep topics as a test tells it.

    Attributes:
        change: returns what is kept instead of an envelope.
        kept: called after a message was kept, before that is answered.
        failures: how many reads and publications are to fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.change: Callable[[bytes], bytes] = lambda data: data
        self.kept: Callable[[], object] = lambda: None
        self.failures = 0

    def append(self, message: NewMessage, deadline: Deadline) -> Position:
        self._fail()
        position = super().append(message._replace(data=self.change(message.data)), deadline)
        self.kept()
        return position

    def read(self, topic: str, after: Position | str, credit: int, deadline: Deadline) -> Batch:
        self._fail()
        return super().read(topic, after, credit, deadline)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise QueueUnavailable("the store fails")


@pytest.fixture
def meddling() -> Meddling:
    return Meddling()


@pytest.fixture
def meddled(meddling: Meddling, stack: ExitStack) -> RelayServer:
    return stack.enter_context(served(relay(topics=meddling)))


def test_a_message_that_a_relay_made_or_changed_is_refused(
    meddling: Meddling, meddled: RelayServer, stack: ExitStack
) -> None:
    alice, bob = (stack.enter_context(joined(meddled, twin)) for twin in (1, 2))
    subscription = stack.enter_context(bob.subscribe("news"))

    def forge(data: bytes) -> bytes:
        envelope = parse(data)
        envelope.plain = envelope.plain.replace(b64encode(b'"bad"'), b64encode(b'"BAD"'))
        return envelope.SerializeToString()

    def of_another_topic(data: bytes) -> bytes:
        return publication(identity(1), Address(1), b"1", "other").SerializeToString()

    changes = [lambda data: data, forge, of_another_topic, lambda _: b"junk", lambda data: data]
    for payload, change in zip(("good", "bad", "wrong", "junk", "better"), changes, strict=True):
        meddling.change = change
        alice.publish("news", payload)
    assert payloads(subscription, 1) == ["good"]
    for position, why in enumerate(
        ("not signed by twin 1", "is for 'other'", "not an envelope"), 2
    ):
        with pytest.raises(MessageRefused, match=why) as refused:
            subscription.read(WAIT)
        assert refused.value.position.number == position
    assert payloads(subscription, 1) == ["better"]


def test_a_publication_is_kept_once_though_its_answer_is_lost(
    meddling: Meddling, meddled: RelayServer, stack: ExitStack
) -> None:
    alice, bob = (stack.enter_context(joined(meddled, twin)) for twin in (1, 2))
    subscription = stack.enter_context(bob.subscribe("news"))
    cuts = 1

    def cut() -> None:
        nonlocal cuts
        if cuts:
            cuts -= 1
            session = meddled.relay.sessions.get(alice.address)
            assert session is not None
            session.link.abort()

    meddling.kept = cut
    first = alice.publish("news", 1, timeout=WAIT)
    assert cuts == 0
    second = alice.publish("news", 2, timeout=WAIT)
    assert second.number == first.number + 1
    assert payloads(subscription, 2) == [1, 2]


def test_a_store_that_fails_for_a_while_is_asked_again(
    meddling: Meddling, meddled: RelayServer, stack: ExitStack
) -> None:
    alice, bob = (stack.enter_context(joined(meddled, twin)) for twin in (1, 2))
    meddling.failures = 1
    subscription = stack.enter_context(bob.subscribe("news", start="oldest"))
    meddling.failures = 2
    alice.publish("news", 1)
    meddling.failures = 1
    assert payloads(subscription, 1) == [1]
    assert meddling.failures == 0


def test_a_publication_that_is_never_kept_times_out(
    meddling: Meddling, meddled: RelayServer, stack: ExitStack
) -> None:
    alice = stack.enter_context(joined(meddled, 1))
    meddling.failures = 1000
    with pytest.raises(CallTimeout) as late:
        alice.publish("news", 1, timeout=2.0)
    assert not late.value.retry_safe  # it may have been kept


def test_without_a_relay_nothing_was_sent() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(served())
        url = server.url
    with Client(identity(1), url, Table(), twin=1) as alice:
        with pytest.raises(CallTimeout) as late:
            alice.publish("news", 1, timeout=0.2)
        assert late.value.retry_safe
        with pytest.raises(CallTimeout):
            alice.subscribe("news", timeout=0.2)


def test_a_relay_without_topics_says_so() -> None:
    with StageRelay() as stage, Client(identity(1), stage.url, Table(), twin=1) as alice:

        def refuse(envelope: Envelope) -> list[Envelope]:
            return [relay_error(envelope, MISSING_DESTINATION, int(time.time()))]

        stage.change = refuse
        for ask in (lambda: alice.publish("news", 1), lambda: alice.subscribe("news")):
            with pytest.raises(RelayRefused, match="knows no requests") as refused:
                ask()
            assert refused.value.code == UNKNOWN_COMMAND


def test_a_publisher_above_the_limit_of_its_twin_is_told_that(stack: ExitStack) -> None:
    server = stack.enter_context(served(relay(limiter=FixedWindow(1, 10_000, window=10**9))))
    alice = stack.enter_context(joined(server, 1))
    alice.publish("news", 1)
    with pytest.raises(RelayRefused, match="exceeded rate limits") as refused:
        alice.publish("news", 2)
    assert refused.value.code == FROM_RELAY


def test_a_publisher_that_cannot_be_looked_up_is_asked_for_again(
    connect: Connect,
) -> None:
    twins = Table()
    alice, bob = connect(1), connect(2, twins)
    with bob.subscribe("news") as subscription:
        alice.publish("news", 1)
        twins.down = True
        for _ in range(2):
            with pytest.raises(TwinsUnavailable):
                subscription.read(WAIT)
        twins.down = False
        assert payloads(subscription, 1) == [1]


def test_two_threads_share_a_subscription(connect: Connect) -> None:
    alice, bob = connect(1), connect(2)
    subscription = bob.subscribe("news", credit=5)
    got: list[int] = []

    def read() -> None:
        got.extend(message.payload for message in subscription)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(15):
        alice.publish("news", number)
    wait_for(lambda: subscription.position.number == 15, WAIT)
    with pytest.raises(CallTimeout, match="'news'"):
        subscription.read(0.01)
    subscription.close()
    for reader in readers:
        reader.join(WAIT)
    assert sorted(got) == list(range(15))


def test_a_relay_that_gives_no_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Envelope] = []
    batches = [Batch(0, 1, ()), None, Batch(7, 3, ())]

    def answer(envelope: Envelope) -> list[Envelope]:
        asked.append(envelope)
        batch = batches.pop(0) if batches else None
        if batch is None:
            return []
        to = Address(1, envelope.source.connection)
        return [relay_response(envelope, to, read_answer_body(batch), int(time.time()))]

    monkeypatch.setattr(topics, "READ_LIFE", 2.0)
    with StageRelay() as stage, Client(identity(1), stage.url, Table(), twin=1) as alice:
        stage.change = answer
        subscription = alice.subscribe("news")
        with pytest.raises(TopicGap) as missing:
            subscription.read(WAIT)
        assert missing.value.count == 2
        assert len({each.uid for each in asked[:3]}) == 3


def test_a_publication_that_was_sent_and_not_answered_may_have_been_kept() -> None:
    with StageRelay() as stage, Client(identity(1), stage.url, Table(), twin=1) as alice:

        def stop(envelope: Envelope) -> list[Envelope]:
            threading.Thread(target=stage.stop).start()
            return []

        stage.change = stop
        alice.wait_connected(WAIT)
        with pytest.raises(CallTimeout) as late:
            alice.publish("news", 1, timeout=2.0)
        assert not late.value.retry_safe


def test_a_subscription_in_a_forked_child_is_of_no_use(connect: Connect) -> None:
    bob = connect(2)
    with bob.subscribe("news") as subscription:
        pid = os.fork()
        if pid == 0:
            try:
                subscription.read(0)
            except ForkedError:
                subscription.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        with pytest.raises(CallTimeout):
            subscription.read(0)
