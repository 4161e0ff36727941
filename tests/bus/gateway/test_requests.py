"""Requests of programs: how they are answered, what is told, and whom to believe."""

from __future__ import annotations

import time
from typing import Any

import pytest

from wsmux.bus.client import Client
from wsmux.bus.errors import CANNOT_PARSE, E2E_FAILURE, EXPIRED, FAILED, UNKNOWN_TWIN
from wsmux.bus.gateway.backlog import Waiting, backlog_key, encode_backlog
from wsmux.bus.gateway.gateway import Peer
from wsmux.bus.gateway.redis_store import ANSWER_LIFE
from wsmux.bus.gateway.uploads import Uploads
from wsmux.bus.relay import router
from wsmux.bus.session.identity_session import clock
from wsmux.bus.wire import envelope as envelopes
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.messages import Envelope

from ...helpers.bus.clients import ALICE, BOB, CAROL
from ...helpers.bus.gateway_programs import Caller
from ...helpers.bus.gateways import gateway, lists
from ...helpers.bus.people import Person, Table, table_of
from ...helpers.bus.scripted_relay import StageRelay
from ...helpers.redis_server import RedisServer
from ...helpers.waiting import wait_for


def test_a_request_is_answered(alice: Peer, bob: Client, caller: Caller) -> None:
    answer = caller.ask("echo", [2], {"a": 1})
    now = answer.pop("now")
    assert abs(now - time.time()) < 60
    assert answer == {
        "ver": 1,
        "ref": "mine",
        "dat": b'{"a":1}',
        "src": "2",
        "shm": "application/json",
        "err": None,
    }


def test_nothing_is_kept_of_what_is_answered(
    alice: Peer, bob: Client, caller: Caller, server: RedisServer
) -> None:
    caller.ask("echo", [2])
    wait_for(lambda: lists(server, 1) == {})


def test_each_destination_answers(
    alice: Peer, bob: Client, caller: Caller, relay: StageRelay, twins: Table
) -> None:
    with Client(CAROL.identity, relay.url, twins, twin=3, gateway=True) as carol:
        carol.serve({"echo": lambda payload: payload})
        ret = caller.push("echo", [2, 3, 99], 5)
        answers = [caller.answer(ret) for _ in range(3)]
    assert {each["src"] for each in answers} == {"2", "3", ""}
    assert {each["ref"] for each in answers} == {"mine"}


def test_an_unknown_twin_is_told(alice: Peer, caller: Caller) -> None:
    answer = caller.ask("echo", [99])
    assert answer == {
        "ver": 1,
        "ref": "mine",
        "dat": b"",
        "src": "",
        "shm": None,
        "now": 0,
        "err": {"code": UNKNOWN_TWIN, "message": "unknown twin id '99'"},
    }


def test_a_payload_that_cannot_be_encrypted_is_told_to_the_caller(
    alice: Peer, caller: Caller, relay: StageRelay, twins: Table
) -> None:
    twins.twins[2] = twins.twins[2]._replace(pk=b"\x02" + b"\xff" * 32)  # off the curve
    answer = caller.ask("echo", [2])
    assert (answer["src"], answer["err"]["code"]) == ("", E2E_FAILURE)
    assert not relay.passed


def test_an_error_in_the_clear_keeps_its_code(
    alice: Peer, caller: Caller, relay: StageRelay
) -> None:
    def fail(request: Envelope) -> list[Envelope]:
        made = envelopes.error(request, Address(2), 42, "no room", clock(), 60)
        made.plain = b"what went wrong"
        made.signature = BOB.identity.sign(envelopes.digest(made))
        return [made]

    relay.change = fail
    assert caller.ask("echo", [2])["err"] == {"code": 42, "message": "no room"}
    assert relay.passed[0].HasField("cipher")


def test_an_error_of_the_other_side_is_told(alice: Peer, bob: Client, caller: Caller) -> None:
    answer = caller.ask("nothing", [2])
    assert answer["src"] == "2"
    assert answer["err"]["code"] == FAILED


def test_an_error_of_a_relay_is_told(alice: Peer, caller: Caller, relay: StageRelay) -> None:
    relay.change = lambda envelope: [
        envelopes.relay_error(envelope, "destination offline", clock())
    ]
    answer = caller.ask("echo", [2])
    assert (answer["src"], answer["shm"]) == ("0", None)
    assert answer["err"] == {"code": 0, "message": "destination offline"}


def test_a_request_that_expires_at_a_relay_is_told_as_any_that_expires(
    alice: Peer, caller: Caller, relay: StageRelay
) -> None:
    relay.change = lambda envelope: [envelopes.relay_error(envelope, router.EXPIRED, clock())]
    answer = caller.ask("echo", [2])
    assert answer["err"] == {"code": EXPIRED, "message": "message has expired"}


@pytest.mark.parametrize("changes", [{}, {"exp": 0}], ids=["answered", "refused"])
def test_answers_that_nobody_fetches_expire(
    alice: Peer, caller: Caller, relay: StageRelay, changes: dict[str, Any]
) -> None:
    relay.change = lambda envelope: [envelopes.relay_error(envelope, "offline", clock())]
    caller.push("echo", [2], ret="nobody.fetches", **changes)
    wait_for(lambda: caller.redis.llen("nobody.fetches") == 1)
    assert 0 < caller.redis.ttl("nobody.fetches") <= ANSWER_LIFE


@pytest.mark.parametrize("changes", [{"exp": 0}, {"now": 1}])
def test_an_expired_request_is_told(alice: Peer, caller: Caller, changes: dict[str, Any]) -> None:
    assert caller.ask("echo", [2], **changes)["err"]["code"] == EXPIRED


def test_a_request_that_no_relay_takes_is_told_when_it_expires(
    server: RedisServer, twins: Table, caller: Caller
) -> None:
    with StageRelay() as gone:
        gone.refusal = (401, "the token expired")
        with gateway(server, gone, twins, ALICE):
            answer = caller.ask("echo", [2], exp=2)
    assert answer["err"]["code"] == EXPIRED
    assert "the token expired" in answer["err"]["message"]


def test_a_request_is_told_when_it_expires_though_uploads_fail(
    alice: Peer,
    caller: Caller,
    relay: StageRelay,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed: list[object] = []

    def fail(uploads: Uploads) -> None:
        failed.append(uploads)
        raise OSError("the disk is gone")

    monkeypatch.setattr(Uploads, "discard_ended", fail)
    relay.change = lambda envelope: []
    wait_for(lambda: failed)
    assert caller.ask("echo", [2], exp=2)["err"]["code"] == EXPIRED
    assert "what has expired was not all dealt with" in caplog.text


@pytest.mark.parametrize("changes", [{"dat": "*"}, {"dst": []}, {"cmd": ""}, {"exp": "soon"}])
def test_what_is_wrong_with_a_request_is_told(
    alice: Peer, caller: Caller, server: RedisServer, changes: dict[str, Any]
) -> None:
    answer = caller.ask("echo", [2], **changes)
    assert answer["err"]["code"] == CANNOT_PARSE
    assert next(iter(changes)) in answer["err"]["message"]
    wait_for(lambda: lists(server, 1) == {})


@pytest.mark.parametrize(
    "ret", ["msgbus.system.local", "msgbus.system.reply", "twin", "a b", "x" * 129, ""]
)
def test_no_answer_goes_to_lists_of_the_system(
    alice: Peer, bob: Client, caller: Caller, relay: StageRelay, server: RedisServer, ret: str
) -> None:
    caller.push("echo", [2], ret=ret)
    assert caller.ask("echo", [2], 1)["dat"] == b"1"
    wait_for(lambda: lists(server, 1) == {})
    assert [each.request.command for each in relay.passed if each.HasField("request")] == ["echo"]


@pytest.mark.parametrize("raw", [b"", b"\xff", b"{", b"[]", b"5", b"[" * 9999])
def test_what_is_no_json_is_dropped(
    alice: Peer, bob: Client, caller: Caller, server: RedisServer, raw: bytes
) -> None:
    for queue in ("local", "reply"):
        caller.redis.lpush(f"msgbus.system.{queue}", raw)
    assert caller.ask("echo", [2], 1)["dat"] == b"1"
    wait_for(lambda: lists(server, 1) == {})


def test_a_directory_that_is_down_is_told(alice: Peer, caller: Caller, twins: Table) -> None:
    twins.down = True
    assert "the table is down" in caller.ask("echo", [2])["err"]["message"]


def test_payloads_are_encrypted(
    alice: Peer, bob: Client, caller: Caller, relay: StageRelay
) -> None:
    caller.ask("echo", [2], "secret")
    assert [each.WhichOneof("payload") for each in relay.passed] == ["cipher", "cipher"]


# Whom to believe


def answer_of(request: Envelope, who: Person) -> Envelope:
    made = envelopes.response(request, Address(who.id), clock(), 60, plain=b"666")
    made.signature = who.identity.sign(envelopes.digest(made))
    return made


def test_an_answer_of_another_twin_is_not_taken(
    server: RedisServer, relay: StageRelay, caller: Caller
) -> None:
    def change(envelope: Envelope) -> list[Envelope]:
        right = answer_of(envelope, BOB)
        return [answer_of(envelope, CAROL), right, right]

    relay.change = change
    with gateway(server, relay, table_of(ALICE, BOB, CAROL, keys=False), ALICE):
        ret = caller.push("echo", [2])
        assert caller.answer(ret)["src"] == "2"
        caller.ask("echo", [99])
        wait_for(lambda: lists(server, 1) == {})


def test_an_answer_in_the_clear_to_an_encrypted_request_is_an_error(
    alice: Peer, relay: StageRelay, caller: Caller
) -> None:
    relay.change = lambda envelope: [answer_of(envelope, BOB)]
    answer = caller.ask("echo", [2])
    assert (answer["err"]["code"], answer["dat"]) == (106, b"")


def test_a_backlog_of_the_known_gateway_is_answered(
    alice: Peer, relay: StageRelay, caller: Caller
) -> None:
    waiting = Waiting("u-1", "theirs", "answers.theirs", None, 60)
    caller.redis.set(backlog_key("u-1"), encode_backlog(waiting))
    asked = envelopes.request("u-1", Address(1), Address(2), "echo", clock(), 60)
    relay.deliver(answer_of(asked, BOB))
    answer = caller.answer("answers.theirs")
    assert (answer["ref"], answer["dat"]) == ("theirs", b"666")


@pytest.mark.parametrize("kept", [b"\xff", encode_backlog(Waiting("u", None, "twin", None, 60))])
def test_a_backlog_that_names_no_list_is_not_answered(
    alice: Peer, bob: Client, relay: StageRelay, caller: Caller, kept: bytes
) -> None:
    for key in (backlog_key("u"), "msgbus.system.outbox.u"):
        caller.redis.set(key, kept)
    asked = envelopes.request("u", Address(1), Address(2), "echo", clock(), 60)
    relay.deliver(answer_of(asked, BOB))
    assert caller.ask("echo", [2], 1)["dat"] == b"1"
    assert not caller.redis.exists("twin")


def test_nobody_is_told_the_end_of_a_request_of_another_gateway_that_names_no_list(
    server: RedisServer,
    relay: StageRelay,
    twins: Table,
    caller: Caller,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expired = envelopes.request("u", Address(1), Address(2), "echo", clock() - 120, 60)
    waiting = Waiting("u", None, "twin", None, 60)
    caller.redis.set(backlog_key("u"), encode_backlog(waiting))
    caller.redis.set("msgbus.system.outbox.u", expired.SerializeToString())
    with gateway(server, relay, twins, ALICE):
        wait_for(lambda: "'twin' is a system queue" in caplog.text)
    assert not caller.redis.exists("twin")


def test_what_is_no_envelope_is_dropped(
    alice: Peer, bob: Client, relay: StageRelay, caller: Caller
) -> None:
    relay.links[Address(1)].send_nowait(b"\xff\xff")
    assert caller.ask("echo", [2], 1)["dat"] == b"1"
