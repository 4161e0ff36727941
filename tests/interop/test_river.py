"""Serve the client of PyPI `replit-river`, of protocol v2, with msgpack.

It has no server of v2 and no JSON codec; frames that only other clients send are held to what those
have sent, in tests/rpc.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest

from wsmux import rpc
from wsmux.rpc.session.session import SERVER_BUFFER

from ..helpers.interop.link import MIB, WAIT
from ..helpers.interop.peer_process import PeerError, PeerProcess, generate
from ..helpers.interop.river_link import KINDS, QUIET, RiverLink, river_marks
from ..helpers.traced import Traced
from ..helpers.waiting import wait_for

pytestmark = river_marks

MANY = 1000

# More than a server sends without hearing that anything arrived.
VERY_MANY = 3 * SERVER_BUFFER

SAFE = 2**53 - 1

VALUES = {
    "text": "plain",
    "unicode": "ä€𝄞 \x00\x7f\u2028\ufeff",
    "empty_text": "",
    "bytes": bytes(range(256)),
    "empty_bytes": b"",
    "true": True,
    "zero": 0,
    "smallest_byte": -128,
    "32_bits": 2**32 - 1,
    "33_bits": -(2**32),
    "largest_safe": SAFE,
    "smallest_safe": -SAFE,
    "fraction": -1.5e300,
    "empty_list": [],
    "empty_object": {},
    "nulls": [None, {"none": None}],
    "nested": {"list": [{"ü": [b"\xff", 1, "two", [3.5, False]]}]},
    "date": datetime(2026, 2, 28, 23, 59, 59, 123456, tzinfo=UTC),
    "early_date": datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
    "late_date": datetime(2554, 7, 21, tzinfo=UTC),
}

everything = pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
every_kind = pytest.mark.parametrize("kind", KINDS)


def test_peer_runs_the_pinned_version(river_peer: PeerProcess) -> None:
    assert river_peer.version == "0.17.20"


def test_error_in_a_command_is_told(river: RiverLink) -> None:
    with pytest.raises(PeerError, match="no command jump"):
        river.peer.call("jump")


# Values


@everything
def test_value_goes_there_and_back_in_an_rpc(river: RiverLink, value: Any) -> None:
    returned = river.rpc("test.same", value)
    assert (returned, type(returned)) == (value, type(value))


@everything
def test_value_goes_there_and_back_in_a_stream(river: RiverLink, value: Any) -> None:
    call = river.open("stream", "test.echo")
    river.give(call, value)
    assert river.result(call) == [value]


def test_values_come_to_the_handler_of_an_upload_as_they_are(river: RiverLink) -> None:
    call = river.open("upload", "holding.gather")
    river.give(call, *VALUES.values())
    river.result(call)
    assert river.gate.seen == [*VALUES.values()]


@pytest.mark.parametrize("number", [SAFE + 1, 2**63 - 1, -(2**63), 2**64 - 1])
def test_integers_of_64_bits_come_as_they_are_and_return_as_bigints(
    river: RiverLink, number: int
) -> None:
    """The package sends them as numbers, and does not read the bigints of the protocol."""
    code, body = river.rpc("test.same", number)["$ext"]
    assert (code, msgpack.unpackb(bytes.fromhex(body))) == (0, str(number))


@pytest.mark.parametrize("value", [generate("large", MIB), "ü" * (MIB // 2)], ids=["bytes", "text"])
def test_a_mebibyte_goes_there_and_back(river: RiverLink, value: Any) -> None:
    assert river.rpc("test.same", value) == value


# Traces


def test_the_span_of_a_call_is_the_parent_of_its_handler_s(
    river: RiverLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = Traced()
    monkeypatch.setattr("opentelemetry.trace.get_tracer", traced.provider.get_tracer)
    assert river.rpc("test.same", 1) == 1
    assert river.rpc("test.same", 2, span=[3, 4]) == 2
    [span] = traced.spans()
    assert span.name == "river.server.test.same"
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (3, 4)


# Results of each kind


def test_an_rpc_is_answered(river: RiverLink) -> None:
    assert [river.rpc("test.add", {"n": n}) for n in (3, 4)] == [{"n": 3}, {"n": 7}]


@pytest.mark.parametrize("count", [0, 1, MANY])
def test_an_upload_is_answered(river: RiverLink, count: int) -> None:
    call = river.open("upload", "test.total")
    river.give(call, numbers=[count])
    assert river.result(call) == [sum(range(count))]


@pytest.mark.parametrize("count", [0, 1, MANY, VERY_MANY])
def test_a_subscription_is_served_to_its_end(river: RiverLink, count: int) -> None:
    """Nothing but what the server asks for lets the package acknowledge anything meanwhile."""
    assert river.result(river.open("subscription", "test.count", count)) == [*range(count)]


@pytest.mark.parametrize("count", [0, 1, MANY])
def test_a_stream_is_echoed_to_its_end(river: RiverLink, count: int) -> None:
    call = river.open("stream", "test.echo")
    river.give(call, numbers=[count])
    assert river.result(call) == [*range(count)]


def test_a_stream_goes_both_ways(river: RiverLink) -> None:
    call = river.open("stream", "test.echo")
    for count in range(1, 4):
        river.give(call, count, over=False)
        assert len(river.peer.call("waitResponses", call=call, count=count)) == count
    river.give(call)
    assert river.result(call) == [1, 2, 3]


def test_thirty_two_rpcs_run_at_once(river: RiverLink) -> None:
    inits = [{"parties": 32}] * 32
    places = river.peer.call("rpcs", kind="rpc", service="holding", procedure="meet", inits=inits)
    assert sorted(places) == [*range(32)]


def test_calls_of_all_kinds_run_side_by_side(river: RiverLink) -> None:
    calls = [river.open("stream", "test.echo") for _ in range(10)]
    calls += [river.open("upload", "holding.gather") for _ in range(10)]
    calls += [river.open("subscription", "test.count", 100) for _ in range(10)]
    for call in calls[:20]:
        river.give(call, numbers=[100])
    results = [river.result(call) for call in calls]
    assert results[:10] + results[20:] == [[*range(100)]] * 20
    assert sorted(river.gate.seen) == sorted([*range(100)] * 10)


def test_messages_of_an_upload_are_acknowledged_while_it_goes_on(river: RiverLink) -> None:
    call = river.open("upload", "test.total")
    river.give(call, numbers=[MANY], over=False)
    river.peer.call("waitSent", call=call)
    river.peer.call("waitAcknowledged", atMost=rpc.Options().ack_messages)
    assert river.calls == 1
    river.give(call)
    assert river.result(call) == [sum(range(MANY))]


def test_a_session_lives_by_its_heartbeats(river_peer: PeerProcess) -> None:
    often = rpc.Options(heartbeat_interval=0.05, heartbeats_until_dead=100)
    with RiverLink(river_peer, often) as river:
        before = river.connect()
        river.wait_received(5)  # the answers
        river.assert_works()
        assert river.peer.call("report")["session"] == before["session"]


def test_clients_do_not_see_each_other(river: RiverLink, mortal_river: PeerProcess) -> None:
    one = river.open("stream", "test.echo")
    mortal_river.call("connect", url=river.url, clientId="another")
    called = {"kind": "stream", "service": "test", "procedure": "echo", "init": {}}
    other = mortal_river.call("open", **called)["call"]
    mortal_river.call("give", call=other, requests=["theirs"], over=True)
    river.give(one, "ours")
    assert river.result(one) == ["ours"]
    assert mortal_river.call("result", call=other) == ["theirs"]
    assert river.sessions == 2
    mortal_river.call("fresh")


# Errors


def ended(river: RiverLink, kind: str, how: str) -> tuple[list[Any], Any]:
    """Call a procedure that ends so; return the responses before the error, and the error.

    A stream and a subscription yield it. After a cancelling one the package waits for ever.
    """
    call = river.open(kind, f"endings.{kind}", {"how": how})
    if kind in ("upload", "stream"):
        river.give(call, "before", over=False)
    if kind in ("rpc", "upload"):
        if kind == "upload":
            river.give(call)
        with pytest.raises(PeerError) as caught:
            river.result(call)
        error = caught.value.error
        return [], (error["code"], error["message"], error["extras"])
    before, told = river.peer.call("waitResponses", call=call, count=2)
    river.give(call)  # too late for a call that is over
    return [before], tuple(told["$error"])


@every_kind
def test_a_declared_error_comes_with_its_extras(river: RiverLink, kind: str) -> None:
    before, error = ended(river, kind, "declared")
    assert error == ("BAD", "as declared", {"list": [1, "ü"]})
    assert before == (["before"] if kind in ("subscription", "stream") else [])


def test_a_stream_goes_on_after_an_error_that_the_handler_writes(river: RiverLink) -> None:
    call = river.open("stream", "test.halves")
    river.give(call, 4, 3, 8)
    assert river.result(call) == [2, {"$error": ["BAD", "odd", None]}, 4]


@every_kind
@pytest.mark.parametrize("how", ["undeclared", "raised"])
def test_an_uncaught_error_is_told_without_its_text(river: RiverLink, kind: str, how: str) -> None:
    _, error = ended(river, kind, how)
    assert error == ("UNCAUGHT_ERROR", "the handler failed", None)


@every_kind
def test_what_the_handler_cancels_ends_with_its_message(river: RiverLink, kind: str) -> None:
    _, error = ended(river, kind, "cancelled")
    assert error == ("CANCEL", "enough", None)
    river.assert_works()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, "test.nothing") for kind in KINDS),
        *((kind, "nothing.same") for kind in KINDS),
        ("rpc", "test.add"),
    ],
)
def test_a_call_of_nothing_is_an_invalid_request(river: RiverLink, kind: str, name: str) -> None:
    call = river.open(kind, name, {"n": "no number"})
    if kind in ("rpc", "upload"):
        river.give(call)
        with pytest.raises(PeerError) as caught:
            river.result(call)
        code = caught.value.error["code"]
    else:
        ((code, _, _),) = [
            told["$error"] for told in river.peer.call("waitResponses", call=call, count=1)
        ]
    assert code == "INVALID_REQUEST"
    river.assert_works()


def test_a_wrong_request_ends_the_upload_and_says_where(river: RiverLink) -> None:
    call = river.open("upload", "test.total")
    river.give(call, 1, "two")
    with pytest.raises(PeerError) as caught:
        river.result(call)
    error = caught.value.error
    assert error["code"] == "INVALID_REQUEST"
    assert error["extras"]["totalErrors"] == 1


# Cancelling


def test_an_rpc_out_of_time_is_cancelled_at_the_server(river: RiverLink) -> None:
    with pytest.raises(PeerError) as caught:
        river.rpc("test.hangs", callTimeout=0.05)
    assert caught.value.error["code"] == "CANCEL"
    assert river.gate.over.wait(WAIT)
    river.assert_works()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("rpc", "test.hangs"),
        ("upload", "holding.gather"),
        ("subscription", "test.watch"),
        ("stream", "test.echo"),
    ],
)
def test_a_call_that_the_client_cancels_is_cancelled_at_the_server(
    river: RiverLink, kind: str, name: str
) -> None:
    call = river.open(kind, name)
    wait_for(lambda: len(river.gate.begun) == 1)
    river.peer.call("cancel", call=call)
    wait_for(lambda: river.calls == 0)
    river.gate.opened.set()
    if kind != "rpc":
        wait_for(lambda: river.gate.seen == ["CANCEL"])
    with pytest.raises(PeerError, match="cancelled here"):
        river.result(call)
    river.assert_works()


# Handshakes


def test_metadata_is_validated_and_seen_by_handlers(river_peer: PeerProcess) -> None:
    metadata = {"token": "good", "bytes": b"\0", "ü": [1, None]}
    seen = []

    def validate(given: Any, before: Any, client_id: str) -> Any:
        seen.append((given, before, client_id))
        return {"user": "ü"}

    schema = {"type": "object", "required": ["token"]}
    with RiverLink(river_peer, handshake_schema=schema, validate=validate) as river:
        river.connect(metadata={"token": "good", "bytes": {"$bytes": "00"}, "ü": [1, None]})
        assert river.rpc("holding.metadata") == {"user": "ü"}
        assert seen == [(metadata, None, river.client_id)]


def refused(river: RiverLink, **args: Any) -> str:
    """Return why the client was refused; it tries as often as it may, whatever the reason."""
    with pytest.raises(PeerError) as caught:
        river.connect(attempts=2, **args)
    error = caught.value.error
    assert "after retrying 2" in error["message"]
    assert river.sessions == 0
    told: str = error["cause"]["message"]
    return told.partition("Handshake failed with code ")[2]


def test_metadata_of_the_wrong_shape_is_refused(river_peer: PeerProcess) -> None:
    schema = {"type": "object", "required": ["token"]}
    with RiverLink(river_peer, handshake_schema=schema) as river:
        reason = refused(river, metadata={"wrong": 1})
    assert reason == "MALFORMED_HANDSHAKE_META: received malformed handshake metadata"


@pytest.mark.parametrize(
    ("unsupported", "code"),
    [(False, "REJECTED_BY_CUSTOM_HANDLER"), (True, "REJECTED_UNSUPPORTED_CLIENT")],
)
def test_a_client_that_is_not_wanted_is_refused(
    river_peer: PeerProcess, unsupported: bool, code: str
) -> None:
    def validate(given: Any, before: Any, client_id: str) -> Any:
        raise rpc.Rejection("not you", unsupported)

    with RiverLink(river_peer, validate=validate) as river:
        assert refused(river, metadata={}) == f"{code}: not you"
    wait_for(lambda: {failure[2] for failure in river.failures} == {code})


def test_a_client_of_another_server_is_refused(river_peer: PeerProcess) -> None:
    with RiverLink(river_peer) as river:
        reason = refused(river, serverId="OTHER")
    assert reason == "MALFORMED_HANDSHAKE: this server is SERVER, not OTHER"


def test_a_server_may_have_another_name(river_peer: PeerProcess) -> None:
    with RiverLink(river_peer, server_id="OTHER") as river:
        river.connect(serverId="OTHER")
        river.assert_works()


def test_a_version_that_nobody_knows_is_refused(river_peer: PeerProcess) -> None:
    with RiverLink(river_peer) as river:
        reason = refused(river, version="v3.0")
    assert reason == "PROTOCOL_VERSION_MISMATCH: expected protocol version v2.0, got v3.0"


def test_the_client_of_the_old_version_is_refused(river_peer: PeerProcess) -> None:
    """It is another class of the package; shipped servers take it, in which flag 4 differs."""
    with RiverLink(river_peer) as river:
        with pytest.raises(PeerError) as caught:
            river.connect(old=True, attempts=1)
        assert caught.value.error["name"] == "RiverException"
        wait_for(lambda: river.failures)
        assert river.sessions == 0
    assert river.failures[0][2] == "PROTOCOL_VERSION_MISMATCH"


def test_a_client_that_comes_again_begins_anew(river: RiverLink) -> None:
    first = river.peer.call("report")["session"]
    river.peer.call("close")
    river.connect()
    river.assert_works()
    assert river.peer.call("report")["session"] != first
    assert river.sessions == 1
    assert QUIET.session_disconnect_grace > WAIT  # so it was the newcomer that ended the first
    wait_for(lambda: ("closed", first) in river.statuses)
