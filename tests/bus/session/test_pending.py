"""Calls that wait: those that are idempotent are sent again, and all end in time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import BusError, CallTimeout
from wsmux.bus.session import pending
from wsmux.bus.session.pending import Call, PendingCalls
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import Kind, kind_of, relay_error
from wsmux.bus.wire.messages import Envelope
from wsmux.runtime.deadline import Deadline

from ...helpers.bus.clients import BOB, WAIT, all_connected, calling, known, serving, staged
from ...helpers.bus.scripted_relay import StageRelay
from ...helpers.raw_peer import in_thread
from ...helpers.waiting import wait_for

relay = pytest.fixture(staged)
twins = pytest.fixture(known)
alice = pytest.fixture(calling)
bob = pytest.fixture(serving)


class Losing:
    """Lose the first messages of a kind at the relay."""

    def __init__(self, relay: StageRelay, kind: Kind, count: int = 1) -> None:
        self.lost: list[Envelope] = []
        self.seen: list[Envelope] = []
        self._kind, self._count = kind, count
        relay.change = self._change

    def _change(self, envelope: Envelope) -> list[Envelope]:
        if kind_of(envelope) is not self._kind:
            return [envelope]
        self.seen.append(envelope)
        if len(self.lost) < self._count:
            self.lost.append(envelope)
            return []
        return [envelope]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send again after less than in earnest."""
    monkeypatch.setattr(pending, "REPEAT", 0.05)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", [Kind.REQUEST, Kind.RESPONSE])
def test_a_lost_message_of_an_idempotent_call_is_made_good(
    relay: StageRelay, alice: Client, bob: Client, kind: Kind
) -> None:
    ran: list[object] = []
    bob.serve({"count": lambda payload: (ran.append(payload), len(ran))[1]})
    losing = Losing(relay, kind)
    assert alice.call(2, "count", "x", timeout=WAIT, idempotent=True) == 1
    assert ran == ["x"]  # a copy of it is not run again
    assert losing.seen[1].SerializeToString() == losing.lost[0].SerializeToString()


@pytest.mark.usefixtures("soon")
def test_other_calls_are_sent_once_while_the_connection_stands(
    relay: StageRelay, alice: Client, bob: Client
) -> None:
    losing = Losing(relay, Kind.REQUEST)
    with pytest.raises(CallTimeout):
        alice.call(2, "add", [1], timeout=0.5)
    assert len(losing.seen) == 1


@pytest.mark.usefixtures("soon")
def test_an_error_of_the_relay_ends_no_call_that_was_sent_again(
    relay: StageRelay, alice: Client, bob: Client
) -> None:
    go_on = threading.Event()
    bob.serve({"slow": lambda payload: go_on.wait(WAIT)})
    copies: list[Envelope] = []

    def refuse_copies(envelope: Envelope) -> list[Envelope]:
        if kind_of(envelope) is not Kind.REQUEST:
            return [envelope]
        copies.append(envelope)
        if len(copies) == 1:
            return [envelope]
        refusal = relay_error(envelope, "exceeded rate limits", envelope.timestamp)
        if len(copies) == 3:
            go_on.set()
        return [refusal]

    relay.change = refuse_copies
    assert alice.call(2, "slow", timeout=WAIT, idempotent=True) is True


def test_an_error_of_the_relay_ends_a_call_that_was_sent_once(
    relay: StageRelay, alice: Client
) -> None:
    relay.change = lambda envelope: [relay_error(envelope, "no such twin", envelope.timestamp)]
    with pytest.raises(BusError, match="no such twin"):
        alice.call(2, "add", timeout=WAIT, idempotent=True)


# Callbacks


def test_a_callback_that_calls_again_holds_up_no_timeout(relay: StageRelay, alice: Client) -> None:
    relay.change = lambda envelope: []
    alice.wait_connected(WAIT)
    again: Future[BaseException | None] = Future()

    def retry(_: Future[object]) -> None:
        again.set_result(alice.submit(2, "add", timeout=0.1).exception(WAIT))

    first = alice.submit(2, "add", timeout=0.1)
    first.add_done_callback(retry)
    other = alice.submit(2, "add", timeout=0.3)
    assert isinstance(other.exception(WAIT), CallTimeout)
    assert isinstance(again.result(WAIT), CallTimeout)


def test_a_callback_that_calls_again_is_answered(
    relay: StageRelay, alice: Client, bob: Client
) -> None:
    added = threading.Event()
    relay.change = lambda envelope: [envelope] if added.wait(WAIT) else []
    again: Future[object] = Future()
    first = alice.submit(2, "echo", [1, 2], timeout=WAIT)
    first.add_done_callback(
        lambda done: again.set_result(alice.call(2, "add", done.result(), timeout=WAIT))
    )
    added.set()
    assert again.result(WAIT) == 3


def test_a_callback_that_waits_for_a_relay_does_not_hold_up_the_close(
    relay: StageRelay, alice: Client
) -> None:
    relay.change = lambda envelope: []
    alice.wait_connected(WAIT)
    began, gone = threading.Event(), threading.Event()
    again: Future[BaseException | None] = Future()

    def retry(_: Future[object]) -> None:
        began.set()
        assert gone.wait(WAIT)
        with pytest.raises(ValueError, match="closed") as caught:
            alice.call(2, "add", timeout=10 * WAIT)
        again.set_result(caught.value)

    alice.submit(2, "add", timeout=0.1).add_done_callback(retry)
    assert began.wait(WAIT)
    relay.stop()
    wait_for(lambda: not all_connected(alice))
    gone.set()
    wait_for(lambda: "1 calls under way" in repr(alice))
    in_thread(alice.close, timeout=None).result(WAIT)
    assert again.done()


@pytest.fixture
def sent() -> list[bytes]:
    return []


@pytest.fixture
def calls(sent: list[bytes]) -> Iterator[PendingCalls]:
    made = PendingCalls("test", sent.append)
    yield made
    made.close(lambda call: ValueError("closed"), Deadline(WAIT))
    made.join(Deadline(WAIT))


def call_of(
    uid: str,
    timeout: float = WAIT,
    signed: bytes = b"signed",
    future: Future[object] | None = None,
) -> Call:
    return Call(
        uid,
        BOB.record(),
        Address(2),
        "add",
        False,
        Deadline(timeout),
        future or Future(),
        lambda data, schema: data,
        signed,
    )


@pytest.mark.usefixtures("soon")
def test_copies_come_at_growing_intervals_until_the_answer(
    calls: PendingCalls, sent: list[bytes]
) -> None:
    call = call_of("one")
    calls.add(call)
    calls.repeat(call)
    wait_for(lambda: len(sent) == 3)
    assert calls.copies(call) == 3
    calls.settle(call, "answer")
    assert call.future.result() == "answer"
    assert calls.copies(call) == 0
    calls.repeat(call)  # it was answered meanwhile
    assert calls.copies(call) == 0


@pytest.mark.usefixtures("soon")
def test_a_cancelled_call_is_not_sent_again(calls: PendingCalls, sent: list[bytes]) -> None:
    cancelled, other = call_of("one"), call_of("two", signed=b"other")
    for call in (cancelled, other):
        calls.add(call)
    cancelled.future.cancel()
    for call in (cancelled, other):
        calls.repeat(call)
    wait_for(lambda: len(sent) >= 2)
    assert set(sent) == {b"other"}


def test_what_a_resender_takes_counts_as_a_copy(calls: PendingCalls) -> None:
    call, empty = call_of("one"), call_of("two", signed=b"")
    for each in (call, empty):
        calls.add(each)
    assert calls.copies(call) == 0
    assert [each.signed for each in calls.unanswered()] == [b"signed"]
    assert (calls.copies(call), calls.copies(empty)) == (1, 0)
    calls.settle(call, "answer")
    assert calls.copies(call) == 0


def test_an_idempotent_call_times_out_like_others(calls: PendingCalls) -> None:
    call = call_of("one", timeout=0.05)
    calls.add(call)
    calls.repeat(call)
    with pytest.raises(CallTimeout, match="timed out waiting for the answer to 'add'"):
        call.future.result(WAIT)
    assert len(calls) == 0


def test_the_thread_that_adds_a_callback_runs_it_if_the_future_is_done(calls: PendingCalls) -> None:
    ran: list[threading.Thread] = []
    call = call_of("one", future=calls.future())
    calls.add(call)
    call.future.add_done_callback(lambda _: ran.append(threading.current_thread()))
    calls.settle(call, "answer")
    wait_for(lambda: len(ran) == 1)
    call.future.add_done_callback(lambda _: ran.append(threading.current_thread()))
    assert ran[0].name.startswith("test-callbacks")
    assert ran[1:] == [threading.current_thread()]


def test_callbacks_without_a_thread_count_as_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "CALLBACKS", 1)
    calls = PendingCalls("test", lambda data: None, limit=2)
    go_on, began = threading.Event(), threading.Event()
    call = call_of("one", future=calls.future())
    calls.add(call)
    call.future.add_done_callback(lambda _: (began.set(), go_on.wait(WAIT)))
    calls.settle(call, "answer")
    assert began.wait(WAIT)
    for uid in ("two", "three"):  # what runs does not count
        call = call_of(uid, future=calls.future())
        calls.add(call)
        call.future.add_done_callback(lambda _: None)
        calls.settle(call, "answer")
    with pytest.raises(CallTimeout, match="2 of them for a thread that runs a callback") as caught:
        calls.add(call_of("four", timeout=0.05))
    assert caught.value.retry_safe
    go_on.set()
    last = call_of("five")
    calls.add(last)
    calls.close(lambda call: ValueError("closed"), Deadline(WAIT))
    with pytest.raises(ValueError, match="closed"):
        last.future.result(WAIT)
    calls.join(Deadline(WAIT))
    names = "test-callbacks-w"  # of threads that may still end
    wait_for(lambda: not [each for each in threading.enumerate() if each.name.startswith(names)])


class NotedDeadline(Deadline):
    """Tell when somebody is about to wait."""

    def __init__(self) -> None:
        super().__init__(WAIT)
        self.asked = threading.Event()

    def remaining(self) -> float | None:
        self.asked.set()
        return super().remaining()


def test_callbacks_that_call_again_wait_for_calls_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for callbacks, too, of which as many wait for a thread as there may be calls."""
    monkeypatch.setattr(pending, "CALLBACKS", 1)
    calls = PendingCalls("test", lambda data: None, limit=2)
    began, go_on, added = threading.Event(), threading.Event(), threading.Event()

    def call_again(_: Future[object]) -> None:
        began.set()
        assert go_on.wait(WAIT)
        for uid in ("a", "b", "c"):
            calls.add(call_of(uid))
        added.set()

    call = call_of("one", future=calls.future())
    calls.add(call)
    call.future.add_done_callback(call_again)
    calls.settle(call, "answer")
    assert began.wait(WAIT)
    for uid in ("two", "three"):
        call = call_of(uid, future=calls.future())
        calls.add(call)
        call.future.add_done_callback(lambda _: added.wait(WAIT))
        calls.settle(call, "answer")
    deadline = NotedDeadline()
    outside = in_thread(calls.add, call_of("other")._replace(deadline=deadline))
    assert deadline.asked.wait(WAIT)
    go_on.set()
    wait_for(lambda: calls.find("b"))
    calls.settle(call_of("a"), "answer")
    assert added.wait(WAIT)
    calls.settle(call_of("b"), "answer")
    outside.result(WAIT)
    calls.close(lambda call: ValueError("closed"), Deadline(WAIT))
    calls.join(Deadline(WAIT))


def test_a_callback_may_close_what_runs_it(calls: PendingCalls) -> None:
    call = call_of("one", future=calls.future())
    calls.add(call)
    closed = threading.Event()

    def close(_: Future[object]) -> None:
        calls.close(lambda call: ValueError("closed"), Deadline(WAIT))
        calls.join(Deadline(WAIT))
        closed.set()

    call.future.add_done_callback(close)
    calls.settle(call, "answer")
    assert closed.wait(WAIT)
