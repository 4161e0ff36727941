"""Functions that answer: what they are told, what their callers learn, and the bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import EXPIRED, FAILED, UNKNOWN_TWIN, BusError
from wsmux.bus.services import ServiceRequest, decode, encode
from wsmux.bus.session.answer_cache import AnswerCache
from wsmux.bus.session.identity_session import clock
from wsmux.bus.wire import envelope as envelopes
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.messages import Envelope
from wsmux.runtime.capacity_limiter import CapacityLimiter

from ..helpers.bus.clients import ALICE, BOB, CAROL, WAIT, staged
from ..helpers.bus.inside import services_of
from ..helpers.bus.people import Person, Table, table_of
from ..helpers.bus.scripted_relay import StageRelay
from ..helpers.waiting import wait_for

relay = pytest.fixture(staged)


@pytest.fixture
def twins() -> Table:
    return table_of(ALICE, BOB)


@pytest.fixture
def bob(relay: StageRelay, twins: Table) -> Iterator[Client]:
    with Client(BOB.identity, relay.url, twins, twin=2, gateway=True) as made:
        made.wait_connected(WAIT)
        wait_for(lambda: Address(2) in relay.connected())
        yield made


@pytest.fixture
def alice(relay: StageRelay, twins: Table) -> Iterator[Client]:
    with Client(ALICE.identity, relay.url, twins, twin=1, e2e=False) as made:
        yield made


def signed(envelope: Envelope, who: Person = ALICE) -> Envelope:
    envelope.signature = who.identity.sign(envelopes.digest(envelope))
    return envelope


def request(
    command: str = "add", plain: bytes = b"[1]", now: int | None = None, who: Person = ALICE
) -> Envelope:
    made = envelopes.request(
        "u-1", Address(who.id), Address(2), command, now or clock(), 60, plain=plain
    )
    return signed(made, who)


def answers(relay: StageRelay, count: int = 1) -> list[Envelope]:
    """Wait for what the service sends."""
    wait_for(lambda: len(relay.passed) >= count)
    return relay.passed


def test_a_function_may_ask_for_the_request(alice: Client, bob: Client) -> None:
    seen: list[ServiceRequest] = []

    def serve(payload: object, request: ServiceRequest) -> None:
        seen.append(request)

    bob.serve({"look": serve})
    assert alice.call(2, "look", {"a": 1}, timeout=WAIT, tags="one two") is None
    found = seen[0]
    assert (found.source, found.command, found.data) == (alice.address, "look", b'{"a":1}')
    assert (found.schema, found.tags, found.encrypted) == ("application/json", "one two", False)
    assert 0 < (found.deadline.remaining() or 0) <= WAIT + 1


def test_a_function_that_fails_is_told_by_name(
    alice: Client, bob: Client, caplog: pytest.LogCaptureFixture
) -> None:
    bob.serve({"divide": lambda payload: 1 / payload})
    with pytest.raises(BusError, match="ZeroDivisionError: division by zero") as caught:
        alice.call(2, "divide", 0, timeout=WAIT)
    assert (caught.value.code, caught.value.retry_safe) == (FAILED, False)
    assert "the function of 'divide' failed" in caplog.text


def test_what_is_no_json_is_no_answer(alice: Client, bob: Client) -> None:
    bob.serve({"set": lambda payload: {1, 2}})
    with pytest.raises(BusError, match="TypeError"):
        alice.call(2, "set", timeout=WAIT)


def test_an_answer_too_long_is_an_error(alice: Client, bob: Client) -> None:
    bob.serve({"long": lambda payload: "x" * (16 * 1024 * 1024)})
    with pytest.raises(BusError, match="does not fit an envelope"):
        alice.call(2, "long", timeout=WAIT)


def test_a_command_that_nobody_serves_is_refused_at_once(alice: Client, bob: Client) -> None:
    with pytest.raises(BusError, match="serves no 'nothing'") as caught:
        alice.call(2, "nothing", timeout=WAIT)
    assert caught.value.code == FAILED


@pytest.mark.parametrize(("command", "code"), [("nothing", FAILED), ("add", EXPIRED)])
def test_no_date_of_a_request_ends_the_connection(
    relay: StageRelay, bob: Client, command: str, code: int
) -> None:
    bob.serve({"add": sum})
    last = 2**64 - 1
    made = envelopes.request("u-1", Address(1), Address(2), command, last, last, plain=b"[1]")
    relay.deliver(signed(made))
    answer = answers(relay)[0]
    assert (answer.error.code, answer.expiration) == (code, envelopes.MAX_LIFE)
    assert bob.relays()[0].reason == ""


def test_a_request_too_long_to_be_refused_does_not_end_the_connection(
    relay: StageRelay, alice: Client, bob: Client, caplog: pytest.LogCaptureFixture
) -> None:
    bob.serve({"add": sum})
    short = signed(envelopes.request("", Address(1), Address(2), "c", clock(), 60, plain=b"1"))
    uid = "u" * (envelopes.MAX_ENVELOPE - short.ByteSize() - 8)
    made = signed(envelopes.request(uid, Address(1), Address(2), "c", clock(), 60, plain=b"1"))
    assert made.ByteSize() <= envelopes.MAX_ENVELOPE
    relay.deliver(made)
    assert alice.call(2, "add", [1, 2], timeout=WAIT) == 3
    assert "a request from twin 1 is not answered: an envelope of" in caplog.text
    assert bob.relays()[0].reason == ""


def test_a_copy_of_a_request_that_waits_is_no_further_request(
    relay: StageRelay, bob: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(payload: object) -> bool:
        begun.set()
        return go_on.wait(WAIT)

    bob.serve({"slow": slow}, workers=1)
    monkeypatch.setattr(services_of(bob), "_room", CapacityLimiter(1, 10_000))
    runs, waits = (
        signed(envelopes.request(uid, Address(1), Address(2), "slow", clock(), 60, plain=b"1"))
        for uid in ("runs", "waits")
    )
    relay.deliver(runs)
    assert begun.wait(WAIT)
    for _ in range(3):
        relay.deliver(waits)
        relay.deliver(runs)
    relay.deliver(request("nothing"))  # refused, when all that came before was looked at
    wait_for(lambda: [each.uid for each in relay.passed] == ["u-1"])
    go_on.set()
    wait_for(lambda: len(relay.passed) == 3)
    assert {each.uid for each in relay.passed[1:]} == {"runs", "waits"}
    assert all(each.HasField("response") for each in relay.passed[1:])


def test_what_waited_for_a_service_is_answered_as_it_comes(relay: StageRelay, twins: Table) -> None:
    relay.deliver(request())
    with Client(BOB.identity, relay.url, twins, twin=2, gateway=True) as bob:
        # It would be refused if the client connected before it is told what to serve.
        assert not any("127.0.0.1" in each.name for each in threading.enumerate())
        bob.serve({"add": sum})
        assert [answer.HasField("response") for answer in answers(relay)] == [True]


def test_functions_run_at_once_up_to_their_number(alice: Client, bob: Client) -> None:
    together = threading.Barrier(3)
    bob.serve({"meet": lambda payload: together.wait(WAIT)}, workers=3)
    calls = [alice.submit(2, "meet", timeout=WAIT) for _ in range(3)]
    assert sorted(call.result(WAIT) for call in calls) == [0, 1, 2]


def test_a_function_may_call(alice: Client, bob: Client) -> None:
    alice.serve({"double": lambda payload: 2 * payload})
    bob.serve({"ask": lambda payload: bob.call(alice.address, "double", payload, timeout=WAIT)})
    assert alice.call(2, "ask", 21, timeout=WAIT) == 42


@pytest.mark.parametrize(
    ("functions", "error"),
    [({"": len}, ValueError), ({"a": 1}, TypeError), ({"taken": len}, ValueError)],
)
def test_what_cannot_serve_is_refused(
    bob: Client, functions: dict[str, object], error: type[Exception]
) -> None:
    bob.serve({"taken": len})
    with pytest.raises(error):
        bob.serve(functions)  # type: ignore[arg-type]


def test_no_workers_cannot_serve(bob: Client) -> None:
    with pytest.raises(ValueError, match="at least 1 worker, got 0"):
        bob.serve({"a": len}, workers=0)


def test_a_request_that_comes_again_is_not_run_again(bob: Client, relay: StageRelay) -> None:
    runs: list[object] = []
    bob.serve({"add": lambda payload: runs.append(payload)})
    same = request()
    relay.deliver(same)
    answers(relay)
    relay.deliver(same)
    first, second = answers(relay, 2)
    assert runs == [[1]]
    assert first.SerializeToString() == second.SerializeToString()


def test_a_request_of_an_unknown_twin_is_refused(bob: Client, relay: StageRelay) -> None:
    bob.serve({"add": sum})
    relay.deliver(request(who=CAROL))
    assert answers(relay)[0].error.code == UNKNOWN_TWIN


def test_an_expired_request_is_refused(bob: Client, relay: StageRelay) -> None:
    bob.serve({"add": sum})
    relay.deliver(request(now=clock() - 100))
    refused = answers(relay)[0]
    assert refused.error.code == EXPIRED
    assert envelopes.time_left(refused, clock()) > 0


def test_a_request_without_a_source_is_dropped(bob: Client, relay: StageRelay) -> None:
    ran = threading.Event()
    bob.serve({"add": sum, "mark": lambda payload: ran.set()})
    anonymous = request()
    anonymous.ClearField("source")
    relay.deliver(anonymous)
    relay.deliver(request("mark"))
    assert ran.wait(WAIT)
    assert [each.WhichOneof("message") for each in answers(relay)] == ["response"]


@pytest.mark.parametrize("plain", [b"{", b"\xff", b"nul", b"[" * 100_000])
def test_a_payload_that_is_no_json_is_refused(bob: Client, relay: StageRelay, plain: bytes) -> None:
    bob.serve({"add": sum})
    relay.deliver(request(plain=plain))
    assert "not JSON" in answers(relay)[0].error.message


def test_too_many_that_wait_are_refused(
    bob: Client, alice: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services_of(bob), "_room", CapacityLimiter(1, 10_000))
    gate = threading.Event()
    running = threading.Semaphore(0)

    def wait(payload: object) -> bool:
        running.release()
        return gate.wait(WAIT)

    bob.serve({"wait": wait}, workers=1)
    first = alice.submit(2, "wait", timeout=WAIT)
    assert running.acquire(timeout=WAIT)
    second = alice.submit(2, "wait", timeout=WAIT)
    with pytest.raises(BusError, match="are waiting"):
        alice.call(2, "wait", timeout=WAIT)
    gate.set()
    assert first.result(WAIT)
    assert second.result(WAIT)


class Closing:
    """A client that closes while a function of it runs for a caller."""

    def __init__(self, relay: StageRelay, twins: Table, caller: Client) -> None:
        self._gate, self._running = threading.Event(), threading.Event()
        self.client = Client(BOB.identity, relay.url, twins, twin=2, gateway=True)
        self.client.serve({"wait": self._wait})
        self._call = caller.submit(2, "wait", timeout=WAIT)
        assert self._running.wait(WAIT)
        self._thread = threading.Thread(target=self.client.close, args=(WAIT,))
        self._thread.start()
        wait_for(lambda: services_of(self.client)._closed)

    def _wait(self, payload: object) -> bool:
        self._running.set()
        return self._gate.wait(WAIT)

    def end(self) -> object:
        """Let the function end; return its answer."""
        self._gate.set()
        self._thread.join(WAIT)
        return self._call.result(WAIT)


def test_closing_lets_functions_end(relay: StageRelay, twins: Table, alice: Client) -> None:
    closing = Closing(relay, twins, alice)
    assert closing.end() is True
    with pytest.raises(ValueError, match="closed"):
        closing.client.serve({"more": len})


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode(float("nan"))


def test_nothing_is_null() -> None:
    assert encode(None) == b"null"
    assert decode(b"", "") is None


def test_a_media_type_may_have_parameters() -> None:
    assert decode(b"1", "application/JSON; charset=utf-8") == 1


def test_the_oldest_answers_are_forgotten() -> None:
    kept = AnswerCache(max_count=3, max_bytes=10)
    for number in range(4):
        kept.keep(number, b"12")
    assert [kept.find(number) for number in range(4)] == [None, b"12", b"12", b"12"]
    kept.keep(3, b"1234567")
    assert [kept.find(number) for number in (1, 2, 3)] == [None, b"12", b"1234567"]


def test_a_client_that_closes_takes_no_more(relay: StageRelay, twins: Table, alice: Client) -> None:
    closing = Closing(relay, twins, alice)
    with pytest.raises(BusError, match="is closing"):
        alice.call(2, "wait", timeout=WAIT)
    assert closing.end() is True
