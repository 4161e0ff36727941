"""What a relay does with reads of topics: who waits, who is answered, and who is gone."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from wsmux.bus.errors import BAD_INPUT, FAILED, TOO_MANY, UNAVAILABLE
from wsmux.bus.relay import topics
from wsmux.bus.relay.control import MAX_REST
from wsmux.bus.relay.queues import QueueUnavailable
from wsmux.bus.relay.relay import Relay
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.relay.topic_log import Retention
from wsmux.bus.relay.topic_store import MemoryTopics
from wsmux.bus.relay.topics import MAX_READERS, publishers_of
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import Kind, digest, kind_of, parse, request
from wsmux.bus.wire.messages import Envelope
from wsmux.bus.wire.topics import (
    MAX_DATA,
    NEW,
    OLDEST,
    PUBLISH,
    READ,
    START,
    STOP,
    Batch,
    Position,
    publish_answer,
    read_answer,
    read_body,
)
from wsmux.exceptions import NoThreadError
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.publications import publication
from ...helpers.bus.relays import Node, Table, identity, metric, raw, relay, served
from ...helpers.raw_peer import BINARY
from ...helpers.timeouts import WAIT
from ...helpers.waiting import wait_for

READER = "0" * 16


class Store(MemoryTopics):
    """Fail to read as a test tells it, and do something before or behind a read."""

    def __init__(self) -> None:
        super().__init__(Retention(messages=5), max_topics=2)
        self.failures: list[Exception] = []
        self.before: list[Callable[[], object]] = []
        self.behind: list[Callable[[], object]] = []

    def read(self, topic: str, after: Position | str, credit: int, deadline: Deadline) -> Batch:
        if self.before:
            self.before.pop()()
        if self.failures:
            raise self.failures.pop()
        batch = super().read(topic, after, credit, deadline)
        if self.behind:
            self.behind.pop()()
        return batch


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def twins() -> Table:
    return Table()


@pytest.fixture
def made(store: Store, twins: Table) -> Relay:
    return relay(twins, topics=store)


@pytest.fixture
def server(made: Relay) -> Iterator[RelayServer]:
    with served(made) as running:
        yield running


@pytest.fixture
def node(server: RelayServer) -> Iterator[Callable[[int], Node]]:
    with ExitStack() as stack:
        yield lambda twin: stack.enter_context(Node(server, twin))


def ask(node: Node, command: str, body: bytes, **fields: object) -> Envelope:
    """Send a signed request to the relay itself."""
    uid = str(fields.pop("uid", uuid.uuid4()))
    now, life = int(time.time()), int(str(fields.pop("life", 60)))
    made = request(uid, node.address, Address(0), command, now, life, plain=body)
    made.signature = identity(node.address.twin).sign(digest(made))
    assert not fields
    node.put(made)
    return made


def send(node: Node, data: bytes = b"1", topic: str = "news", signer: int = 1) -> Envelope:
    """Publish as twin 1."""
    made = publication(identity(signer), node.address, data, topic)
    node.put(made)
    return made


def publish(node: Node, data: bytes = b"1", topic: str = "news") -> Position:
    send(node, data, topic)
    answer = node.take()
    assert kind_of(answer) is Kind.RESPONSE, answer.error.message
    return publish_answer(answer.plain)


def read(
    node: Node,
    after: Position | str = START,
    credit: int = 10,
    wait: float = WAIT,
    reader: str = READER,
) -> Envelope:
    return ask(node, READ, read_body("news", reader, after, credit, wait))


def batch(node: Node, asked: Envelope) -> Batch:
    answer = node.take()
    assert answer.uid == asked.uid
    assert kind_of(answer) is Kind.RESPONSE, answer.error.message
    return read_answer(answer.plain)


def refusal(node: Node) -> tuple[int, str]:
    answer = node.take()
    assert kind_of(answer) is Kind.ERROR
    return answer.error.code, answer.error.message


def waiting(server: RelayServer, count: int) -> None:
    wait_for(lambda: metric(server, "relay_topic_readers") == count, WAIT)


def test_a_read_waits_for_a_message(node: Callable[[int], Node], server: RelayServer) -> None:
    alice, bob = node(1), node(2)
    asked = read(bob)
    waiting(server, 1)
    position = publish(alice)
    got = batch(bob, asked)
    assert (got.epoch, got.first, len(got.envelopes)) == (*position, 1)
    waiting(server, 0)


def test_a_read_whose_time_is_over_is_told_nothing(node: Callable[[int], Node]) -> None:
    alice, bob = node(1), node(2)
    assert batch(bob, read(bob, wait=0.01)) == Batch(0, 1, [])
    position = publish(alice)
    assert batch(bob, read(bob, position, wait=0.01)).end() == position


def test_a_read_without_credit_or_wait_is_answered_at_once(node: Callable[[int], Node]) -> None:
    alice, bob = node(1), node(2)
    first = publish(alice)
    assert batch(bob, read(bob, first, credit=0)).end() == first
    assert batch(bob, read(bob, first, wait=0)).end() == first
    assert batch(bob, read(bob, NEW)).end() == first
    assert len(batch(bob, read(bob, OLDEST)).envelopes) == 1


def test_readers_at_many_places_are_all_told(
    node: Callable[[int], Node], server: RelayServer
) -> None:
    alice, bob = node(1), node(2)
    first = publish(alice)
    places = [Position(first.epoch, 1 + number % 20) for number in range(40)]
    asked = [read(bob, place, reader=f"{n:016x}") for n, place in enumerate(places)]
    bob.nothing()
    waiting(server, 40)
    for _ in range(4):
        publish(alice)
    told = [bob.take() for _ in range(8)]
    early = {each.uid for each, place in zip(asked, places, strict=True) if place.number < 5}
    assert {each.uid for each in told} == early
    waiting(server, 32)


def test_a_later_read_replaces_the_earlier(
    node: Callable[[int], Node], server: RelayServer
) -> None:
    alice, bob = node(1), node(2)
    read(bob)
    asked = read(bob)
    bob.nothing()  # the relay has both
    waiting(server, 1)
    publish(alice)
    assert batch(bob, asked).envelopes
    bob.nothing()


def test_a_read_that_is_stopped_is_not_answered(
    node: Callable[[int], Node], server: RelayServer
) -> None:
    alice, bob = node(1), node(2)
    read(bob)
    waiting(server, 1)
    body = read_body("news", READER, START, 0, 0.0)
    for _ in range(2):
        ask(bob, STOP, body)
        assert json.loads(bob.take().plain) is None
    waiting(server, 0)
    publish(alice)
    bob.nothing()


def test_the_end_of_a_connection_ends_its_reads(
    node: Callable[[int], Node], server: RelayServer
) -> None:
    bob, carol = node(2), node(3)
    for number in range(3):
        read(bob, reader=f"{number:016x}")
    read(carol)
    waiting(server, 4)
    bob.link.abort()
    waiting(server, 1)


def test_reads_of_a_connection_are_bounded(
    node: Callable[[int], Node], server: RelayServer
) -> None:
    bob = node(2)
    for number in range(MAX_READERS):
        read(bob, reader=f"{number:016x}")
    waiting(server, MAX_READERS)
    read(bob, reader="f" * 16)
    assert refusal(bob)[0] == TOO_MANY
    read(bob, reader="0" * 16)
    bob.nothing()
    waiting(server, MAX_READERS)


def test_a_reader_of_dropped_messages_is_told_at_once(
    node: Callable[[int], Node], server: RelayServer
) -> None:
    alice, bob = node(1), node(2)
    first = publish(alice)
    for _ in range(6):
        publish(alice)
    got = batch(bob, read(bob, first, credit=1))
    assert (got.first, len(got.envelopes)) == (3, 1)
    assert batch(bob, read(bob, Position(5, 5), credit=1)).first == 3
    assert batch(bob, read(bob, first, credit=0)).first == 3  # which only asks
    assert metric(server, "relay_topic_gaps_total") == 2


def test_a_publication_is_checked(node: Callable[[int], Node]) -> None:
    alice = node(1)
    made = send(alice, signer=2)
    assert refusal(alice) == (
        BAD_INPUT,
        "a message of 'news' is not signed by twin 1: it is refused",
    )
    ask(alice, PUBLISH, made.plain)
    assert "repeats another uid" in refusal(alice)[1]
    ask(alice, PUBLISH, b"{}")
    assert "name of a topic" in refusal(alice)[1]


def test_an_envelope_that_would_fit_no_answer_is_refused(node: Callable[[int], Node]) -> None:
    alice = node(1)
    made = send(alice, bytes(MAX_DATA))
    assert publish_answer(alice.take().plain).number == 1
    unknown = b"\xa2\x06\xff\xff\x0f" + bytes(0x3FFFF)  # a field 100 of bytes
    alice.send(made.SerializeToString() + unknown)
    code, text = refusal(alice)
    assert code == BAD_INPUT
    assert f"at most {MAX_REST} bytes beside its payload" in text


def test_a_publisher_that_cannot_be_looked_up_may_try_again(
    node: Callable[[int], Node], twins: Table
) -> None:
    alice = node(1)
    twins.down = True
    envelope = send(alice)
    assert refusal(alice) == (UNAVAILABLE, "the table is down")
    twins.down = False
    alice.put(envelope)
    assert publish_answer(alice.take().plain).number == 1


def test_a_copy_of_a_publication_is_kept_once(
    node: Callable[[int], Node], server: RelayServer
) -> None:
    alice, bob = node(1), node(2)
    envelope = send(alice)
    first = publish_answer(alice.take().plain)
    alice.put(envelope)
    assert publish_answer(alice.take().plain) == first
    assert len(batch(bob, read(bob)).envelopes) == 1


def test_topics_are_bounded(node: Callable[[int], Node]) -> None:
    alice = node(1)
    publish(alice, topic="a")
    publish(alice, topic="b")
    send(alice, topic="c")
    code, text = refusal(alice)
    assert code == TOO_MANY
    assert "there are 2 topics" in text


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "a b"},
        {"after": "yesterday"},
        {"after": 7},
        {"reader": "x"},
        {"credit": -1},
        {"credit": 1001},
        {"wait": 1.5},
        {"wait": 300_001},
    ],
)
def test_a_malformed_read_is_refused(
    node: Callable[[int], Node], change: dict[str, object]
) -> None:
    bob = node(2)
    fields = json.loads(read_body("news", READER, START, 1, 1.0)) | change
    ask(bob, READ, json.dumps(fields).encode())
    code, text = refusal(bob)
    assert code == BAD_INPUT
    assert f"expected {next(iter(change))} as" in text


def test_a_log_that_cannot_be_read_is_read_again(
    node: Callable[[int], Node], store: Store, server: RelayServer
) -> None:
    alice, bob = node(1), node(2)
    publish(alice)
    store.failures = [QueueUnavailable("the store fails")] * 2
    asked = read(bob)
    assert len(batch(bob, asked).envelopes) == 1
    store.failures = [QueueUnavailable("the store fails")]
    read(bob, NEW)
    assert refusal(bob) == (UNAVAILABLE, "the store fails")
    waiting(server, 0)


def test_a_message_that_comes_while_the_log_is_read_is_told_once(
    node: Callable[[int], Node], store: Store
) -> None:
    alice, bob = node(1), node(2)
    store.behind = [lambda: publish(alice)]  # the read finds nothing, and does not wait yet
    got = batch(bob, read(bob))
    assert len(got.envelopes) == 1
    bob.nothing()
    told = threading.Event()

    def publish_and_tell() -> None:
        store.behind = [told.set]  # of the thread, which finds the message first
        publish(alice)
        assert told.wait(WAIT)

    store.before = [publish_and_tell]
    assert len(batch(bob, read(bob, got.end())).envelopes) == 1
    bob.nothing()


def test_messages_for_a_connection_without_room_stay_in_the_log(made: Relay, store: Store) -> None:
    """Ask for far more than the connection takes, and read it only then."""
    with served(made, buffers=4096) as server, Node(server, 1) as alice:
        for _ in range(3):
            publish(alice, bytes(MAX_DATA))
        with raw(server, 2, buffer=4096) as slow:
            uids = [str(uuid.uuid4()) for _ in range(100)]
            for uid in uids:
                body = read_body("news", READER, START, 10, WAIT)
                asked = request(uid, Address(2), Address(0), READ, int(time.time()), 60, plain=body)
                slow.send_frame(BINARY, asked.SerializeToString())
            wait_for(lambda: made.sessions.get(Address(2)), WAIT)  # it may have its 101 before
            session = made.sessions.get(Address(2))
            assert session is not None
            wait_for(lambda: session.tally.rx == 100, WAIT)
            waiting(server, 1)
            sent = session.tally.tx
            assert 1 <= sent < 5
            answers = [parse(slow.recv_frame().payload) for _ in range(sent + 1)]
            assert [each.uid for each in answers] == [*uids[:sent], uids[-1]]
            assert len(read_answer(answers[-1].plain).envelopes) == 1
            waiting(server, 0)


@pytest.mark.parametrize("ends", [False, True])
def test_a_read_whose_room_is_taken_while_the_log_is_read_waits_on(
    made: Relay, store: Store, ends: bool
) -> None:
    with served(made, buffers=4096) as server, Node(server, 1) as alice:
        publish(alice)
        with raw(server, 2, buffer=4096) as slow:
            wait_for(lambda: made.sessions.get(Address(2)), WAIT)
            session = made.sessions.get(Address(2))
            assert session is not None

            def fill() -> None:
                while session.link.send_nowait(bytes(MAX_DATA)):
                    continue
                if ends:
                    session.link.abort()

            store.behind = [fill]
            uid, now = str(uuid.uuid4()), int(time.time())
            body = read_body("news", READER, START, 10, WAIT)
            asked = request(uid, Address(2), Address(0), READ, now, 60, plain=body)
            slow.send_frame(BINARY, asked.SerializeToString())
            wait_for(lambda: not store.behind, WAIT)
            if ends:
                waiting(server, 0)
                return
            waiting(server, 1)
            while not (data := slow.recv_frame().payload).strip(b"\0"):
                continue
            assert parse(data).uid == uid
            waiting(server, 0)


def test_a_fault_ends_the_read_that_it_concerns_alone(
    node: Callable[[int], Node],
    store: Store,
    server: RelayServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    alice, bob = node(1), node(2)
    read(bob)
    waiting(server, 1)
    bob.nothing()  # the log was read
    store.failures = [RuntimeError("a fault")]
    publish(alice)
    assert refusal(bob) == (UNAVAILABLE, "the relay failed to read the topic; its log says why")
    assert "a read of news failed" in caplog.text
    assert len(batch(bob, read(bob)).envelopes) == 1


def test_a_read_that_fails_at_once_does_not_wait(
    node: Callable[[int], Node], store: Store, server: RelayServer
) -> None:
    bob = node(2)
    store.failures = [RuntimeError("a fault")]
    read(bob)
    assert refusal(bob)[0] == FAILED
    waiting(server, 0)


def test_without_a_thread_a_read_cannot_wait(
    node: Callable[[int], Node], server: RelayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise NoThreadError("no thread is left")

    bob = node(2)
    monkeypatch.setattr(topics, "start_thread", refuse)
    read(bob)
    code, text = refusal(bob)
    assert (code, text) == (UNAVAILABLE, "the relay cannot wait for messages: no thread is left")
    waiting(server, 0)
    monkeypatch.undo()
    assert batch(bob, read(bob, wait=0.01)) == Batch(0, 1, [])


def test_any_topic_may_have_changed(node: Callable[[int], Node], store: Store, made: Relay) -> None:
    bob = node(2)
    asked = read(bob)
    bob.nothing()  # the log was read
    heard: list[object] = []
    store.watch(heard.append)  # so the relay does not hear of the message
    publish(node(1))
    bob.nothing()
    assert heard == [["news"]]
    made.topics.changed(None)
    assert len(batch(bob, asked).envelopes) == 1


def test_reads_and_publications_at_once_lose_nothing(server: RelayServer) -> None:
    """Let the message come between the read of the log and its wait, many times."""
    with Node(server, 1) as alice, Node(server, 2) as bob:
        after, seen = START, 0
        publisher = threading.Thread(target=lambda: [publish(alice) for _ in range(200)])
        publisher.start()
        while seen < 200:
            got = batch(bob, read(bob, after, credit=3))
            if got.first > after.number + 1:
                seen += got.first - after.number - 1
            seen += len(got.envelopes)
            after = got.end()
        publisher.join(WAIT)
        assert after.number == 200


def test_the_copy_in_a_child_serves_nobody(made: Relay) -> None:
    made.topics.forked()
    made.topics.close(Deadline(WAIT))


def test_topics_of_nobody_and_wrong_names_are_refused() -> None:
    assert publishers_of({"orders": [1, 1, 2]}) == {"orders": frozenset({1, 2})}
    with pytest.raises(ValueError, match="nobody may publish"):
        publishers_of({"orders": []})
    with pytest.raises(ValueError, match="name of a topic"):
        publishers_of({"a b": [1]})
