"""What our client and our server put on the wire is what the TypeScript implementation does.

``vectors.json`` holds conversations of its client with its server, message by message, "c2s" from
the client and "s2c" to it; most of them are one session. Here a peer by hand replays the one side
byte for byte, and ours has to answer as the other side did: the same fields, with ids given out in
the order of the captured ones, and as many bytes, since only the order of the fields may differ.

Where ours differs: it sends ``tracing`` in a span alone, ``timeoutMs`` of a call with a timeout,
which none has here, and some sentences for people are its own.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc.wire.values import BigInt

from ..helpers.raw_peer import in_thread
from ..helpers.rpc.captured import CODECS, Theirs, captured, ids_of, parsed, serve
from ..helpers.rpc.clients import session_of
from ..helpers.rpc.procedures import WAIT
from ..helpers.waiting import wait_for

both_codecs = pytest.mark.parametrize("codec", CODECS)

# One session, in this order.
CALLS = (
    "rpc",
    "rpc_service_error",
    "rpc_uncaught",
    "rpc_unknown_procedure",
    "rpc_bytes",
    "rpc_bigint_small",
    "rpc_bigint_large",
    "rpc_cancelled_by_client",
    "upload",
    "upload_cancelled_by_server",
    "subscription",
    "stream",
    "stream_bad_request",
    "stream_cancelled_by_client",
)
SESSION = ("handshake_new_session", *CALLS, "handshake_transparent_reconnect")

# The server


@both_codecs
def test_a_server_answers_a_session_as_captured(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = captured(codec, *SESSION)
    with serve(monkeypatch, frames) as ours:
        for frame in frames:
            if frame.close is not None and frame.from_client:
                ours.peer.sock.close()  # the connection is lost
                ours.dial()
            if frame.close is None:
                ours.offered.gathering = frame.scenario != "stream_cancelled_by_client"
                ours.replay(frame)


def test_a_server_answers_a_python_client_as_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other session begins with 3 too: each captured server had added nothing before."""
    frames = captured("binary", "python_client_all_kinds")
    with serve(monkeypatch, frames) as ours:
        for frame in frames:
            if frame.close is None:
                ours.replay(frame)


@both_codecs
def test_a_server_beats_as_captured(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = captured(codec, "heartbeat")
    often = rpc.Options(heartbeat_interval=1.0, heartbeats_until_dead=1000)
    with serve(monkeypatch, frames, options=often) as ours:
        for frame in frames:
            ours.replay(frame)


@both_codecs
def test_a_server_asks_for_new_metadata_as_captured(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = captured(codec, "rehandshake")
    validated = threading.Semaphore(0)

    def validate(metadata: Any, before: Any, client_id: str) -> None:
        assert metadata == {"token": "secret"}
        validated.release()

    with serve(monkeypatch, frames, validate=validate) as ours:
        for frame in frames[:2]:
            ours.replay(frame)
        assert ours.server.handler.request_handshake("client")
        for frame in frames[2:]:
            ours.replay(frame)
        assert all(validated.acquire(timeout=WAIT) for _ in range(2))


def validate(metadata: Any, before: Any, client_id: str) -> None:
    if metadata["token"] != "secret":
        raise rpc.Rejection("rejected by handshake handler")


TOKEN = {"type": "object", "required": ["token"]}


@both_codecs
@pytest.mark.parametrize(
    "scenario",
    [
        "refused_version",
        "refused_malformed",
        "refused_metadata_shape",
        "refused_by_handler",
        "refused_unknown_session",
        "undecodable_first_frame",
        "envelope_invalid",
    ],
)
def test_a_server_refuses_and_closes_as_captured(
    codec: str, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = captured(codec, scenario)
    assert [frame.close for frame in frames[-2:]] == [1000, 1000]
    with serve(monkeypatch, frames, handshake_schema=TOKEN, validate=validate) as ours:
        for frame in frames:
            ours.replay(frame)
        assert ours.server.handler.sessions == 0


@both_codecs
def test_a_server_refuses_the_old_version_although_the_captured_one_took_it(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, accepted = captured(codec, "accepted_v1_1")
    with serve(monkeypatch, [request, accepted]) as ours:
        ours.replay(request)
        status = parsed(codec, ours.peer.recv_frame()[1])["payload"]["status"]
        assert (status["ok"], status["code"]) == (False, "PROTOCOL_VERSION_MISMATCH")
        assert ours.peer.recv_end() == 1000


# The client


def fails(code: str, call: Callable[[], Any]) -> rpc.RiverError:
    """Return the error that a call ends with."""
    with pytest.raises(rpc.RiverError) as caught:
        call()
    assert caught.value.code == code
    return caught.value


def act(client: rpc.Client, scenario: str) -> None:
    """Do what the captured client did, and see what came of it there."""

    def call(name: str, init: Any) -> Any:
        return client.rpc("test", name, init)

    match scenario:
        case "rpc":
            assert call("add", {"n": 3}) == {"result": 3}
        case "rpc_service_error":
            error = fails("DIV_BY_ZERO", lambda: call("divide", {"a": 7, "b": 0}))
            assert error.extra == {"numerator": 7}
        case "rpc_uncaught":
            error = fails("UNCAUGHT_ERROR", lambda: call("fail", {"message": "boom"}))
            assert error.message == "boom"
        case "rpc_unknown_procedure":
            fails("INVALID_REQUEST", lambda: call("nope", {}))
        case "rpc_bytes":
            data = bytes((0, 0x2A, 0x64, 0xFF))
            assert call("bytes", {"data": data}) == {"data": data, "length": 4}
        case "rpc_bigint_small":
            value = call("big", {"value": BigInt(5)})["value"]
            assert (value, type(value)) == (6, BigInt)
        case "rpc_bigint_large":
            assert call("big", {"value": 2**64}) == {"value": 2**64 + 1}
        case "rpc_cancelled_by_client":
            pending = client.submit("test", "hang", {})
            with pytest.raises(TimeoutError):
                pending.result(0.01)
            assert pending.cancel()
            fails("CANCEL", pending.result)
        case _:
            act_on(client, scenario)


def act_on(client: rpc.Client, scenario: str) -> None:
    """Do the same with calls that have handles."""
    match scenario:
        case "upload":
            with client.upload("test", "sum", {}) as upload:
                for number in (1, 2, 3):
                    upload.write({"n": number})
                assert upload.finish() == {"result": 6, "count": 3}
        case "upload_cancelled_by_server":
            with client.upload("test", "sumUpTo", {"limit": 1}) as upload:
                upload.write({"n": 5})
                assert fails("CANCEL", upload.finish).message == "over 1"
        case "subscription":
            with client.subscribe("test", "count", {"from": 1, "to": 3}) as subscription:
                assert list(subscription) == [{"n": 1}, {"n": 2}, {"n": 3}]
        case "stream":
            with client.stream("test", "echo", {"prefix": "> "}) as stream:
                stream.write({"msg": "a"})
                stream.write({"msg": "b"})
                stream.close_write()
                assert list(stream) == [{"response": "> a"}, {"response": "> b"}]
        case "stream_bad_request":
            with client.stream("test", "echo", {}) as stream:
                stream.write({"wrong": 1})
                assert fails("INVALID_REQUEST", stream.read).extra["totalErrors"] == 1
        case "stream_cancelled_by_client":
            with client.stream("test", "echo", {}) as stream:
                stream.write({"msg": "a"})
                assert stream.read() == {"response": "a"}
        case _:
            raise AssertionError(scenario)


@both_codecs
def test_a_client_speaks_as_captured(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    greeting = captured(codec, "handshake_new_session")
    again = captured(codec, "handshake_transparent_reconnect")[2:]
    calls = captured(codec, *CALLS)
    # The calls that wait for the next connection have made their messages before it.
    made = [*greeting, *calls, *again[2:], again[0]]
    with Theirs(codec, monkeypatch, *ids_of(made)) as theirs:
        connecting = in_thread(theirs.client.wait_connected, WAIT)
        theirs.accept()
        for frame in greeting:
            theirs.replay(frame)
        connecting.result(WAIT)
        for scenario in CALLS:
            acting = in_thread(act, theirs.client, scenario)
            for frame in captured(codec, scenario):
                theirs.replay(frame)
            acting.result(WAIT)
        theirs.wait_received(19)
        theirs.peer.sock.close()

        def wait() -> None:
            in_thread(theirs.client.rpc, "test", "hang", {})
            wait_for(lambda: session_of(theirs.client).unacknowledged_messages == 1)
            answers.append(in_thread(theirs.client.rpc, "test", "add", {"n": 1}))
            wait_for(lambda: session_of(theirs.client).unacknowledged_messages == 2)

        answers: list[Any] = []
        theirs.accept(wait)
        for frame in again:
            theirs.replay(frame)
        assert answers[0].result(WAIT) == {"result": 4}


@both_codecs
@pytest.mark.parametrize(
    ("scenario", "metadata"), [("heartbeat", None), ("rehandshake", {"token": "secret"})]
)
def test_a_client_answers_what_a_server_asks_as_captured(
    codec: str, scenario: str, metadata: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = captured(codec, scenario)
    ids = ids_of(frames)
    with Theirs(codec, monkeypatch, *ids, metadata=lambda: metadata) as theirs:
        connecting = in_thread(theirs.client.wait_connected, WAIT)
        theirs.accept()
        for frame in frames:
            theirs.replay(frame)
        connecting.result(WAIT)


@both_codecs
@pytest.mark.parametrize(
    "scenario",
    ["refused_version", "refused_malformed", "refused_metadata_shape", "refused_by_handler"],
)
def test_a_client_takes_a_captured_refusal_for_the_last_word(
    codec: str, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, refusal, *_ = captured(codec, scenario)
    with Theirs(codec, monkeypatch, "session", "id", "stream") as theirs:
        connecting = in_thread(theirs.client.wait_connected, WAIT)
        theirs.accept()
        theirs.peer.recv_frame()
        theirs.replay(refusal)
        status = refusal.fields["payload"]["status"]
        with pytest.raises(rpc.RiverError, match=re.escape(status["reason"])):
            connecting.result(WAIT)
        wait_for(lambda: theirs.refusals)
        assert theirs.refusals[0][2] == status["code"]
