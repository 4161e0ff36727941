"""Calls: whom to believe, and what is encrypted."""

from __future__ import annotations

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import (
    BAD_SIGNATURE,
    E2E_FAILURE,
    FAILED,
    NO_PUBLIC_KEY,
    BusError,
    CallTimeout,
)
from wsmux.bus.session.identity_session import clock
from wsmux.bus.wire import envelope as envelopes
from wsmux.bus.wire.address import Address, put_address
from wsmux.bus.wire.messages import Envelope

from ..helpers.bus.clients import ALICE, BOB, CAROL, WAIT, calling, client, known, serving, staged
from ..helpers.bus.people import Person, Table, table_of
from ..helpers.bus.scripted_relay import StageRelay
from ..helpers.waiting import wait_for

relay = pytest.fixture(staged)
twins = pytest.fixture(known)
alice = pytest.fixture(calling)
bob = pytest.fixture(serving)


def reply_to(request: Envelope, who: Person, plain: bytes = b"1") -> Envelope:
    """Return what a twin answers, signed."""
    source = Address(who.id)
    made = envelopes.response(request, source, clock(), 60, plain=plain)
    made.signature = who.identity.sign(envelopes.digest(made))
    return made


def test_an_answer_of_another_twin_is_not_taken(alice: Client, relay: StageRelay) -> None:
    relay.change = lambda envelope: [reply_to(envelope, CAROL), reply_to(envelope, BOB, b"2")]
    with client_without_keys(relay) as made:
        assert made.call(2, "add", timeout=WAIT) == 2


def client_without_keys(relay: StageRelay) -> Client:
    return client(relay, table_of(ALICE, BOB, CAROL, keys=False))


def test_an_answer_with_a_wrong_signature_fails_the_call(relay: StageRelay) -> None:
    def forge(envelope: Envelope) -> list[Envelope]:
        made = reply_to(envelope, BOB)
        made.plain = b"666"
        return [made]

    relay.change = forge
    with client_without_keys(relay) as made, pytest.raises(BusError) as caught:
        made.call(2, "add", timeout=WAIT)
    assert caught.value.code == BAD_SIGNATURE


def test_an_answer_that_comes_twice_counts_once(relay: StageRelay) -> None:
    relay.change = lambda envelope: [reply_to(envelope, BOB)] * 2
    with client_without_keys(relay) as made:
        assert [made.call(2, "add", timeout=WAIT) for _ in range(3)] == [1, 1, 1]


def test_an_answer_for_another_session_is_not_taken(relay: StageRelay) -> None:
    with client_without_keys(relay) as made:

        def misdirect(envelope: Envelope) -> list[Envelope]:
            wrong = reply_to(envelope, BOB)
            put_address(wrong.destination, Address(1, "other"))
            wrong.signature = BOB.identity.sign(envelopes.digest(wrong))
            relay.links[Address(1, "other")] = relay.links[made.address]
            return [wrong]

        relay.change = misdirect
        with pytest.raises(BusError, match="came to") as caught:
            made.call(2, "add", timeout=WAIT)
        del relay.links[Address(1, "other")]
    assert caught.value.code == FAILED


def test_a_relay_cannot_answer(relay: StageRelay) -> None:
    def unsigned(envelope: Envelope) -> list[Envelope]:
        made = reply_to(envelope, BOB)
        made.ClearField("source")
        return [made]

    relay.change = unsigned
    with client_without_keys(relay) as made, pytest.raises(CallTimeout):
        made.call(2, "add", timeout=0.3)


def test_what_cannot_be_parsed_is_dropped(alice: Client, bob: Client, relay: StageRelay) -> None:
    alice.wait_connected(WAIT)
    wait_for(lambda: alice.address in relay.connected())
    relay.links[alice.address].send_nowait(b"\xff\xff")
    assert alice.call(2, "add", [1], timeout=WAIT) == 1


# Encryption


def test_payloads_are_encrypted_both_ways(alice: Client, bob: Client, relay: StageRelay) -> None:
    assert alice.call(2, "echo", "secret", timeout=WAIT) == "secret"
    assert [each.WhichOneof("payload") for each in relay.passed] == ["cipher", "cipher"]


def test_a_twin_that_never_had_a_key_is_written_to_in_the_clear(
    alice: Client, bob: Client, relay: StageRelay, twins: Table
) -> None:
    twins.twins[2] = BOB.record(key=False)
    assert alice.call(2, "echo", 1, timeout=WAIT) == 1
    assert relay.passed[0].plain == b"1"


def test_a_key_that_disappears_ends_what_is_sent(
    alice: Client, bob: Client, relay: StageRelay, twins: Table
) -> None:
    assert alice.call(2, "echo", 1, timeout=WAIT) == 1
    twins.twins[2] = BOB.record(key=False)
    with pytest.raises(BusError, match="has none now") as caught:
        alice.call(2, "echo", 2, timeout=WAIT)
    assert (caught.value.code, caught.value.retry_safe) == (NO_PUBLIC_KEY, True)
    assert len(relay.passed) == 2


def test_without_a_key_of_its_own_on_record_nothing_is_encrypted(
    alice: Client, bob: Client, relay: StageRelay, twins: Table, caplog: pytest.LogCaptureFixture
) -> None:
    twins.twins[1] = ALICE.record(key=False)
    assert [alice.call(2, "echo", each, timeout=WAIT) for each in (1, 2)] == [1, 2]
    assert relay.passed[0].plain == b"1"
    assert sum("until it is published" in text for text in caplog.messages) == 1


def test_encryption_can_be_turned_off(relay: StageRelay, twins: Table, bob: Client) -> None:
    with client(relay, twins, e2e=False) as made:
        assert made.call(2, "echo", 1, timeout=WAIT) == 1
    assert relay.passed[0].plain == b"1"


def failed(request: Envelope, code: int) -> Envelope:
    """Return an error of bob with a payload in plaintext, signed."""
    made = reply_to(request, BOB, b"what went wrong")
    made.error.code, made.error.message = code, "no room"
    made.signature = BOB.identity.sign(envelopes.digest(made))
    return made


@pytest.mark.parametrize("code", [0, 42, E2E_FAILURE])
def test_an_error_in_the_clear_keeps_its_code(alice: Client, relay: StageRelay, code: int) -> None:
    relay.change = lambda envelope: [failed(envelope, code)]
    with pytest.raises(BusError, match="no room") as caught:
        alice.call(2, "add", timeout=WAIT)
    assert relay.passed[0].HasField("cipher")
    assert (caught.value.code, caught.value.twin) == (code, 2)


def test_an_encrypted_request_is_not_answered_in_the_clear(
    alice: Client, relay: StageRelay
) -> None:
    relay.change = lambda envelope: [reply_to(envelope, BOB)]
    with pytest.raises(BusError, match="in plaintext") as caught:
        alice.call(2, "add", timeout=WAIT)
    assert caught.value.code == E2E_FAILURE
