"""Each wrong first message gets the refusal beside it, or none; sessions that are there go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from wsmux import rpc

from ..helpers.raw_peer import TEXT
from ..helpers.rpc.procedures import WAIT
from ..helpers.rpc.raw_river import CLOSED, Fields, RawRiver, ok
from ..helpers.rpc.standing_server import Stand, no_exceptions, stand
from ..helpers.tables import each_case
from ..helpers.waiting import threads_of, wait_for

MALFORMED, MISMATCH = "MALFORMED_HANDSHAKE", "SESSION_STATE_MISMATCH"
VERSION, META = "PROTOCOL_VERSION_MISMATCH", "MALFORMED_HANDSHAKE_META"
REJECTED, UNSUPPORTED = "REJECTED_BY_CUSTOM_HANDLER", "REJECTED_UNSUPPORTED_CLIENT"

LARGEST = 2**53 - 1

SCHEMA = {
    "type": "object",
    "properties": {"token": {"type": "string"}},
    "required": ["token"],
}
GOOD = {"token": "good"}


def validate(metadata: Any, previous: Any, client_id: str) -> Any:
    token = metadata["token"]
    if token == "old":
        raise rpc.Rejection("too old", unsupported=True)
    if token != "good":
        raise rpc.Rejection(token)
    return metadata


@pytest.fixture(
    scope="module",
    params=[("json", True), ("msgpack", False)],
    ids=["json-websocket", "msgpack-tcp"],
)
def standing(request: pytest.FixtureRequest) -> Iterator[Stand]:
    codec, websocket = request.param
    with stand(
        codec, websocket=websocket, metadata=GOOD, handshake_schema=SCHEMA, validate=validate
    ) as made:
        yield made


class Row(NamedTuple):
    """What is changed in a good handshake: its payload, its message; and the refusal."""

    name: str
    payload: Any
    envelope: Fields
    code: str | None
    text: str = ""


def state(expected: Any, sent: Any) -> Fields:
    return {"expectedSessionState": {"nextExpectedSeq": expected, "nextSentSeq": sent}}


NOT_TEXT: dict[str, Any] = {"missing": ..., "null": None, "number": 1, "array": [], "true": True}
NO_COUNTER: dict[str, Any] = {
    "missing": ...,
    "null": None,
    "text": "0",
    "true": True,
    "negative": -1,
    "fraction": 0.5,
    "too_large": 2**53,
    "array": [],
}


def versions() -> Iterator[Row]:
    for version in ("v0", "v1", "v1.1", "v1.9", "v2", "v2.1", "v3.0", "2.0", "V2.0", " v2.0", ""):
        text = f"expected protocol version v2.0, got {version}"
        yield Row(f"version-{version}", {"protocolVersion": version}, {}, VERSION, text)
    # As shipped before 2.0: there is no state in it.
    old = {"protocolVersion": "v1.1", "expectedSessionState": ...}
    yield Row("version-v1.1-as_it_was", old, {}, VERSION)
    for kind, version in NOT_TEXT.items():
        yield Row(f"version-{kind}", {"protocolVersion": version}, {}, MALFORMED)
    long = {"protocolVersion": "x" * 10**5}
    yield Row("version-long", long, {}, VERSION, "expected protocol version v2.0, got xxx")


def payloads() -> Iterator[Row]:
    for kind, payload in {
        "null": None,
        "text": "HANDSHAKE_REQ",
        "number": 1,
        "array": [],
        "empty": {},
        "ack": {"type": "ACK"},
        "close": {"type": "CLOSE"},
        "response": {"type": "HANDSHAKE_RESP", "status": {"ok": True, "sessionId": "s"}},
        "again": {"type": "REHANDSHAKE_RESP", "metadata": GOOD},
        "lower_case": {"type": "handshake_req"},
    }.items():
        yield Row(f"payload-{kind}", ..., {"payload": payload}, MALFORMED, "expected a payload of")
    for kind, value in NOT_TEXT.items():
        yield Row(f"type-{kind}", {"type": value}, {}, MALFORMED)
        yield Row(f"session-{kind}", {"sessionId": value}, {}, MALFORMED, "sessionId of a")
    yield Row("session-long", {"sessionId": "x" * 1025}, {}, MALFORMED, "is too long")
    for kind, value in {"missing": ..., "null": None, "array": [0, 0], "text": "00"}.items():
        yield Row(f"state-{kind}", {"expectedSessionState": value}, {}, MALFORMED, "must be an")
    for kind, value in NO_COUNTER.items():
        for name in ("nextExpectedSeq", "nextSentSeq"):
            counters = {n: v for n, v in (NONE_YET | {name: value}).items() if v is not ...}
            wrong = {"expectedSessionState": counters}
            yield Row(f"{name}-{kind}", wrong, {}, MALFORMED, f"{name} of a handshake")


NONE_YET = {"nextExpectedSeq": 0, "nextSentSeq": 0}


def unknown_sessions() -> Iterator[Row]:
    text = "client is trying to reconnect to a session the server does not know about"
    for counters in ((0, 1), (1, 0), (5, 5), (0, LARGEST), (LARGEST, 0)):
        yield Row(f"unknown_session-{counters}", state(*counters), {}, MISMATCH, text)


def envelopes() -> Iterator[Row]:
    for kind, to in {"empty": "", "other": "OTHER", "lower_case": "server"}.items():
        yield Row(f"wrong_to-{kind}", {}, {"to": to}, MALFORMED, "this server is SERVER, not")
    yield Row("wrong_to-long", {}, {"to": "x" * 10**5}, MALFORMED, "this server is SERVER, not xx")
    yield Row("overlong_client_id", {}, {"from": "x" * 1025}, None)


def metadata() -> Iterator[Row]:
    for kind, value in {
        "missing": ...,
        "null": None,
        "text": "good",
        "array": [],
        "empty": {},
        "token_null": {"token": None},
        "token_number": {"token": 1},
    }.items():
        text = "received malformed handshake metadata"
        yield Row(f"metadata-{kind}", {"metadata": value}, {}, META, text)
    yield Row("metadata-refused", {"metadata": {"token": "why"}}, {}, REJECTED, "why")
    yield Row("metadata-refused-silently", {"metadata": {"token": ""}}, {}, REJECTED, "rejected")
    yield Row("metadata-unsupported", {"metadata": {"token": "old"}}, {}, UNSUPPORTED, "too old")
    long = {"metadata": {"token": "x" * 10**5}}
    yield Row("metadata-refused-at-length", long, {}, REJECTED, "x" * 256)


ROWS = [
    *versions(),
    *payloads(),
    *unknown_sessions(),
    *envelopes(),
    *metadata(),
]


def check_refused(peer: RawRiver, code: str, text: str) -> None:
    """Check that a refusal comes, then the end."""
    status = peer.status()
    assert (status["ok"], status["code"]) == (False, code)
    assert text in status["reason"]
    assert len(status["reason"]) <= 256
    assert peer.recv_end() == peer.clean


@each_case
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_wrong_handshake(row: Row, standing: Stand, caplog: pytest.LogCaptureFixture) -> None:
    sessions = standing.server.handler.sessions
    with no_exceptions(caplog), standing.dial(standing.fresh("raw")) as peer:
        payload = {"metadata": GOOD} | ({} if row.payload is ... else row.payload)
        peer.hello("new", payload, **row.envelope)
        if row.code is None:
            assert peer.recv_end() == peer.clean
        else:
            check_refused(peer, row.code, row.text)
    standing.settle()
    assert standing.server.handler.sessions == sessions


RESUMED = {
    "client_ahead": ({"seq": 1}, "client is in the future"),
    "client_far_ahead": ({"seq": 10**6}, "client is in the future"),
    "server_ahead": ({"ack": -2}, "server is in the future"),
    "acknowledges_what_was_never_sent": ({"ack": 1}, "client is in the future"),
    "acknowledges_far_more": ({"ack": 10**6}, "client is in the future"),
}


@each_case
@pytest.mark.parametrize("kind", RESUMED)
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "detached"])
def test_counters_that_exclude_each_other_leave_the_session_alone(
    kind: str, connected: bool, standing: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    changed, text = RESUMED[kind]
    with no_exceptions(caplog), standing.attached(metadata=GOOD) as (peer, name):
        peer.exchange("other", "acknowledges what came before")
        if not connected:
            peer.sock.close()
        with standing.dial(name) as again:
            again.seq = peer.seq + changed.get("seq", 0)
            again.ack = peer.ack + changed.get("ack", 0)
            again.hello(name, {"metadata": GOOD})
            check_refused(again, MISMATCH, text)
        with standing.dial(name) as again:
            again.seq, again.ack = peer.seq, peer.ack
            again.attach(name, {"metadata": GOOD})
            standing.check_lives(again)


@pytest.mark.parametrize("session", ["guessed", "", "raw"])
def test_a_guessed_session_of_a_live_client_is_refused(session: str, standing: Stand) -> None:
    """The thief knows the client's id; the session is asked for a sign of life, and gives it."""
    with standing.attached(metadata=GOOD) as (peer, name):
        for _ in range(3):
            with standing.dial(name) as thief:
                thief.hello(session, {"metadata": GOOD})
                check_refused(thief, MISMATCH, "another session of this client is connected")
            peer.exchange("other", "I live")
        standing.check_lives(peer)


def test_a_stolen_session_id_is_worth_nothing_with_another_client_id(standing: Stand) -> None:
    with standing.attached(metadata=GOOD) as (peer, name):
        with standing.dial(standing.fresh("thief")) as thief:
            thief.seq, thief.ack = peer.seq, peer.ack
            thief.hello(name, {"metadata": GOOD})
            check_refused(thief, MISMATCH, "does not know about")
        with standing.dial(standing.fresh("thief")) as thief:
            thief.attach(name, {"metadata": GOOD})
            thief.send({"streamId": "other", "payload": "stolen"})
            standing.check_refused(thief, "other", "no call is open on stream other")
            thief.open("other", "same", "its own", CLOSED)
            standing.check_answered(thief, "other", "its own")
        assert standing.witness.notes[name].requests == [0]
        standing.check_lives(peer)


@pytest.mark.parametrize("seq", ["its_turn", "zero"])
def test_a_second_handshake_is_an_ordinary_message(seq: str, standing: Stand) -> None:
    with standing.attached(metadata=GOOD) as (peer, name):
        if seq == "zero":
            peer.hello("second", {"metadata": GOOD})  # which has come before
        else:
            peer.hello("second", {"metadata": GOOD}, seq=peer.seq, ack=peer.ack)
            peer.seq += 1
            standing.check_refused(peer, "hs", "no call is open on stream hs")
        standing.check_lives(peer)


@pytest.mark.parametrize("websocket", [True, False], ids=["websocket", "tcp"])
class TestSilence:
    OPTIONS = rpc.Options(handshake_timeout=0.05)

    def test_a_connection_that_says_nothing_is_closed(self, websocket: bool) -> None:
        transport = "websocket" if websocket else "tcp"
        with (
            rpc.serve([], options=self.OPTIONS, transport=transport) as server,
            RawRiver.dial(server.port, "json", websocket=websocket) as peer,
        ):
            assert peer.recv_end() == peer.clean
            peer.sock.close()
            wait_for(lambda: threads_of(server) == 0)

    def test_so_is_one_that_says_half_of_a_handshake(self, websocket: bool) -> None:
        transport = "websocket" if websocket else "tcp"
        with (
            rpc.serve([], options=self.OPTIONS, transport=transport, codec="json") as server,
            RawRiver.dial(server.port, "json", websocket=websocket) as peer,
        ):
            peer.sock.sendall(peer.frame(peer.pack(peer.fields({})))[:-1])
            assert peer.recv_end() == peer.clean


def test_a_text_frame_before_the_handshake_has_no_answer() -> None:
    with (
        rpc.serve([], codec="json") as server,
        RawRiver.dial(server.port, "json", websocket=True) as peer,
    ):
        peer.send_bytes(b"{}", TEXT)
        assert peer.recv_end() == 1000


def test_a_validation_that_raises_refuses_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fails(metadata: Any, previous: Any, client_id: str) -> Any:
        raise LookupError("no such user")

    with (
        rpc.serve([], codec="json", validate=fails) as server,
        RawRiver.dial(server.port, "json", websocket=True) as peer,
    ):
        peer.hello("session")
        check_refused(peer, REJECTED, "the validation of the handshake failed")
    assert "no such user" in caplog.text


def test_a_validation_that_blocks_holds_up_nobody_else() -> None:
    entered, goes_on = threading.Event(), threading.Event()

    def blocks(metadata: Any, previous: Any, client_id: str) -> Any:
        if client_id == "slow":
            entered.set()
            assert goes_on.wait(WAIT)
        return metadata

    service = rpc.Service("test")
    service.rpc(name="same")(lambda ctx, init: init)
    with (
        rpc.serve([service], codec="json", validate=blocks) as server,
        RawRiver.dial(server.port, "json", websocket=True, own="slow") as slow,
        RawRiver.dial(server.port, "json", websocket=True, own="quick") as quick,
    ):
        slow.hello("session")
        assert entered.wait(WAIT)
        quick.attach("session")
        quick.open("s", "same", 1, CLOSED)
        assert quick.recv()["payload"] == ok(1)
        goes_on.set()
        assert slow.status() == {"ok": True, "sessionId": "session"}
