"""Calls by name: shared by workers, handed on when one goes, refused when nobody is there."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import (
    FAILED,
    BusError,
    CallTimeout,
    NameTaken,
    NobodyJoined,
    RelayRefused,
)
from wsmux.bus.relay.memory_queues import MemoryQueues
from wsmux.bus.relay.name_store import MemoryNames
from wsmux.bus.relay.queues import NameBounds
from wsmux.bus.relay.redis_names import RedisNames
from wsmux.bus.relay.redis_queues import RedisQueues
from wsmux.bus.relay.relay import Relay
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.session.identity_session import clock
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.names import Presence, shared_address

from ..helpers.bus.clients import WAIT, all_connected, client, known, staged
from ..helpers.bus.inside import links_of
from ..helpers.bus.people import person, table_of
from ..helpers.bus.relays import Node, metric, relay, served
from ..helpers.bus.scripted_relay import StageRelay
from ..helpers.redis_server import RedisServer, redis_server
from ..helpers.timeouts import CONNECTS
from ..helpers.waiting import wait_for, wait_for_value

stage = pytest.fixture(staged)

TWINS = table_of(*map(person, range(1, 6)))

Made = Callable[..., Client]


server_of_redis = pytest.fixture(scope="module", name="redis")(redis_server)


@pytest.fixture
def name_bounds() -> NameBounds | None:
    """Leave the bounds as they are."""
    return None


@pytest.fixture
def grace() -> float:
    """Return how long a name without workers is kept, in seconds."""
    return WAIT


@pytest.fixture(params=["memory", "redis", "fast"])
def made(request: pytest.FixtureRequest, name_bounds: NameBounds | None, grace: float) -> Relay:
    options: dict[str, Any] = {
        "queues": MemoryQueues(name_bounds=name_bounds),
        "name_store": MemoryNames(grace=grace),
    }
    if request.param != "memory":
        redis: RedisServer = request.getfixturevalue("redis")
        with redis.client() as client:
            client.flushall()
        options = {
            "queues": RedisQueues(redis.client(), name_bounds),
            "name_store": RedisNames(redis.client(), grace=grace),
            "fast": request.param == "fast",
        }
    return relay(TWINS, names={"pinned": 5}, **options)


@pytest.fixture
def server(made: Relay) -> Iterator[RelayServer]:
    with served(made) as running:
        yield running


@pytest.fixture
def twin(server: RelayServer) -> Iterator[Made]:
    """Make clients of a twin; they are closed at the end."""
    with ExitStack() as stack:

        def make(number: int, **options: Any) -> Client:
            options.setdefault("twin", number)
            return stack.enter_context(
                Client(person(number).identity, server.url, TWINS, **options)
            )

        yield make


@pytest.fixture
def caller(twin: Made) -> Client:
    return twin(1)


class Worker:
    """A worker of twin 2 that says who it is, and may be held while it runs."""

    def __init__(self, made: Client) -> None:
        self.client = made
        self.ran: Counter[object] = Counter()
        self.running = threading.Semaphore(0)
        self.hold = threading.Event()
        self.hold.set()
        made.serve({"who": self._who, "fail": self._fail}, workers=4)

    @property
    def session(self) -> str:
        assert self.client.address.session is not None
        return self.client.address.session

    def _who(self, payload: object) -> str:
        self.ran[payload] += 1
        self.running.release()
        assert self.hold.wait(WAIT)
        return self.session

    def _fail(self, payload: object) -> None:
        raise BusError(42, "on purpose")


@pytest.fixture
def workers(twin: Made) -> list[Worker]:
    made = [Worker(twin(2, session=session)) for session in "abc"]
    for each in made:
        each.client.join("billing", timeout=WAIT)
    return made


def cut(worker: Worker) -> None:
    """Cut its connection, and let it come no more."""
    for link in links_of(worker.client):
        link.hold("the test cuts it")


def test_workers_answer_in_turn(caller: Client, workers: list[Worker]) -> None:
    answers = [caller.call("billing", "who", n, timeout=WAIT) for n in range(9)]
    assert Counter(answers) == {"a": 3, "b": 3, "c": 3}
    assert answers[:3] == answers[3:6] == answers[6:]


def test_an_error_is_that_of_the_worker(caller: Client, workers: list[Worker]) -> None:
    with pytest.raises(BusError, match="on purpose") as caught:
        caller.call("billing", "fail", timeout=WAIT)
    assert (caught.value.code, caught.value.twin) == (42, 2)


def test_bytes_go_by_name_too(caller: Client, workers: list[Worker]) -> None:
    assert caller.call_raw("billing", "who", b"1", timeout=WAIT).data in (b'"a"', b'"b"', b'"c"')


def test_a_twin_calls_its_own_name(workers: list[Worker]) -> None:
    first = workers[0].client
    assert {first.call("billing", "who", n, timeout=WAIT) for n in range(3)} == {"a", "b", "c"}


def test_no_call_is_lost_when_a_worker_goes_in_the_middle(
    caller: Client, workers: list[Worker], server: RelayServer
) -> None:
    victim = workers[1]
    victim.hold.clear()
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(caller.call, "billing", "who", n, timeout=WAIT) for n in range(6)]
        for _ in range(2):
            assert victim.running.acquire(timeout=WAIT)
        cut(victim)
        answers = Counter(each.result(WAIT) for each in calls)
        victim.hold.set()
    assert answers.total() == 6
    assert answers.keys() == {"a", "c"}
    assert sum((each.ran for each in workers), Counter()).total() == 8
    assert metric(server, "relay_name_redelivered") == 2
    assert metric(server, "relay_name_workers") == 2
    assert metric(server, "relay_name_pending") == 0


def test_a_worker_at_two_relays_answers_over_the_one_that_asked() -> None:
    """That counts what the worker has to answer; the other would leave it with too much."""
    with served(relay(TWINS)) as one, served(relay(TWINS)) as two, ExitStack() as stack:
        urls = [one.url, two.url]
        worker, caller = (
            stack.enter_context(Client(person(twin).identity, each, TWINS, twin=twin))
            for twin, each in ((2, urls), (1, urls[::-1]))
        )
        caller.wait_connected(WAIT)
        wait_for(lambda: all_connected(caller), WAIT)
        Worker(worker)
        worker.join("billing", at_once=2, timeout=WAIT)
        wait_for(lambda: sum(each.joined for each in worker.joined()) == 2, WAIT)
        for n in range(5):
            assert caller.call("billing", "who", n, timeout=WAIT)


def test_each_uid_of_one_signature_is_answered(twin: Made, server: RelayServer) -> None:
    """The relay would count each that is not as under way at this worker until it expires."""
    worker = Worker(twin(2))
    worker.client.join("billing", at_once=2, timeout=WAIT)
    now, shared = int(clock()), shared_address(2, "billing")

    def put(uid: str, tags: str) -> None:
        caller.ask(shared, uid=uid, tags=tags, now=now, command="who", plain=b"1")

    with Node(server, 1, "s") as caller:
        worker.hold.clear()
        put("u-12", "")
        assert worker.running.acquire(timeout=WAIT)
        put("u-1", "2")
        found = caller.take()
        assert (found.uid, found.error.code) == ("u-1", FAILED)
        worker.hold.set()
        assert caller.take().uid == "u-12"
        put("u-", "12")
        found = caller.take()
        assert (found.uid, found.error.code) == ("u-", FAILED)
        put("u-12", "")
        found = caller.take()
        assert (found.uid, found.HasField("response")) == ("u-12", True)
    assert worker.ran.total() == 1


def test_the_first_answer_counts(caller: Client, workers: list[Worker]) -> None:
    """A worker that lost its connection answers over the next one, after another one did."""
    victim = workers[0]
    victim.hold.clear()
    workers[1].client.leave("billing", timeout=WAIT)
    workers[2].client.leave("billing", timeout=WAIT)
    future = caller.submit("billing", "who", 1, timeout=WAIT)
    assert victim.running.acquire(timeout=WAIT)
    workers[1].client.join("billing", timeout=WAIT)
    for link in links_of(victim.client):
        link.hold("the test cuts it")
        link.release()
    assert future.result(WAIT) == "b"
    victim.hold.set()
    assert caller.call("billing", "who", 2, timeout=WAIT) in ("a", "b")
    assert victim.ran[1] == workers[1].ran[1] == 1


def test_a_request_that_comes_again_to_its_worker_runs_once(
    caller: Client, twin: Made, made: Relay
) -> None:
    only = Worker(twin(2, session="a"))
    only.client.join("billing", timeout=WAIT)
    only.hold.clear()
    future = caller.submit("billing", "who", 1, timeout=WAIT)
    assert only.running.acquire(timeout=WAIT)
    session = made.sessions.get(Address(2, "a"))
    assert session is not None
    session.link.abort()
    wait_for(lambda: made.sessions.get(Address(2, "a")) not in (None, session), WAIT)
    only.hold.set()
    assert future.result(WAIT) == "a"
    assert only.ran == {1: 1}


def test_a_worker_has_no_more_at_once_than_it_wants(caller: Client, twin: Made) -> None:
    slow, fast = Worker(twin(2, session="slow")), Worker(twin(2, session="fast"))
    slow.hold.clear()
    for each in (slow, fast):
        each.client.join("billing", at_once=1, timeout=WAIT)
    futures = [caller.submit("billing", "who", n, timeout=WAIT) for n in range(10)]
    assert slow.running.acquire(timeout=WAIT)
    wait_for(lambda: sum(each.done() for each in futures) == 9, WAIT)
    assert (slow.ran.total(), fast.ran.total()) == (1, 9)
    slow.hold.set()
    assert Counter(each.result(WAIT) for each in futures) == {"slow": 1, "fast": 9}


def queued(caller: Client) -> None:
    """Return when the relay has queued all that the caller has sent before."""
    for _ in range(2):  # the first may be answered in the step that queues the last call
        caller.who("billing", timeout=WAIT)


def test_who_floods_a_name_holds_up_only_itself(caller: Client, twin: Made) -> None:
    worker, other = Worker(twin(2, session="w")), twin(3)
    worker.hold.clear()
    worker.client.join("billing", at_once=1, timeout=WAIT)
    flood = [caller.submit("billing", "who", n, timeout=WAIT) for n in range(50)]
    assert worker.running.acquire(timeout=WAIT)
    queued(caller)
    call = other.submit("billing", "who", "other", timeout=WAIT)
    queued(other)
    worker.hold.set()
    assert call.result(WAIT) == "w"
    assert [each.result(WAIT) for each in flood] == 50 * ["w"]
    assert list(worker.ran).index("other") <= 2


@pytest.mark.parametrize("name_bounds", [NameBounds(of_twin=3, in_all=4)])
def test_who_has_too_many_calls_of_a_name_is_told(twin: Made, server: RelayServer) -> None:
    worker, caller, other = Worker(twin(2, session="w")), twin(1), twin(3)
    worker.hold.clear()
    worker.client.join("billing", at_once=1, timeout=WAIT)
    futures = [caller.submit("billing", "who", n, timeout=WAIT) for n in range(3)]
    queued(caller)
    with pytest.raises(RelayRefused, match="twin 1 has as many requests in the queue") as caught:
        caller.call("billing", "who", 3, timeout=WAIT)
    assert (caught.value.code, caught.value.retry_safe) == (429, True)
    futures += [other.submit("billing", "who", 4, timeout=WAIT)]
    queued(other)
    with pytest.raises(RelayRefused, match="all twins together have as many requests"):
        other.call("billing", "who", 5, timeout=WAIT)
    worker.hold.set()
    assert [each.result(WAIT) for each in futures] == 4 * ["w"]
    assert worker.ran == {0: 1, 1: 1, 2: 1, 4: 1}
    reason = "the queue of the name is full"
    assert metric(server, f'relay_message_refused_total{{reason="{reason}"}}') == 2


def test_who_has_joined_is_told(caller: Client, workers: list[Worker]) -> None:
    presence = caller.who("billing", timeout=WAIT)
    assert (presence.name, presence.owner) == ("billing", 2)
    assert [each.session for each in presence.workers] == ["a", "b", "c"]
    assert presence.since == presence.workers[0].since <= presence.workers[2].since
    workers[0].client.leave("billing", timeout=WAIT)
    workers[1].client.close()
    wait_for_value(
        lambda: [each.session for each in caller.who("billing", timeout=WAIT).workers], ["c"]
    )


def test_a_name_that_nobody_has_joined_fails_at_once(caller: Client) -> None:
    with pytest.raises(NobodyJoined, match="nobody has joined the name 'billing'") as caught:
        caller.call("billing", "who", timeout=WAIT)
    assert caught.value.retry_safe
    with pytest.raises(NobodyJoined):
        caller.who("billing", timeout=WAIT)


def test_calls_wait_for_a_worker_that_comes_again(
    caller: Client, workers: list[Worker], twin: Made
) -> None:
    for each in workers:
        each.client.close()
    assert caller.who("billing", timeout=WAIT) == Presence(
        "billing", 2, caller.who("billing", timeout=WAIT).since
    )
    future = caller.submit("billing", "who", 1, timeout=WAIT)
    late = Worker(twin(2, session="late"))
    late.client.join("billing", timeout=WAIT)
    assert future.result(WAIT) == "late"


@pytest.mark.parametrize("grace", [CONNECTS])
def test_calls_fail_when_no_worker_comes_again(caller: Client, workers: list[Worker]) -> None:
    for each in workers:
        each.client.close()
    with pytest.raises(NobodyJoined, match="the workers of the name 'billing' have gone") as caught:
        caller.submit("billing", "who", 1, timeout=WAIT).result(WAIT)
    assert not caught.value.retry_safe
    with pytest.raises(NobodyJoined):  # its owner is not remembered
        caller.call("billing", "who", 2, timeout=WAIT)


def test_a_call_that_must_not_wait_is_refused_in_the_grace(
    caller: Client, workers: list[Worker]
) -> None:
    for each in workers:
        each.client.close()
    with pytest.raises(NobodyJoined):
        caller.call("billing", "who", tags="fail-fast", timeout=WAIT)


def test_a_name_belongs_to_the_twin_that_joined_first(
    caller: Client, workers: list[Worker], twin: Made
) -> None:
    foreign = Worker(twin(3, session="x"))
    with pytest.raises(NameTaken, match="belongs to twin 2"):
        foreign.client.join("billing", timeout=WAIT)
    (joined,) = foreign.client.joined()
    assert (joined.name, joined.joined) == ("billing", False)
    assert "belongs to twin 2" in joined.reason
    assert "x" not in {caller.call("billing", "who", n, timeout=WAIT) for n in range(6)}


@pytest.mark.parametrize("grace", [CONNECTS])
def test_a_name_passes_to_another_twin_after_the_grace(
    caller: Client, workers: list[Worker], twin: Made
) -> None:
    assert caller.call("billing", "who", timeout=WAIT) == "a"
    foreign = Worker(twin(3, session="x", name="billing"))
    for each in workers:
        each.client.close()
    wait_for(lambda: [each.joined for each in foreign.client.joined()] == [True], WAIT)
    assert caller.who("billing", timeout=WAIT).owner == 3
    assert caller.call("billing", "who", timeout=WAIT) == "x"  # though twin 2 is remembered


def test_a_relay_keeps_a_name_for_its_twin(caller: Client, twin: Made) -> None:
    with pytest.raises(NameTaken, match="belongs to twin 5"):
        Worker(twin(2)).client.join("pinned", timeout=WAIT)
    Worker(twin(5, session="p")).client.join("pinned", timeout=WAIT)
    assert caller.call("pinned", "who", timeout=WAIT) == "p"


def test_a_caller_believes_no_relay_about_a_pinned_name(twin: Made, workers: list[Worker]) -> None:
    good, bad = twin(1, names={"billing": 2}), twin(1, names={"billing": 3})
    assert good.call("billing", "who", timeout=WAIT) == "a"
    assert good.who("billing", timeout=WAIT).owner == 2
    with pytest.raises(NobodyJoined):
        bad.call("billing", "who", timeout=WAIT)
    with pytest.raises(NobodyJoined, match="pinned to twin 3, and twin 2 has joined it"):
        bad.who("billing", timeout=WAIT)


def test_a_client_with_a_name_joins_when_it_serves_and_after_a_loss(
    caller: Client, twin: Made, made: Relay
) -> None:
    one = twin(2, session="a", name="billing")
    assert one.joined() == []
    Worker(one)
    wait_for(lambda: [each.joined for each in one.joined()] == [True], WAIT)
    session = made.sessions.get(Address(2, "a"))
    assert session is not None
    session.link.abort()
    wait_for(
        lambda: (
            made.sessions.get(Address(2, "a")) not in (None, session)
            and [each.joined for each in one.joined()] == [True]
        ),
        WAIT,
    )
    assert caller.call("billing", "who", timeout=WAIT) == "a"


def test_closing_a_worker_finishes_what_it_has(caller: Client, workers: list[Worker]) -> None:
    for each in workers[1:]:
        each.client.leave("billing", timeout=WAIT)
    workers[0].hold.clear()
    future = caller.submit("billing", "who", 1, timeout=WAIT)
    assert workers[0].running.acquire(timeout=WAIT)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(workers[0].client.close, WAIT)
        wait_for(lambda: caller.who("billing", timeout=WAIT).workers == (), WAIT)
        workers[0].hold.set()
        closing.result(WAIT)
    assert future.result(WAIT) == "a"


def test_leaving_what_was_not_joined_does_nothing(caller: Client) -> None:
    caller.leave("billing", timeout=WAIT)
    assert caller.joined() == []


def test_joining_needs_a_command_and_a_good_name(twin: Made) -> None:
    one = twin(2)
    with pytest.raises(ValueError, match="serve commands before joining"):
        one.join("billing", timeout=WAIT)
    Worker(one)
    for wrong in ("", "1", "a:b", "-a", "a" * 65, "ä", "a b"):
        with pytest.raises(ValueError, match="expected a name"):
            one.join(wrong, timeout=WAIT)
    with pytest.raises(TypeError, match="expected a name"):
        one.join(5, timeout=WAIT)  # type: ignore[arg-type]
    for count in (0, 1025):
        with pytest.raises(ValueError, match="at_once"):
            one.join("billing", at_once=count, timeout=WAIT)


def test_a_session_cannot_be_that_of_a_name(twin: Made) -> None:
    with pytest.raises(ValueError, match="must not begin with '@'"):
        twin(2, session="@billing")


def test_a_relay_that_knows_no_names_is_told_apart(stage: StageRelay) -> None:
    with client(stage, known()) as one:
        stage.change = lambda envelope: []
        with pytest.raises(CallTimeout):
            one.who("billing", timeout=0.1)


def test_a_client_that_is_closed_joins_nothing(twin: Made) -> None:
    one = twin(2)
    Worker(one)
    one.close()
    with pytest.raises(ValueError, match="closed"):
        one.join("billing", timeout=WAIT)
