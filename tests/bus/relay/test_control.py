"""Requests to the relay itself: who is answered with what."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from queue import Queue

import pytest

from wsmux.bus.errors import BAD_INPUT, FAILED, UNAVAILABLE, UNKNOWN_COMMAND
from wsmux.bus.relay.control import MAX_PAYLOAD, MAX_REST, Asked, Refusal
from wsmux.bus.relay.queues import QueueUnavailable
from wsmux.bus.relay.router import EXPIRED, MISSING_DESTINATION, WRONG_SOURCE
from wsmux.bus.relay.server import RelayServer
from wsmux.bus.relay.sessions import Session
from wsmux.bus.wire.address import Address
from wsmux.bus.wire.envelope import Kind, kind_of
from wsmux.bus.wire.messages import Envelope

from ...helpers.bus.relays import Node, ask, relay, served
from ...helpers.raw_peer import WAIT

TWIN_0 = Address(0)
WORD = re.compile("[a-z]{1,8}")


def echo(asked: Asked) -> object:
    return [asked.session.address.twin, asked.fields.text("word", WORD, "letters")]


def count(asked: Asked) -> object:
    return asked.fields.number("count", 1, 3, 2)


def busy(asked: Asked) -> object:
    raise QueueUnavailable("Redis is away")


def refuse(asked: Asked) -> object:
    raise Refusal(418, "a teapot")


def fail(asked: Asked) -> object:
    raise RuntimeError("on purpose")


@pytest.fixture
def ended() -> Queue[Session]:
    return Queue()


@pytest.fixture
def server(ended: Queue[Session]) -> Iterator[RelayServer]:
    made = relay()
    for handler in (echo, count, busy, refuse, fail):
        made.control.add(f"relay.{handler.__name__}", handler)
    made.control.on_leave(lambda _: fail_to_note())
    made.control.on_leave(ended.put)
    with served(made) as running:
        yield running


def fail_to_note() -> None:
    raise RuntimeError("cannot note that")


def asked(node: Node, command: str, payload: object = None, **fields: object) -> Envelope:
    plain = fields.pop("plain", json.dumps({} if payload is None else payload).encode())
    sent = node.ask(TWIN_0, command=command, plain=plain, **fields)
    answer = node.take()
    assert answer.uid == sent.uid
    assert not answer.HasField("source")
    assert answer.destination.twin == node.address.twin
    return answer


def refusal(node: Node, command: str, payload: object = None, **fields: object) -> tuple[int, str]:
    answer = asked(node, command, payload, **fields)
    assert kind_of(answer) is Kind.ERROR
    return answer.error.code, answer.error.message


def test_an_answer_comes_over_the_same_connection(server: RelayServer) -> None:
    with Node(server, 1, "a") as one, Node(server, 1, "b") as other:
        answer = asked(one, "relay.echo", {"word": "hello"})
        assert kind_of(answer) is Kind.RESPONSE
        assert json.loads(answer.plain) == [1, "hello"]
        assert answer.schema == "application/json"
        other.nothing()


@pytest.mark.parametrize("word", [None, 5, "", "Hello", "toolongaword", ["a"], {}])
def test_a_field_must_be_as_expected(server: RelayServer, word: object) -> None:
    with Node(server, 1) as one:
        code, text = refusal(one, "relay.echo", {"word": word})
        assert code == BAD_INPUT
        assert text.startswith("expected word as letters, got ")


def test_a_number_may_have_a_default(server: RelayServer) -> None:
    with Node(server, 1) as one:
        assert json.loads(asked(one, "relay.count").plain) == 2
        assert json.loads(asked(one, "relay.count", {"count": 3}).plain) == 3
        for wrong in (0, 4, True, "2", 1.5, None):
            code, text = refusal(one, "relay.count", {"count": wrong})
            assert (code, text.partition(",")[0]) == (
                BAD_INPUT,
                "expected count as a number from 1 to 3",
            )


@pytest.mark.parametrize(
    "plain",
    [b"", b"{", b"\xff", b"[]", b"5", b"[" * 10_000, b'{"word": "' + b"a" * MAX_PAYLOAD + b'"}'],
    ids=["nothing", "half", "no text", "list", "number", "deep", "long"],
)
def test_a_payload_that_is_no_short_object_is_refused(server: RelayServer, plain: bytes) -> None:
    with Node(server, 1) as one:
        assert refusal(one, "relay.echo", plain=plain)[0] == BAD_INPUT


def test_what_an_envelope_has_beside_its_payload_is_bounded(server: RelayServer) -> None:
    with Node(server, 1) as one:
        payload = json.dumps({"word": "a"} | {"more": "x" * (MAX_PAYLOAD - 50)}).encode()
        assert kind_of(asked(one, "relay.echo", plain=payload)) is Kind.RESPONSE
        code, text = refusal(one, "relay.echo", {"word": "a"}, tags="x" * MAX_REST)
        assert code == BAD_INPUT
        assert f"at most {MAX_REST} bytes beside its payload" in text


def test_a_command_that_is_not_known_is_refused(server: RelayServer) -> None:
    with Node(server, 1) as one:
        assert refusal(one, "relay.other") == (
            UNKNOWN_COMMAND,
            "this relay knows no 'relay.other'",
        )


def test_refusals_and_failures_have_their_codes(
    server: RelayServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Node(server, 1) as one:
        assert refusal(one, "relay.refuse") == (418, "a teapot")
        assert refusal(one, "relay.busy") == (UNAVAILABLE, "Redis is away")
        with caplog.at_level(logging.ERROR, "wsmux.bus"):
            assert refusal(one, "relay.fail")[0] == FAILED
        assert "on purpose" in caplog.text


def test_the_reference_texts_stay_for_the_rest(server: RelayServer) -> None:
    with Node(server, 1) as one:
        assert refusal(one, "other.command") == (0, MISSING_DESTINATION)
        one.ask(None, command="relay.echo")  # without any destination
        assert one.refused()[1] == MISSING_DESTINATION
        assert refusal(one, "relay.echo", now=time.time() - 100) == (0, EXPIRED)
        one.put(ask(Address(2), TWIN_0, command="relay.echo"))
        assert one.refused()[1] == WRONG_SOURCE


def test_it_is_told_once_when_a_connection_ends(
    server: RelayServer, ended: Queue[Session], caplog: pytest.LogCaptureFixture
) -> None:
    with Node(server, 1, "a") as one:
        one.nothing()
    assert ended.get(timeout=WAIT).address == Address(1, "a")
    assert ended.empty()
    assert "cannot note that" in caplog.text
