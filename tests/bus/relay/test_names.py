"""Names at relays: who is handed what, here and with relays that share a Redis."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import BAD_INPUT, NAME_TAKEN, NOBODY_JOINED, UNAVAILABLE, WORKERS_GONE
from wsmux.bus.relay import names as relay_names
from wsmux.bus.relay.memory_queues import MemoryQueues
from wsmux.bus.relay.name_store import MemoryNames
from wsmux.bus.relay.queues import QueueUnavailable, SharedMailbox
from wsmux.bus.relay.rate_limiter import FixedWindow
from wsmux.bus.relay.redis_names import RedisNames
from wsmux.bus.relay.redis_queues import RedisQueues
from wsmux.bus.relay.redis_rounds import rounds_key, take
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.session.link import dial
from wsmux.bus.twins.records import twin_record
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import Kind, error, kind_of, parse, response
from wsmux.bus.wire.messages import Envelope
from wsmux.bus.wire.names import Presence, Worker, shared_address
from wsmux.bus.wire.tokens import make_token
from wsmux.exceptions import HandshakeError
from wsmux.runtime.deadline import Deadline
from wsmux.storage.redis_client import run_together

from ...helpers.bus.inside import joined_names
from ...helpers.bus.relay_process import RelayProcess
from ...helpers.bus.relays import DOMAIN, Node, Table, ask, identity, metric, raw, relay, served
from ...helpers.bus.session_queues import take_all
from ...helpers.raw_peer import BINARY, WAIT, wait_for
from ...helpers.redis_server import RedisServer

SHARED = shared_address(2, "billing")
TWIN_0 = Address(0)
JOIN = json.dumps({"name": "billing", "at_once": 1000}).encode()


@pytest.fixture
def server() -> Iterator[RelayServer]:
    with served(relay(name_store=MemoryNames(grace=1.0))) as running:
        yield running


def asks(node: Node, command: str, **payload: object) -> Envelope:
    """Ask the relay, and return its answer; what came before it comes again after it."""
    uid = node.ask(TWIN_0, command=command, plain=json.dumps(payload).encode()).uid
    before: list[Envelope] = []
    while (got := node.take()).uid != uid:
        before.append(got)
    for each in before:
        node.got.put(each.SerializeToString())
    return got


def join(node: Node, name: str = "billing", **options: object) -> None:
    answer = asks(node, "relay.join", name=name, **options)
    assert kind_of(answer) is Kind.RESPONSE, answer.error.message


def code(answer: Envelope) -> int:
    assert kind_of(answer) is Kind.ERROR
    return answer.error.code


def answer(node: Node, asked: Envelope) -> None:
    node.put(response(asked, node.address, int(time.time()), 60, plain=b"1"))


def test_a_worker_gets_no_more_than_it_wants_at_once(server: RelayServer) -> None:
    with Node(server, 1) as one, Node(server, 2, "w") as worker:
        join(worker, at_once=2)
        sent = [one.ask(SHARED).uid for _ in range(3)]
        got = [worker.take(), worker.take()]
        assert [each.uid for each in got] == sent[:2]
        worker.nothing()
        assert metric(server, "relay_name_pending") == 2
        answer(worker, got[1])
        assert worker.take().uid == sent[2]
        assert one.take().uid == sent[1]


def test_an_error_is_an_answer(server: RelayServer) -> None:
    with Node(server, 1) as one, Node(server, 2, "w") as worker:
        join(worker, at_once=1)
        first, second = one.ask(SHARED), one.ask(SHARED)
        worker.put(error(worker.take(), worker.address, 500, "no", int(time.time()), 60))
        assert worker.take().uid == second.uid
        assert one.take().uid == first.uid


def test_what_is_not_answered_goes_to_the_next_worker(server: RelayServer) -> None:
    with Node(server, 1) as one, Node(server, 2, "b") as other:
        with Node(server, 2, "a") as worker:
            join(worker)
            sent = [one.ask(SHARED).uid for _ in range(3)]
            got = [worker.take() for _ in sent]
            join(other)
            answer(worker, got[0])
            assert one.take().uid == sent[0]
        assert [other.take().uid for _ in range(2)] == sent[1:]
        assert metric(server, "relay_name_redelivered") == 2


def test_a_copy_of_a_request_that_waits_is_dropped(server: RelayServer) -> None:
    with Node(server, 1) as one, Node(server, 2, "w") as worker:
        join(worker)
        asked = one.ask(SHARED)
        one.put(asked)
        assert worker.take() == asked
        worker.nothing()


def test_a_copy_of_a_request_that_was_answered_goes_to_who_answered(server: RelayServer) -> None:
    with Node(server, 1) as one, Node(server, 2, "a") as a, Node(server, 2, "b") as b:
        join(a)
        asked = one.ask(SHARED)
        answer(a, a.take())
        one.take()
        join(b)
        for _ in range(3):
            wait_for(lambda: metric(server, "relay_name_pending") == 0, WAIT)
            one.put(asked)
            answer(a, a.take())
            one.take()
        b.nothing()


def test_a_new_owner_gets_nothing_of_the_old_one() -> None:
    """A worker of the old one still has a request when another twin claims the name."""
    with (
        served(relay(name_store=MemoryNames(grace=0.0))) as server,
        Node(server, 1) as one,
        Node(server, 2, "old") as old,
        Node(server, 3, "new") as new,
    ):
        join(old)
        first = one.ask(SHARED)
        got = old.take()
        assert kind_of(asks(old, "relay.leave", name="billing")) is Kind.RESPONSE
        join(new)
        second = one.ask(shared_address(3, "billing"))
        assert new.take().uid == second.uid
        answer(old, got)
        assert one.take().uid == first.uid
        old.nothing()
        new.nothing()


def test_what_is_no_request_is_dropped(server: RelayServer) -> None:
    with Node(server, 1) as one, Node(server, 2, "w") as worker:
        join(worker, at_once=1)
        made = ask(one.address, SHARED)
        made.response.SetInParent()
        one.put(made)
        asked = one.ask(SHARED)
        assert worker.take().uid == asked.uid


def test_answers_of_others_end_nothing(server: RelayServer) -> None:
    """Not one of another twin, nor one to another requester."""
    with (
        Node(server, 1) as one,
        Node(server, 2, "w") as worker,
        Node(server, 3) as foreign,
        Node(server, 2, "next") as after,
    ):
        join(worker)
        asked = one.ask(SHARED)
        got = worker.take()
        answer(foreign, asked)
        one.take()
        got.source.twin = 3
        answer(worker, got)
        foreign.take()
        join(after)
        worker.link.abort()
        assert after.take().uid == asked.uid


def test_what_expires_frees_its_worker(
    server: RelayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_names, "TICK", 0.05)
    with Node(server, 1) as one, Node(server, 2, "w") as worker:
        join(worker, at_once=1)
        one.ask(SHARED, life=2)
        worker.take()
        late, good = one.ask(SHARED, life=1), one.ask(SHARED)
        assert worker.take().uid == good.uid
        assert one.refused() == (late.uid, "message has expired")


def test_a_name_must_be_one(server: RelayServer) -> None:
    with Node(server, 2, "w") as worker:
        for command in ("relay.join", "relay.leave", "relay.who"):
            for name in ("", "1", "@a", 5, None, "a" * 65):
                assert code(asks(worker, command, name=name)) == BAD_INPUT
        for count in (0, 1025, "1"):
            assert code(asks(worker, "relay.join", name="a", at_once=count)) == BAD_INPUT


def test_requests_to_no_name_are_refused(server: RelayServer) -> None:
    with Node(server, 1) as one, Node(server, 2, "w") as worker:
        one.ask(SHARED)
        assert code(one.take()) == NOBODY_JOINED
        join(worker)
        one.ask(shared_address(3, "billing"))  # it is not the name of that twin
        assert code(one.take()) == NOBODY_JOINED
        assert metric(server, 'relay_message_refused_total{reason="nobody has joined the name"}')
        assert code(asks(one, "relay.join", name="billing")) == NAME_TAKEN
        asks(worker, "relay.leave", name="billing")
        one.ask(SHARED, tags="fail-fast")
        assert code(one.take()) == NOBODY_JOINED


def test_no_connection_is_that_of_a_name(server: RelayServer) -> None:
    with pytest.raises(HandshakeError, match="begins with '@'") as caught:
        dial(
            server.url,
            lambda: make_token(identity(2), 2, "@billing", int(time.time())),
            Deadline(WAIT),
        )
    assert caught.value.status == 401


def test_a_session_that_is_taken_over_does_not_leave(server: RelayServer) -> None:
    with Node(server, 1) as one, Node(server, 2, "w") as before:
        join(before)
        asked = one.ask(SHARED)
        before.take()
        with Node(server, 2, "w") as after:
            join(after)
            assert before.ended()[0] == 4001
            assert after.take().uid == asked.uid
            found = json.loads(asks(one, "relay.who", name="billing").plain)
            assert [each["session"] for each in found["workers"]] == ["w"]


def test_an_answer_that_is_dropped_frees_its_worker() -> None:
    limited = relay(limiter=FixedWindow(3, 10_000, window=1e12), pause=lambda _: None)
    with (
        served(limited) as server,
        Node(server, 1) as one,
        Node(server, 2, "w") as worker,
        Node(server, 3) as other,
    ):
        join(worker, at_once=1)
        sent = [one.ask(SHARED) for _ in range(3)]
        for each in sent:  # the last answer is above the limit
            got = worker.take()
            assert got.uid == each.uid
            answer(worker, got)
        last = other.ask(SHARED)
        assert worker.take().uid == last.uid


def test_a_worker_that_leaves_is_none_for_what_must_not_wait(server: RelayServer) -> None:
    with Node(server, 1) as one, Node(server, 2, "w") as worker:
        join(worker)
        asked = one.ask(SHARED)
        got = worker.take()
        asks(worker, "relay.leave", name="billing")
        one.ask(SHARED, tags="fail-fast")
        assert code(one.take()) == NOBODY_JOINED
        answer(worker, got)
        assert one.take().uid == asked.uid


def test_what_a_session_has_left_is_not_kept() -> None:
    made = relay()
    with served(made) as server, Node(server, 1) as one, Node(server, 2, "w") as worker:
        for name in ("a", "b", "c"):
            join(worker, name)
            asks(worker, "relay.leave", name=name)
            assert joined_names(made) == 0
        join(worker)
        one.ask(SHARED)
        got = worker.take()
        asks(worker, "relay.leave", name="billing")
        assert joined_names(made) == 1
        answer(worker, got)
        one.take()
        join(worker, "a")
        assert joined_names(made) == 1


class HeldQueues(MemoryQueues):
    """Fail to open the first mailbox of a name, when they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.opening, self.fail = threading.Event(), threading.Event()

    def open_shared(self, address: Address, wake: Callable[[], None]) -> SharedMailbox:
        if not self.opening.is_set():
            self.opening.set()
            assert self.fail.wait(WAIT)
            raise QueueUnavailable("not now")
        return super().open_shared(address, wake)


def test_who_joins_while_opening_a_name_fails_is_handed_requests() -> None:
    queues, store = HeldQueues(), MemoryNames()
    with (
        served(relay(queues=queues, name_store=store)) as server,
        Node(server, 1) as one,
        Node(server, 2, "a") as first,
        Node(server, 2, "b") as second,
    ):
        refused = first.ask(TWIN_0, command="relay.join", plain=JOIN)
        assert queues.opening.wait(WAIT)
        accepted = second.ask(TWIN_0, command="relay.join", plain=JOIN)
        wait_for(lambda: (found := store.look("billing")) and len(found.workers) == 2, WAIT)
        queues.fail.set()
        got = first.take()
        assert (got.uid, code(got)) == (refused.uid, UNAVAILABLE)
        assert second.take().uid == accepted.uid
        sent = {one.ask(SHARED).uid for _ in range(2)}
        assert {first.take().uid, second.take().uid} == sent


class HeldNames(MemoryNames):
    """Claims that a worker leaves only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving, self.may_leave = threading.Event(), threading.Event()

    def leave(self, name: str, owner: int, session: str | None, connection: int = 0) -> None:
        self.leaving.set()
        assert self.may_leave.wait(WAIT)
        super().leave(name, owner, session, connection)
        self.leaving.clear()


def test_the_end_of_a_connection_is_not_that_of_the_next_one_of_its_session() -> None:
    store = HeldNames()
    with served(relay(name_store=store)) as server:
        with Node(server, 2, "w") as before:
            join(before)
        assert store.leaving.wait(WAIT)
        with Node(server, 2, "w") as after:
            join(after)
            store.may_leave.set()
            wait_for(lambda: not store.leaving.is_set(), WAIT)
            found = json.loads(asks(after, "relay.who", name="billing").plain)
            assert [each["session"] for each in found["workers"]] == ["w"]


def test_a_worker_that_does_not_read_holds_up_nobody() -> None:
    count, asked = 40, ask(Address(2, "slow"), TWIN_0, command="relay.join", plain=JOIN)
    with served(buffers=4096) as server, Node(server, 1) as one, Node(server, 2, "fast") as fast:
        with raw(server, 2, "slow", buffer=4096) as slow:
            slow.send_frame(BINARY, asked.SerializeToString())
            assert parse(slow.recv_frame().payload).uid == asked.uid
            join(fast, at_once=1)
            sent = {one.ask(SHARED, plain=bytes(64 * 1024)).uid for _ in range(count)}
            got = set()
            for _ in range(count // 2):
                got.add((each := fast.take()).uid)
                answer(fast, each)
        while len(got) < count:  # what the slow one had, too
            got.add((each := fast.take()).uid)
            answer(fast, each)
        assert got == sent


def test_what_cannot_be_run_is_no_workers(server: RelayServer) -> None:
    """What is no envelope is dropped, and the requester of what has expired is told."""
    with Node(server, 1) as one, Node(server, 2, "w") as worker:
        late = ask(one.address, SHARED, now=time.time() - 100)
        good = ask(one.address, SHARED)
        for data in (b"\xff\xff", late.SerializeToString(), good.SerializeToString()):
            server.relay.deliver(SHARED, data, 2**40)
        join(worker)
        assert worker.take().uid == good.uid
        assert one.refused() == (late.uid, "message has expired")


class TogetherQueues(MemoryQueues):
    """Put something to a name in a thread that puts something else, as those in Redis do."""

    other: Envelope | None = None

    def put(
        self, address: Address, data: bytes, expires_at: int, deadline: Deadline, source: int = 0
    ) -> None:
        other, self.other = self.other, None
        if other is not None:
            super().put(SHARED, other.SerializeToString(), 2**40, deadline, 1)
        super().put(address, data, expires_at, deadline, source)


def test_a_request_that_expired_is_answered_behind_what_wakes_its_name() -> None:
    """Its requester does not read, so the answer is queued, behind what is just being queued."""
    queues = TogetherQueues()
    with (
        served(relay(queues=queues), buffers=4096) as server,
        Node(server, 2, "w") as worker,
        Node(server, 3) as sender,
        raw(server, 1, buffer=4096) as slow,
    ):
        join(worker)
        queues.other = late = ask(Address(1), SHARED, life=0)
        for _ in range(60):
            sender.ask(Address(1), plain=bytes(10_000))
        sender.nothing()
        assert queues.other is None
        while kind_of(got := parse(slow.recv_message())) is not Kind.ERROR:
            pass
        assert (got.uid, got.error.message) == (late.uid, "message has expired")


class FailingNames(MemoryNames):
    """Claims that cannot be reached while they are down."""

    down = False

    def _check(self) -> None:
        if self.down:
            raise QueueUnavailable("names are not known")

    def join(self, name: str, owner: int, session: str | None, connection: int = 0) -> Presence:
        self._check()
        return super().join(name, owner, session, connection)

    def leave(self, name: str, owner: int, session: str | None, connection: int = 0) -> None:
        self._check()
        super().leave(name, owner, session, connection)

    def look(self, name: str) -> Presence | None:
        self._check()
        return super().look(name)

    def keep(self) -> None:
        self._check()


def test_while_claims_cannot_be_reached_workers_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(relay_names, "TICK", 0.05)
    store = FailingNames()
    with (
        served(relay(name_store=store)) as server,
        Node(server, 1) as one,
        Node(server, 2, "b") as other,
    ):
        with Node(server, 2, "a") as worker:
            join(worker)
            asked = one.ask(SHARED)
            assert worker.take().uid == asked.uid
            join(other)
            store.down = True
            assert code(asks(one, "relay.who", name="billing")) == UNAVAILABLE
            assert code(asks(other, "relay.join", name="second")) == UNAVAILABLE
            one.ask(shared_address(2, "second"))
            assert one.refused()[1] == "names are not known"
        assert other.take().uid == asked.uid
        answer(other, asked)
        assert one.take().uid == asked.uid
        wait_for(lambda: "claims of names are not renewed" in caplog.text, WAIT)
        store.down = False


@pytest.fixture
def make_queues(server_of_redis: RedisServer) -> Callable[[], RedisQueues]:
    """Make queues in an empty Redis; a relay closes its own."""
    with server_of_redis.client() as client:
        client.flushall()
    return lambda: RedisQueues(server_of_redis.client())


def test_who_could_not_leave_gets_nothing_and_may_leave_again() -> None:
    store = FailingNames()
    with (
        served(relay(name_store=store)) as server,
        Node(server, 1) as one,
        Node(server, 2, "w") as worker,
    ):
        join(worker)
        store.down = True
        assert code(asks(worker, "relay.leave", name="billing")) == UNAVAILABLE
        store.down = False
        one.ask(SHARED)
        assert not one.answers()  # the claim stands
        worker.nothing()
        asks(worker, "relay.leave", name="billing")
        found = store.look("billing")
        assert found is not None
        assert not found.workers


@pytest.fixture(params=["memory", "redis"])
def soon_over(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    server_of_redis: RedisServer,
    make_queues: Callable[[], RedisQueues],
) -> Iterator[RelayServer]:
    """Serve a relay whose names end soon after their workers have left."""
    monkeypatch.setattr(relay_names, "TICK", 0.05)
    monkeypatch.setattr(relay_names, "DRAIN_TIME", 0.2)
    if request.param == "memory":
        made = relay(name_store=MemoryNames(grace=0.1))
    else:
        store = RedisNames(server_of_redis.client(), grace=0.1)
        made = relay(queues=make_queues(), name_store=store)
    with served(made) as server:
        yield server


def lost_by_a_worker(server: RelayServer, one: Node) -> list[str]:
    """Return the uids of two requests to a worker whose connection has ended."""
    with Node(server, 2, "b") as worker:
        join(worker, at_once=2)
        sent = [one.ask(SHARED).uid for _ in range(2)]
        assert [worker.take().uid for _ in sent] == sent
    return sent


def test_what_waits_is_refused_while_the_last_worker_finishes_what_it_has(
    soon_over: RelayServer,
) -> None:
    with Node(soon_over, 1) as one, Node(soon_over, 2, "a") as last:
        join(last, at_once=1)
        first = one.ask(SHARED)
        got = last.take()
        handed = lost_by_a_worker(soon_over, one)
        queued = one.ask(SHARED).uid
        asks(last, "relay.leave", name="billing")
        refused = [one.take() for _ in range(3)]
        assert {code(each) for each in refused} == {WORKERS_GONE}
        assert {each.uid for each in refused} == {*handed, queued}
        answer(last, got)
        assert one.take().uid == first.uid


@pytest.fixture
def two_relays(
    make_queues: Callable[[], RedisQueues], server_of_redis: RedisServer
) -> Iterator[list[RelayServer]]:
    """Serve two relays that share a Redis."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                served(
                    relay(queues=make_queues(), name_store=RedisNames(server_of_redis.client())),
                    buffers=4096,
                )
            )
            for _ in range(2)
        ]


def test_what_waits_for_workers_that_leave_goes_to_another_relay(
    two_relays: list[RelayServer],
) -> None:
    here, there = two_relays
    with Node(here, 1) as one, Node(here, 2, "a") as last, Node(there, 2, "c") as elsewhere:
        join(last, at_once=1)
        first = one.ask(SHARED)
        got = last.take()
        sent = lost_by_a_worker(here, one)
        asks(last, "relay.leave", name="billing")
        join(elsewhere, at_once=2)
        assert sorted(elsewhere.take().uid for _ in sent) == sorted(sent)
        answer(last, got)
        assert one.take().uid == first.uid


def test_what_waits_for_workers_that_do_not_read_goes_to_another_relay(
    two_relays: list[RelayServer],
) -> None:
    here, there = two_relays
    asked = ask(Address(2, "slow"), TWIN_0, command="relay.join", plain=JOIN)
    with (
        Node(here, 1) as one,
        Node(there, 2, "fast") as fast,
        raw(here, 2, "slow", buffer=4096) as slow,
    ):
        slow.send_frame(BINARY, asked.SerializeToString())
        assert parse(slow.recv_frame().payload).uid == asked.uid
        sent = [one.ask(SHARED, plain=bytes(64 * 1024)).uid for _ in range(14)]  # below 1 MiB
        wait_for(lambda: metric(here, "relay_name_pending") == len(sent), WAIT)
        join(fast)
        while (got := fast.take()).uid != sent[-1]:
            assert got.uid in sent


class EndingNames(MemoryNames):
    """Claims of names that are over, or are claimed again, when the test says so."""

    def __init__(self) -> None:
        super().__init__(grace=0.0)
        self.over = self.again = False
        self.done: list[str] = []

    def look(self, name: str) -> Presence | None:
        self.done.append(name)
        if not self.over:
            return Presence(name, 2, 0.0)
        if not self.again:
            return None
        return Presence(name, 2, 0.0, (Worker("elsewhere", 0.0),))

    def keep(self) -> None:
        self.done.append("keep")


def test_claims_are_renewed_between_the_ends_of_names(
    make_queues: Callable[[], RedisQueues], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_names, "TICK", 0.01)
    monkeypatch.setattr(relay_names, "DRAIN_TIME", 0.05)
    store = EndingNames()
    store.over = True
    names = ["a", "b", "c"]
    with served(relay(queues=make_queues(), name_store=store)) as server:
        with Node(server, 2, "w") as worker:
            for name in names:
                join(worker, name)
        wait_for(lambda: set(names) <= set(store.done), WAIT)
    looks = [at for at, what in enumerate(store.done) if what in names]
    assert all(store.done[at - 1] == "keep" for at in looks)


def queued(queues: RedisQueues, shared: Address) -> Envelope:
    made = ask(Address(1), shared)
    queues.put(shared, made.SerializeToString(), 2**40, Deadline(WAIT))
    return made


def test_what_comes_all_the_time_does_not_keep_the_thread(
    make_queues: Callable[[], RedisQueues], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_names, "TICK", 0.01)
    monkeypatch.setattr(relay_names, "DRAIN_TIME", 0.1)
    store, queues = EndingNames(), make_queues()
    with served(relay(queues=queues, name_store=store)) as server, Node(server, 1) as one:
        with Node(server, 2, "w") as worker:
            join(worker)
        store.over = True
        queued(queues, SHARED)
        assert code(one.take()) == WORKERS_GONE
        del store.done[:]
        end = Deadline(WAIT)
        while "keep" not in store.done:
            assert not end.expired()
            queued(queues, SHARED)
            assert code(one.take()) == WORKERS_GONE


def test_what_waits_is_refused_even_if_redis_is_away_when_the_name_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_names, "TICK", 0.01)
    monkeypatch.setattr(relay_names, "DRAIN_TIME", 0.1)
    store = EndingNames()
    with RedisServer(tmp_path, durable=True) as redis:
        queues = RedisQueues(redis.client())
        with served(relay(queues=queues, name_store=store)) as server, Node(server, 1) as one:
            with Node(server, 2, "w") as worker:
                join(worker)
            wait_for(lambda: store.done.count("billing") > 1, WAIT)  # the worker has gone
            asked = queued(queues, SHARED)
            redis.kill()
            store.over = True
            del store.done[:]
            wait_for(lambda: store.done.count("billing") > 2, WAIT)  # it was looked for in vain
            redis.start()
            assert (got := one.take()).uid == asked.uid
            assert code(got) == WORKERS_GONE


def test_what_was_taken_and_lost_is_refused_once_it_is_free_again(
    make_queues: Callable[[], RedisQueues],
    server_of_redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A relay has died, or has not heard the answer of Redis."""
    monkeypatch.setattr(relay_names, "TICK", 0.01)
    monkeypatch.setattr(relay_names, "DRAIN_TIME", 0.1)
    store, queues = EndingNames(), make_queues()
    lose = take(rounds_key(SHARED), "lost", 1, 1.0)
    with (
        server_of_redis.client() as client,
        served(relay(queues=queues, name_store=store)) as server,
        Node(server, 1) as one,
    ):
        with Node(server, 2, "w") as worker:
            join(worker)
        queued(queues, SHARED)
        wait_for(lambda: run_together(client, [lose])[0][1], WAIT)  # the worker may have it before
        store.over = True
        assert code(one.take()) == WORKERS_GONE


def test_what_comes_for_a_name_that_is_claimed_again_is_for_its_workers(
    make_queues: Callable[[], RedisQueues], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_names, "TICK", 0.01)
    monkeypatch.setattr(relay_names, "DRAIN_TIME", WAIT)
    store, queues = EndingNames(), make_queues()
    with served(relay(queues=queues, name_store=store)) as server, Node(server, 1) as one:
        with Node(server, 2, "w") as worker:
            join(worker)
        store.over = True
        queued(queues, SHARED)
        assert code(one.take()) == WORKERS_GONE
        store.again = True  # at another relay
        del store.done[:]
        asked = queued(queues, SHARED)
        wait_for(lambda: "billing" in store.done, WAIT)  # the drain has it
        other = make_queues()
        try:
            mailbox = other.open_shared(SHARED, lambda: None)
            assert take_all(mailbox, 1)[0].data == asked.SerializeToString()
        finally:
            other.close(Deadline(WAIT))
        assert not one.answers()


# Relays that share a Redis


class Twin:
    """A client that serves ``who`` and counts."""

    def __init__(self, number: int, session: str, urls: str | list[str], table: Table) -> None:
        self.ran: Counter[object] = Counter()
        self.hold = threading.Event()
        self.hold.set()
        self.client = Client(identity(number), urls, table, twin=number, session=session)
        self.client.serve({"who": self._who}, workers=4)
        self.session = session

    def _who(self, payload: object) -> str:
        self.ran[payload] += 1
        assert self.hold.wait(WAIT)
        return self.session


@pytest.fixture
def relays(server_of_redis: RedisServer, tmp_path: Path) -> Iterator[list[RelayProcess]]:
    with server_of_redis.client() as client:
        client.flushall()
    twins = tmp_path / "twins.json"
    twins.write_text(json.dumps([twin_record(twin) for twin in Table().twins.values()]))
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                RelayProcess(DOMAIN, twins, tmp_path / f"log{n}", f"--redis={server_of_redis.url}")
            )
            for n in range(2)
        ]


@pytest.fixture
def server_of_redis(server_of_module: RedisServer) -> RedisServer:
    return server_of_module


@pytest.fixture(scope="module", name="server_of_module")
def made_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as made:
        yield made


def test_workers_at_different_relays_share_a_name(relays: list[RelayProcess]) -> None:
    table = Table()
    with ExitStack() as stack:
        workers = [Twin(2, str(n), relays[n % 2].url, table) for n in range(3)]
        for each in workers:
            stack.enter_context(each.client)
            each.client.join("billing", timeout=WAIT)
        callers = [
            stack.enter_context(Client(identity(1), each.url, table, twin=1)) for each in relays
        ]
        for caller in callers:
            found = caller.who("billing", timeout=WAIT)
            assert sorted(each.session or "" for each in found.workers) == ["0", "1", "2"]
        futures = [callers[n % 2].submit("billing", "who", n, timeout=WAIT) for n in range(200)]
        answers = Counter(each.result(WAIT) for each in futures)
        assert answers.total() == 200
        ran = sum((each.ran for each in workers), Counter[object]())
        assert ran == dict.fromkeys(range(200), 1)
        assert answers.keys() == {"0", "1", "2"}


def test_a_killed_relay_loses_no_call(relays: list[RelayProcess]) -> None:
    table = Table()
    urls = [each.url for each in relays]
    with ExitStack() as stack:
        workers = [Twin(2, "0", urls[:1], table), Twin(2, "1", urls[1:], table)]
        for each in workers:
            stack.enter_context(each.client)
            each.client.join("billing", timeout=WAIT)
        caller = stack.enter_context(Client(identity(1), urls[1], table, twin=1))
        futures = [caller.submit("billing", "who", n, timeout=2 * WAIT) for n in range(50)]
        relays[0].kill()
        futures += [caller.submit("billing", "who", n, timeout=2 * WAIT) for n in range(50, 100)]
        answers = [each.result(2 * WAIT) for each in futures]
        assert len(answers) == 100
        assert answers[-1] == "1"
        wait_for(
            lambda: [each.session for each in caller.who("billing", timeout=WAIT).workers] == ["1"],
            WAIT,
        )


def test_a_relay_that_is_killed_and_starts_again_loses_no_call(relays: list[RelayProcess]) -> None:
    relay, table = relays[0], Table()
    twin = Twin(2, "0", relay.url, table)
    with twin.client as worker, Client(identity(1), relay.url, table, twin=1) as caller:
        worker.join("billing", timeout=WAIT)
        twin.hold.clear()
        futures = [caller.submit("billing", "who", n, timeout=2 * WAIT) for n in range(20)]
        wait_for(lambda: twin.ran.total() == 4, WAIT)  # as many as it has threads
        relay.kill()
        relay.start()
        twin.hold.set()
        assert [each.result(2 * WAIT) for each in futures] == 20 * ["0"]
    assert twin.ran == dict.fromkeys(range(20), 1)
