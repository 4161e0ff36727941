"""What twins and relays say about topics: forms, positions, and messages cut anew."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.errors import BAD_SIGNATURE, FAILED, UNKNOWN_TWIN, BusError
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import JSON_SCHEMA, digest, error, request
from wsmux.bus.wire.keys import Identity, verify
from wsmux.bus.wire.messages import Envelope
from wsmux.bus.wire.topics import (
    MAX_DATA,
    MAX_SCHEMA,
    PUBLISH,
    START,
    Batch,
    MessageRefused,
    Position,
    Publication,
    gap,
    parse_position,
    publish_answer,
    publish_body,
    read_answer,
    read_answer_body,
    read_body,
    verified_publication,
)

from ...helpers.bus.people import person
from ...helpers.bus.publications import publication
from ...helpers.tables import each_case

ALICE = person(1)
MALLORY = person(20)
RECORDS = {each.id: each.record() for each in (ALICE, person(2))}


def made(
    data: bytes = b"1",
    topic: str = "news",
    schema: str = "text/plain",
    by: Identity = ALICE.identity,
) -> Envelope:
    return publication(by, Address(1, "s"), data, topic, schema)


def test_a_publication_is_what_its_publisher_signed() -> None:
    envelope = made(b"data")
    topic, content = verified_publication(envelope, RECORDS.get)
    assert topic == "news"
    assert content == (Address(1, "s"), envelope.uid, envelope.timestamp, "text/plain", b"data")
    assert verified_publication(envelope, RECORDS.get, "news")[1] == content


@given(st.binary(max_size=300), st.text(min_size=1, max_size=20, alphabet="ab/+;= "))
def test_any_data_come_back(data: bytes, schema: str) -> None:
    assert verified_publication(made(data, schema=schema), RECORDS.get)[1].data == data


def test_the_signature_is_checked_last() -> None:
    with pytest.raises(BusError, match="not signed by twin 1") as refused:
        verified_publication(made(by=person(2).identity), RECORDS.get)
    assert refused.value.code == BAD_SIGNATURE
    with pytest.raises(BusError, match="unknown twin") as unknown:
        verified_publication(made(), lambda _: None)
    assert unknown.value.code == UNKNOWN_TWIN


def _set(name: str, value: object) -> Callable[[Envelope], None]:
    return lambda envelope: setattr(envelope, name, value)


def _payload(**fields: object) -> Callable[[Envelope], None]:
    def change(envelope: Envelope) -> None:
        envelope.plain = json.dumps(json.loads(envelope.plain) | fields).encode()

    return change


def _command(envelope: Envelope) -> None:
    envelope.request.command = "relay.topic.read"


def _to(envelope: Envelope) -> None:
    envelope.destination.twin = 2


def _session(envelope: Envelope) -> None:
    envelope.destination.connection = "s"


def _from(envelope: Envelope) -> None:
    envelope.source.twin = 0


def _pong(envelope: Envelope) -> None:
    envelope.pong.SetInParent()


def _cipher(envelope: Envelope) -> None:
    envelope.cipher = b"secret"


@each_case
@pytest.mark.parametrize(
    "change",
    [
        _set("tags", "fail-fast"),
        _set("schema", "text/plain"),
        _set("federation", "x"),
        _set("uid", str(uuid.uuid4())),
        _set("uid", "x"),
        _set("plain", b"{"),
        _set("plain", b"[]"),
        _set("plain", b"\xff"),
        _set("plain", b"[" * 100_000),
        _payload(uid="x"),
        _payload(uid=1),
        _payload(topic="other"),
        _payload(topic="a b"),
        _payload(topic=None),
        _payload(schema=""),
        _payload(schema="x" * (MAX_SCHEMA + 1)),
        _payload(schema=1),
        _payload(data="!"),
        _payload(data=None),
        _payload(time=None),
        _payload(time=1.5),
        _payload(signature="!"),
        _payload(signature=None),
        _payload(data="AAAA" * (MAX_DATA // 3 + 1)),
        _command,
        _to,
        _session,
        _from,
        _pong,
        _cipher,
        lambda envelope: envelope.relays.append("x"),
    ],
)
def test_anything_else_is_no_publication(
    change: Callable[[Envelope], None],
) -> None:
    envelope = made()
    change(envelope)
    with pytest.raises(BusError, match="not a message of a topic") as refused:
        verified_publication(envelope, RECORDS.get, "news")
    assert refused.value.code == FAILED


@pytest.mark.parametrize(
    "change",
    [
        _payload(topic="other"),
        _payload(time=1),
        _payload(schema="text/html"),
        _payload(data="AAAA"),
        _payload(signature=""),
        lambda envelope: setattr(envelope.source, "twin", 2),
        lambda envelope: setattr(envelope.source, "connection", "t"),
        lambda envelope: envelope.source.ClearField("connection"),
    ],
)
def test_each_part_of_a_publication_is_signed(change: Callable[[Envelope], None]) -> None:
    envelope = made()
    change(envelope)
    with pytest.raises(BusError, match="not signed by twin") as refused:
        verified_publication(envelope, RECORDS.get)
    assert refused.value.code == BAD_SIGNATURE


def test_an_error_whose_text_others_chose_is_no_publication() -> None:
    """Let a twin refuse a command that it does not serve, and cut its answer anew."""
    fields = json.loads(made(b"forged", by=MALLORY.identity).plain)
    begun = json.dumps(fields | {"x": ""}).removesuffix('"}')
    source = Address(MALLORY.id, f"{PUBLISH}{JSON_SCHEMA}{begun}")
    asked = request(fields["uid"], source, Address(1, "s"), "unserved", int(time.time()), 60)
    asked.schema = '"}'
    told = error(asked, Address(1, "s"), FAILED, "twin 1 serves no 'unserved'", asked.timestamp, 60)
    signature = ALICE.identity.sign(digest(told))

    plain = f"{begun}{FAILED}{told.error.message}{asked.schema}".encode()
    to = Address(0)
    cut = request(told.uid, Address(1, "s2"), to, PUBLISH, told.timestamp, 60, plain=plain)
    cut.signature = signature
    assert verify(ALICE.identity.account, digest(cut), cut.signature)
    with pytest.raises(BusError, match="not signed by twin 1") as refused:
        verified_publication(cut, RECORDS.get)
    assert refused.value.code == BAD_SIGNATURE


def test_what_cannot_be_published_is_refused_before_it_is_sent() -> None:
    uid = str(uuid.uuid4())
    for topic, *parts in (
        ("a b", uid, "text/plain", b""),
        ("news", "x", "text/plain", b""),
        ("news", uid, "text/plain", bytes(MAX_DATA + 1)),
        ("news", uid, "", b""),
    ):
        content = Publication(Address(1), parts[0], 1, *parts[1:])
        with pytest.raises(ValueError, match="."):
            publish_body(topic, content, ALICE.identity.sign)


def test_positions_are_ordered_and_have_one_text() -> None:
    assert START < Position(5, 1) < Position(5, 10) < Position(6, 1)
    for position in (START, Position(1_790_000_000_000, 17)):
        assert parse_position(str(position)) == position
    for text in (
        "",
        "1",
        "1-",
        "-1",
        "01-1",
        "1-01",
        "1-1-1",
        "1-1\n",
        f"1-{10**15}",
        "a-b",
        "٣-1",
    ):
        with pytest.raises(ValueError, match="position"):
            parse_position(text)


def test_an_answer_carries_the_envelopes_as_they_are() -> None:
    batch = Batch(7, 3, [b"one", b"", b"\n{}"])
    assert read_answer(read_answer_body(batch)) == batch
    assert batch.end() == Position(7, 5)
    assert read_answer(read_answer_body(Batch(0, 1, ()))).end() == START


@each_case
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"{}\n",
        b"[]\n",
        b"{\n",
        b'{"epoch":-1,"first":1,"sizes":[]}\n',
        b'{"epoch":1,"first":0,"sizes":[]}\n',
        b'{"epoch":true,"first":1,"sizes":[]}\n',
        b'{"epoch":1,"first":1.5,"sizes":[]}\n',
        b'{"epoch":1,"first":1,"sizes":{}}\n',
        b'{"epoch":1,"first":1,"sizes":[-1]}\n',
        b'{"epoch":1,"first":1,"sizes":["1"]}\n',
        b'{"epoch":1,"first":1,"sizes":[2]}\nx',
        b'{"epoch":1,"first":1,"sizes":[]}\nx',
        b" " * 20_000 + b'{"epoch":1,"first":1,"sizes":[]}\n',
    ],
)
def test_a_malformed_answer_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        read_answer(data)


@given(st.binary())
def test_any_bytes_are_an_answer_or_refused(data: bytes) -> None:
    with suppress(ValueError):
        read_answer(data)


def test_the_position_of_a_publication_is_read() -> None:
    assert publish_answer(b'{"position": "7-3"}') == Position(7, 3)
    for data in (b"{}", b"null", b'{"position": 7}', b"{"):
        with pytest.raises(ValueError, match="."):
            publish_answer(data)


def test_a_read_says_where_how_much_and_how_long() -> None:
    assert json.loads(read_body("news", "0" * 16, Position(7, 3), 10, 1.5)) == {
        "topic": "news",
        "reader": "0" * 16,
        "after": "7-3",
        "credit": 10,
        "wait": 1500,
    }


def test_a_gap_is_what_is_missing_between() -> None:
    assert gap("news", Position(7, 3), Batch(7, 4, [])) is None
    assert gap("news", START, Batch(7, 1, [])) is None
    missing = gap("news", START, Batch(7, 3, []))
    assert missing is not None
    assert (missing.topic, missing.count) == ("news", 2)
    assert missing.retry_safe


def test_a_refused_message_says_which_and_why() -> None:
    error = MessageRefused("news", Position(7, 3), BusError(104, "forged", twin=1))
    assert str(error).startswith("message 7-3 of 'news' is refused: forged")
    assert (error.code, error.twin, error.side) == (104, 1, "remote")
