"""The JSON between programs and their gateway, and what is kept of a request."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsmux.bus.errors import BadMessage
from wsmux.bus.gateway.backlog import Waiting, backlog_key, decode_backlog, encode_backlog
from wsmux.bus.gateway.json_messages import (
    MAX_DESTINATIONS,
    MAX_JSON,
    MAX_LIFE,
    RELAY,
    IncomingRequest,
    IncomingResponse,
    JsonError,
    OutgoingRequest,
    OutgoingResponse,
    caller_of,
    incoming_request,
    incoming_response,
    outgoing_request,
    outgoing_response,
    parse_incoming_request,
    parse_incoming_response,
    parse_request,
    parse_response,
)
from wsmux.bus.wire.address import Address

from ...helpers.bus.captured import COMPUTED, NOW
from ...helpers.tables import each_case

PEER_JSON = COMPUTED["peer_json"]

REQUEST: dict[str, Any] = {
    "ver": 1,
    "ref": "mine",
    "cmd": "calc.add",
    "exp": 60,
    "dat": base64.b64encode(b"[1,2]").decode(),
    "tag": "t",
    "dst": [2, 3],
    "ret": "answers",
    "shm": "application/json",
    "now": NOW,
}

RESPONSE: dict[str, Any] = {
    "ver": 1,
    "ref": "u-1",
    "dat": "Mw==",
    "dst": "1:s1",
    "shm": "application/json",
    "now": NOW,
    "err": None,
}


def text(fields: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps({**fields, **changes}).encode()


def without(fields: dict[str, Any], name: str) -> bytes:
    return json.dumps({key: value for key, value in fields.items() if key != name}).encode()


# What the known gateway writes


def test_a_request_is_written_as_the_known_gateway_does() -> None:
    args = ("u-1", Address(1, "s1"), "calc.add", 300, b"[1,2]", None, "application/json", NOW)
    assert incoming_request(*args).decode() == PEER_JSON["request_in"]["json"]


def test_a_response_is_written_as_the_known_gateway_does() -> None:
    made = incoming_response("mine", b"3", "2", "application/json", NOW)
    assert made.decode() == PEER_JSON["response_in"]["json"]


@pytest.mark.parametrize(
    ("name", "source", "now", "error"),
    [
        ("error_from_relay_in", "0", NOW, JsonError(0, "destination offline")),
        ("undeliverable", "", 0, JsonError(103, "unknown twin id '99'")),
    ],
)
def test_an_error_is_written_as_the_known_gateway_does(
    name: str, source: str, now: int, error: JsonError
) -> None:
    made = incoming_response("mine", b"", source, None, now, error)
    assert made.decode() == PEER_JSON[name]["json"]


def test_a_backlog_is_kept_as_the_known_gateway_does() -> None:
    waiting = Waiting("u-1", "mine", "q-1", None, 300)
    assert backlog_key("u-1") == COMPUTED["backlog"]["key"]
    assert encode_backlog(waiting).hex() == COMPUTED["backlog"]["serialized_hex"]
    assert decode_backlog(bytes.fromhex(COMPUTED["backlog"]["serialized_hex"])) == waiting


@given(
    st.builds(
        Waiting,
        st.text(),
        st.none() | st.text(),
        st.text(),
        st.none() | st.text(),
        st.integers(0, MAX_LIFE),
    )
)
def test_a_backlog_is_read_as_it_was_written(waiting: Waiting) -> None:
    assert decode_backlog(encode_backlog(waiting)) == waiting


def test_what_is_no_backlog_is_refused() -> None:
    with pytest.raises(BadMessage):
        decode_backlog(b"\xff")


# What programs write


def test_a_request_is_read() -> None:
    found = parse_request(text(REQUEST, other=1))
    assert found == (
        "mine",
        "calc.add",
        60,
        b"[1,2]",
        "t",
        (2, 3),
        "answers",
        "application/json",
        NOW,
    )


@pytest.mark.parametrize("name", PEER_JSON["request_out_required"])
def test_a_request_needs(name: str) -> None:
    for missing in (without(REQUEST, name), text(REQUEST, **{name: None})):
        with pytest.raises(BadMessage, match=name):
            parse_request(missing)


@pytest.mark.parametrize("name", PEER_JSON["request_out_optional"])
def test_a_request_may_do_without(name: str) -> None:
    assert parse_request(without(REQUEST, name)) == parse_request(text(REQUEST, **{name: None}))


@pytest.mark.parametrize(("given", "kept"), [(0, 0), (1800, 1800), (1801, 1800), (NOW, 1800)])
def test_the_life_of_a_request_is_cut(given: int, kept: int) -> None:
    assert parse_request(text(REQUEST, exp=given)).expiration == kept


@each_case
@pytest.mark.parametrize(
    "changes",
    [
        {"ver": "1"},
        {"ver": True},
        {"ver": -1},
        {"ver": 1.0},
        {"cmd": ""},
        {"cmd": 5},
        {"cmd": "\ud800"},
        {"exp": "60"},
        {"exp": -1},
        {"exp": 2**64},
        {"exp": 1.5},
        {"dat": 5},
        {"dat": "*"},
        {"dat": "Mw"},
        {"dat": "Mw=="[::-1]},
        {"dat": "M w="},
        {"dat": "-_8="},
        {"dst": 2},
        {"dst": []},
        {"dst": "2"},
        {"dst": {}},
        {"dst": ["2"]},
        {"dst": [None]},
        {"dst": [True]},
        {"dst": [-1]},
        {"dst": [2**32]},
        {"dst": [1.0]},
        {"dst": [1] * (MAX_DESTINATIONS + 1)},
        {"ret": 5},
        {"ret": "\ud800"},
        {"ref": 5},
        {"ref": "\udfff"},
        {"tag": []},
        {"tag": "a\ud800"},
        {"shm": {}},
        {"shm": "\udc00\ud800"},
        {"now": "now"},
        {"now": None},
    ],
)
def test_a_wrong_request_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadMessage, match=next(iter(changes))):
        parse_request(text(REQUEST, **changes))


NO_JSON = [
    b"",
    b"\xff",
    b"nul",
    b"{",
    b"[]",
    b"1",
    b'"text"',
    b"null",
    b'{"ver":NaN}',
    b'{"ver":Infinity}',
    b'{"ver":1,"ver":1}',
    "{}".encode("utf-16"),
    b"[" * 100_000,
    b'{"ver":' + b"9" * 5000 + b"}",
]


@each_case
@pytest.mark.parametrize("raw", NO_JSON)
@pytest.mark.parametrize("parse", [parse_request, parse_response])
def test_what_is_no_object_is_refused(parse: Any, raw: bytes) -> None:
    with pytest.raises(BadMessage):
        parse(raw)
    assert caller_of(raw) is None


def test_a_message_too_long_is_refused() -> None:
    with pytest.raises(BadMessage, match="above the limit of"):
        parse_request(b" " * (MAX_JSON + 1))


@pytest.mark.parametrize(
    ("raw", "caller"),
    [
        (text(REQUEST, cmd=""), ("answers", "mine")),
        (text(REQUEST, ref=None, dst=[]), ("answers", None)),
        (text(REQUEST, ret=1), None),
        (text(REQUEST, ref=1), None),
    ],
)
def test_who_sent_a_wrong_request_is_found(raw: bytes, caller: object) -> None:
    assert caller_of(raw) == caller


def test_a_response_is_read() -> None:
    found = parse_response(text(RESPONSE, other=1))
    assert found == ("u-1", b"3", Address(1, "s1"), "application/json", NOW, None)


def test_a_response_may_be_an_error() -> None:
    found = parse_response(text(RESPONSE, err={"code": 7, "message": "no"}))
    assert found.error == JsonError(7, "no")


@pytest.mark.parametrize("name", PEER_JSON["response_out_required"])
def test_a_response_needs(name: str) -> None:
    for missing in (without(RESPONSE, name), text(RESPONSE, **{name: None})):
        with pytest.raises(BadMessage, match=name):
            parse_response(missing)


@pytest.mark.parametrize("name", PEER_JSON["response_out_optional"])
def test_a_response_may_do_without(name: str) -> None:
    assert parse_response(without(RESPONSE, name)) == parse_response(text(RESPONSE, **{name: None}))


@each_case
@pytest.mark.parametrize(
    "changes",
    [
        {"ver": None},
        {"dat": "="},
        {"dst": "0"},
        {"dst": "0:s"},
        {"dst": ""},
        {"dst": ":s"},
        {"dst": "-1"},
        {"dst": "4294967296"},
        {"dst": "x:1"},
        {"dst": "1:\ud800"},
        {"ref": "\ud800"},
        {"shm": "\ud800"},
        {"dst": 1},
        {"now": -5},
        {"err": "no"},
        {"err": []},
    ],
)
def test_a_wrong_response_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadMessage, match=next(iter(changes))):
        parse_response(text(RESPONSE, **changes))


@pytest.mark.parametrize(
    "error",
    [
        {},
        {"code": 1},
        {"message": "m"},
        {"code": "1", "message": "m"},
        {"code": -1, "message": "m"},
        {"code": 2**32, "message": "m"},
        {"code": 1, "message": 1},
        {"code": 1, "message": "\ud800"},
    ],
)
def test_a_wrong_error_is_refused(error: dict[str, Any]) -> None:
    with pytest.raises(BadMessage, match="code|message"):
        parse_response(text(RESPONSE, err=error))


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from([*REQUEST, *RESPONSE]), inner)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for parse in (parse_request, parse_response):
        with contextlib.suppress(BadMessage):
            parse(raw)


# A program's side


def test_a_request_of_a_program_is_what_the_gateway_reads() -> None:
    request = OutgoingRequest("mine", "calc.add", 60, b"[1,2]", "t", (2, 3), "answers", None, NOW)
    assert parse_request(outgoing_request(request)) == request


@pytest.mark.parametrize("error", [None, JsonError(7, "no such thing")])
def test_a_response_of_a_program_is_what_the_gateway_reads(error: JsonError | None) -> None:
    response = OutgoingResponse("u-1", b"3", Address(1, "s1"), "application/json", NOW, error)
    assert parse_response(outgoing_response(response)) == response


def test_a_program_reads_the_request_that_the_gateway_pushes() -> None:
    pushed = text(REQUEST, src="1:s1", dst="", ret="u-1")
    assert parse_incoming_request(pushed) == IncomingRequest(
        "mine", Address(1, "s1"), "calc.add", 60, b"[1,2]", "t", "u-1", "application/json", NOW
    )


@pytest.mark.parametrize(
    ("source", "read"), [("1:s1", Address(1, "s1")), ("", None), (RELAY, None)]
)
def test_a_program_reads_the_response_that_the_gateway_pushes(
    source: str, read: Address | None
) -> None:
    pushed = text(RESPONSE, src=source, err={"code": 7, "message": "no"})
    assert parse_incoming_response(pushed) == IncomingResponse(
        "u-1", b"3", read, "application/json", JsonError(7, "no")
    )
