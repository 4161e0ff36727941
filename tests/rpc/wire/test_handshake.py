"""Payloads of handshakes are built as they are read, and read strictly."""

from __future__ import annotations

from typing import Any

import pytest

from wsmux.rpc.wire.envelope import MAX_ID
from wsmux.rpc.wire.handshake import (
    Attempt,
    ExpectedState,
    HandshakeRequest,
    MalformedHandshake,
    Refusal,
    RefusalCode,
    parse_rehandshake_request,
    parse_rehandshake_response,
    parse_request,
    parse_response,
    refusal_payload,
    rehandshake_request_payload,
    rehandshake_response_payload,
    request_payload,
    welcome_payload,
)

from ...helpers.tables import each_case

REQUEST: dict[str, Any] = request_payload("s", ExpectedState(3, 2), {"token": 1})


@pytest.mark.parametrize("metadata", [None, {"token": 1}, [], 0])
def test_a_request_says_what_was_asked(metadata: Any) -> None:
    expected = ExpectedState(3, 2)
    assert parse_request(request_payload("s", expected, metadata)) == HandshakeRequest(
        "s", expected, metadata
    )


@pytest.mark.parametrize("is_reconnect", [False, True])
def test_a_request_says_whether_its_session_had_a_connection(is_reconnect: bool) -> None:
    payload = request_payload("s", ExpectedState(0, 0), None, is_reconnect=is_reconnect)
    assert ("isReconnect" in payload["expectedSessionState"]) is is_reconnect
    assert parse_request(payload).is_reconnect is is_reconnect


def test_a_request_says_which_of_its_clients_attempts_it_is() -> None:
    attempt = Attempt("instance", 3, 2)
    payload = request_payload("s", ExpectedState(0, 0), None, attempt=attempt)
    told = {"instance": "instance", "number": 3, "welcomed": 2}
    assert payload["expectedSessionState"]["attempt"] == told
    assert parse_request(payload).attempt == attempt


def test_a_request_of_another_implementation_does_not() -> None:
    assert "attempt" not in REQUEST["expectedSessionState"]
    assert parse_request(REQUEST).attempt is None


@pytest.mark.parametrize(
    "change",
    [
        {"instance": None},
        {"instance": "x" * (MAX_ID + 1)},
        {"number": "1"},
        {"number": -1},
        {"welcomed": None},
        {"welcomed": 0.5},
    ],
)
def test_a_request_with_a_bad_attempt_is_malformed(change: dict[str, Any]) -> None:
    attempt = {"instance": "instance", "number": 1, "welcomed": 0, **change}
    state = {"nextExpectedSeq": 0, "nextSentSeq": 0, "attempt": attempt}
    with pytest.raises(MalformedHandshake):
        parse_request({**REQUEST, "expectedSessionState": state})


def test_a_request_without_metadata_has_no_such_field() -> None:
    assert "metadata" not in request_payload("s", ExpectedState(0, 0), None)


def test_a_request_with_unknown_fields_is_taken() -> None:
    assert parse_request({**REQUEST, "more": 1}).session_id == "s"


def test_a_whole_number_may_come_as_a_float() -> None:
    state = {"nextExpectedSeq": 3.0, "nextSentSeq": 2}
    assert parse_request({**REQUEST, "expectedSessionState": state}).expected == (3, 2)


@each_case
@pytest.mark.parametrize(
    "change",
    [
        {"type": "HANDSHAKE_RESP"},
        {"protocolVersion": 2},
        {"sessionId": None},
        {"expectedSessionState": None},
        {"expectedSessionState": {"nextExpectedSeq": 0}},
        {"expectedSessionState": {"nextExpectedSeq": -1, "nextSentSeq": 0}},
        {"expectedSessionState": {"nextExpectedSeq": 0, "nextSentSeq": 0.5}},
        {"expectedSessionState": {"nextExpectedSeq": True, "nextSentSeq": 0}},
        {"expectedSessionState": {"nextExpectedSeq": 2**53, "nextSentSeq": 0}},
        {"expectedSessionState": {"nextExpectedSeq": 0, "nextSentSeq": 0, "isReconnect": 1}},
        {"expectedSessionState": {"nextExpectedSeq": 0, "nextSentSeq": 0, "isReconnect": None}},
        {"expectedSessionState": {"nextExpectedSeq": 0, "nextSentSeq": 0, "attempt": None}},
    ],
)
def test_a_request_with_a_bad_field_is_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedHandshake) as caught:
        parse_request({**REQUEST, **change})
    assert caught.value.refusal is RefusalCode.MALFORMED_HANDSHAKE


@pytest.mark.parametrize("payload", [None, [], "HANDSHAKE_REQ", {}])
def test_what_is_no_request_is_malformed(payload: Any) -> None:
    with pytest.raises(MalformedHandshake):
        parse_request(payload)


@pytest.mark.parametrize("version", ["v0", "v1", "v1.1", "v2.1", ""])
def test_no_version_but_2_0_is_taken(version: str) -> None:
    with pytest.raises(MalformedHandshake, match=r"expected protocol version v2\.0") as caught:
        parse_request({**REQUEST, "protocolVersion": version})
    assert caught.value.refusal is RefusalCode.PROTOCOL_VERSION_MISMATCH


def test_an_old_client_learns_its_version_is_wrong_whatever_else_it_lacks() -> None:
    with pytest.raises(MalformedHandshake) as caught:
        parse_request({"type": "HANDSHAKE_REQ", "protocolVersion": "v1.1", "sessionId": "s"})
    assert caught.value.refusal is RefusalCode.PROTOCOL_VERSION_MISMATCH


def test_a_welcome_names_the_session() -> None:
    assert parse_response(welcome_payload("s")) == "s"


def test_a_refusal_has_code_and_reason() -> None:
    answer = parse_response(refusal_payload(RefusalCode.MALFORMED_HANDSHAKE, "why"))
    assert answer == Refusal("MALFORMED_HANDSHAKE", "why")


def test_only_a_state_mismatch_is_retriable() -> None:
    assert {code for code in RefusalCode if Refusal(code, "").retriable} == {
        RefusalCode.SESSION_STATE_MISMATCH
    }


def test_an_unknown_code_is_a_fatal_refusal() -> None:
    answer = parse_response(refusal_payload("NEWER", "why"))
    assert isinstance(answer, Refusal)
    assert not answer.retriable


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        {"ok": 1, "sessionId": "s"},
        {"ok": True},
        {"ok": False, "reason": "why"},
        {"ok": False, "code": "MALFORMED_HANDSHAKE"},
    ],
)
def test_a_response_with_a_bad_status_is_malformed(status: Any) -> None:
    with pytest.raises(MalformedHandshake):
        parse_response({"type": "HANDSHAKE_RESP", "status": status})


def test_a_request_for_new_metadata_is_recognised() -> None:
    parse_rehandshake_request(rehandshake_request_payload())


@pytest.mark.parametrize("metadata", [None, {"token": 1}])
def test_new_metadata_arrive_as_sent(metadata: Any) -> None:
    assert parse_rehandshake_response(rehandshake_response_payload(metadata)) == metadata


def test_another_payload_is_no_re_handshake() -> None:
    with pytest.raises(MalformedHandshake):
        parse_rehandshake_request(rehandshake_response_payload(None))
    with pytest.raises(MalformedHandshake):
        parse_rehandshake_response(rehandshake_request_payload())
