"""What goes over the wire for methods of a protobuf service, message by message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc.protobuf.stub import ProtobufStub

from ..helpers.rpc.procedures import WAIT
from ..helpers.rpc.protobuf_words import NAMES, WORDS, Number, Word, failure, served
from ..helpers.rpc.raw_river import CANCEL, CLOSE, CLOSED, OPEN, RawRiver, RawServer, cancel, ok

OPTIONS = rpc.Options(heartbeat_interval=WAIT)  # clients by hand answer none


def word(text: str) -> bytes:
    data: bytes = Word(text=text).SerializeToString()
    return data


def number(value: int) -> bytes:
    data: bytes = Number(value=value).SerializeToString()
    return data


# The server's side


@pytest.fixture
def raw() -> Iterator[RawRiver]:
    with (
        rpc.serve([served()], options=OPTIONS) as server,
        RawRiver.dial(server.port, "msgpack", websocket=True) as raw,
    ):
        raw.attach("session")
        yield raw


def call(raw: RawRiver, method: str, payload: Any, flags: int = 0, stream: str = "s") -> None:
    names = {"serviceName": "shop.v1.Words", "procedureName": method}
    raw.send({"streamId": stream, "controlFlags": OPEN | flags, "payload": payload, **names})


def request(raw: RawRiver, payload: Any, flags: int = 0) -> None:
    raw.send({"streamId": "s", "controlFlags": flags, "payload": payload})


def received(raw: RawRiver) -> tuple[int, Any]:
    fields = raw.recv()
    assert fields["streamId"] == "s"
    return fields["controlFlags"], fields["payload"]


def refusal(raw: RawRiver) -> tuple[str, str]:
    flags, payload = received(raw)
    assert (flags, payload["ok"]) == (CANCEL, False)
    return payload["payload"]["code"], payload["payload"]["message"]


def test_a_response_is_the_bytes_of_its_message(raw: RawRiver) -> None:
    call(raw, "Shout", word("a"), CLOSED)
    assert received(raw) == (CLOSED, word("A"))


def test_an_error_is_a_result_with_its_fields_beside_it(raw: RawRiver) -> None:
    call(raw, "Shout", word("bad"), CLOSED)
    fields = {"code": "INVALID_ARGUMENT", "message": "no such word", **NAMES}
    assert received(raw) == (CLOSED, {"ok": False, "payload": fields})


def test_a_failure_is_a_result_and_no_cancel(raw: RawRiver) -> None:
    failed = cancel("UNCAUGHT_ERROR", "the handler failed")
    call(raw, "Shout", word("fail"), CLOSED)
    assert received(raw) == (CLOSED, failed)
    call(raw, "Spell", word("a!"), CLOSED)
    assert [received(raw) for _ in range(3)] == [(0, word("a")), (0, failed), (CLOSED, CLOSE)]


def test_responses_end_with_a_close(raw: RawRiver) -> None:
    call(raw, "Spell", word("ab"), CLOSED)
    assert [received(raw) for _ in range(3)] == [(0, word("a")), (0, word("b")), (CLOSED, CLOSE)]


@pytest.mark.parametrize("method", ["Count", "Chat"])
def test_an_empty_opening_is_no_request(raw: RawRiver, method: str) -> None:
    call(raw, method, b"")
    request(raw, CLOSE, CLOSED)
    assert received(raw) == (CLOSED, number(0) if method == "Count" else CLOSE)


def test_an_opening_with_bytes_is_the_first_request(raw: RawRiver) -> None:
    call(raw, "Count", word("a"))
    request(raw, word("b"))
    request(raw, word("c"), CLOSED)
    assert received(raw) == (CLOSED, number(3))


@pytest.mark.parametrize(("payload", "count"), [(b"", 0), (CLOSE, 0), (word("a"), 1)])
def test_an_opening_may_end_the_requests(raw: RawRiver, payload: Any, count: int) -> None:
    call(raw, "Count", payload, CLOSED)
    assert received(raw) == (CLOSED, number(count))


@pytest.mark.parametrize("method", ["Shout", "Spell"])
def test_an_opening_must_end_the_requests_of_one(raw: RawRiver, method: str) -> None:
    call(raw, method, word("a"))
    code, text = refusal(raw)
    assert (code, "must close the requests" in text) == ("INVALID_REQUEST", True)


@pytest.mark.parametrize("method", ["Shout", "Spell", "Count", "Chat"])
@pytest.mark.parametrize("payload", [b"\xff", b"\x0a\x05a", "text", None, ok(b""), {}, 1])
def test_an_opening_that_is_no_message_is_refused(raw: RawRiver, method: str, payload: Any) -> None:
    call(raw, method, payload, CLOSED)
    code, text = refusal(raw)
    assert (code, "must be a message shop.v1.Word" in text) == ("INVALID_REQUEST", True)


def test_an_open_ended_opening_is_no_close(raw: RawRiver) -> None:
    call(raw, "Count", CLOSE)
    assert refusal(raw)[0] == "INVALID_REQUEST"


@pytest.mark.parametrize("payload", [b"\xff", "text", None, ok(b"")])
def test_a_request_that_is_no_message_cancels_the_call(raw: RawRiver, payload: Any) -> None:
    call(raw, "Chat", b"")
    request(raw, word("a"))
    assert received(raw) == (0, word("A"))
    request(raw, payload)
    code, text = refusal(raw)
    assert (code, "must be a message shop.v1.Word" in text) == ("INVALID_REQUEST", True)


@pytest.mark.parametrize("method", ["Later", "shout", "__class__"])
def test_a_method_that_is_not_there_is_unimplemented(raw: RawRiver, method: str) -> None:
    call(raw, method, word("a"), CLOSED)
    assert refusal(raw)[0] == "UNIMPLEMENTED"


# The client's side


@pytest.fixture
def peer() -> Iterator[tuple[ProtobufStub, RawRiver]]:
    """Return what calls the service, and its server by hand."""
    with (
        RawServer("msgpack", websocket=True) as server,
        rpc.connect(server.url, timeout=WAIT, options=OPTIONS, eager=True) as client,
        server.attached() as peer,
    ):
        yield client.protobuf(WORDS), peer


def opening(peer: RawRiver, method: str) -> tuple[str, int, Any]:
    """Receive what opens a call; return its stream, its flags and its payload."""
    opened = peer.recv()
    assert (opened["serviceName"], opened["procedureName"]) == ("shop.v1.Words", method)
    return opened["streamId"], opened["controlFlags"], opened["payload"]


def test_a_client_opens_a_call_of_many_requests_with_no_bytes(
    peer: tuple[ProtobufStub, RawRiver],
) -> None:
    words, raw = peer
    with words.Chat() as chat:
        stream, flags, payload = opening(raw, "Chat")
        assert (flags, payload) == (OPEN, b"")
        chat.write(Word(text="a"))
        assert raw.recv()["payload"] == word("a")
        chat.close_write()
        closed = raw.recv()
        assert (closed["controlFlags"], closed["payload"]) == (CLOSED, CLOSE)
        raw.send({"streamId": stream, "controlFlags": CLOSED, "payload": CLOSE})
        assert list(chat) == []


def test_a_client_opens_a_call_of_one_request_with_it(peer: tuple[ProtobufStub, RawRiver]) -> None:
    words, raw = peer
    with words.Spell(Word(text="ab")) as spell:
        stream, flags, payload = opening(raw, "Spell")
        assert (flags, payload) == (OPEN | CLOSED, word("ab"))
        raw.send({"streamId": stream, "controlFlags": CLOSED, "payload": word("a")})
        assert list(spell) == [Word(text="a")]


def test_a_client_tells_of_what_is_no_response(peer: tuple[ProtobufStub, RawRiver]) -> None:
    words, raw = peer
    with words.Spell(Word(text="ab")) as spell:
        stream, _, _ = opening(raw, "Spell")
        for payload in (b"\xff", ok(b""), "text", {"ok": False}):
            raw.send({"streamId": stream, "payload": payload})
            error = failure(spell.read)
            assert error.code == "INVALID_REQUEST"
            assert error.message == "a response is no message shop.v1.Word"
        fields = {"code": "NOT_FOUND", "message": "m", "metadata": {"a": "b"}}
        raw.send({"streamId": stream, "payload": {"ok": False, "payload": fields}})
        assert failure(spell.read).extra == {"metadata": {"a": "b"}}
        raw.send({"streamId": stream, "payload": b""})
        assert spell.read() == Word()
