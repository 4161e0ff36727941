"""What arrives is believed once, from whom it is, for whom it is; all else has its code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.errors import BusError, Replayed, TwinsUnavailable
from wsmux.bus.twins.records import Twin
from wsmux.bus.wire.address import Address, put_address
from wsmux.bus.wire.envelope import (
    MAX_AHEAD,
    MAX_LIFE,
    Kind,
    digest,
    error,
    parse,
    pong_for,
    relay_error,
    request,
    response,
)
from wsmux.bus.wire.messages import Envelope, Ping
from wsmux.bus.wire.verification import Received, Verifier

from ...helpers.bus.captured import COMPUTED, NOW, TWINS, identity
from ...helpers.tables import each_case

ALICE, CAROL, ERIN = Address(1, "s"), Address(3), Address(5)
Change = Callable[[Envelope], object]


def signed(envelope: Envelope, name: str = "carol") -> Envelope:
    envelope.signature = identity(name).sign(digest(envelope))
    return envelope


def asked(command: str = "calc.add", uid: str = "u-1", life: int = 60) -> Envelope:
    """Return what carol asks of alice."""
    return signed(request(uid, CAROL, ALICE, command, NOW, life, plain=b"[1, 2]"))


def question() -> Envelope:
    """Return what alice asks of carol."""
    return request("u-1", ALICE, CAROL, "calc.add", NOW, 60, plain=b"[1, 2]")


def encrypted(cipher: bytes, name: str = "carol", source: Address = CAROL) -> Envelope:
    return signed(request("u-1", source, ALICE, "a.b", NOW, 60, cipher=cipher), name)


def at_alice(**options: Any) -> Verifier:
    return Verifier(ALICE, identity("alice").secret_box.open, **options)


def sealed(name: str, plain: bytes) -> bytes:
    return identity(name).secret_box.seal(plain, identity("alice").e2e_public)


def changed(change: Change, sign: bool = True) -> Envelope:
    """Return carol's question after a change, signed again or as it was."""
    envelope = asked()
    change(envelope)
    return signed(envelope) if sign else envelope


def to(address: Address) -> Change:
    return lambda envelope: put_address(envelope.destination, address)


def by(address: Address) -> Change:
    return lambda envelope: put_address(envelope.source, address)


def forged(change: Change) -> Envelope:
    return changed(change, sign=False)


def set_field(name: str, value: Any) -> Change:
    return lambda envelope: setattr(envelope, name, value)


def clear(name: str) -> Change:
    return lambda envelope: envelope.ClearField(name)


def from_nobody(envelope: Envelope) -> Envelope:
    envelope.ClearField("source")
    return envelope


def untimely(timestamp: int, expiration: int) -> Envelope:
    def change(envelope: Envelope) -> None:
        envelope.timestamp, envelope.expiration = timestamp, expiration

    return changed(change)


BAD: dict[str, tuple[int, Envelope]] = {
    "nothing in it": (500, changed(clear("request"))),
    "a ping": (500, changed(lambda envelope: envelope.ping.SetInParent())),
    "a request without a command": (500, asked("")),
    "for another twin": (500, changed(to(Address(2, "s")))),
    "for another session": (500, changed(to(Address(1, "t")))),
    "for no session": (500, changed(to(Address(1)))),
    "for the empty session": (500, changed(to(Address(1, "")))),
    "for twin 0": (500, changed(to(Address(0)))),
    "for nobody": (500, changed(clear("destination"))),
    "expired": (102, untimely(NOW - 60, 60)),
    "expired long ago": (102, untimely(1, 60)),
    "without a life": (102, untimely(NOW, 0)),
    "without a time": (102, untimely(0, 60)),
    "dated too far ahead for its life": (102, untimely(NOW + MAX_AHEAD + 1, MAX_LIFE)),
    "dated ten years ahead": (102, untimely(NOW + 315_360_000, 60)),
    "dated at the end of time": (102, untimely(2**64 - 1, 2**64 - 1)),
    "older than any may be": (102, untimely(NOW - MAX_LIFE, 2**64 - 1)),
    "a request of a relay": (500, from_nobody(asked())),
    "a request of twin 0": (500, changed(by(Address(0)))),
    "a request of a session of twin 0": (500, changed(by(Address(0, "s")))),
    "a response of a relay": (500, from_nobody(response(question(), CAROL, NOW, 60))),
    "an expired error of a relay": (102, relay_error(question(), "offline", NOW - 300)),
    "of an unknown twin": (103, changed(by(Address(99)))),
    "of another twin": (104, changed(by(ERIN))),
    "of another session": (104, forged(by(Address(3, "t")))),
    "without a signature": (104, forged(clear("signature"))),
    "with an empty signature": (104, forged(set_field("signature", b""))),
    "with another signature": (104, forged(set_field("signature", b"e" + bytes(64)))),
    "with an unknown scheme": (104, forged(set_field("signature", b"x" + bytes(64)))),
    "the uid changed": (104, forged(set_field("uid", "u-2"))),
    "the payload changed": (104, forged(set_field("plain", b"[1, 3]"))),
    "the payload left out": (104, forged(clear("plain"))),
    "the schema changed": (104, forged(set_field("schema", "text/plain"))),
    "the tags changed": (104, forged(set_field("tags", "fail-fast"))),
    "the life longer": (104, forged(set_field("expiration", 61))),
    "the time later": (104, forged(set_field("timestamp", NOW + 1))),
    "the command changed": (104, forged(lambda e: setattr(e.request, "command", "calc.sub"))),
    "relays added": (104, forged(lambda e: e.relays.append("r"))),
    "a pong of a twin, unsigned": (104, forged(lambda e: e.pong.SetInParent())),
    "an error of a twin, unsigned": (104, error(question(), CAROL, 500, "no", NOW, 60)),
    "a cipher of a twin without a key": (
        105,
        encrypted(sealed("erin", b"1"), "erin", ERIN),
    ),
    "an empty cipher": (106, encrypted(b"")),
    "a cipher of 27 bytes": (106, encrypted(bytes(27))),
    "a cipher of zeros": (106, encrypted(bytes(28))),
    "a cipher cut short": (106, encrypted(sealed("carol", b"1")[:-1])),
    "a cipher of somebody else": (106, encrypted(sealed("dave", b"1"))),
}


@each_case
@pytest.mark.parametrize("why", BAD)
def test_a_bad_envelope_has_its_code(why: str) -> None:
    code, envelope = BAD[why]
    with pytest.raises(BusError) as refused:
        at_alice().accept(envelope, NOW, TWINS.get)
    assert (refused.value.code, type(refused.value)) == (code, BusError)


def test_a_request_is_believed() -> None:
    assert at_alice().accept(asked(), NOW, TWINS.get) == Received(
        Kind.REQUEST, CAROL, TWINS[3], b"[1, 2]", False
    )


def test_a_cipher_is_decrypted() -> None:
    received = at_alice().accept(encrypted(sealed("carol", b"1")), NOW, TWINS.get)
    assert (received.payload, received.encrypted) == (b"1", True)


def test_an_envelope_lives_to_its_last_second() -> None:
    assert at_alice().accept(asked(), NOW + 59, TWINS.get).source == CAROL


@pytest.mark.parametrize("destination", [ALICE, None])
def test_an_error_of_a_relay_is_believed(destination: Address | None) -> None:
    told = relay_error(question(), "destination offline", NOW)
    told.ClearField("destination")
    if destination is not None:
        put_address(told.destination, destination)
    received = at_alice().accept(told, NOW, TWINS.get)
    assert (received.kind, received.source, received.twin) == (Kind.ERROR, None, None)


def test_an_error_of_a_relay_for_others_is_not() -> None:
    told = relay_error(question(), "destination offline", NOW)
    put_address(told.destination, Address(1, "t"))
    with pytest.raises(BusError, match="a message for 1:t came to 1:s"):
        at_alice().accept(told, NOW, TWINS.get)


def test_a_pong_is_believed() -> None:
    ping = Envelope(uid="u", timestamp=NOW, expiration=60, ping=Ping())
    put_address(ping.source, ALICE)
    assert at_alice().accept(pong_for(ping), NOW, TWINS.get).kind is Kind.PONG


@pytest.mark.parametrize("kind", [Kind.RESPONSE, Kind.ERROR])
def test_an_answer_of_a_twin_is_believed(kind: Kind) -> None:
    made = {
        Kind.RESPONSE: response(question(), CAROL, NOW, 60, plain=b"3"),
        Kind.ERROR: error(question(), CAROL, 500, "no", NOW, 60),
    }[kind]
    assert at_alice().accept(signed(made), NOW, TWINS.get).kind is kind


@pytest.mark.parametrize("awaited", [{Kind.RESPONSE, Kind.ERROR}, set()])
def test_a_kind_that_is_not_awaited_is_refused(awaited: set[Kind]) -> None:
    with pytest.raises(BusError, match="a message of kind request: expected"):
        at_alice().accept(asked(), NOW, TWINS.get, awaited)


def test_a_message_is_believed_once() -> None:
    receiver = at_alice()
    receiver.accept(asked(), NOW, TWINS.get)
    with pytest.raises(Replayed, match="accepted before"):
        receiver.accept(asked(), NOW + 59, TWINS.get)


def test_a_message_that_was_refused_is_not_remembered() -> None:
    receiver = at_alice()
    with pytest.raises(BusError, match="unknown twin id '3'"):
        receiver.accept(asked(), NOW, {}.get)
    assert receiver.accept(asked(), NOW, TWINS.get).source == CAROL


def test_a_look_up_that_fails_is_not_hidden() -> None:
    def find(twin: int) -> Twin | None:
        raise TwinsUnavailable("nobody answered")

    with pytest.raises(TwinsUnavailable):
        at_alice().accept(asked(), NOW, find)


def test_parts_of_an_upload_may_share_a_uid() -> None:
    receiver = at_alice()
    payloads = [
        receiver.accept(
            signed(request("u", CAROL, ALICE, "file.write", NOW, 60, plain=part)), NOW, TWINS.get
        ).payload
        for part in (b"1", b"2", b"3")
    ]
    assert payloads == [b"1", b"2", b"3"]


RECUT = [
    pytest.param(row, id=row["why"].replace(" ", "-"))
    for row in COMPUTED["same_digest"]
    if row["why"] in {"a request turned into a response", "plain turned into cipher"}
]


@pytest.mark.parametrize("row", RECUT)
def test_a_message_cut_anew_is_refused_with_the_first(row: dict[str, Any]) -> None:
    first, second = (parse(bytes.fromhex(row[name])) for name in ("first_hex", "second_hex"))
    signed(first, "alice")
    second.signature = first.signature
    receiver = Verifier(Address(23), identity("bob").secret_box.open)
    assert receiver.accept(first, NOW, TWINS.get).kind is Kind.REQUEST
    with pytest.raises(Replayed):
        receiver.accept(second, NOW, TWINS.get)


def test_what_has_expired_is_forgotten() -> None:
    receiver = at_alice()
    for number in range(50):
        receiver.accept(asked(uid=f"u-{number}", life=number + 1), NOW, TWINS.get)
    receiver.accept(asked(uid="last", life=1000), NOW + 25, TWINS.get)
    assert len(receiver._replays) == 26


def test_what_is_remembered_has_a_bound() -> None:
    receiver = at_alice(remembered=10)
    for number in range(30):
        receiver.accept(asked(uid=f"u-{number}", life=number + 1), NOW, TWINS.get)
    assert len(receiver._replays) == 10
    with pytest.raises(Replayed):
        receiver.accept(asked(uid="u-20", life=21), NOW, TWINS.get)


@pytest.mark.parametrize(
    ("timestamp", "life"), [(NOW, 2**64 - 1), (NOW + MAX_AHEAD, 2**64 - 1), (NOW + 3000, 60)]
)
def test_a_life_beyond_an_hour_and_a_fast_clock_are_accepted_for_so_long(
    timestamp: int, life: int
) -> None:
    receiver, end = at_alice(), timestamp + min(life, MAX_LIFE)
    receiver.accept(untimely(timestamp, life), NOW, TWINS.get)
    with pytest.raises(Replayed):
        receiver.accept(untimely(timestamp, life), end - 1, TWINS.get)
    with pytest.raises(BusError, match=r"has expired \(code 102"):
        receiver.accept(untimely(timestamp, life), end, TWINS.get)


def test_a_flood_of_one_twin_lets_no_message_of_another_be_accepted_twice() -> None:
    receiver, years = at_alice(remembered=50), 100_000_000
    normal = asked(uid="normal")
    receiver.accept(normal, NOW, TWINS.get)
    for number in range(100):
        flood = request(f"flood-{number}", Address(4), ALICE, "calc.add", NOW, years, plain=b"[]")
        if number < 49:
            receiver.accept(signed(flood, "dave"), NOW, TWINS.get)
            continue
        with pytest.raises(BusError) as refused:
            receiver.accept(signed(flood, "dave"), NOW, TWINS.get)
        assert (refused.value.code, refused.value.twin) == (500, 4)
    with pytest.raises(Replayed):
        receiver.accept(normal, NOW, TWINS.get)
    for number in range(20):
        receiver.accept(asked(uid=f"after-{number}"), NOW, TWINS.get)
    assert len(receiver._replays) <= 50


def test_a_request_that_cannot_be_remembered_is_refused() -> None:
    receiver = at_alice(remembered=1)
    receiver.accept(asked(life=60), NOW, TWINS.get)
    with pytest.raises(BusError, match="twin 3 sent too much to tell this message from a copy"):
        receiver.accept(asked(life=50), NOW, TWINS.get)
    with pytest.raises(Replayed):
        receiver.accept(asked(life=60), NOW, TWINS.get)


def test_an_answer_that_cannot_be_remembered_is_accepted() -> None:
    receiver = at_alice(remembered=1)
    for life in (60, 50):
        answer = signed(response(question(), CAROL, NOW, life, plain=b"3"))
        assert receiver.accept(answer, NOW, TWINS.get).kind is Kind.RESPONSE


def test_answers_take_no_room_from_requests() -> None:
    receiver = at_alice(remembered=1)
    receiver.accept(signed(response(question(), CAROL, NOW, 3600, plain=b"3")), NOW, TWINS.get)
    assert receiver.accept(asked(), NOW, TWINS.get).kind is Kind.REQUEST


def test_twins_of_one_account_send_no_copies_for_each_other() -> None:
    twins = {number: TWINS[3]._replace(id=number) for number in (1, 11)}
    receiver = Verifier(ALICE, identity("alice").secret_box.open)
    first = signed(request("u", Address(1, "1"), ALICE, "calc.add", NOW, 60, plain=b"1"))
    receiver.accept(first, NOW, twins.get)
    put_address(first.source, Address(11))
    with pytest.raises(Replayed):
        receiver.accept(first, NOW, twins.get)


def test_many_threads_believe_a_message_once() -> None:
    receiver, start = at_alice(lock=threading.Lock()), threading.Barrier(8)

    def accept(number: int) -> bool:
        start.wait(30)
        try:
            receiver.accept(asked(), NOW, TWINS.get)
        except Replayed:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(accept, range(8))) == 1


steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 40), st.integers(0, 20)), min_size=1, max_size=20
)


@given(steps)
def test_no_order_of_messages_is_believed_twice(steps: list[tuple[int, int, int]]) -> None:
    receiver, now, believed = at_alice(), NOW, set()
    for uid, life, pause in steps:
        now += pause
        envelope = asked(uid=str(uid), life=life)
        outcome = "believed"
        try:
            receiver.accept(envelope, now, TWINS.get)
        except BusError as refused:
            outcome = "again" if isinstance(refused, Replayed) else str(refused.code)
        if now >= NOW + life:
            assert outcome == "102"
        else:
            assert outcome == ("again" if (uid, life) in believed else "believed")
            believed.add((uid, life))
