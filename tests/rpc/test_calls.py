"""Calls of every kind, over real sockets."""

from __future__ import annotations

import gc
import logging
import re
import socket
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

import wsmux
from wsmux import rpc
from wsmux.rpc.engine.server_calls import ServerCall

from ..helpers.inside import channel_of
from ..helpers.ports import free_port
from ..helpers.rpc.clients import cut, session_of
from ..helpers.rpc.procedures import WAIT, Gate, offered
from ..helpers.timeouts import CONNECTS
from ..helpers.waiting import wait_for

CODECS = ("json", "msgpack", "protobuf")


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture(params=[(t, c) for t in ("websocket", "tcp") for c in CODECS], ids="-".join)
def client(request: pytest.FixtureRequest, gate: Gate) -> Iterator[rpc.Client]:
    """Return a client of a server, for each codec over each carrier."""
    transport, codec = request.param
    with (
        rpc.serve([offered(gate)], codec=codec, transport=transport) as server,
        rpc.connect(server.url, codec=codec) as made,
    ):
        yield made


@pytest.fixture
def simple(gate: Gate) -> Iterator[rpc.Client]:
    """Return a client over a WebSocket."""
    with rpc.serve([offered(gate)]) as server, rpc.connect(server.url) as made:
        yield made


def test_an_rpc_returns_its_response(client: rpc.Client) -> None:
    assert client.rpc("test", "add", {"n": 3}, WAIT) == {"n": 3}
    assert client.rpc("test", "add", {"n": 4}, WAIT) == {"n": 7}


def test_a_small_integer_travels_as_a_bigint_if_it_is_one(client: rpc.Client) -> None:
    for value in (rpc.BigInt(5), 2**60):
        answer = client.rpc("test", "same", value, WAIT)
        assert (answer, type(answer)) == (value, rpc.BigInt)
    assert type(client.rpc("test", "same", 5, WAIT)) is int


def test_answered_rpcs_do_not_wait_for_the_collector(
    simple: rpc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: weakref.WeakSet[ServerCall] = weakref.WeakSet()

    class Counted(ServerCall):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            kept.add(self)

    monkeypatch.setattr("wsmux.rpc.engine.call_dispatcher.ServerCall", Counted)
    gc.disable()
    try:
        for number in range(20):
            assert simple.rpc("test", "same", number, WAIT) == number
        wait_for(lambda: len(kept) <= 1)  # which a worker may not have let go of yet
    finally:
        gc.enable()


def test_bytes_and_large_numbers_arrive_as_they_are(client: rpc.Client) -> None:
    value = {"bytes": bytes(range(256)), "large": 2**70, "none": None, "list": [1.5, "ü", True]}
    assert client.rpc("test", "same", value, WAIT) == value


def test_dates_travel_in_msgpack(simple: rpc.Client) -> None:
    now = datetime.now(UTC)
    assert simple.rpc("test", "same", now, WAIT) == now


def test_an_upload_is_answered_once(client: rpc.Client) -> None:
    with client.upload("test", "total", None, WAIT) as upload:
        for number in range(100):
            upload.write(number)
        assert upload.finish() == 4950


def test_an_upload_of_nothing(client: rpc.Client) -> None:
    with client.upload("test", "total", None, WAIT) as upload:
        assert upload.finish() == 0


def test_a_subscription_ends_with_its_handler(client: rpc.Client) -> None:
    assert list(client.subscribe("test", "count", 1000, WAIT)) == list(range(1000))


def test_a_stream_goes_both_ways(client: rpc.Client) -> None:
    with client.stream("test", "echo", None, WAIT) as stream:
        for value in ("one", "two"):
            stream.write(value)
            assert stream.read() == value
        stream.close_write()
        assert list(stream) == []


def test_a_hundred_streams_at_once(client: rpc.Client) -> None:
    def talk(number: int) -> bool:
        with client.stream("test", "echo", None, WAIT) as stream:
            values = [f"{number}-{i}" for i in range(20)]
            for value in values:
                stream.write(value)
            stream.close_write()
            return list(stream) == values

    with ThreadPoolExecutor(20) as pool:
        assert all(pool.map(talk, range(100)))


# Errors


def test_a_declared_error_is_an_ordinary_result(client: rpc.Client) -> None:
    with pytest.raises(rpc.RiverError) as caught:
        client.rpc("test", "fails", "declared", WAIT)
    error = caught.value
    assert (error.code, error.message, error.extra) == ("BAD", "as declared", [1])


def test_a_stream_goes_on_after_an_error_that_is_written(client: rpc.Client) -> None:
    with client.stream("test", "halves", None, WAIT) as stream:
        for number in (4, 3, 8):
            stream.write(number)
        assert stream.read() == 2
        with pytest.raises(rpc.RiverError, match="BAD: odd"):
            stream.read()
        assert stream.read() == 4
        stream.close_write()
        assert list(stream) == []


def test_an_error_that_is_written_must_be_declared(simple: rpc.Client) -> None:
    with simple.stream("test", "halves", None, WAIT) as stream:
        stream.write(-1)
        with pytest.raises(rpc.RiverError, match="UNCAUGHT_ERROR"):
            stream.read()


@pytest.mark.parametrize("how", ["undeclared", "raised"])
def test_what_was_not_declared_does_not_leak(
    how: str, simple: rpc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(rpc.RiverError) as caught:
        simple.rpc("test", "fails", how, WAIT)
    assert (caught.value.code, caught.value.message) == ("UNCAUGHT_ERROR", "the handler failed")
    assert "fails" in caplog.text


def test_the_text_of_exceptions_can_be_exposed(gate: Gate) -> None:
    with (
        rpc.serve([offered(gate)], expose_errors=True) as server,
        rpc.connect(server.url) as client,
        pytest.raises(rpc.RiverError, match="a secret"),
    ):
        client.rpc("test", "fails", "raised", WAIT)


def test_a_response_of_the_wrong_shape_is_not_sent(simple: rpc.Client) -> None:
    with pytest.raises(rpc.RiverError, match="UNCAUGHT_ERROR"):
        simple.rpc("test", "wrong", None, WAIT)


@pytest.mark.parametrize(
    ("service", "procedure", "init", "text"),
    [
        ("nothing", "add", {"n": 1}, "couldn't find service nothing"),
        ("test", "toString", {}, "couldn't find a procedure toString"),
        ("test", "__init__", {}, "couldn't find a procedure __init__"),
        ("test", "add", {"n": "one"}, "procedure init failed validation"),
    ],
)
def test_a_wrong_call_is_an_invalid_request(
    service: str, procedure: str, init: object, text: str, client: rpc.Client
) -> None:
    with pytest.raises(rpc.RiverError, match=text) as caught:
        client.rpc(service, procedure, init, WAIT)
    assert caught.value.code == "INVALID_REQUEST"


def test_names_are_looked_up_as_they_are(simple: rpc.Client) -> None:
    assert simple.rpc("test", "__class__", None, WAIT) == "found by its name"


def test_a_wrong_request_ends_the_call_and_says_where(client: rpc.Client) -> None:
    with client.upload("test", "total", None, WAIT) as upload:
        upload.write("one")
        with pytest.raises(rpc.RiverError) as caught:
            upload.finish()
    assert caught.value.code == "INVALID_REQUEST"
    assert caught.value.extra["totalErrors"] == 1


def test_a_value_that_cannot_be_sent_changes_nothing(simple: rpc.Client) -> None:
    with pytest.raises(rpc.EncodeError):
        simple.rpc("test", "same", object(), WAIT)
    assert simple.rpc("test", "same", 1, WAIT) == 1


def test_errors_as_results(gate: Gate) -> None:
    with (
        rpc.serve([offered(gate)]) as server,
        rpc.connect(server.url, errors="results") as client,
    ):
        assert client.rpc("test", "same", 1, WAIT) == rpc.Ok(1)
        answer = client.rpc("test", "fails", "declared", WAIT)
        assert not answer.ok
        assert answer.error.code == "BAD"


# Ends


def test_a_call_out_of_time_is_cancelled(simple: rpc.Client, gate: Gate) -> None:
    failures, timeout = [], 0.05
    while not gate.begun:  # a call that is over before its handler begins has none
        try:
            simple.rpc("test", "hangs", None, timeout=timeout)
        except TimeoutError as error:
            failures.append(str(error))
        timeout *= 4
    # A call may return if the handler of the one before has begun just then, and lets it go.
    assert set(failures) == {"test.hangs did not answer in time; it was cancelled"}
    assert gate.over.wait(WAIT)  # the server was told, though the handler still runs


def test_leaving_a_subscription_cancels_it(simple: rpc.Client, gate: Gate) -> None:
    with simple.subscribe("test", "watch", None, WAIT) as subscription:
        assert subscription.read() == "first"
    assert gate.over.wait(WAIT)
    wait_for(lambda: gate.seen == ["CANCEL"])


def test_a_cancelled_stream_tells_the_handler(simple: rpc.Client, gate: Gate) -> None:
    stream = simple.stream("test", "echo", None, WAIT)
    stream.write(1)
    assert stream.read() == 1
    stream.cancel("enough")
    with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
        stream.read()
    with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
        stream.write(2)
    wait_for(lambda: gate.seen == ["CANCEL"])


def test_a_handler_cancels_once(simple: rpc.Client) -> None:
    with simple.stream("test", "cancels", None, WAIT) as stream:
        stream.write("x")
        assert stream.read() == "x"
        with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
            stream.read()
        with pytest.raises(EOFError):
            stream.read()


def test_a_server_that_closes_ends_calls(gate: Gate) -> None:
    options = rpc.Options(session_disconnect_grace=CONNECTS)
    with rpc.serve([offered(gate)]) as server:
        client = rpc.connect(server.url, options=options)
        subscription = client.subscribe("test", "watch", None, WAIT)
        assert subscription.read() == "first"
    with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
        subscription.read()
    client.close()


def test_calls_of_a_closed_client_end_at_once(simple: rpc.Client) -> None:
    subscription = simple.subscribe("test", "watch", None, WAIT)
    assert subscription.read() == "first"
    simple.close()
    with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
        subscription.read()
    with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
        simple.rpc("test", "same", 1, WAIT)


@pytest.mark.parametrize("ending", ["answered", "cancelled"])
def test_calls_that_are_over_are_forgotten(ending: str, simple: rpc.Client, gate: Gate) -> None:
    assert simple.rpc("test", "same", 1, WAIT) == 1
    with simple.subscribe("test", "count", 2, WAIT) as subscription:
        assert list(subscription) == [0, 1]
    with simple.upload("test", "total", None, WAIT) as upload:
        upload.write(1)
        assert upload.finish() == 1
    with simple.stream("test", "echo", None, WAIT) as stream:
        stream.write(1)
        assert stream.read() == 1
        if ending == "answered":
            stream.close_write()
            assert list(stream) == []
    assert session_of(simple).calls == 0
    wait_for(lambda: gate.seen == ([] if ending == "answered" else ["CANCEL"]))


def test_a_client_that_offers_a_subprotocol_is_refused(gate: Gate) -> None:
    with (
        rpc.serve([offered(gate)]) as server,
        pytest.raises(wsmux.HandshakeError, match="River has no subprotocol") as caught,
    ):
        wsmux.connect(server.url, protocol="yamux")
    assert caught.value.status == 400


# Sessions


def test_nothing_is_lost_or_doubled_when_connections_are_cut(client: rpc.Client) -> None:
    done = threading.Event()

    def cuts() -> None:
        for _ in range(10):
            if done.wait(0.02):
                return
            cut(client)

    cutter = threading.Thread(target=cuts)
    cutter.start()
    with client.stream("test", "echo", None, WAIT) as stream:
        writer = threading.Thread(
            target=lambda: [*map(stream.write, range(1000)), stream.close_write()]
        )
        writer.start()
        assert list(stream) == list(range(1000))
        writer.join()
    assert list(client.subscribe("test", "count", 1000, WAIT)) == list(range(1000))
    with client.upload("test", "total", None, WAIT) as upload:
        for number in range(1000):
            upload.write(number)
        assert upload.finish() == 499_500
    done.set()
    cutter.join()


def test_a_session_outlives_its_connection(simple: rpc.Client) -> None:
    with simple.stream("test", "echo", None, WAIT) as stream:
        stream.write(1)
        assert stream.read() == 1
        session = session_of(simple).session_id
        assert cut(simple)
        stream.write(2)
        assert stream.read() == 2
        assert session_of(simple).session_id == session


def test_a_client_without_a_server_fails_after_the_grace() -> None:
    port = free_port()
    options = rpc.Options(session_disconnect_grace=0.1)
    with rpc.connect(f"ws://127.0.0.1:{port}", options=options) as client:
        with pytest.raises(rpc.RiverError, match="no connection within the grace period"):
            client.rpc("test", "same", 1, WAIT)
        with pytest.raises(TimeoutError):
            client.wait_connected(0.01)


def test_the_end_of_the_grace_tells_what_went_wrong() -> None:
    options = rpc.Options(session_disconnect_grace=2.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        rpc.connect(f"ws://127.0.0.1:{taken.getsockname()[1]}", options=options) as client,
    ):
        taken.close()
        with pytest.raises(rpc.RiverError, match="within the grace period: .*refused"):
            client.rpc("test", "same", 1, WAIT)


def test_what_is_in_vain_is_tried_once(gate: Gate) -> None:
    failures: list[Exception] = []

    def is_fatal(error: Exception) -> bool:
        failures.append(error)
        return isinstance(error, wsmux.HandshakeError)

    with (
        wsmux.serve(lambda connection: None, protocols=("wsmux", "yamux")) as server,
        rpc.connect(server.url, is_fatal=is_fatal) as client,
    ):
        with pytest.raises(rpc.RiverError, match="the connection cannot be made: .*400"):
            client.rpc("test", "same", 1, WAIT)
        assert len(failures) == 1
        with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
            client.rpc("test", "same", 1, WAIT)
        assert len(failures) == 2


def test_waiting_for_a_connection_ends_when_it_is_in_vain() -> None:
    tokens = iter(["bad", "good"])

    def validate(metadata: str, before: object, client_id: str) -> None:
        if metadata == "bad":
            raise rpc.Rejection("wrong token")

    with (
        rpc.serve([], validate=validate) as server,
        rpc.connect(server.url, metadata=lambda: next(tokens)) as client,
    ):
        with pytest.raises(rpc.RiverError, match="handshake failed: wrong token") as caught:
            client.wait_connected()
        assert caught.value.code == "UNEXPECTED_DISCONNECT"
        client.wait_connected(WAIT)


def test_waiting_in_vain_for_a_server_that_speaks_something_else_says_why() -> None:
    with (
        wsmux.serve(lambda connection: None) as server,
        rpc.connect(server.url) as client,
        pytest.raises(TimeoutError, match="attempts continue: the handshake was not answered"),
    ):
        client.wait_connected(timeout=CONNECTS)


@pytest.mark.parametrize(
    ("ours", "theirs", "sentence"),
    [
        ("json", "msgpack", "the first message is JSON; this server's codec is msgpack"),
        ("msgpack", "json", "the first message is msgpack; this server's codec is JSON"),
        ("protobuf", "json", "the first message is protobuf; this server's codec is JSON"),
        ("json", "protobuf", "the first message is JSON; this server's codec is protobuf"),
    ],
)
@pytest.mark.parametrize("transport", ["websocket", "tcp"])
def test_both_sides_name_the_codecs_that_differ(
    ours: str, theirs: str, sentence: str, transport: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wsmux.rpc")
    failures: list[tuple[str, ...]] = []
    options = rpc.Options(session_disconnect_grace=CONNECTS)
    asked = f"not answered: the connection was closed; is the server's codec {ours}, too?"
    with (
        rpc.serve(
            [],
            codec=theirs,
            transport=transport,
            on_protocol_error=lambda *what: failures.append(what),
        ) as server,
        rpc.connect(server.url, codec=ours, options=options) as client,
    ):
        with pytest.raises(rpc.RiverError, match=re.escape(asked)):
            client.rpc("test", "same", None, WAIT)
        with pytest.raises(TimeoutError, match=re.escape(asked)):
            client.wait_connected(0.2)
        wait_for(lambda: failures)
    assert failures[0] == ("handshake_failed", sentence, "MALFORMED_HANDSHAKE")
    assert f"a handshake got no answer: {sentence}" in caplog.text


def test_waiting_for_a_connection_ends_when_the_client_thinks_it_in_vain() -> None:
    with (
        wsmux.serve(lambda connection: None, protocols=("wsmux", "yamux")) as server,
        rpc.connect(server.url, is_fatal=lambda error: True) as client,
        pytest.raises(rpc.RiverError, match="the connection cannot be made: .*400"),
    ):
        client.wait_connected()


def test_what_was_sent_gets_out_before_a_close_returns(gate: Gate) -> None:
    with rpc.serve([offered(gate)]) as server, rpc.connect(server.url) as client:
        client.wait_connected(WAIT)
        stream = client.stream("test", "echo", None, WAIT)
        for _ in range(100):
            stream.write(bytes(100_000))
        channel = channel_of(client)
        assert channel is not None
        client.close(WAIT)
        assert not channel.queue.has_output()


def test_a_client_finds_a_server_that_comes_up_later(gate: Gate) -> None:
    port = free_port()
    statuses: list[str] = []
    options = rpc.Options(session_disconnect_grace=WAIT, backoff_base=0.01, backoff_jitter=0.01)
    with (
        rpc.connect(
            f"ws://127.0.0.1:{port}", options=options, on_connection_status=statuses.append
        ) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(client.rpc, "test", "same", "at last", WAIT)
        wait_for(lambda: statuses.count("connecting") >= 2)
        with rpc.serve([offered(gate)], port=port):
            assert answer.result(WAIT) == "at last"


def test_metadata_is_validated_and_seen_by_handlers() -> None:
    service = rpc.Service("me")

    @service.rpc()
    def name(ctx: rpc.Context, init: object) -> object:
        return ctx.metadata

    def validate(metadata: dict[str, str], before: object, client_id: str) -> str:
        if metadata["token"] != "good":
            raise rpc.Rejection("wrong token")
        return f"{client_id} with a good token"

    failures: list[tuple[str, ...]] = []
    with rpc.serve([service], validate=validate) as server:
        with rpc.connect(server.url, client_id="c", metadata=lambda: {"token": "good"}) as client:
            assert client.rpc("me", "name", None, WAIT) == "c with a good token"
        with (
            rpc.connect(
                server.url,
                metadata=lambda: {"token": "bad"},
                on_protocol_error=lambda *what: failures.append(what),
            ) as client,
            pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"),
        ):
            client.rpc("me", "name", None, WAIT)
        wait_for(lambda: failures)
    assert failures[0][2] == "REJECTED_BY_CUSTOM_HANDLER"


# Carriers


@pytest.mark.parametrize("target", ["http://127.0.0.1/", "somewhere"])
def test_an_address_of_no_carrier_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="expected a ws://"):
        rpc.connect(target)
