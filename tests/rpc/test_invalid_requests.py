"""What a server says to messages that are none it can use, frame by frame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from wsmux import rpc

from ..helpers.rpc.procedures import WAIT, WITH_NUMBER, Gate, offered
from ..helpers.rpc.raw_river import CANCEL, CLOSE, CLOSED, OPEN, Fields, RawRiver, cancel, ok


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


# For clients by hand, which answer no heartbeats.
PATIENT: dict[str, Any] = {"heartbeat_interval": WAIT}


@contextmanager
def joined(server: rpc.RpcServer, own: str = "raw") -> Iterator[RawRiver]:
    """Yield a client by hand."""
    with RawRiver.dial(server.port, "msgpack", websocket=True, own=own) as raw:
        raw.attach(f"session of {own}")
        yield raw


@pytest.fixture
def raw(gate: Gate) -> Iterator[RawRiver]:
    options = rpc.Options(**PATIENT)
    with rpc.serve([offered(gate)], options=options) as server, joined(server) as raw:
        yield raw
        gate.opened.set()


def received(raw: RawRiver) -> tuple[str, int, Any]:
    fields = raw.recv()
    return fields["streamId"], fields["controlFlags"], fields["payload"]


def refused(raw: RawRiver, stream: str = "s", code: str = "INVALID_REQUEST") -> Fields:
    """Receive the cancelling of a stream, and return its error."""
    got, flags, payload = received(raw)
    assert (got, flags, payload["ok"]) == (stream, CANCEL, False)
    error: Fields = payload["payload"]
    assert error["code"] == code
    return error


def check_alive(raw: RawRiver) -> None:
    """Check that nothing else was sent, and that the session serves on."""
    raw.open("alive", "same", "still here", CLOSED)
    assert received(raw) == ("alive", CLOSED, ok("still here"))


def send(raw: RawRiver, payload: Any, flags: int = 0, stream: str = "s", **names: str) -> None:
    raw.send({"streamId": stream, "controlFlags": flags, "payload": payload, **names})


# Opening


def test_a_stream_must_be_opened(raw: RawRiver) -> None:
    send(raw, {"n": 1}, serviceName="test", procedureName="add")
    assert "opens none" in refused(raw)["message"]
    check_alive(raw)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"procedureName": "add"}, "missing service name"),
        ({"serviceName": "test"}, "missing procedure name"),
        ({"serviceName": "none", "procedureName": "add"}, "couldn't find service none"),
        ({"serviceName": "test", "procedureName": "none"}, "couldn't find a procedure none"),
    ],
)
def test_the_first_message_must_name_a_procedure(
    names: dict[str, str], text: str, raw: RawRiver
) -> None:
    send(raw, {"n": 1}, OPEN | CLOSED, **names)
    assert text in refused(raw)["message"]
    check_alive(raw)


def test_the_init_must_have_its_shape(raw: RawRiver) -> None:
    raw.open("s", "add", {"n": "one"}, CLOSED)
    error = refused(raw)
    assert error["message"] == "procedure init failed validation: /n must be number"
    told = {"path": "/n", "message": "must be number"}
    assert error["extras"] == {"totalErrors": 1, "firstValidationErrors": [told]}
    check_alive(raw)


@pytest.mark.parametrize(
    ("init", "schema", "sentence"),
    [
        (None, {"type": "integer"}, "must be integer"),
        ("5", {"type": "integer"}, "must be integer"),
        (5, {"type": ["string", "null"]}, "must be either string or null"),
        ({"n": None}, WITH_NUMBER, "/n must be number"),
        ({}, WITH_NUMBER, "/n must have required properties n"),
        (
            {"a": [1, None]},
            {"properties": {"a": {"items": {"type": "bigint"}}}},
            "/a/1 must be bigint",
        ),
    ],
)
def test_a_caller_is_told_which_argument_is_of_a_wrong_type(
    init: object, schema: dict[str, object], sentence: str
) -> None:
    service = rpc.Service("test")
    service.rpc(name="ask", init=schema)(lambda ctx, init: init)
    service.upload(name="send", request=schema)(lambda ctx, init, requests: list(requests))
    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        with pytest.raises(rpc.RiverError) as asking:
            client.rpc("test", "ask", init, WAIT)
        upload = client.upload("test", "send", None, WAIT)
        upload.write(init)
        with pytest.raises(rpc.RiverError) as sending:
            upload.finish()
    assert str(asking.value) == f"INVALID_REQUEST: procedure init failed validation: {sentence}"
    assert (
        str(sending.value) == f"INVALID_REQUEST: message in request failed validation: {sentence}"
    )
    assert asking.value.extra == sending.value.extra
    (first,) = asking.value.extra["firstValidationErrors"]
    assert f"{first['path']} {first['message']}".strip() == sentence


def test_a_client_of_another_schema_is_told(gate: Gate) -> None:
    """Its calls end with the same error, as results if it wants them."""
    with (
        rpc.serve([offered(gate)]) as server,
        rpc.connect(server.url, errors="results") as made,
    ):
        for answer in (
            made.rpc("gone", "add", None, WAIT),
            made.rpc("test", "gone", None, WAIT),
            made.rpc("test", "add", {}, WAIT),
            made.upload("gone", "total", None, WAIT).finish(),
            made.subscribe("test", "gone", None, WAIT).read(),
            made.stream("gone", "echo", None, WAIT).read(),
        ):
            assert answer.error.code == "INVALID_REQUEST"


# Requests


def test_requests_must_have_their_shape() -> None:
    service = rpc.Service("test")
    service.upload(name="total", request=WITH_NUMBER)(lambda ctx, init, requests: list(requests))
    service.rpc(name="same")(lambda ctx, init: init)
    with rpc.serve([service], options=rpc.Options(**PATIENT)) as server, joined(server) as raw:
        raw.open("s", "total", None)
        send(raw, {"n": "one"})
        extras = refused(raw)["extras"]
        (first,) = extras["firstValidationErrors"]
        assert (extras["totalErrors"], first["path"]) == (1, "/n")
        assert first["message"]
        check_alive(raw)


@pytest.mark.parametrize("procedure", ["watch", "hangs"])
def test_calls_that_take_no_requests_get_none(procedure: str, raw: RawRiver, gate: Gate) -> None:
    raw.open("s", procedure, None)
    assert gate.entered.wait(WAIT)
    if procedure == "watch":
        assert received(raw) == ("s", 0, ok("first"))
    send(raw, "request")
    assert "takes no requests" in refused(raw)["message"]
    check_alive(raw)


def test_nothing_comes_behind_the_end_of_requests(raw: RawRiver, gate: Gate) -> None:
    raw.open("s", "hangs", None, CLOSED)
    assert gate.entered.wait(WAIT)
    send(raw, "request")
    assert "after the end of requests" in refused(raw)["message"]
    assert gate.over.wait(WAIT)
    check_alive(raw)


def test_a_last_request_may_close(raw: RawRiver) -> None:
    raw.open("s", "total", None)
    send(raw, 1)
    send(raw, 2, CLOSED)
    assert received(raw) == ("s", CLOSED, ok(3))


# Once for each stream


def test_a_stream_is_refused_once(raw: RawRiver) -> None:
    send(raw, 1)
    refused(raw)
    send(raw, 2)
    send(raw, CLOSE, CLOSED)
    send(raw, cancel(), CANCEL)
    check_alive(raw)


@pytest.mark.parametrize("how", ["request", "handler", "failure"])
def test_a_call_that_the_server_cancelled_is_told_of_once(how: str) -> None:
    """What its client sends until it hears of that is not refused as well."""
    service = rpc.Service("test")

    @service.upload(request={"type": "number"})
    def ends(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> None:
        requests.read(WAIT)
        if how == "handler":
            ctx.cancel("enough")
            ctx.cancel("twice")
        elif how == "failure":
            raise LookupError("on purpose")
        else:
            requests.read(WAIT)

    service.rpc(name="same")(lambda ctx, init: init)
    code = {"request": "INVALID_REQUEST", "handler": "CANCEL", "failure": "UNCAUGHT_ERROR"}[how]
    with rpc.serve([service], options=rpc.Options(**PATIENT)) as server, joined(server) as raw:
        raw.open("s", "ends", None)
        send(raw, 1)
        if how == "request":
            send(raw, "two")
        refused(raw, code=code)
        send(raw, 3)
        send(raw, CLOSE, CLOSED)
        check_alive(raw)


def test_a_stream_is_refused_again_once_it_was_forgotten(gate: Gate) -> None:
    options = rpc.Options(tombstones=2, **PATIENT)
    with rpc.serve([offered(gate)], options=options) as server, joined(server) as raw:
        for stream in ("a", "b", "c"):
            send(raw, 1, stream=stream)
            refused(raw, stream)
        send(raw, 2, stream="c")
        send(raw, 2, stream="b")
        send(raw, 2, stream="a")
        refused(raw, "a")
        check_alive(raw)


def test_sessions_remember_what_was_refused_by_themselves(gate: Gate) -> None:
    options = rpc.Options(tombstones=1, **PATIENT)
    with (
        rpc.serve([offered(gate)], options=options) as server,
        joined(server, "one") as one,
        joined(server, "other") as other,
    ):
        for raw in (one, other):
            send(raw, 1)
            refused(raw)
        for raw in (one, other):
            send(raw, 2)
            check_alive(raw)


def test_long_names_are_not_sent_back_whole(raw: RawRiver) -> None:
    raw.send(
        {
            "streamId": "s",
            "controlFlags": OPEN,
            "serviceName": "x" * 10**6,
            "procedureName": "y",
            "payload": None,
        }
    )
    assert refused(raw)["message"] == f"couldn't find service {'x' * 100}..."
