"""When a call is over, and what each side is told of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wsmux import rpc

from ..helpers.inside import call_of, calls_of, channel_of, connections_of
from ..helpers.rpc.clients import session_of
from ..helpers.rpc.four_kinds import (
    HANDLED,
    KINDS,
    Held,
    Part,
    answer,
    begun,
    check_caller,
    check_handler,
    joined,
    staged,
)
from ..helpers.rpc.procedures import WAIT
from ..helpers.tables import each_case
from ..helpers.waiting import wait_for

CODECS = ("json", "msgpack")


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.go.set()


@pytest.fixture(params=CODECS)
def client(request: pytest.FixtureRequest, held: Held) -> Iterator[rpc.Client]:
    codec = request.param
    with (
        rpc.serve([held.service], codec=codec) as server,
        rpc.connect(server.url, codec=codec) as client,
    ):
        yield client
        held.go.set()


# A clean end


@pytest.mark.parametrize("kind", [rpc.Kind.RPC, rpc.Kind.SUBSCRIPTION])
def test_without_requests_a_call_is_over_with_its_handler(
    kind: rpc.Kind, client: rpc.Client, held: Held
) -> None:
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer, client, kind)
        assert not held.part.ctx.ended.is_set()
        held.go.set()
        held.part.lasts()
        assert answered.result(WAIT) == ([] if kind.writes_responses else "done")


def test_a_stream_is_over_when_both_sides_have_ended(client: rpc.Client, held: Held) -> None:
    with begun(client, rpc.Kind.STREAM) as stream:
        assert isinstance(stream, rpc.StreamCall)
        held.go.set()
        assert list(stream) == []  # the handler's half has ended
        assert not held.part.ctx.ended.is_set()
        stream.close_write()
        held.part.lasts()


def test_an_upload_is_over_when_the_client_has_ended_too(client: rpc.Client, held: Held) -> None:
    with begun(client, rpc.Kind.UPLOAD) as upload:
        assert isinstance(upload, rpc.Upload)
        held.go.set()
        wait_for(lambda: call_of(upload).reader.ended)  # it has been answered
        assert not held.part.ctx.ended.is_set()
        assert upload.finish() == "done"
        held.part.lasts()


class TestRequestsAfterTheHandler:
    """Nobody reads them: those that the schema allows are dropped, and harm nobody."""

    @pytest.fixture
    def client(self) -> Iterator[rpc.Client]:
        self.returned = threading.Event()
        service = rpc.Service("test")
        service.rpc(name="same")(lambda ctx, init: init)

        @service.upload(request={"type": "number"})
        def upload(ctx: rpc.Context, init: object, requests: rpc.Readable[int]) -> int:
            return 1

        @service.stream(request={"type": "number"})
        def stream(
            ctx: rpc.Context,
            init: object,
            requests: rpc.Readable[int],
            responses: rpc.Writable[int],
        ) -> None:
            responses.write(1)

        @service.stream(request={"type": "number"})
        def generates(ctx: rpc.Context, init: object, requests: rpc.Readable[int]) -> Iterator[int]:
            yield 1

        @service.stream(request={"type": "number"})
        def reads_on(
            ctx: rpc.Context,
            init: object,
            requests: rpc.Readable[int],
            responses: rpc.Writable[int],
        ) -> None:
            responses.close()
            self.sum = sum(requests)
            self.returned.set()

        options = rpc.Options(unread_messages=3)
        with (
            rpc.serve([service], options=options) as self.server,
            rpc.connect(self.server.url) as client,
        ):
            yield client

    def check_held(self) -> None:
        (info,) = self.server.handler.list_sessions()
        assert (info.calls, info.unread_bytes) == (1, 0)

    def test_an_upload_has_its_result(self, client: rpc.Client) -> None:
        with client.upload("test", "upload", None, WAIT) as upload:
            wait_for(lambda: call_of(upload).reader.ended)  # it has been answered
            for number in range(10):
                upload.write(number)
            assert client.rpc("test", "same", 1, WAIT) == 1  # the server has had them by now
            self.check_held()
            assert upload.finish() == 1
        wait_for(lambda: calls_of(self.server.handler) == 0)

    @pytest.mark.parametrize("name", ["stream", "generates"])
    def test_a_stream_has_its_responses(self, name: str, client: rpc.Client) -> None:
        with client.stream("test", name, None, WAIT) as stream:
            assert list(stream) == [1]
            for number in range(10):
                stream.write(number)
            assert client.rpc("test", "same", 1, WAIT) == 1  # the server has had them by now
            self.check_held()
            stream.write(10)
            stream.close_write()
        wait_for(lambda: calls_of(self.server.handler) == 0)

    def test_what_is_wrong_with_them_is_told(self, client: rpc.Client) -> None:
        with client.upload("test", "upload", None, WAIT) as upload:
            wait_for(lambda: call_of(upload).reader.ended)
            upload.write("no number")
            assert client.rpc("test", "same", 1, WAIT) == 1
            with pytest.raises(rpc.RiverError, match="INVALID_REQUEST: .* must be number"):
                upload.write(1)

    def test_a_handler_that_has_sent_its_last_response_may_read_on(
        self, client: rpc.Client
    ) -> None:
        with client.stream("test", "reads_on", None, WAIT) as stream:
            assert list(stream) == []
            for number in range(3):
                stream.write(number)
            stream.close_write()
        assert self.returned.wait(WAIT)
        assert self.sum == 3


# The client cancels


@pytest.mark.parametrize("kind", HANDLED)
def test_a_client_cancels(kind: rpc.Kind, client: rpc.Client, held: Held) -> None:
    call = begun(client, kind)
    assert not held.part.ctx.ended.is_set()
    call.cancel("enough")
    check_caller(call, "CANCEL: enough")
    check_handler(held.part, "CANCEL: enough")


def test_a_client_cancels_an_rpc(client: rpc.Client, held: Held) -> None:
    call = client.submit("test", "rpc", None, WAIT)
    assert not held.part.ctx.ended.is_set()
    assert call.cancel("enough")
    assert not call.cancel("twice")
    with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
        call.result(WAIT)
    check_handler(held.part, "CANCEL: enough")


def test_an_rpc_is_cancelled_by_its_timeout(client: rpc.Client, held: Held) -> None:
    timeout = 0.01
    while not held.entered.is_set():  # a server begins no handler for a caller that is gone
        with pytest.raises(TimeoutError, match="it was cancelled"):
            client.rpc("test", "rpc", None, timeout=timeout)
        timeout *= 2
    check_handler(held.part, "CANCEL")


@pytest.mark.parametrize("kind", HANDLED)
def test_cancelling_again_changes_nothing(kind: rpc.Kind, client: rpc.Client, held: Held) -> None:
    call = begun(client, kind)
    part = held.part  # a server begins no handler for a caller that is gone
    call.cancel("enough")
    call.cancel("twice")
    if isinstance(call, rpc.Subscription):
        call.close()
        call.close()
    check_caller(call, "CANCEL: enough")
    check_handler(part, "CANCEL: enough")
    call.cancel("after the end")


# The server cancels


@pytest.mark.parametrize("kind", HANDLED)
def test_a_server_cancels(kind: rpc.Kind, client: rpc.Client, held: Held) -> None:
    call = begun(client, kind)
    held.part.ctx.cancel("enough")
    held.part.ctx.cancel("twice")
    check_caller(call, "CANCEL: enough")
    check_handler(held.part, "CANCEL: enough")


def test_a_server_cancels_an_rpc(client: rpc.Client, held: Held) -> None:
    call = client.submit("test", "rpc", None, WAIT)
    held.part.ctx.cancel("enough")
    check_handler(held.part, "CANCEL: enough")
    with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
        call.result(WAIT)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_cancelled_handler_returns_is_nobodys(kind: rpc.Kind) -> None:
    with (
        joined(staged(lambda part: part.ctx.cancel("enough"))) as client,
        pytest.raises(rpc.RiverError, match="CANCEL: enough"),
    ):
        answer(client, kind)


def test_a_handler_that_cancels_and_returns_breaks_no_schema(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = rpc.Service("test")
    number = {"type": "number"}

    @service.rpc(response=number)
    def ask(ctx: rpc.Context, init: Any) -> None:
        ctx.cancel("enough")

    @service.upload(response=number)
    def send(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> None:
        ctx.cancel("enough")

    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
            client.rpc("test", "ask", None, WAIT)
        with pytest.raises(rpc.RiverError, match="CANCEL: enough"):
            client.upload("test", "send", None, WAIT).finish()
    assert caplog.text == ""


@pytest.mark.parametrize("kind", HANDLED)
def test_cancelling_ends_a_call_whose_handler_goes_on(
    kind: rpc.Kind, client: rpc.Client, held: Held
) -> None:
    deferred = threading.Event()
    with begun(client, kind):
        held.part.ctx.defer(deferred.set)
        held.part.ctx.cancel()
        assert held.part.ctx.ended.is_set()
        assert deferred.wait(WAIT)
        assert not held.left.is_set()


# The handler fails


@pytest.mark.parametrize("kind", HANDLED)
def test_a_handler_fails(kind: rpc.Kind, client: rpc.Client, held: Held) -> None:
    held.fails = True
    call = begun(client, kind)
    part = held.part
    held.go.set()
    check_caller(call, "UNCAUGHT_ERROR: the handler failed")
    check_handler(part, "UNCAUGHT_ERROR: the handler failed")


def test_the_handler_of_an_rpc_fails(client: rpc.Client, held: Held) -> None:
    held.fails = True
    held.go.set()
    with pytest.raises(rpc.RiverError, match="UNCAUGHT_ERROR: the handler failed"):
        client.rpc("test", "rpc", None, WAIT)
    check_handler(held.part, "UNCAUGHT_ERROR")


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_may_be_told_why(kind: rpc.Kind) -> None:
    def act(part: Part) -> None:
        raise LookupError("no secret")

    with (
        joined(staged(act), expose_errors=True) as client,
        pytest.raises(rpc.RiverError, match="UNCAUGHT_ERROR: no secret$"),
    ):
        answer(client, kind)


# What is left


@each_case
@pytest.mark.parametrize("ending", ["done", "cancelled by the client", "by the server", "failed"])
@pytest.mark.parametrize("kind", KINDS)
def test_neither_side_remembers_a_call_that_is_over(kind: rpc.Kind, ending: str) -> None:
    entered = threading.Event()

    def act(part: Part) -> str:
        entered.set()
        if ending == "cancelled by the client":
            part.lasts()
        elif ending == "by the server":
            part.ctx.cancel()
        elif ending == "failed":
            raise LookupError("on purpose")
        return "done"

    with rpc.serve([staged(act)]) as server, rpc.connect(server.url) as client:
        if ending == "done":
            answer(client, kind)
        elif ending != "cancelled by the client":
            with pytest.raises(rpc.RiverError):
                answer(client, kind)
        elif kind is rpc.Kind.RPC:
            call = client.submit("test", "rpc", None, WAIT)
            assert entered.wait(WAIT)
            assert call.cancel()
        else:
            with begun(client, kind):
                assert entered.wait(WAIT)
        assert session_of(client).calls == 0
        wait_for(lambda: calls_of(server.handler) == 0)
        assert session_of(client).connected
        assert server.handler.sessions == 1


def test_a_closed_client_leaves_no_connection_at_the_server() -> None:
    with rpc.serve([staged(lambda part: None)]) as server:
        with rpc.connect(server.url) as client:
            client.rpc("test", "rpc", None, WAIT)
            assert connections_of(server.handler) == 1
        assert channel_of(client) is None
        wait_for(lambda: connections_of(server.handler) == 0)


def test_a_closed_server_leaves_no_connection_at_the_client() -> None:
    with rpc.serve([staged(lambda part: None)]) as server:
        client = rpc.connect(server.url)
        client.rpc("test", "rpc", None, WAIT)
        assert channel_of(client) is not None
    with client:
        wait_for(lambda: channel_of(client) is None)


@pytest.mark.parametrize("kind", HANDLED)
def test_a_call_of_a_closed_client_may_be_ended(kind: rpc.Kind, held: Held) -> None:
    """It says nothing to anybody, and begins no session."""
    options = rpc.Options(session_disconnect_grace=0.01)
    with rpc.serve([held.service], options=options) as server:
        client = rpc.connect(server.url)
        call = begun(client, kind)
        part = held.part
        client.close()
        check_handler(part, "UNEXPECTED_DISCONNECT")
        if isinstance(call, rpc.Upload | rpc.StreamCall):
            call.close_write()
        call.cancel()
        assert client.session is None
        assert channel_of(client) is None
        wait_for(lambda: server.handler.sessions == 0)
        held.go.set()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("errors", ["raise", "results"])
def test_calls_of_a_closed_client_have_their_shape(kind: rpc.Kind, errors: str) -> None:
    client = rpc.connect("ws://127.0.0.1:9/", errors=errors)
    client.close()
    if errors == "raise":
        with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT: the client is closed"):
            answer(client, kind)
        return
    results = answer(client, kind)
    (result,) = results if kind.writes_responses else [results]
    assert isinstance(result, rpc.Err)
    assert result.error.code == "UNEXPECTED_DISCONNECT"
