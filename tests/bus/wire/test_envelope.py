"""Envelopes are read strictly, signed over what the rules say, and made as peers expect."""

from __future__ import annotations

from contextlib import suppress
from hashlib import md5
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wsmux.bus.errors import BadMessage
from wsmux.bus.wire import envelope as envelopes
from wsmux.bus.wire.address import Address, address_of
from wsmux.bus.wire.envelope import (
    MAX_ENVELOPE,
    Kind,
    digest,
    is_fail_fast,
    kind_of,
    parse,
    time_left,
)
from wsmux.bus.wire.messages import AddressMessage, Envelope, Error, Ping, Pong, Request, Response

from ...helpers.bus.captured import NOW
from ...helpers.tables import each_case

U64 = 2**64 - 1

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(0, U64)
addresses = st.builds(AddressMessage, twin=st.integers(0, 2**32 - 1), connection=st.none() | texts)


@st.composite
def made(draw: st.DrawFn) -> Envelope:
    """Draw an envelope with any of its fields."""
    fields: dict[str, Any] = {
        "uid": texts,
        "tags": st.none() | texts,
        "timestamp": numbers,
        "expiration": numbers,
        "source": st.none() | addresses,
        "destination": st.none() | addresses,
        "signature": st.none() | st.binary(max_size=70),
        "schema": st.none() | texts,
        "federation": st.none() | texts,
        "relays": st.lists(texts, max_size=3),
    }
    kinds = {
        "request": st.builds(Request, command=texts),
        "response": st.just(Response()),
        "error": st.builds(Error, code=st.integers(0, 2**32 - 1), message=texts),
        "ping": st.just(Ping()),
        "pong": st.just(Pong()),
    }
    kind = draw(st.sampled_from([*kinds, None]))
    payload = draw(st.sampled_from(["plain", "cipher", None]))
    drawn = {name: draw(strategy) for name, strategy in fields.items()}
    if kind is not None:
        drawn[kind] = draw(kinds[kind])
    if payload is not None:
        drawn[payload] = draw(st.binary(max_size=20))
    return Envelope(**drawn)


def hashed_by_the_rules(envelope: Envelope) -> bytes:
    """Follow the rules in the order in which they are told."""
    text = envelope.uid
    if envelope.HasField("tags"):
        text += envelope.tags
    text += f"{envelope.timestamp}{envelope.expiration}"
    for address in (envelope.source, envelope.destination):
        text += f"{address.twin}"
        if address.HasField("connection"):
            text += address.connection
    if envelope.HasField("request"):
        text += envelope.request.command
    if envelope.HasField("error"):
        text += f"{envelope.error.code}{envelope.error.message}"
    if envelope.HasField("schema"):
        text += envelope.schema
    if envelope.HasField("federation"):
        text += envelope.federation
    payload = envelope.plain if envelope.HasField("plain") else envelope.cipher
    return md5(text.encode() + payload + "".join(envelope.relays).encode()).digest()


GOOD = envelopes.request("u-1", Address(1, "s"), Address(2), "a.b", NOW, 60, plain=b"1")

BAD = {
    "a lone tag": b"\x0a",
    "a text cut short": b"\x0a\x05abc",
    "a tag of field 0": b"\x02\x00",
    "a wire type that is none": b"\x0f",
    "an end without a start": b"\x0c",
    "a group that is left open": b"\x0b",
    "a varint without an end": b"\x18" + b"\xff" * 10,
    "a varint cut short": b"\x18\x80",
    "a uid that is no UTF-8": b"\x0a\x01\xff",
    "a command that is no UTF-8": b"\x3a\x03\x0a\x01\xff",
    "a session that is no UTF-8": b"\x2a\x05\x08\x01\x12\x01\xff",
    "an entry of relays that is no UTF-8": b"\x8a\x01\x01\xff",
    "a source cut short": b"\x2a\x05\x08\x01",
    "a length beyond the end": b"\x6a\xff\xff\xff\xff\x07",
    "a length beyond 2 GiB": b"\x6a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    "text": b"hello world",
    "JSON": b'{"ver": 1}',
    "an envelope without its last byte": GOOD.SerializeToString()[:-1],
    "one byte too many": b"\x6a" + bytes(4) + b"\0" * MAX_ENVELOPE,
}


@each_case
@pytest.mark.parametrize("why", BAD)
def test_what_is_no_envelope_is_refused(why: str) -> None:
    with pytest.raises(BadMessage, match=r"not an envelope|at most 16777216 bytes") as refused:
        parse(BAD[why])
    assert refused.value.code == 101


def test_an_envelope_of_the_largest_size_is_read() -> None:
    spare = MAX_ENVELOPE - len(Envelope(plain=b"x" * (1 << 23)).SerializeToString()) + (1 << 23)
    data = Envelope(plain=b"x" * spare).SerializeToString()
    assert len(data) == MAX_ENVELOPE
    assert len(parse(data).plain) == spare


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_an_envelope_is_read_from_any_bytes(kind: Any) -> None:
    assert parse(kind(GOOD.SerializeToString())) == GOOD


def test_a_field_that_nobody_knows_survives() -> None:
    unknown = b"\xa2\x06\x03new"  # field 100
    assert unknown in parse(GOOD.SerializeToString() + unknown).SerializeToString()


@given(st.binary(max_size=200) | made().map(Envelope.SerializeToString))
def test_any_bytes_are_an_envelope_or_a_typed_error(data: bytes) -> None:
    with suppress(BadMessage):
        assert parse(parse(data).SerializeToString()) == parse(data)


@given(made(), st.data())
def test_a_damaged_envelope_is_read_or_a_typed_error(envelope: Envelope, data: Any) -> None:
    whole = bytearray(envelope.SerializeToString())
    assume(whole)
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(BadMessage):
        assert len(digest(parse(whole))) == 16


@given(made())
def test_what_is_written_is_read(envelope: Envelope) -> None:
    assert parse(envelope.SerializeToString()) == envelope


@given(made())
def test_the_digest_follows_the_rules(envelope: Envelope) -> None:
    assert digest(envelope) == hashed_by_the_rules(envelope)


@given(made(), st.binary(max_size=70))
def test_the_signature_is_not_part_of_the_digest(envelope: Envelope, signature: bytes) -> None:
    before = digest(envelope)
    envelope.signature = signature
    assert digest(envelope) == before


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Kind.REQUEST, {"request": Request()}),
        (Kind.RESPONSE, {"response": Response()}),
        (Kind.ERROR, {"error": Error()}),
        (Kind.PING, {"ping": Ping()}),
        (Kind.PONG, {"pong": Pong()}),
        (Kind.NONE, {}),
    ],
)
def test_an_envelope_tells_its_kind(kind: Kind, message: dict[str, Any]) -> None:
    assert kind_of(Envelope(**message)) is kind


@given(made(), st.integers(1, U64))
def test_a_stamp_leaves_the_end_where_it_was(envelope: Envelope, now: int) -> None:
    left, running = time_left(envelope, now), 0 < envelope.timestamp <= now
    whole = envelope.expiration
    envelopes.stamp(envelope, now)
    assert envelope.timestamp == now
    assert time_left(envelope, now) == (max(0, left) if running else whole)


@given(made(), st.integers(1, 2**40), st.integers(0, 2**40))
def test_stamping_again_later_gives_no_more_time(envelope: Envelope, now: int, later: int) -> None:
    envelopes.stamp(envelope, now)
    end = envelope.timestamp + envelope.expiration
    envelopes.stamp(envelope, now + later)
    assert envelope.timestamp + envelope.expiration == max(end, now + later)


@pytest.mark.parametrize("mark", [" ", ",", "\t", "\n", "\u2003", ", ", ",,"])
def test_tags_are_apart_by_commas_and_white_space(mark: str) -> None:
    assert is_fail_fast(f"a{mark}fail-fast{mark}b")


@pytest.mark.parametrize(
    "tags", ["fail-fast.", "xfail-fast", "fail- fast", "FAIL-FAST", ";fail-fast"]
)
def test_nothing_else_is_fail_fast(tags: str) -> None:
    assert not is_fail_fast(tags)


def test_a_request_has_what_it_was_made_with() -> None:
    sent = envelopes.request(
        "u", Address(1, "s"), Address(2), "a.b", NOW, 60, plain=b"1", tags="fail-fast"
    )
    assert (sent.uid, sent.request.command, sent.plain, sent.tags) == (
        "u",
        "a.b",
        b"1",
        "fail-fast",
    )
    assert (sent.timestamp, sent.expiration, sent.schema) == (NOW, 60, "application/json")
    assert (address_of(sent.source), address_of(sent.destination)) == (Address(1, "s"), Address(2))


def test_a_request_without_tags_has_none() -> None:
    assert not GOOD.HasField("tags")


def test_deprecated_fields_are_left_empty() -> None:
    assert not GOOD.HasField("federation")
    assert not GOOD.relays


def test_a_cipher_goes_where_ciphers_go() -> None:
    sent = envelopes.request("u", Address(1), Address(2), "a", NOW, 60, cipher=b"c" * 28)
    assert sent.WhichOneof("payload") == "cipher"


def test_a_request_without_a_payload_has_none() -> None:
    sent = envelopes.request("u", Address(1), Address(2), "a", NOW, 60)
    assert sent.WhichOneof("payload") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"uid": "\ud800"},
        {"command": "\ud800"},
        {"schema": "\ud800"},
        {"tags": "\ud800"},
        {"life": -1},
        {"life": 2**64},
        {"now": -1},
        {"source": Address(2**32)},
        {"destination": Address(-1)},
    ],
    ids=str,
)
def test_a_request_that_cannot_be_written_is_refused(wrong: dict[str, Any]) -> None:
    arguments = {
        "uid": "u",
        "source": Address(1),
        "destination": Address(2),
        "command": "a",
        "now": NOW,
        "life": 60,
    }
    with pytest.raises(ValueError, match=r".+"):
        envelopes.request(**{**arguments, **wrong})


def test_a_response_answers_its_request() -> None:
    answer = envelopes.response(GOOD, Address(2), NOW + 1, 30, plain=b"2")
    assert (answer.uid, answer.schema, answer.plain) == ("u-1", GOOD.schema, b"2")
    assert (address_of(answer.source), address_of(answer.destination)) == (
        Address(2),
        Address(1, "s"),
    )
    assert (kind_of(answer), time_left(answer, NOW)) == (Kind.RESPONSE, 31)


def test_a_response_to_a_request_without_schema_is_json() -> None:
    asked = Envelope(uid="u", source=AddressMessage(twin=1), request=Request(command="a"))
    assert envelopes.response(asked, Address(2), NOW, 30).schema == "application/json"


def test_an_error_answers_its_request() -> None:
    answer = envelopes.error(GOOD, Address(2), 500, "no", NOW, 30)
    assert (kind_of(answer), answer.error.code, answer.error.message) == (Kind.ERROR, 500, "no")
    assert address_of(answer.destination) == Address(1, "s")
    assert answer.WhichOneof("payload") is None


def test_an_error_of_a_relay_has_no_source_and_no_signature() -> None:
    told = envelopes.relay_error(GOOD, "destination offline", NOW)
    assert not told.HasField("source")
    assert not told.HasField("signature")
    assert (told.error.code, time_left(told, NOW)) == (0, 300)
    assert address_of(told.destination) == Address(1, "s")


def test_an_answer_of_a_relay_has_no_source_and_goes_where_it_was_asked() -> None:
    told = envelopes.relay_response(GOOD, Address(7, "t"), b"[]", NOW)
    assert not told.HasField("source")
    assert not told.HasField("signature")
    assert (kind_of(told), told.uid, told.plain) == (Kind.RESPONSE, GOOD.uid, b"[]")
    assert (told.schema, time_left(told, NOW)) == (envelopes.JSON_SCHEMA, 300)
    assert address_of(told.destination) == Address(7, "t")
    refused = envelopes.relay_error(GOOD, "not now", NOW, code=503, to=Address(7, "t"))
    assert (refused.error.code, address_of(refused.destination)) == (503, Address(7, "t"))


def test_requests_to_a_relay_are_told_apart() -> None:
    asked = Envelope(uid="u")
    asked.request.command = "relay.who"
    assert not envelopes.is_for_relay(asked)  # has no destination
    asked.destination.SetInParent()
    assert envelopes.is_for_relay(asked)
    asked.request.command = "other"
    assert not envelopes.is_for_relay(asked)
    asked.request.command, asked.destination.twin = "relay.who", 5
    assert not envelopes.is_for_relay(asked)
    asked.response.SetInParent()
    assert not envelopes.is_for_relay(asked)


def test_a_pong_goes_back_to_its_session() -> None:
    ping = Envelope(uid="u", source=AddressMessage(twin=1, connection="s"), ping=Ping())
    pong = envelopes.pong_for(ping)
    assert (kind_of(pong), address_of(pong.destination)) == (Kind.PONG, Address(1, "s"))
    assert address_of(pong.source) is None


def test_a_pong_adds_to_the_payload_of_its_ping() -> None:
    assert envelopes.pong_for(Envelope(ping=Ping(), plain=b"a ")).plain == b"a hello world"


def test_the_ping_stays_as_it_was() -> None:
    ping = Envelope(uid="u", ping=Ping())
    envelopes.pong_for(ping)
    assert ping == Envelope(uid="u", ping=Ping())


def test_a_mark_tells_requests_apart_and_is_short() -> None:
    asked = [("ab", "1:c"), ("a", "1:bc"), ("a", "b1:c"), ("a 1", ":c"), ("a", "1"), ("", "")]
    marks = {envelopes.request_mark(uid, source) for uid, source in asked}
    assert len(marks) == len(asked)
    assert envelopes.request_mark("a", Address(1, "c")) == envelopes.request_mark("a", "1:c")
    assert len(envelopes.request_mark("u" * 100_000, "1:" + "s" * 100_000)) == 32
