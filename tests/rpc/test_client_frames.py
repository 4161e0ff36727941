"""What a client says, message by message, to a server that plays by a script."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from wsmux import rpc

from ..helpers.rpc.procedures import WAIT
from ..helpers.rpc.raw_river import CANCEL, CLOSE, CLOSED, OPEN, Fields, RawRiver, RawServer, ok
from ..helpers.waiting import wait_for

PATIENT = rpc.Options(heartbeat_interval=WAIT)  # the script has none

ENVELOPE = {"id", "from", "to", "seq", "ack", "streamId", "controlFlags", "payload"}


class Script(NamedTuple):
    """Hold a client, and its server by hand."""

    client: rpc.Client
    raw: RawRiver


@contextmanager
def scripted(codec: str, **connecting: Any) -> Iterator[Script]:
    with (
        RawServer(codec, websocket=True) as server,
        rpc.connect(server.url, codec=codec, options=PATIENT, eager=True, **connecting) as client,
        server.attached() as raw,
    ):
        client.wait_connected(WAIT)
        yield Script(client, raw)


@pytest.fixture(params=["json", "msgpack"])
def script(request: pytest.FixtureRequest) -> Iterator[Script]:
    with scripted(request.param) as script:
        yield script


def said(raw: RawRiver, stream: str, seq: int, flags: int) -> Any:
    """Receive a message of a call and return its payload."""
    fields = raw.recv()
    assert (fields["streamId"], fields["seq"], fields["controlFlags"]) == (stream, seq, flags)
    assert set(fields) == ENVELOPE
    return fields["payload"]


def opened(raw: RawRiver, procedure: str, flags: int) -> str:
    """Receive the first message of a call and return its stream."""
    fields = raw.recv()
    assert set(fields) == ENVELOPE | {"serviceName", "procedureName", "timeoutMs"}
    # What is left is counted from when the client last looked at its clock, and rounded up.
    assert 0 < fields["timeoutMs"] <= WAIT * 1000 + 1000
    assert (fields["serviceName"], fields["procedureName"]) == ("test", procedure)
    assert (fields["seq"], fields["ack"], fields["controlFlags"]) == (0, 0, OPEN | flags)
    stream: str = fields["streamId"]
    return stream


def check_cancelled(raw: RawRiver, stream: str, seq: int) -> None:
    payload = said(raw, stream, seq, CANCEL)
    assert payload["ok"] is False
    assert payload["payload"]["code"] == "CANCEL"


def check_end(raw: RawRiver) -> None:
    """Check that the client hangs up, and let it go."""
    assert raw.recv_end() == raw.clean
    raw.sock.close()


def answer(raw: RawRiver, stream: str, payload: Any, flags: int = 0) -> None:
    raw.send({"streamId": stream, "payload": payload, "controlFlags": flags})


def check_unheard(script: Script, stream: str) -> None:
    """Check that messages of a call that is over change nothing for the next one."""
    answer(script.raw, stream, ok("late"))
    answer(script.raw, stream, CLOSE, CLOSED)
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(script.client.rpc, "test", "next", None, WAIT)
        fields = script.raw.recv()
        assert fields["procedureName"] == "next"
        answer(script.raw, fields["streamId"], ok("in time"), CLOSED)
        assert answered.result(WAIT) == "in time"


# Sessions


def test_a_client_greets_first() -> None:
    with (
        RawServer("msgpack", websocket=True) as server,
        rpc.connect(server.url, eager=True, client_id="me") as client,
    ):
        peer, greeting = server.greeted()
        with peer:
            assert (peer.peer, greeting["type"]) == ("me", "HANDSHAKE_REQ")
            assert greeting["protocolVersion"] == "v2.0"
            state = {"nextExpectedSeq": 0, "nextSentSeq": 0}
            assert greeting["expectedSessionState"] == state
            with ThreadPoolExecutor(1) as pool:
                closing = pool.submit(client.close)  # in the middle of it
                check_end(peer)
                closing.result(WAIT)


def test_closing_from_many_threads_closes_once() -> None:
    statuses: list[str] = []
    with scripted("msgpack", on_session_status=lambda *s: statuses.append(s[0])) as script:
        script.client.wait_connected(WAIT)
        start = threading.Barrier(4)

        def close() -> None:
            start.wait(WAIT)
            script.client.close()

        with ThreadPoolExecutor(4) as pool:
            closings = [pool.submit(close) for _ in range(4)]
            check_end(script.raw)
            for closing in closings:
                closing.result(WAIT)
        wait_for(lambda: statuses == ["created", "closed"])


# Calls


def test_an_rpc_is_one_message_and_its_first_result_counts(script: Script) -> None:
    client, raw = script
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(client.rpc, "test", "add", {"n": 1}, WAIT)
        stream = opened(raw, "add", CLOSED)
        answer(raw, stream, ok("first"))
        answer(raw, stream, ok("second"), CLOSED)
        assert answered.result(WAIT) == "first"
    check_unheard(script, stream)


def test_a_stream_is_messages_in_turn(script: Script) -> None:
    client, raw = script
    with client.stream("test", "echo", {"first": True}, WAIT) as call:
        stream = opened(raw, "echo", 0)
        for number in range(5):
            call.write(number)
            assert said(raw, stream, number + 1, 0) == number
            answer(raw, stream, ok(f"to {number}"))
            assert call.read() == f"to {number}"
        call.close_write()
        assert said(raw, stream, 6, CLOSED) == CLOSE
        answer(raw, stream, CLOSE, CLOSED)
        assert list(call) == []
    check_unheard(script, stream)


def test_each_message_acknowledges_what_has_come(script: Script) -> None:
    client, raw = script
    with client.stream("test", "echo", None, WAIT) as call:
        stream = opened(raw, "echo", 0)
        acks = []
        for number in range(3):
            answer(raw, stream, ok(number))
            assert call.read() == number
            call.write(number)
            acks.append(raw.recv()["ack"])
        assert acks == [1, 2, 3]


def test_an_upload_is_messages_and_one_result(script: Script) -> None:
    client, raw = script
    with client.upload("test", "total", None, WAIT) as call, ThreadPoolExecutor(1) as pool:
        stream = opened(raw, "total", 0)
        call.write(1)
        assert said(raw, stream, 1, 0) == 1
        answered = pool.submit(call.finish)
        assert said(raw, stream, 2, CLOSED) == CLOSE
        answer(raw, stream, ok("sum"), CLOSED)
        assert answered.result(WAIT) == "sum"
    check_unheard(script, stream)


def test_a_subscription_is_one_message(script: Script) -> None:
    client, raw = script
    with client.subscribe("test", "watch", None, WAIT) as call:
        stream = opened(raw, "watch", CLOSED)
        answer(raw, stream, ok(1))
        answer(raw, stream, ok(2))
        answer(raw, stream, CLOSE, CLOSED)
        assert list(call) == [1, 2]
    check_unheard(script, stream)


def test_an_error_of_any_code_reaches_the_caller(script: Script) -> None:
    """A client knows no list of errors; one of a newer server is an error like others."""
    client, raw = script
    call = client.stream("test", "echo", None, WAIT)
    stream = opened(raw, "echo", 0)
    error: Fields = {"code": "UNHEARD_OF", "message": "new", "extras": {"why": 5}}
    answer(raw, stream, {"ok": False, "payload": error})
    with pytest.raises(rpc.RiverError) as caught:
        call.read()
    assert (caught.value.code, caught.value.message) == ("UNHEARD_OF", "new")
    assert caught.value.extra == {"why": 5}
    answer(raw, stream, ok("and on"))
    assert call.read() == "and on"
    call.cancel()


# Cancelling


def test_an_rpc_out_of_time_is_cancelled_in_one_message(script: Script) -> None:
    client, raw = script
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(client.rpc, "test", "hangs", None, 1.0)
        stream = opened(raw, "hangs", CLOSED)
        check_cancelled(raw, stream, 1)
        with pytest.raises(TimeoutError):
            answered.result(WAIT)
    check_unheard(script, stream)


@pytest.mark.parametrize("kind", ["subscription", "upload", "sending stream", "receiving stream"])
def test_leaving_a_call_cancels_it_in_one_message(kind: str, script: Script) -> None:
    client, raw = script
    calls = {
        "subscription": client.subscribe,
        "upload": client.upload,
        "sending stream": client.stream,
        "receiving stream": client.stream,
    }
    sent = 0
    with calls[kind]("test", "some", None, WAIT) as call:
        stream = opened(raw, "some", CLOSED if kind == "subscription" else 0)
        if kind in ("upload", "sending stream"):
            for sent in (1, 2, 3):
                call.write(sent)
                assert said(raw, stream, sent, 0) == sent
        else:
            for number in range(3):
                answer(raw, stream, ok(number))
                assert call.read() == number
    check_cancelled(raw, stream, sent + 1)
    call.cancel("again")
    check_unheard(script, stream)


def test_a_server_that_cancels_ends_the_call_for_good(script: Script) -> None:
    client, raw = script
    call = client.stream("test", "echo", None, WAIT)
    stream = opened(raw, "echo", 0)
    error: Fields = {"code": "CANCEL", "message": "enough"}
    answer(raw, stream, {"ok": False, "payload": error}, CANCEL)
    with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
        call.read()
    with pytest.raises(EOFError):
        call.read()
    call.close_write()
    call.cancel()
    check_unheard(script, stream)
