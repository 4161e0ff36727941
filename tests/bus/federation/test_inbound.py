"""What other relays post is checked before it reaches a session."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from wsmux.bus.errors import BusError
from wsmux.bus.federation import inbound as module
from wsmux.bus.federation.http_post import Answer
from wsmux.bus.federation.inbound import FederationInbound
from wsmux.bus.relay.queues import QueueFull
from wsmux.bus.relay.rate_limiter import FixedWindow
from wsmux.bus.relay.router import NO_SESSION
from wsmux.bus.twins.records import Twin
from wsmux.bus.wire.address import Address, put_address
from wsmux.bus.wire.envelope import MAX_ENVELOPE, digest, parse, pong_for, request, response
from wsmux.bus.wire.keys import Identity
from wsmux.bus.wire.messages import Envelope
from wsmux.bus.wire.replay_cache import ReplayCache

from ...helpers.bus.twin_lists import ListedTwins

NOW = 1_700_000_000
ALICE, BOB = (Identity.from_secret("0x" + digit * 64, "ed25519") for digit in "12")
SOURCE, DESTINATION = Address(1, "s"), Address(2)
ACCEPTED = Answer(202, "")


class Stand:
    """Hold an input of the relay ``here.test`` and what it delivered."""

    def __init__(self, **more: Any) -> None:
        self.twins = ListedTwins(
            [
                Twin(1, ALICE.account, ("there.test",)),
                Twin(2, BOB.account, ("other.test", "here.test")),
                Twin(3, BOB.account, ("there.test",)),
            ]
        )
        self.connected: set[Address] = set()
        self.delivered: list[tuple[Address, bytes]] = []
        self.failure: BusError | None = None
        self.on_deliver: Callable[[], None] = lambda: None
        self.now = NOW + 0.5
        self.input = FederationInbound(
            self.twins,
            ["here.test"],
            lambda address, _: address in self.connected,
            self.deliver,
            clock=lambda: self.now,
            **more,
        )

    def deliver(self, address: Address, data: bytes, expires_at: int, source: int) -> None:
        self.on_deliver()
        if self.failure is not None:
            raise self.failure
        assert expires_at > NOW
        assert parse(data).source.twin == source
        self.delivered.append((address, data))

    def post(self, envelope: Envelope) -> Answer:
        return self.input.receive(envelope.SerializeToString())


def ask(destination: Address = DESTINATION, tags: str | None = None, uid: str = "u") -> Envelope:
    return request(uid, SOURCE, destination, "do", NOW - 10, 60, plain=b"1", tags=tags)


def signed(envelope: Envelope, identity: Identity = ALICE) -> Envelope:
    envelope.signature = identity.sign(digest(envelope))
    return envelope


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_a_signed_request_for_a_twin_of_this_relay_is_delivered(stand: Stand) -> None:
    envelope = signed(ask())
    assert stand.post(envelope) == ACCEPTED
    assert stand.delivered == [(DESTINATION, envelope.SerializeToString())]


def test_responses_and_errors_of_twins_are_delivered(stand: Stand) -> None:
    asked = request("u", DESTINATION, SOURCE, "do", NOW, 60)
    answer = signed(response(asked, SOURCE, NOW, 60, plain=b"1"))
    failed = ask()
    failed.error.code = 500
    assert [stand.post(answer), stand.post(signed(failed))] == [ACCEPTED, ACCEPTED]
    assert len(stand.delivered) == 2


def test_sr25519_signatures_are_verified(stand: Stand) -> None:
    carol = Identity.from_secret("0x" + "3" * 64, "sr25519")
    stand.twins.twins[1] = Twin(1, carol.account, ("there.test",))
    assert stand.post(signed(ask(), carol)) == ACCEPTED


def test_a_session_that_is_connected_here_belongs_here(stand: Stand) -> None:
    elsewhere = Address(3, "x")
    stand.connected.add(elsewhere)
    assert stand.post(signed(ask(elsewhere))) == ACCEPTED


def test_fail_fast_reaches_a_connected_session(stand: Stand) -> None:
    stand.connected.add(DESTINATION)
    assert stand.post(signed(ask(tags="fail-fast"))) == ACCEPTED


def test_fail_fast_is_not_queued(stand: Stand) -> None:
    assert stand.post(signed(ask(tags="a, fail-fast"))) == Answer(404, "destination offline")
    assert stand.delivered == []


def test_a_call_of_a_name_that_nobody_has_joined_is_not_queued(stand: Stand) -> None:
    name = Address(2, "@billing")
    refused = Answer(404, "nobody has joined the name 'billing'")
    assert stand.post(signed(ask(name))) == refused
    assert stand.delivered == []
    stand.connected.add(name)
    assert stand.post(signed(ask(name))) == ACCEPTED


def test_what_no_connection_may_have_is_not_queued(stand: Stand) -> None:
    assert stand.post(signed(ask(Address(2, "@!")))) == Answer(404, NO_SESSION)
    assert stand.delivered == []


def no_source() -> Envelope:
    envelope = ask()
    envelope.ClearField("source")
    return signed(envelope)


def from_twin_zero() -> Envelope:
    envelope = ask()
    put_address(envelope.source, Address(0))
    return signed(envelope)


def relay_made() -> Envelope:
    envelope = no_source()
    envelope.error.message = "destination offline"
    return envelope


def no_destination() -> Envelope:
    envelope = ask()
    envelope.ClearField("destination")
    return signed(envelope)


def unknown_source() -> Envelope:
    return signed(request("u", Address(9), DESTINATION, "do", NOW, 60))


def expired(left: int) -> Envelope:
    return signed(request("u", SOURCE, DESTINATION, "do", NOW - 60, 60 + left))


def changed() -> Envelope:
    envelope = signed(ask())
    envelope.request.command = "do.other"
    return envelope


def with_signature(signature: bytes) -> Envelope:
    envelope = ask()
    envelope.signature = signature
    return envelope


def ping() -> Envelope:
    envelope = ask()
    envelope.ping.SetInParent()
    return signed(envelope)


def of_no_kind() -> Envelope:
    envelope = ask()
    envelope.ClearField("request")
    return signed(envelope)


@pytest.mark.parametrize(
    ("envelope", "status", "text"),
    [
        (no_source(), 403, "twin 0"),
        (from_twin_zero(), 403, "twin 0"),
        (relay_made(), 403, "twin 0"),
        (no_destination(), 400, "no destination"),
        (signed(ask(Address(0, "x"))), 400, "no destination"),
        (unknown_source(), 401, "twin 9, the source, is unknown"),
        (ask(), 401, "signature"),
        (with_signature(b""), 401, "signature"),
        (with_signature(b"e" + bytes(63)), 401, "signature"),
        (with_signature(b"e" + bytes(64)), 401, "signature"),
        (with_signature(b"x" + signed(ask()).signature[1:]), 401, "signature"),
        (with_signature(signed(ask()).signature + b"x"), 401, "signature"),
        (changed(), 401, "signature"),
        (signed(ask(), BOB), 401, "signature"),
        (expired(0), 410, "message has expired"),
        (expired(-1), 410, "message has expired"),
        (signed(request("u", SOURCE, DESTINATION, "do", NOW - 3600, 2**64 - 1)), 410, "expired"),
        (signed(request("u", SOURCE, DESTINATION, "do", NOW + 2**40, 60)), 410, "ahead of"),
        (ping(), 400, "do not forward messages of kind ping"),
        (pong_for(ping()), 400, "do not forward messages of kind pong"),
        (of_no_kind(), 400, "do not forward messages of kind none"),
        (signed(ask(Address(9))), 404, "unknown twin destination"),
        (signed(ask(Address(3))), 403, "not a relay of twin 3"),
    ],
)
def test_what_does_not_belong_here_is_refused(
    stand: Stand, envelope: Envelope, status: int, text: str
) -> None:
    answer = stand.post(envelope)
    assert answer.status == status
    assert text in answer.text
    assert stand.delivered == []


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\xff", b"not an envelope", b"\x00" * 100])
def test_bytes_that_are_no_envelope_are_refused(stand: Stand, data: bytes) -> None:
    assert stand.input.receive(data).status == 400


def test_nothing_is_an_envelope_of_no_kind(stand: Stand) -> None:
    assert stand.input.receive(b"").status == 400


def test_a_body_that_is_too_large_is_refused(stand: Stand) -> None:
    answer = stand.input.receive(bytes(MAX_ENVELOPE + 1))
    assert (answer.status, str(MAX_ENVELOPE) in answer.text) == (413, True)


def test_a_message_that_comes_twice_is_delivered_once(stand: Stand) -> None:
    envelope = signed(ask())
    assert [stand.post(envelope), stand.post(envelope)] == [ACCEPTED, ACCEPTED]
    assert len(stand.delivered) == 1


def test_a_message_that_was_not_delivered_may_come_again(stand: Stand) -> None:
    envelope = signed(ask())
    stand.failure = BusError(500, "the queue is away")
    assert stand.post(envelope) == Answer(503, "the queue is away")
    stand.failure = QueueFull("twin 1 has too many")
    assert stand.post(envelope) == Answer(429, "twin 1 has too many")
    stand.failure = None
    assert stand.post(envelope) == ACCEPTED
    assert len(stand.delivered) == 1


def test_a_copy_of_what_is_being_delivered_may_come_again(stand: Stand) -> None:
    envelope = signed(ask())
    answers: list[Answer] = []
    stand.on_deliver = lambda: answers.append(stand.post(envelope))
    assert stand.post(envelope) == ACCEPTED
    assert answers == [Answer(503, "the message is being delivered")]
    assert stand.post(envelope) == ACCEPTED
    assert len(stand.delivered) == 1


def test_a_source_is_limited_for_itself() -> None:
    stand = Stand(limiter=FixedWindow(2, 10_000))
    stand.twins.twins[4] = Twin(4, BOB.account, ())
    statuses = [stand.post(signed(ask(uid=str(number)))).status for number in range(4)]
    assert statuses == [202, 202, 429, 429]
    other = signed(request("u", Address(4), DESTINATION, "do", NOW, 60), BOB)
    assert stand.post(other) == ACCEPTED


def test_refusals_of_a_source_are_logged_once_a_second_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "wsmux.bus")
    stand = Stand(limiter=FixedWindow(1, 10_000, window=1e12))
    assert stand.post(signed(ask(uid="first"))) == ACCEPTED
    assert {stand.post(signed(ask(uid=str(number)))).status for number in range(15)} == {429}
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["twin 1 exceeds its limit for messages posted by other relays"]


def test_a_message_of_any_life_is_delivered_once_for_good(stand: Stand) -> None:
    envelope = signed(request("u", SOURCE, DESTINATION, "do", NOW, 2**64 - 1))
    assert stand.post(envelope) == ACCEPTED
    stand.now = NOW + 3599
    assert stand.post(envelope) == ACCEPTED
    stand.now = NOW + 3600
    assert stand.post(envelope).status == 410
    assert len(stand.delivered) == 1


def test_a_flood_of_one_twin_lets_no_message_of_another_through_twice(stand: Stand) -> None:
    stand.input._replays = ReplayCache(50)
    stand.twins.twins[4] = Twin(4, BOB.account, ("there.test",))
    normal = signed(ask())
    assert stand.post(normal) == ACCEPTED
    flood = [
        signed(request(f"f{number}", Address(4), DESTINATION, "do", NOW, 100_000_000), BOB)
        for number in range(100)
    ]
    assert [stand.post(each).status for each in flood] == [202] * 49 + [409] * 51
    assert [stand.post(each) for each in (normal, flood[0])] == [ACCEPTED, ACCEPTED]
    assert len(stand.delivered) == 50
    assert stand.post(signed(ask(uid="after"))) == ACCEPTED
    assert stand.post(normal) == ACCEPTED
    assert len(stand.delivered) == 51
    assert stand.post(flood[0]).status in (202, 409)
    assert len(stand.delivered) == 51


def test_copies_use_up_nobodys_limit() -> None:
    stand = Stand(limiter=FixedWindow(2, 10_000))
    envelope = signed(ask())
    assert {stand.post(envelope).status for _ in range(10)} == {202}
    assert stand.post(signed(ask(uid="another"))) == ACCEPTED


def test_forged_messages_use_up_nobodys_limit() -> None:
    stand = Stand(limiter=FixedWindow(1, 10_000))
    assert {stand.post(changed()).status for _ in range(10)} == {401}
    assert stand.post(signed(ask())) == ACCEPTED


def test_a_message_that_was_limited_may_come_again() -> None:
    now = [NOW]
    stand = Stand(limiter=FixedWindow(1, 10_000))
    stand.input._clock = lambda: now[0]
    assert stand.post(signed(ask(uid="first"))) == ACCEPTED
    late = signed(request("late", SOURCE, DESTINATION, "do", NOW, 300))
    assert stand.post(late).status == 429
    now[0] += 60
    assert stand.post(late) == ACCEPTED


@pytest.mark.parametrize("twin", [SOURCE.twin, DESTINATION.twin])
def test_a_directory_that_is_down_may_be_asked_again(stand: Stand, twin: int) -> None:
    stand.twins.away.add(twin)
    assert stand.post(signed(ask())) == Answer(503, "the list is down")
    stand.twins.away.clear()
    assert stand.post(signed(ask())) == ACCEPTED


def test_a_scheme_without_its_package_may_be_tried_again(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> bool:
        raise ImportError("keys of type sr25519 need a package")

    monkeypatch.setattr(module, "verify", missing)
    assert stand.post(signed(ask())).status == 503


def test_many_threads_may_post(stand: Stand) -> None:
    envelopes = [signed(ask(uid=str(number))) for number in range(50)]
    statuses: list[int] = []

    def run() -> None:
        statuses.extend(stand.post(envelope).status for envelope in envelopes)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {202, 503}
    assert sorted(data for _, data in stand.delivered) == sorted(
        envelope.SerializeToString() for envelope in envelopes
    )
