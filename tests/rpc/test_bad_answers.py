"""Each wrong message to a client gets the reaction beside it; what else can go on does.

The server is one by hand. The client has two calls under way, an rpc and a stream. Reactions:

- ``dropped``: nothing comes of it.
- ``ended``: one call ends with an error, the other goes on.
- ``cut``: the connection is left, and the session resumed over another.
- ``destroyed``: the connection is left, the calls are lost, the next call has a new session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from wsmux import rpc

from ..helpers.raw_peer import TEXT
from ..helpers.rpc.bad_bytes import BAD_BYTES, row_name
from ..helpers.rpc.procedures import WAIT, carrier_name
from ..helpers.rpc.raw_river import (
    ACK,
    CANCEL,
    CLOSE,
    CLOSED,
    NO_CANCEL,
    OPEN,
    Fields,
    RawRiver,
    cancel,
    ok,
)
from ..helpers.rpc.scene import CARRIERS, Scene, scene
from ..helpers.rpc.standing_server import no_exceptions
from ..helpers.tables import each_case
from ..helpers.waiting import wait_for

LARGEST = 2**53 - 1

UNANSWERED = "test.waits ended without an answer"

BEHIND = "reader fell behind: Options.unread_messages is 10"

Reaction = Callable[[Scene, RawRiver, str], None]


def dropped(scene: Scene, peer: RawRiver, session: str) -> None:
    scene.check_goes_on(peer)
    scene.check_answered(peer)


def ended(code: str, message: str) -> Reaction:
    def check(scene: Scene, peer: RawRiver, session: str) -> None:
        error = scene.answer.exception(WAIT)
        assert isinstance(error, rpc.RiverError)
        assert (error.code, error.message) == (code, message)
        scene.check_goes_on(peer)

    return check


def answered(value: Any) -> Reaction:
    def check(scene: Scene, peer: RawRiver, session: str) -> None:
        assert scene.answer.result(WAIT) == value
        scene.check_goes_on(peer)

    return check


def cut(scene: Scene, peer: RawRiver, session: str) -> None:
    assert peer.recv_end() == peer.clean
    again, hello = scene.server.greeted()
    with again:
        assert hello["sessionId"] == session
        counters = {"nextExpectedSeq": peer.seq, "nextSentSeq": 0, "isReconnect": True}
        assert (hello["attempt"]["number"], hello["attempt"]["welcomed"]) == (2, 1)
        assert hello["expectedSessionState"] == counters
        again.seq = peer.seq
        again.welcome(session)
        assert [again.recv()["procedureName"] for _ in range(2)] == ["waits", "echo"]
        scene.check_goes_on(again)
        scene.check_answered(again)


def destroyed(kind: str) -> Reaction:
    def check(scene: Scene, peer: RawRiver, session: str) -> None:
        assert peer.recv_end() == peer.clean
        scene.check_lost(lambda: scene.answer.result(WAIT))
        scene.check_lost(scene.stream.read)
        wait_for(lambda: [failure[0] for failure in scene.failures] == [kind])
        assert scene.check_again() != session

    return check


class Row(NamedTuple):
    name: str
    messages: list[Fields]
    reaction: Reaction


def message(payload: Any = None, flags: int = 0, stream: str = "rpc", **fields: Any) -> Fields:
    """Return a message; the streams ``rpc`` and ``other`` are those of the two calls."""
    return {"streamId": stream, "controlFlags": flags, "payload": payload} | fields


NO_RESULT: dict[str, Any] = {
    "null": None,
    "number": 1,
    "text": "ok",
    "array": [],
    "empty": {},
    "ack": {"type": "ACK"},
    "ok_text": {"ok": "true", "payload": 1},
    "ok_null": {"ok": None, "payload": 1},
    "ok_number": {"ok": 1, "payload": 1},
    "without_payload": {"ok": True},
    "error_without_payload": {"ok": False},
    "error_null": {"ok": False, "payload": None},
    "error_empty": {"ok": False, "payload": {}},
    "error_without_code": {"ok": False, "payload": {"message": "text"}},
    "error_without_message": {"ok": False, "payload": {"code": "CODE"}},
    "error_code_number": {"ok": False, "payload": {"code": 1, "message": "text"}},
}


def rows() -> Iterator[Row]:
    for flags in (0, CLOSED, CANCEL, OPEN, 16):
        payload = cancel() if flags == CANCEL else ok("for nobody")
        row = message(payload, flags, "nobody")
        yield Row(f"unknown_stream-{flags}", [row], dropped)
    yield Row("unknown_stream-empty", [message(ok(1), stream="")], dropped)
    yield Row("unknown_stream-long", [message(ok(1), stream="x" * 1024)], dropped)
    for size in (1025, 10**5):
        long = message(ok(1), stream="x" * size)
        yield Row(f"stream_id_of_{size}", [long], destroyed("invalid_message"))
    for kind, to in {"other": "somebody", "empty": "", "server": "SERVER"}.items():
        yield Row(f"wrong_to-{kind}", [message(ok("wrong"), CLOSED, to=to)], dropped)
        yield Row(f"wrong_to_of_cancel-{kind}", [message(cancel(), CANCEL, to=to)], dropped)
    for kind, name in {"other": "somebody", "empty": "", "own": "client"}.items():
        wrong = message(ok(1), CLOSED, **{"from": name})
        yield Row(f"wrong_from-{kind}", [wrong], destroyed("invalid_message"))
    for flags in (1, 3, 5, 9, 15, LARGEST):
        yield Row(f"ack_bit_with_{flags}", [message(ok("never"), ACK | flags)], acknowledged)
    for ahead in (3, 4, 1000, LARGEST):
        wrong = message(ok(1), ack=ahead)
        yield Row(f"ack_ahead-{ahead}", [wrong], destroyed("invalid_message"))
    first = message(ok("first"), stream="nobody")
    yield Row("seq_again", [first, message(ok("again"), CLOSED, seq=0)], dropped)
    for ahead in (1, 2, 1000, LARGEST):
        yield Row(f"seq_ahead-{ahead}", [message(ok("ahead"), CLOSED, seq=ahead)], cut)
    for kind, payload in NO_CANCEL.items():
        text = "stream cancelled with invalid payload"
        row = message(payload, CANCEL)
        yield Row(f"cancel-{kind}", [row], ended("CANCEL", text))
    yield Row("cancel_with_close", [message(cancel("CODE"), 12)], ended("CODE", "by hand"))
    twice = [message(cancel("ONE"), CANCEL), message(cancel("TWO"), CANCEL)]
    yield Row("cancel_twice", twice, ended("ONE", "by hand"))
    close = message(CLOSE, CLOSED)
    yield Row(
        "close_without_result", [close], ended("CANCEL", "test.waits ended without an answer")
    )
    yield Row("result_then_close", [message(ok(1)), close], answered(1))
    yield Row("two_results", [message(ok(1)), message(ok(2), CLOSED)], answered(1))
    late = message(ok("late"), CLOSED)
    yield Row("result_behind_close", [message(ok(1), CLOSED), late], answered(1))
    yield Row("cancel_behind_close", [message(ok(1), CLOSED), message(cancel(), 4)], answered(1))
    yield Row("result_with_open_bit", [message(ok(1), CLOSED | OPEN)], answered(1))
    yield Row("result_with_unknown_bits", [message(ok(1), CLOSED | 2**40)], answered(1))
    named = message(ok(1), CLOSED, serviceName="test", procedureName="other")
    yield Row("result_with_names", [named], answered(1))
    error = {"ok": False, "payload": {"code": "CODE", "message": "text"}}
    yield Row("error_of_a_code_that_is_not_declared", [message(error, 8)], ended("CODE", "text"))
    nowhere = {"type": "HANDSHAKE_REQ", "protocolVersion": "v2.0"}
    yield Row("handshake_request", [message(nowhere, stream="hs")], dropped)
    welcome = {"type": "HANDSHAKE_RESP", "status": {"ok": True, "sessionId": "another"}}
    yield Row("handshake_again", [message(welcome, stream="hs")], dropped)
    for kind, payload in {"response": {"type": "REHANDSHAKE_RESP"}, "null": None}.items():
        yield Row(f"rehandshake-{kind}", [message(payload, stream="rehandshake")], dropped)


def acknowledged(scene: Scene, peer: RawRiver, session: str) -> None:
    """An acknowledgement is returned, whatever else the message says."""
    fields = peer.recv_any()
    assert (fields["controlFlags"], fields["seq"]) == (ACK, peer.ack)
    peer.ack += 1
    dropped(scene, peer, session)


ROWS = list(rows())


@each_case
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("carrier", CARRIERS, ids=carrier_name)
def test_reaction(row: Row, carrier: tuple[str, bool], caplog: pytest.LogCaptureFixture) -> None:
    with no_exceptions(caplog), scene(carrier) as made:
        peer, session = made.start()
        with peer:
            streams = {"rpc": made.rpc, "other": made.other}
            for fields in row.messages:
                stream = fields["streamId"]
                peer.send(fields | {"streamId": streams.get(stream, stream)})
            row.reaction(made, peer, session)


@each_case
@pytest.mark.parametrize("kind", NO_RESULT)
@pytest.mark.parametrize("carrier", CARRIERS, ids=carrier_name)
def test_what_is_no_result_is_dropped_with_a_line_in_the_log(
    carrier: tuple[str, bool], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with scene(carrier) as made:
        peer, session = made.start()
        with peer:
            for stream in (made.rpc, made.other):
                peer.send({"streamId": stream, "payload": NO_RESULT[kind]})
            dropped(made, peer, session)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["test.waits: a message was dropped: the payload is not a result"]


@pytest.mark.parametrize("kind", ["null", "error_empty"])
def test_what_is_no_result_may_end_the_call(kind: str) -> None:
    with scene(CARRIERS[0]) as made:
        peer, session = made.start()
        with peer:
            peer.send({"streamId": made.rpc, "payload": NO_RESULT[kind], "controlFlags": CLOSED})
            ended("CANCEL", UNANSWERED)(made, peer, session)


def test_a_reader_that_falls_behind_is_cancelled_and_the_others_read_on() -> None:
    with scene(CARRIERS[0]) as made:
        peer, _ = made.start()
        with peer:
            for number in range(11):
                peer.send({"streamId": made.other, "payload": ok(number)})
            fields = peer.recv()
            assert (fields["streamId"], fields["controlFlags"]) == (made.other, CANCEL)
            assert fields["payload"]["payload"]["message"] == BEHIND
            made.check_answered(peer)
            assert [made.stream.read() for _ in range(11)] == list(range(11))
            with pytest.raises(rpc.RiverError, match="CANCEL: reader fell behind"):
                made.stream.read()
            with pytest.raises(rpc.RiverError, match="CANCEL: reader fell behind"):
                made.stream.write(1)


# What cannot be decoded


@each_case
@pytest.mark.parametrize("row", BAD_BYTES[::5], ids=row_name)
def test_bytes_that_are_no_message_end_the_session(
    row: tuple[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    codec, bad = row
    with no_exceptions(caplog), scene((codec, codec == "json")) as made:
        peer, session = made.start()
        with peer:
            peer.send_bytes(bad.data)
            destroyed("invalid_message")(made, peer, session)


def test_a_text_frame_ends_the_session() -> None:
    with scene(("json", True)) as made:
        peer, session = made.start()
        with peer:
            fields = {"streamId": made.rpc, "payload": ok(1), "controlFlags": CLOSED}
            peer.send_bytes(peer.pack(peer.fields(fields)), TEXT)
            destroyed("invalid_message")(made, peer, session)
