"""Envelopes reach another relay of their twin, or the requester is told why not."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from wsmux.bus.errors import BusError
from wsmux.bus.federation import federation as module
from wsmux.bus.federation import room, schedule
from wsmux.bus.federation.federation import Federation
from wsmux.bus.federation.http_post import Answer, Poster
from wsmux.bus.federation.queue import FederationQueue, MemoryFederationQueue
from wsmux.bus.federation.ranker import Ranker
from wsmux.bus.twins.records import Twin
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import parse, request, response
from wsmux.bus.wire.messages import Envelope
from wsmux.runtime import thread_pool

from ...helpers.bus.posts import DONE, Posts, relay_answering
from ...helpers.bus.twin_lists import ListedTwins
from ...helpers.waiting import wait_for

SOURCE, DESTINATION = Address(1, "s"), Address(2)
LIFE = 60

Make = Callable[..., Federation]


class Told:
    """Collect the errors that requesters get; takes each once the gate is open."""

    def __init__(self) -> None:
        self.errors: list[tuple[Address, Envelope]] = []
        self.failing = False
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, address: Address, envelope: Envelope) -> None:
        if self.failing:
            raise BusError(0, "the requester's queue is full")
        self.errors.append((address, envelope))
        self.gate.wait(20.0)

    def texts(self) -> list[str]:
        return [envelope.error.message for _, envelope in self.errors]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "PAUSES", ((0.0, 0.001), (0.001, 0.002)))
    monkeypatch.setattr(schedule, "RETRY", 0.01)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def twins() -> ListedTwins:
    return ListedTwins(
        [
            Twin(2, bytes(32), ("a.test", "b.test")),
            Twin(3, bytes(32)),
            Twin(4, bytes(32), ("dead.test",)),
        ]
    )


@pytest.fixture
def make(told: Told, twins: ListedTwins) -> Iterator[Make]:
    made: list[Federation] = []

    def federation(
        post: Callable[[str, bytes], Answer], queue: FederationQueue | None = None, **more: object
    ) -> Federation:
        ranker = Ranker(lambda: 0.5)  # equal relays stay in order
        made.append(
            Federation(
                twins,
                ranker,
                post,
                queue or MemoryFederationQueue(),
                told,
                **more,  # type: ignore[arg-type]
            )
        )
        return made[-1]

    yield federation
    for each in made:
        each.close(20.0)


def ask(uid: str = "u", destination: Address = DESTINATION, life: int = LIFE) -> Envelope:
    return request(uid, SOURCE, destination, "do", int(time.time()), life, plain=b"1")


def submit(federation: Federation, envelope: Envelope, *domains: str) -> bytes:
    data = envelope.SerializeToString()
    federation.submit(envelope, data, domains)
    return data


def test_an_envelope_is_posted_to_the_first_relay(make: Make, told: Told) -> None:
    posts = Posts()
    federation = make(posts)
    data = submit(federation, ask(), "a.test", "b.test")
    wait_for(lambda: posts.posts == [("a.test", data)] and not federation.held)
    assert told.errors == []


@pytest.mark.parametrize("count", [1, 10])
def test_messages_reach_a_relay_over_http(make: Make, count: int) -> None:
    posted: list[bytes] = []

    def answer(handler: BaseHTTPRequestHandler, data: bytes) -> None:
        posted.append(data)
        handler.send_response(202)
        handler.end_headers()

    with relay_answering(answer) as url:
        federation = make(Poster({"a.test": url}))
        sent = [submit(federation, ask(f"uid-{number}"), "a.test") for number in range(count)]
        wait_for(lambda: len(posted) == count and not federation.held)
    assert sorted(posted) == sorted(sent)


def test_the_relays_are_looked_up_where_they_are_not_known(make: Make, twins: ListedTwins) -> None:
    posts = Posts()
    submit(make(posts), ask())
    wait_for(lambda: posts.domains() == ["a.test"])
    assert twins.asked == [2]


@pytest.mark.parametrize(
    "outcome",
    [
        ConnectionRefusedError("nobody there"),
        TimeoutError(),
        *(Answer(status, "later") for status in (302, 408, 425, 429, 500, 502, 503, 504)),
    ],
)
def test_a_relay_that_fails_is_followed_by_the_next(
    make: Make, told: Told, outcome: Answer | Exception
) -> None:
    posts = Posts(a_test=[outcome])
    federation = make(posts)
    submit(federation, ask(), "a.test", "b.test")
    wait_for(lambda: posts.domains() == ["a.test", "b.test"] and not federation.held)
    assert told.errors == []


def test_a_relay_that_failed_is_tried_last_afterwards(make: Make) -> None:
    posts = Posts(a_test=[ConnectionError("down")])
    federation = make(posts)
    submit(federation, ask(), "a.test", "b.test")
    wait_for(lambda: len(posts.posts) == 2)
    submit(federation, ask(), "a.test", "b.test")
    wait_for(lambda: posts.domains() == ["a.test", "b.test", "b.test"])


def test_a_relay_that_comes_back_gets_the_message(make: Make, told: Told) -> None:
    posts = Posts(a_test=[*[ConnectionError("down")] * 7, DONE])
    federation = make(posts)
    submit(federation, ask(), "a.test")
    wait_for(lambda: posts.posts and not federation.held)
    # The first round has three passes over the relay that was named; then the twin is looked up.
    assert posts.domains()[:3] == ["a.test"] * 3
    assert posts.domains().count("b.test") == 1
    assert told.errors == []


def test_the_twin_is_looked_up_again_after_a_round(make: Make, twins: ListedTwins) -> None:
    posts = Posts(old_test=[ConnectionError("gone")])
    federation = make(posts)
    submit(federation, ask(), "old.test")
    wait_for(lambda: "a.test" in posts.domains())
    assert (posts.domains(), twins.asked) == (["old.test"] * 3 + ["a.test"], [2])


def test_a_directory_that_is_down_is_asked_again(
    make: Make, twins: ListedTwins, told: Told
) -> None:
    twins.down = 3
    posts = Posts()
    federation = make(posts)
    submit(federation, ask())
    wait_for(lambda: posts.domains() == ["a.test"] and not federation.held)
    assert (len(twins.asked), told.errors) == (4, [])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 413, 499])
def test_a_refusal_is_final_and_its_reason_reaches_the_requester(
    make: Make, told: Told, status: int
) -> None:
    posts = Posts(a_test=[Answer(status, "destination offline")])
    federation = make(posts)
    submit(federation, ask("mine"), "a.test")
    wait_for(lambda: told.errors and not federation.held)
    ((address, error),) = told.errors
    assert address == SOURCE
    assert (error.uid, error.error.code) == ("mine", 0)
    assert error.error.message == "remote relay rejected permanently: destination offline"
    assert not error.HasField("source")
    assert len(posts.posts) == 1


def test_another_relay_may_accept_what_one_refused(make: Make, told: Told) -> None:
    posts = Posts(a_test=[Answer(404, "destination offline")])
    federation = make(posts)
    submit(federation, ask(), "a.test", "b.test")
    wait_for(lambda: posts.domains() == ["a.test", "b.test"] and not federation.held)
    assert told.errors == []


def test_a_domain_that_is_none_counts_as_a_refusal(make: Make, told: Told) -> None:
    federation = make(Poster())
    submit(federation, ask(), "no domain")
    wait_for(lambda: told.errors)
    assert "remote relay rejected permanently: expected the domain of a relay" in told.texts()[0]


@pytest.mark.parametrize(
    ("twin", "text"),
    [(9, "unknown twin destination"), (3, "relay info is not set for this twin")],
)
def test_a_destination_without_relays_ends_the_message(
    make: Make, told: Told, twin: int, text: str
) -> None:
    submit(make(Posts()), ask(destination=Address(twin)))
    wait_for(lambda: told.texts() == [text])


@pytest.mark.parametrize("life", [0, -5])
def test_an_expired_message_is_not_posted(make: Make, told: Told, life: int) -> None:
    posts = Posts()
    late = ask(life=10)
    late.timestamp += life - 10
    submit(make(posts), late, "a.test")
    wait_for(lambda: told.texts() == ["message has expired"])
    assert posts.posts == []


def test_a_message_expires_between_attempts(make: Make, told: Told) -> None:
    federation = make(Posts(a_test=[ConnectionError("down")], b_test=[ConnectionError("down")]))
    submit(federation, ask(life=1), "a.test")
    wait_for(lambda: told.texts() == ["message has expired"] and not federation.held)


def test_a_response_that_cannot_be_delivered_is_dropped_in_silence(make: Make, told: Told) -> None:
    posts = Posts(a_test=[Answer(404, "offline")])
    federation = make(posts)
    answer = response(ask(), DESTINATION, int(time.time()), LIFE, plain=b"1")
    submit(federation, answer, "a.test")
    submit(federation, ask(), "a.test")
    wait_for(lambda: len(posts.posts) == 2 and told.errors and not federation.held)
    assert len(told.errors) == 1


def test_a_relay_that_hangs_leaves_workers_to_others(make: Make) -> None:
    posts = Posts()
    posts.gates["slow.test"] = gate = threading.Event()
    federation = make(posts, workers=schedule.LANE + 1)
    slow = 3 * schedule.LANE
    for number in range(slow):
        submit(federation, ask(f"slow-{number}"), "slow.test")
    assert all(posts.entered.acquire(timeout=20.0) for _ in range(schedule.LANE))
    for number in range(20):
        submit(federation, ask(f"fast-{number}"), "a.test")
    wait_for(lambda: posts.domains().count("a.test") == 20)
    assert posts.domains().count("slow.test") == schedule.LANE
    gate.set()
    wait_for(lambda: not federation.held)
    assert posts.domains().count("slow.test") == slow


@pytest.mark.parametrize("domains", [("dead.test",), ()], ids=["known", "looked up"])
def test_a_relay_that_is_down_leaves_room_to_others(
    make: Make,
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
    domains: tuple[str, ...],
) -> None:
    monkeypatch.setattr(module, "MAX_HELD", 4)
    monkeypatch.setattr(room, "DOWN", 0.0)
    posts = Posts(dead_test=[ConnectionError("down")])
    federation = make(posts)
    for number in range(4):
        submit(federation, ask(f"dead-{number}", Address(4)), *domains)
    submit(federation, ask("alive"), "a.test")
    wait_for(lambda: "a.test" in posts.domains())
    wait_for(lambda: len(told.errors) == 2 and federation.held == 2)
    text = "too many messages wait for relays that do not answer: dead.test"
    assert told.texts() == [text] * 2


def test_a_relay_that_hangs_leaves_room_to_others(
    make: Make, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 4 * schedule.LANE
    monkeypatch.setattr(module, "MAX_HELD", count)
    monkeypatch.setattr(room, "DOWN", 0.0)
    posts = Posts(dead_test=[TimeoutError()])
    posts.gates["dead.test"] = gate = threading.Event()
    federation = make(posts)
    for number in range(count):
        submit(federation, ask(f"slow-{number}", Address(4)), "dead.test")
    submit(federation, ask("fast"), "a.test")
    assert all(posts.entered.acquire(timeout=20.0) for _ in range(schedule.LANE))
    assert "a.test" not in posts.domains()
    gate.set()
    wait_for(lambda: "a.test" in posts.domains() and federation.held == count // 2)
    assert len(told.errors) == count // 2


def test_attempts_that_fail_together_give_up_no_more_than_is_too_much(
    make: Make, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_HELD", 20)
    monkeypatch.setattr(room, "DOWN", 0.0)
    posts = Posts(dead_test=[TimeoutError()])
    posts.gates["dead.test"] = gate = threading.Event()
    told.gate.clear()
    federation = make(posts)
    for number in range(schedule.LANE):
        submit(federation, ask(f"{number}", Address(4)), "dead.test")
    assert all(posts.entered.acquire(timeout=20.0) for _ in range(schedule.LANE))
    gate.set()
    wait_for(lambda: sum(n > 1 for n in Counter(posts.bodies()).values()) == 10)
    assert len(told.errors) == schedule.LANE - 10
    told.gate.set()
    wait_for(lambda: federation.held == 10)


def test_nothing_more_is_given_up_after_the_close(
    make: Make, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = schedule.LANE + 4
    monkeypatch.setattr(module, "MAX_HELD", count)
    monkeypatch.setattr(room, "DOWN", 0.0)
    posts = Posts(dead_test=[TimeoutError()])
    posts.gates["dead.test"] = gate = threading.Event()
    told.gate.clear()
    federation = make(posts, workers=1)
    for number in range(count):
        submit(federation, ask(f"{number}", Address(4)), "dead.test")
    wait_for(lambda: federation.held == count)
    gate.set()
    wait_for(lambda: told.errors)
    federation.close(0.0)
    told.gate.set()
    federation.close(20.0)
    assert len(told.errors) == 1


def test_a_relay_that_is_down_leaves_room_in_the_queue(
    make: Make, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_HELD", 4)
    monkeypatch.setattr(room, "DOWN", 0.0)
    posts = Posts(dead_test=[ConnectionError("down")])
    federation = make(posts, MemoryFederationQueue(max_messages=4))
    for number in range(4):
        submit(federation, ask(f"dead-{number}", Address(4)), "dead.test")
    wait_for(lambda: len(told.errors) == 2 and federation.held == 2)
    submit(federation, ask("alive"), "a.test")
    wait_for(lambda: "a.test" in posts.domains())
    assert len(told.errors) == 2


def test_a_relay_that_is_back_gets_all(make: Make, told: Told) -> None:
    posts = Posts(a_test=[ConnectionError("down"), DONE])
    federation = make(posts)
    for number in range(100):
        submit(federation, ask(f"{number}"), "a.test")
    wait_for(lambda: len({parse(data).uid for data in posts.bodies()}) == 100)
    wait_for(lambda: not federation.held)
    assert told.errors == []


def test_each_attempt_is_counted(make: Make) -> None:
    counted: list[tuple[str, bool]] = []
    posts = Posts(a_test=[ConnectionError("down")])
    federation = make(posts, count=lambda domain, success: counted.append((domain, success)))
    submit(federation, ask(), "a.test", "b.test")
    wait_for(lambda: len(counted) == 2)
    assert counted == [("a.test", False), ("b.test", True)]


def test_a_full_queue_is_reported_to_the_requester(make: Make, told: Told) -> None:
    posts = Posts()
    posts.gates["a.test"] = gate = threading.Event()
    federation = make(posts, MemoryFederationQueue(max_messages=2))
    for _ in range(3):
        submit(federation, ask(), "a.test")
    assert len(told.errors) == 1
    assert "the limit of this relay" in told.texts()[0]
    gate.set()
    wait_for(lambda: len(posts.posts) == 2 and not federation.held)
    submit(federation, ask(), "a.test")
    wait_for(lambda: len(posts.posts) == 3)


def test_more_is_left_in_the_queue_than_is_held(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_HELD", 4)
    posts = Posts()
    posts.gates["a.test"] = gate = threading.Event()
    federation = make(posts)
    for _ in range(10):
        submit(federation, ask(), "a.test")
    wait_for(lambda: len(posts.posts) == 4)
    assert federation.held == 4
    gate.set()
    wait_for(lambda: len(posts.posts) == 10 and not federation.held)


def test_a_requester_that_cannot_be_told_changes_nothing(make: Make, told: Told) -> None:
    told.failing = True
    posts = Posts(a_test=[Answer(404, "offline")])
    federation = make(posts)
    submit(federation, ask(), "a.test")
    submit(federation, ask(), "b.test")
    wait_for(lambda: len(posts.posts) == 2 and not federation.held)


def test_bytes_that_are_no_envelope_are_dropped_from_the_queue(make: Make) -> None:
    posts, queue = Posts(), MemoryFederationQueue(max_messages=1)
    federation = make(posts, queue)
    queue.put(b"\xff", ("a.test",))
    wait_for(lambda: not queue.messages)
    submit(federation, ask(), "a.test")
    wait_for(lambda: len(posts.posts) == 1)


def test_a_failure_of_this_side_drops_one_message(
    make: Make, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    posts = Posts(a_test=[RuntimeError("a mistake"), DONE])
    federation = make(posts)
    submit(federation, ask(), "a.test")
    wait_for(lambda: len(posts.posts) == 1 and not federation.held)
    submit(federation, ask(), "a.test")
    wait_for(lambda: len(posts.posts) == 2 and not federation.held)
    assert "a mistake" in caplog.text


def test_a_queue_that_fails_is_taken_from_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "HOUSEKEEPING", 0.01)
    queue, failures = MemoryFederationQueue(), [RuntimeError("once")]
    take = queue.take

    def failing(limit: int) -> object:
        if failures:
            raise failures.pop()
        return take(limit)

    monkeypatch.setattr(queue, "take", failing)
    posts = Posts()
    submit(make(posts, queue), ask(), "a.test")
    wait_for(lambda: len(posts.posts) == 1)
    assert "the federation queue failed" in caplog.text


def test_workers_end_when_nothing_is_left(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "IDLE", 0.02)
    posts = Posts()
    federation = make(posts)
    for _ in range(8):
        submit(federation, ask(), "a.test")
    wait_for(lambda: len(posts.posts) == 8)
    wait_for(lambda: "workers=0" in repr(federation))
    submit(federation, ask(), "a.test")
    wait_for(lambda: len(posts.posts) == 9)


def test_closing_ends_what_waits(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schedule, "RETRY", 1000.0)
    federation = make(Posts(a_test=[ConnectionError("down")]))
    submit(federation, ask(), "a.test")
    wait_for(lambda: federation.held == 1)
    federation.close(20.0)
    assert "ended with 1 messages undelivered" in caplog.text


def test_nothing_is_taken_after_the_close(make: Make, told: Told) -> None:
    federation = make(Posts())
    federation.close(20.0)
    submit(federation, ask(), "a.test")
    assert told.texts() == ["the relay is shutting down"]


def test_a_forked_child_sends_nothing_and_the_parent_goes_on(make: Make) -> None:
    posts = Posts()
    federation = make(posts)
    pid = os.fork()
    if not pid:
        try:
            submit(federation, ask(), "a.test")
            federation.close(20.0)
            os._exit(len(posts.posts))
        finally:
            os._exit(100)
    assert os.waitpid(pid, 0)[1] == 0
    submit(federation, ask(), "a.test")
    wait_for(lambda: posts.domains() == ["a.test"])


def test_without_a_thread_for_a_worker_the_running_ones_go_on(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    posts = Posts()
    posts.gates["a.test"] = gate = threading.Event()
    federation = make(posts)
    submit(federation, ask(), "a.test")
    assert posts.entered.acquire(timeout=20.0)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        submit(federation, ask(), "a.test")
        wait_for(lambda: "no thread can be started for wsmux-federation;" in caplog.text)
    gate.set()
    wait_for(lambda: len(posts.posts) == 2 and not federation.held)


def test_without_a_thread_for_the_clock_the_feeder_ends(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "wsmux-federation-clock":
            raise RuntimeError("can't start new thread")
        start(thread)

    before = set(threading.enumerate())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        make(Posts())
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_the_bytes_of_an_envelope_are_forwarded_untouched(make: Make) -> None:
    posts = Posts()
    envelope = ask()
    unknown = envelope.SerializeToString() + b"\xf8\x3f\x01"  # field 1023, which nobody knows
    make(posts).submit(parse(unknown), unknown, ("a.test",))
    wait_for(lambda: posts.bodies() == [unknown])
