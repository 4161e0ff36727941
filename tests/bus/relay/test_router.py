"""The decisions of a relay, in the order of the known one, with its texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.relay.router import (
    EXPIRED,
    FULL,
    LIMITED,
    MISSING_DESTINATION,
    NO_RELAYS,
    NO_SESSION,
    NOBODY,
    OFFLINE,
    REASONS,
    UNKNOWN_TWIN,
    WRONG_SOURCE,
    Ask,
    Drop,
    Federate,
    Forward,
    Queue,
    Reply,
    check,
    failure,
    onward,
)
from wsmux.bus.twins.records import Twin
from wsmux.bus.wire import envelope as envelopes
from wsmux.bus.wire.address import Address, put_address
from wsmux.bus.wire.messages import Envelope

from ...helpers.bus.captured import COMPUTED, NOW, NPM, rows

SENDER = Address(1, "s1")
TARGET = Address(2, "s2")
OURS = frozenset({"relay.test"})
ACCOUNT = bytes(32)


def asked(**fields: object) -> Envelope:
    made = Envelope(uid="u-1", timestamp=NOW, expiration=60)
    put_address(made.source, SENDER)
    put_address(made.destination, TARGET)
    made.request.command = "test.command"
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def twin(*relays: str) -> Twin:
    return Twin(2, ACCOUNT, relays)


def text(decision: object) -> str:
    assert isinstance(decision, Reply)
    assert decision.envelope.error.code == 0
    return decision.envelope.error.message


# check


def test_an_envelope_is_forwarded_to_its_destination() -> None:
    assert check(asked(), SENDER, NOW) == Forward(TARGET)


@pytest.mark.parametrize("session", [None, "", "a:b"])
def test_sessions_are_told_apart(session: str | None) -> None:
    envelope = asked()
    put_address(envelope.destination, Address(2, session))
    assert check(envelope, SENDER, NOW) == Forward(Address(2, session))


@pytest.mark.parametrize(
    "source",
    [Address(2, "s1"), Address(1), Address(1, ""), Address(1, "s2"), Address(0, "s1"), None],
    ids=str,
)
def test_a_source_that_is_not_the_connection_is_refused(source: Address | None) -> None:
    envelope = asked()
    envelope.ClearField("source")
    if source is not None:
        put_address(envelope.source, source)
    decision = check(envelope, SENDER, NOW)
    assert text(decision) == WRONG_SOURCE
    assert isinstance(decision, Reply)
    assert envelopes.relay_error(asked(), WRONG_SOURCE, NOW) == decision.envelope


def test_no_session_and_an_empty_one_differ() -> None:
    envelope = asked()
    put_address(envelope.source, Address(1))
    assert check(envelope, Address(1), NOW) == Forward(TARGET)
    assert text(check(envelope, Address(1, ""), NOW)) == WRONG_SOURCE


def test_the_source_is_looked_at_before_the_destination() -> None:
    envelope = asked()
    envelope.ClearField("destination")
    assert text(check(envelope, Address(9), NOW)) == WRONG_SOURCE


@pytest.mark.parametrize("destination", [None, Address(0), Address(0, "s2")], ids=str)
def test_a_missing_destination_is_refused(destination: Address | None) -> None:
    envelope = asked()
    envelope.ClearField("destination")
    if destination is not None:
        put_address(envelope.destination, destination)
    assert text(check(envelope, SENDER, NOW)) == MISSING_DESTINATION


def test_the_destination_is_looked_at_before_the_time() -> None:
    envelope = asked(timestamp=1)
    envelope.ClearField("destination")
    assert text(check(envelope, SENDER, NOW)) == MISSING_DESTINATION


@pytest.mark.parametrize(
    ("timestamp", "expiration", "expired"),
    [
        (NOW, 60, False),
        (NOW - 59, 60, False),
        (NOW - 60, 60, True),
        (NOW, 0, True),
        (0, 60, True),
        (0, 0, True),
        (NOW + 100, 1, False),
        (0, 2**64 - 1, False),
    ],
)
def test_expired_envelopes_go_nowhere(timestamp: int, expiration: int, expired: bool) -> None:
    decision = check(asked(timestamp=timestamp, expiration=expiration), SENDER, NOW)
    if expired:
        assert text(decision) == EXPIRED
    else:
        assert decision == Forward(TARGET)


@pytest.mark.parametrize("kind", ["response", "error", "pong"])
def test_only_requests_are_answered(kind: str) -> None:
    envelope = asked(timestamp=1)
    getattr(envelope, kind).SetInParent()
    assert check(envelope, SENDER, NOW) == Drop(EXPIRED)


def test_an_envelope_without_a_message_is_forwarded_too() -> None:
    envelope = asked()
    envelope.ClearField("request")
    assert check(envelope, SENDER, NOW) == Forward(TARGET)


def test_the_ping_of_npm_becomes_the_pong_that_npm_awaits() -> None:
    ping = envelopes.parse(bytes.fromhex(NPM["ping"]["serialized_hex"]))
    decision = check(ping, SENDER, NOW + 10_000)
    assert isinstance(decision, Reply)
    expected = bytes.fromhex(COMPUTED["pong_for_ping"]["serialized_hex"])
    assert decision.envelope == envelopes.parse(expected)


def test_a_ping_of_somebody_else_has_the_wrong_source() -> None:
    ping = envelopes.parse(bytes.fromhex(NPM["ping"]["serialized_hex"]))
    assert check(ping, Address(1, "other"), NOW) == Drop(WRONG_SOURCE)


# onward


def test_an_unknown_twin_is_told() -> None:
    assert text(onward(asked(), SENDER, None, OURS, NOW)) == UNKNOWN_TWIN


def test_a_twin_without_relays_is_told() -> None:
    assert text(onward(asked(), SENDER, twin(), OURS, NOW)) == NO_RELAYS


@pytest.mark.parametrize("tags", [None, "fail-fast"])
def test_a_twin_of_other_relays_is_theirs(tags: str | None) -> None:
    envelope = asked() if tags is None else asked(tags=tags)
    decision = onward(envelope, SENDER, twin("a.test", "b.test"), OURS, NOW)
    assert decision == Federate(("a.test", "b.test"))


def test_one_domain_of_ours_is_enough() -> None:
    decision = onward(asked(), SENDER, twin("a.test", "relay.test"), OURS, NOW)
    assert decision == Queue(TARGET)


def test_without_domains_every_twin_is_anothers() -> None:
    decision = onward(asked(), SENDER, twin("relay.test"), frozenset(), NOW)
    assert decision == Federate(("relay.test",))


@pytest.mark.parametrize("row", rows(COMPUTED["fail_fast_tags"], "tags"))
def test_fail_fast_does_not_queue(row: dict[str, str | None]) -> None:
    envelope = asked() if row["tags"] is None else asked(tags=row["tags"])
    decision = onward(envelope, SENDER, twin("relay.test"), OURS, NOW)
    if row["fail_fast"]:
        assert text(decision) == OFFLINE
    else:
        assert decision == Queue(TARGET)


def test_what_no_connection_may_have_is_not_queued() -> None:
    envelope = asked()
    put_address(envelope.destination, Address(2, "@!"))
    assert text(onward(envelope, SENDER, twin("relay.test"), OURS, NOW)) == NO_SESSION
    elsewhere = onward(envelope, SENDER, twin("other.test"), OURS, NOW)
    assert elsewhere == Federate(("other.test",))  # another relay may think otherwise


def test_an_offline_response_is_dropped() -> None:
    envelope = asked(tags="fail-fast")
    envelope.response.SetInParent()
    assert onward(envelope, SENDER, twin("relay.test"), OURS, NOW) == Drop(OFFLINE)


# failure

RELAY_ROWS = [row for row in COMPUTED["relay_errors"] if "from_federation" not in row]


@pytest.mark.parametrize("row", rows(RELAY_ROWS, "message"))
def test_errors_are_those_of_the_known_relay(row: dict[str, str]) -> None:
    decision = failure(asked(), SENDER, row["message"], NOW)
    assert isinstance(decision, Reply)
    assert decision.envelope.SerializeToString().hex() == row["serialized_hex"]


def test_every_error_of_the_known_relay_has_a_name_here() -> None:
    texts = {row["message"] for row in RELAY_ROWS}
    assert texts == REASONS - {EXPIRED, FULL, NO_SESSION, NOBODY}
    assert LIMITED in texts


@given(st.binary(max_size=200))
def test_any_envelope_that_parses_gets_a_decision(data: bytes) -> None:
    try:
        envelope = envelopes.parse(data)
    except envelopes.BadMessage:
        return
    put_address(envelope.source, SENDER)
    decision = check(envelope, SENDER, NOW)
    assert isinstance(decision, Forward | Reply | Drop | Ask)
    onwards = onward(envelope, SENDER, twin("relay.test"), OURS, NOW)
    assert isinstance(onwards, Queue | Reply | Drop)


def for_relay(command: str = "relay.who") -> Envelope:
    made = asked()
    put_address(made.destination, Address(0))
    made.request.command = command
    return made


def test_a_request_to_the_relay_itself_is_answered_here() -> None:
    assert check(for_relay(), SENDER, NOW) == Ask()
    assert text(check(for_relay("test.command"), SENDER, NOW)) == MISSING_DESTINATION
    assert text(check(for_relay(), SENDER, NOW + 100)) == EXPIRED
    assert text(check(for_relay(), TARGET, NOW)) == WRONG_SOURCE
