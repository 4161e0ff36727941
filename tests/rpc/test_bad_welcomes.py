"""Each wrong answer to a client's handshake gets the reaction beside it.

The server is one by hand; an rpc waits for the connection. Reactions:

- ``given_up``: the call is lost, and nobody connects before the next call.
- ``begun_anew``: the call is lost, and the client comes again at once with a new session.
- ``tried_again``: the client comes again at once with the session, and the call in it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from wsmux import rpc

from ..helpers.inside import io_thread_rests
from ..helpers.raw_peer import TEXT
from ..helpers.rpc.bad_bytes import BAD_BYTES, row_name
from ..helpers.rpc.procedures import WAIT, carrier_name
from ..helpers.rpc.raw_river import CLOSED, Fields, RawRiver, ok
from ..helpers.rpc.scene import BEGINNING, CARRIERS, OPTIONS, Scene, scene
from ..helpers.rpc.standing_server import no_exceptions
from ..helpers.tables import each_case
from ..helpers.waiting import wait_for

MALFORMED = "MALFORMED_HANDSHAKE"

FATAL = (
    MALFORMED,
    "MALFORMED_HANDSHAKE_META",
    "PROTOCOL_VERSION_MISMATCH",
    "REJECTED_BY_CUSTOM_HANDLER",
    "REJECTED_UNSUPPORTED_CLIENT",
    "A_CODE_OF_LATER_DAYS",
)


def given_up(made: Scene, peer: RawRiver, call: Future[Any], session: str, code: str) -> None:
    """Check that the call ends, with the code told, and the next one connects anew."""
    assert peer.recv_end() == peer.clean
    made.check_lost(lambda: call.result(WAIT))
    wait_for(lambda: made.failures)
    ((kind, _, told),) = made.failures
    assert (kind, told) == ("handshake_failed", code)
    wait_for(lambda: io_thread_rests(made.client))
    assert repr(made.client).endswith(" no_connection>")
    assert made.check_again() != session


def serve_again(made: Scene, session: str, call: Future[Any]) -> None:
    """Check that the client comes again with the session, and the call in it."""
    peer, hello = made.server.greeted()
    with peer:
        assert (hello["sessionId"], hello["expectedSessionState"]) == (session, BEGINNING)
        peer.welcome(session)
        fields = peer.recv()
        assert fields["payload"] == "early"
        peer.send({"streamId": fields["streamId"], "payload": ok(1), "controlFlags": CLOSED})
        assert call.result(WAIT) == 1
        made.client.close(0)


def called(made: Scene) -> tuple[Future[Any], RawRiver, str]:
    """Call, and return what comes of it, the connection, and the session that is asked for."""
    call = made.pool.submit(made.client.rpc, "test", "same", "early", WAIT)
    peer, hello = made.server.greeted()
    assert hello["expectedSessionState"] == BEGINNING
    return call, peer, hello["sessionId"]


class Row(NamedTuple):
    """An answer, the fields of its message that are odd, and the code that is told."""

    name: str
    payload: Any
    envelope: Fields
    code: str


def response(status: Any) -> Fields:
    return {"type": "HANDSHAKE_RESP", "status": status}


def refusal(code: Any, reason: Any = "why") -> Fields:
    return response({"ok": False, "code": code, "reason": reason})


def rows() -> Iterator[Row]:
    for code in FATAL:
        yield Row(f"refused-{code}", refusal(code), {}, code)
    for kind, payload in {
        "null": None,
        "text": "HANDSHAKE_RESP",
        "array": [],
        "empty": {},
        "request": {"type": "HANDSHAKE_REQ", "sessionId": "s"},
        "ack": {"type": "ACK"},
        "result": ok(1),
        "without_status": {"type": "HANDSHAKE_RESP"},
    }.items():
        yield Row(f"payload-{kind}", payload, {}, MALFORMED)
    for kind, status in {
        "null": None,
        "text": "ok",
        "array": [],
        "empty": {},
        "ok_null": {"ok": None, "sessionId": "s"},
        "ok_text": {"ok": "true", "sessionId": "s"},
        "ok_number": {"ok": 1, "sessionId": "s"},
        "without_session": {"ok": True},
        "session_null": {"ok": True, "sessionId": None},
        "session_number": {"ok": True, "sessionId": 1},
        "without_code": {"ok": False, "reason": "why"},
        "code_null": {"ok": False, "reason": "why", "code": None},
        "without_reason": {"ok": False, "code": "CODE"},
        "reason_number": {"ok": False, "code": "CODE", "reason": 1},
    }.items():
        yield Row(f"status-{kind}", response(status), {}, MALFORMED)
    for kind, name in {"other": "OTHER", "empty": "", "client": "client"}.items():
        good = response({"ok": True, "sessionId": ...})
        yield Row(f"wrong_from-{kind}", good, {"from": name}, MALFORMED)


@each_case
@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row.name)
@pytest.mark.parametrize("carrier", CARRIERS, ids=carrier_name)
def test_an_answer_after_which_the_client_gives_up(
    row: Row, carrier: tuple[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    with no_exceptions(caplog), scene(carrier) as made:
        call, peer, session = called(made)
        with peer:
            payload = row.payload
            if row.envelope:
                payload = response({"ok": True, "sessionId": session})
            peer.answer(payload, **row.envelope)
            given_up(made, peer, call, session, row.code)


@each_case
@pytest.mark.parametrize("row", BAD_BYTES[::10], ids=row_name)
def test_bytes_that_are_no_message(row: Any, caplog: pytest.LogCaptureFixture) -> None:
    codec, bad = row
    with no_exceptions(caplog), scene((codec, codec == "json")) as made:
        call, peer, session = called(made)
        with peer:
            peer.send_bytes(bad.data)
            given_up(made, peer, call, session, MALFORMED)


def test_a_text_frame() -> None:
    with scene(("json", True)) as made:
        call, peer, session = called(made)
        with peer:
            fields = peer.fields({"payload": response({"ok": True, "sessionId": session})})
            peer.send_bytes(peer.pack(fields), TEXT)
            given_up(made, peer, call, session, MALFORMED)


@pytest.mark.parametrize("carrier", CARRIERS, ids=carrier_name)
def test_a_server_that_speaks_first(carrier: tuple[str, bool]) -> None:
    greets = threading.Event()
    with scene(carrier, metadata=lambda: greets.wait(WAIT)) as made:
        call = made.pool.submit(made.client.rpc, "test", "same", "early", WAIT)
        peer = made.server.accept()
        with peer:
            peer.peer = "client"
            peer.welcome("guessed")
            assert peer.recv_end() == peer.clean
        made.check_lost(lambda: call.result(WAIT))
        greets.set()
        wait_for(lambda: made.failures)
        assert made.failures == [
            ("handshake_failed", "the server sent a message before its handshake", MALFORMED)
        ]
        assert made.check_again() != "guessed"


@pytest.mark.parametrize("answered", ["another", "", "x" * 10**5])
@pytest.mark.parametrize("carrier", CARRIERS, ids=carrier_name)
def test_an_answer_for_another_session_begins_one_anew(
    carrier: tuple[str, bool], answered: str
) -> None:
    with scene(carrier) as made:
        call, peer, session = called(made)
        with peer:
            peer.welcome(answered)
            assert peer.recv_end() == peer.clean
            made.check_lost(lambda: call.result(WAIT))
            again, hello = made.server.greeted()
            with again:
                assert hello["sessionId"] not in (session, answered)
                assert hello["expectedSessionState"] == BEGINNING
                made.client.close(0)


@pytest.mark.parametrize("carrier", CARRIERS, ids=carrier_name)
def test_a_mismatch_of_a_session_that_began_is_tried_again(carrier: tuple[str, bool]) -> None:
    with scene(carrier) as made:
        call, peer, session = called(made)
        for _ in range(3):
            with peer:
                peer.answer(refusal("SESSION_STATE_MISMATCH"))
                assert peer.recv_end() == peer.clean
            peer, hello = made.server.greeted()
            assert hello["sessionId"] == session
        peer.sock.close()
        serve_again(made, session, call)
        assert made.failures == []


@pytest.mark.parametrize("carrier", CARRIERS, ids=carrier_name)
def test_a_mismatch_of_a_session_that_went_on_begins_one_anew(carrier: tuple[str, bool]) -> None:
    with scene(carrier) as made:
        peer, session = made.start()
        peer.sock.close()
        again, hello = made.server.greeted()
        with again:
            assert hello["sessionId"] == session
            again.answer(refusal("SESSION_STATE_MISMATCH", "lost"))
            with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT.*lost"):
                made.answer.result(WAIT)
            made.check_lost(made.stream.read)
            third, hello = made.server.greeted()
            with third:
                assert hello["sessionId"] != session
                assert hello["expectedSessionState"] == BEGINNING
                made.client.close(0)


@pytest.mark.parametrize("how", ["close", "reset", "silence", "half"])
@pytest.mark.parametrize("carrier", CARRIERS, ids=carrier_name)
def test_no_answer_is_tried_again(carrier: tuple[str, bool], how: str) -> None:
    options = replace(OPTIONS, handshake_timeout=1.0) if how in ("silence", "half") else OPTIONS
    with scene(carrier, options) as made:
        call, peer, session = called(made)
        with peer:
            if how == "close":
                peer.close()
                assert peer.recv_end() == peer.clean
            elif how == "reset":
                peer.reset()
            elif how == "half":
                fields = {"payload": response({"ok": True, "sessionId": session})}
                peer.sock.sendall(peer.frame(peer.pack(peer.fields(fields)))[:-1])
            serve_again(made, session, call)


def test_what_cannot_be_reached_is_tried_again() -> None:
    """The upgrade is refused at first."""
    with scene(("json", True)) as made:
        call = made.pool.submit(made.client.rpc, "test", "same", "early", WAIT)
        for _ in range(3):
            made.server.refuse()
        peer, hello = made.server.greeted()
        peer.sock.close()
        serve_again(made, hello["sessionId"], call)


def test_who_is_closed_upon_comes_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the server keeps the old connection open behind its Close."""
    monkeypatch.setattr("wsmux.transport.message_transport.LINGER", 3 * WAIT)
    with scene(("json", True)) as made:
        peer, session = made.start()
        peer.close()
        assert peer.recv_end() == 1000
        again, hello = made.server.greeted()
        with again:
            assert hello["sessionId"] == session
            peer.sock.close()
            made.client.close(0)
