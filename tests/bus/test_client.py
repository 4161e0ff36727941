"""Calls: answers, errors, time, and lost connections."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from wsmux.bus.client import Client, Reply
from wsmux.bus.errors import FROM_RELAY, UNKNOWN_TWIN, BusError, CallTimeout, TwinsUnavailable
from wsmux.bus.relay.router import EXPIRED
from wsmux.bus.services import ServiceRequest
from wsmux.bus.session.identity_session import clock
from wsmux.bus.session.relay_connection import LinkState
from wsmux.bus.twins.records import twin_record
from wsmux.bus.wire import envelope as envelopes
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.keys import KeyType
from wsmux.exceptions import ForkedError

from ..helpers.bus.clients import (
    ALICE,
    BOB,
    CAROL,
    WAIT,
    all_connected,
    calling,
    client,
    known,
    serving,
    staged,
)
from ..helpers.bus.inside import limit_calls
from ..helpers.bus.people import Table, person, table_of
from ..helpers.bus.scripted_relay import StageRelay
from ..helpers.timeouts import CONNECTS
from ..helpers.waiting import wait_for

relay = pytest.fixture(staged)
twins = pytest.fixture(known)
alice = pytest.fixture(calling)
bob = pytest.fixture(serving)


def test_a_call_returns_the_answer(alice: Client, bob: Client) -> None:
    assert alice.call(2, "add", [1, 2, 3], timeout=WAIT) == 6


@pytest.mark.parametrize(
    "payload", [None, 0, "", "ä€😀", [], {"a": [1.5, None, True]}, "x" * 70_000]
)
def test_any_json_goes_there_and_back(alice: Client, bob: Client, payload: object) -> None:
    assert alice.call(2, "echo", payload, timeout=WAIT) == payload


def test_many_threads_call_at_once(alice: Client, bob: Client) -> None:
    answers: dict[int, int] = {}

    def ask(number: int) -> None:
        for each in range(number, 200, 8):
            answers[each] = alice.call(2, "echo", each, timeout=WAIT)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert answers == {each: each for each in range(200)}


def test_a_session_is_called_by_its_name(relay: StageRelay, twins: Table, alice: Client) -> None:
    with client(relay, twins, BOB, session="s:1") as service:
        service.serve({"who": lambda _: "s:1"})
        assert alice.call("2:s:1", "who", timeout=WAIT) == "s:1"
        assert alice.call(Address(2, "s:1"), "who", timeout=WAIT) == "s:1"


def test_a_twin_may_call_another_session_of_its_own(
    relay: StageRelay, twins: Table, alice: Client
) -> None:
    with client(relay, twins, ALICE, session="other") as other:
        other.serve({"who": lambda _, request: str(request.source)})
        assert alice.call("1:other", "who", timeout=WAIT) == str(alice.address)


def test_bytes_of_any_media_type_are_carried(alice: Client, bob: Client) -> None:
    def raw(payload: object, request: ServiceRequest) -> str:
        return request.schema

    bob.serve({"raw": raw})
    assert alice.call_raw(2, "echo", b"[1]", timeout=WAIT) == Reply(b"[1]", "application/json")
    with pytest.raises(BusError, match="not JSON"):
        alice.call_raw(2, "raw", b"\xff", "application/octet-stream", timeout=WAIT)


def test_a_submitted_call_is_a_future(alice: Client, bob: Client) -> None:
    done: Future[int] = Future()
    alice.submit(2, "add", [4, 5], timeout=WAIT).add_done_callback(
        lambda each: done.set_result(each.result())
    )
    assert done.result(WAIT) == 9


def test_the_own_twin_is_found_by_its_account(relay: StageRelay, twins: Table) -> None:
    with Client(CAROL.identity, relay.url, twins) as made:
        assert made.address.twin == 3


def test_an_identity_without_a_twin_is_refused(relay: StageRelay, twins: Table) -> None:
    with pytest.raises(BusError, match="no twin has the account") as caught:
        Client(person(9).identity, relay.url, twins)
    assert caught.value.code == UNKNOWN_TWIN


@pytest.mark.parametrize(
    ("right", "wrong"), [(KeyType.ED25519, KeyType.SR25519), (KeyType.SR25519, KeyType.ED25519)]
)
def test_a_wrong_key_type_is_told(relay: StageRelay, right: KeyType, wrong: KeyType) -> None:
    twins = table_of(person(5, right))
    with pytest.raises(BusError, match=f"of key type {wrong}: twin 5 .*-k {right}") as caught:
        Client(person(5, wrong).identity, relay.url, twins)
    assert caught.value.code == UNKNOWN_TWIN


def test_clients_whose_calls_wait_are_back_soon_after_their_relay(
    relay: StageRelay, twins: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wsmux.bus.session.relay_connection.FIRST_WAIT", 1000.0)
    monkeypatch.setattr("wsmux.bus.session.relay_connection.LONGEST_WAIT", 1000.0)
    monkeypatch.setattr("wsmux.bus.session.relay_connection.STEADY", 0.0)
    monkeypatch.setattr("random.random", lambda: 0.5)
    with ExitStack() as stack:
        clients = [stack.enter_context(client(relay, twins)) for _ in range(11)]
        service = stack.enter_context(client(relay, twins, BOB, gateway=True))
        for each in clients:
            each.wait_connected(WAIT)
        service.serve({"echo": lambda payload: payload})
        service.wait_connected(WAIT)
        relay.stop()
        wait_for(lambda: all(each.relays()[0].state is not LinkState.CONNECTED for each in clients))
        with ThreadPoolExecutor(len(clients)) as pool:
            answers = [
                pool.submit(each.call, 2, "echo", number, timeout=WAIT)
                for number, each in enumerate(clients)
            ]
            wait_for(lambda: all(len(each._calls) for each in clients))
            again = stack.enter_context(StageRelay(relay.port))
            began = time.monotonic()
            wait_for(lambda: len(again.connected()) == 12)
            assert time.monotonic() - began < WAIT / 2
            assert [each.result(WAIT) for each in answers] == list(range(11))


@pytest.mark.parametrize("urls", [[], ["ws://r"] * 1 + ["http://r"], ["ws://r/?q"], list("abcde")])
def test_what_is_no_relay_is_refused(twins: Table, urls: list[str]) -> None:
    with pytest.raises(ValueError, match="relays|address"):
        Client(ALICE.identity, urls, twins, twin=1)


def test_a_directory_may_be_named(relay: StageRelay, tmp_path: Path) -> None:
    path = tmp_path / "twins.json"
    path.write_text(json.dumps([twin_record(ALICE.record())]))
    for twins in (str(path), [str(path)], path, [path], ["missing.json", path]):
        with Client(ALICE.identity, [relay.url], twins) as made:
            assert made.address.twin == 1
    with pytest.raises(BusError, match="no twin has the account"):
        Client(BOB.identity, relay.url, str(path))


def test_a_gateway_has_no_session(relay: StageRelay, twins: Table) -> None:
    with pytest.raises(ValueError, match="one of the two"):
        client(relay, twins, gateway=True, session="s")


def test_a_client_tells_how_it_stands(alice: Client) -> None:
    assert (alice.closed, repr(alice)) == (False, f"<Client {alice.address} 0 calls under way>")
    alice.close()
    assert (alice.closed, repr(alice)) == (True, f"<Client {alice.address} closed>")


# What is refused before anything is sent


@pytest.mark.parametrize("to", ["", "x!", "-1", "4294967296", "1.5", 2**32])
def test_what_is_no_address_is_not_called(alice: Client, to: int | str) -> None:
    with pytest.raises(ValueError, match="address"):
        alice.call(to, "add")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_call_needs_a_time(alice: Client, timeout: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        alice.call(2, "add", timeout=timeout)


def test_a_call_needs_a_command(alice: Client) -> None:
    with pytest.raises(ValueError, match="empty"):
        alice.call(2, "")


@pytest.mark.parametrize("payload", [float("nan"), {1, 2}, b"bytes"])
def test_what_is_no_json_is_not_sent(alice: Client, relay: StageRelay, payload: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        alice.call(2, "add", payload)
    assert relay.passed == []


def test_an_unknown_twin_is_told_at_once(alice: Client) -> None:
    with pytest.raises(BusError, match="unknown twin id '99'") as caught:
        alice.call(99, "add")
    assert (caught.value.code, caught.value.retry_safe) == (UNKNOWN_TWIN, True)


def test_a_directory_that_is_down_is_told(alice: Client, twins: Table) -> None:
    twins.down = True
    with pytest.raises(TwinsUnavailable):
        alice.call(2, "add")


def test_a_payload_that_fits_no_envelope_is_refused(alice: Client) -> None:
    with pytest.raises(BusError, match="does not fit"):
        alice.call_raw(2, "add", bytes(16 * 1024 * 1024))


# Errors


def test_an_error_of_the_service_is_raised(alice: Client, bob: Client) -> None:
    def fail(payload: object) -> None:
        raise BusError(7, "no seat left")

    bob.serve({"book": fail})
    with pytest.raises(BusError, match="no seat left") as caught:
        alice.call(2, "book", timeout=WAIT)
    assert (caught.value.code, caught.value.twin, caught.value.side) == (7, 2, "remote")


def test_an_error_of_the_relay_is_raised(alice: Client, relay: StageRelay) -> None:
    relay.change = lambda envelope: [
        envelopes.relay_error(envelope, "destination offline", clock())
    ]
    with pytest.raises(BusError, match="destination offline") as caught:
        alice.call(2, "add", timeout=WAIT)
    assert (caught.value.code, caught.value.twin) == (FROM_RELAY, None)
    assert caught.value.retry_safe


def test_a_call_that_expires_at_the_relay_has_timed_out(alice: Client, relay: StageRelay) -> None:
    relay.change = lambda envelope: [envelopes.relay_error(envelope, EXPIRED, clock())]
    with pytest.raises(CallTimeout, match="message has expired") as caught:
        alice.call(2, "add", timeout=WAIT)
    assert not caught.value.retry_safe


def test_a_call_ends_when_its_time_is_over(alice: Client) -> None:
    with pytest.raises(CallTimeout, match="timed out waiting for the answer to 'add'") as caught:
        alice.call(2, "add", timeout=2.0)  # a busy machine sends it within that
    assert not caught.value.retry_safe
    assert isinstance(caught.value, TimeoutError)


def test_calls_end_each_in_its_own_time(alice: Client) -> None:
    late = alice.submit(2, "add", timeout=WAIT)
    soon = [alice.submit(2, "add", timeout=each) for each in (1.5, 0.5, 1.0)]
    for each in soon:
        with pytest.raises(CallTimeout):
            each.result(WAIT)
    assert not late.done()


def test_without_a_relay_a_call_waits_and_is_not_sent(twins: Table) -> None:
    with StageRelay() as gone:
        pass
    with client(gone, twins) as made:
        with pytest.raises(CallTimeout, match="no relay took the message") as caught:
            made.call(2, "add", timeout=0.1)
        assert caught.value.retry_safe
        assert len(made._calls) == 0


def test_closing_ends_calls(relay: StageRelay, twins: Table) -> None:
    made = client(relay, twins)
    waiting = made.submit(2, "add", timeout=WAIT)
    made.close()
    with pytest.raises(BusError, match="closed before the answer"):
        waiting.result(WAIT)
    with pytest.raises(ValueError, match="closed"):
        made.call(2, "add")
    made.close()


def test_a_cancelled_call_drops_its_answer(alice: Client, bob: Client, relay: StageRelay) -> None:
    gate = threading.Event()
    bob.serve({"slow": lambda _: gate.wait(WAIT)})
    waiting = alice.submit(2, "slow", timeout=WAIT)
    assert waiting.cancel()
    gate.set()
    assert alice.call(2, "echo", 1, timeout=WAIT) == 1
    wait_for(lambda: len(alice._calls) == 0)


@pytest.mark.parametrize("session", ["\ud800", "a\udfffb"])
def test_the_name_of_a_session_is_text(relay: StageRelay, twins: Table, session: str) -> None:
    with pytest.raises(ValueError, match="expected a session name of valid Unicode, got 'a?.ud"):
        client(relay, twins, session=session)


# Connections


def test_a_lost_connection_is_made_again(alice: Client, bob: Client, relay: StageRelay) -> None:
    assert alice.call(2, "add", [1], timeout=WAIT) == 1
    relay.cut()
    wait_for(lambda: len(relay.tokens) == 4)
    assert alice.call(2, "add", [2], timeout=WAIT) == 2


def test_each_connection_has_a_token_of_its_own(alice: Client, relay: StageRelay) -> None:
    alice.wait_connected(WAIT)
    claims = relay.tokens[0]
    assert (claims.twin, claims.session) == alice.address
    assert claims.expires - claims.issued <= 300


def test_a_refusal_is_shown_with_its_reason(relay: StageRelay, twins: Table) -> None:
    relay.refusal = (401, "the token expired 7 s ago")
    with client(relay, twins) as made:
        with pytest.raises(CallTimeout, match="the token expired 7 s ago"):
            made.wait_connected(CONNECTS)
        status = made.relays()[0]
        assert status.state in (LinkState.WAITING, LinkState.CONNECTING)
        assert "401" in status.reason
        relay.refusal = None
        made.wait_connected(WAIT)


def test_another_relay_takes_over(twins: Table) -> None:
    with StageRelay() as first, StageRelay() as second:
        urls = [first.url, second.url]
        with (
            Client(BOB.identity, urls, twins, twin=2, gateway=True) as service,
            Client(ALICE.identity, urls, twins, twin=1) as made,
        ):
            service.serve({"add": sum})
            made.wait_connected(WAIT)
            wait_for(lambda: all_connected(made, service))
            assert made.call(2, "add", [1], timeout=WAIT) == 1
            assert len(first.passed) >= 1
            first.stop()
            wait_for(
                lambda: (
                    LinkState.CONNECTED not in (made.relays()[0].state, service.relays()[0].state)
                )
            )
            assert made.call(2, "add", [2], timeout=WAIT) == 2
            assert len(second.passed) >= 1


# Bounds


def test_calls_beyond_the_bound_wait_for_room(alice: Client, bob: Client) -> None:
    gate = threading.Event()
    bob.serve({"wait": lambda payload: gate.wait(WAIT)})
    limit_calls(alice, 1)
    first = alice.submit(2, "wait", timeout=WAIT)
    with pytest.raises(CallTimeout, match="1 calls wait") as caught:
        alice.call(2, "add", [1], timeout=0.05)
    assert caught.value.retry_safe
    gate.set()
    assert alice.call(2, "add", [1], timeout=WAIT) == 1
    assert first.result(WAIT)


def test_a_forked_child_cannot_call_and_the_parent_can(alice: Client, bob: Client) -> None:
    assert alice.call(2, "add", [1], timeout=WAIT) == 1
    pid = os.fork()
    if not pid:
        refused = 0
        try:
            for use in (lambda: alice.call(2, "add"), lambda: alice.serve({})):
                try:
                    use()
                except ForkedError:
                    refused += 1
            alice.close()
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    assert alice.call(2, "add", [2], timeout=WAIT) == 2
