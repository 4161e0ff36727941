"""The kit for users' own tests: handlers that are called directly, and links that are cut."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc import testing

from ..helpers.rpc.procedures import WAIT
from ..helpers.timeouts import CONNECTS

service = rpc.Service("kit", state=lambda context: {"made for": context})
ended: list[str] = []


@service.rpc(init={"type": "string"}, errors=[rpc.ErrorSchema("MISSING")])
def find(ctx: rpc.Context, init: str) -> Any:
    if init not in ctx.state:
        raise rpc.RiverError("MISSING", f"no {init}")
    return ctx.state[init]


@service.rpc()
def tells(ctx: rpc.Context, init: Any) -> Any:
    ctx.defer(lambda: ended.append("deferred"))
    return [ctx.client_id, ctx.metadata, ctx.context, init]


@service.rpc()
def fails(ctx: rpc.Context, init: Any) -> None:
    raise LookupError("its own")


@service.upload(request={"type": "number"})
def add(ctx: rpc.Context, init: int, requests: rpc.Readable[int]) -> int:
    return init + sum(requests)


@service.subscription(errors=[rpc.ErrorSchema("ODD")])
def count(ctx: rpc.Context, init: int) -> Iterator[Any]:
    for number in range(init):
        yield rpc.Err(rpc.RiverError("ODD", "one")) if number == 1 else number


@service.stream()
def echo(ctx: rpc.Context, init: Any, requests: Any, responses: Any) -> None:
    for request in requests:
        responses.write(request)


@service.subscription()
def forever(ctx: rpc.Context, init: Any) -> Generator[int]:
    yield 1
    yield from ctx.wait()


class TestCall:
    def test_an_rpc_returns_its_response(self) -> None:
        assert testing.call(service, "find", "a", state={"a": b"1"}) == b"1"

    def test_a_state_is_made_by_the_service_unless_one_is_given(self) -> None:
        assert testing.call(service, "find", "made for", context="me") == "me"

    def test_a_handler_finds_what_is_said(self) -> None:
        ended.clear()
        told = testing.call(
            service, "tells", 1, client_id="c", metadata={"user": 2}, context="3", codec="json"
        )
        assert told == ["c", {"user": 2}, "3", 1]
        assert ended == ["deferred"]

    @pytest.mark.parametrize(
        ("init", "code"), [("b", "MISSING"), (7, "INVALID_REQUEST"), (None, "INVALID_REQUEST")]
    )
    def test_an_error_is_raised(self, init: Any, code: str) -> None:
        with pytest.raises(rpc.RiverError) as caught:
            testing.call(service, "find", init, state={})
        assert caught.value.code == code

    def test_an_exception_of_the_handler_is_its_own(self) -> None:
        with pytest.raises(LookupError, match="its own"):
            testing.call(service, "fails")

    def test_an_upload_takes_its_requests(self) -> None:
        assert testing.call(service, "add", 1, [2, 3]) == 6

    def test_a_slow_handler_gets_any_number_of_requests(self) -> None:
        slow = rpc.Service("slow")
        go = threading.Event()

        @slow.upload()
        def counts(ctx: rpc.Context, init: Any, requests: rpc.Readable[Any]) -> int:
            assert go.wait(WAIT)
            return sum(1 for _ in requests)

        def requests() -> Iterator[int]:
            yield from range(10_500)
            go.set()

        assert testing.call(slow, "counts", requests=requests(), timeout=WAIT) == 10_500

    def test_a_request_that_its_schema_forbids_is_refused(self) -> None:
        with pytest.raises(rpc.RiverError, match="INVALID_REQUEST"):
            testing.call(service, "add", 1, [2, "three"])

    def test_a_subscription_returns_all_it_yields(self) -> None:
        one, error, three = testing.call(service, "count", 3)
        assert (one, three) == (0, 2)
        assert isinstance(error, rpc.Err)
        assert error.error.code == "ODD"

    def test_a_stream_returns_all_it_writes(self) -> None:
        assert testing.call(service, "echo", None, range(2000)) == list(range(2000))

    def test_a_handler_that_never_ends_is_cancelled(self) -> None:
        with pytest.raises(TimeoutError, match=r"kit\.forever did not end in 0\.05 s"):
            testing.call(service, "forever", timeout=0.05)

    def test_an_unknown_procedure_is_an_error_of_the_test(self) -> None:
        with pytest.raises(KeyError):
            testing.call(service, "none")


class TestLink:
    def test_a_call_goes_on_after_a_cut(self) -> None:
        with testing.linked([service]) as link:
            stream = link.client.stream("kit", "echo", None, WAIT)
            for number in range(5):
                stream.write(number)
                assert stream.read() == number
                link.cut()
            stream.close_write()
            assert list(stream) == []

    def test_a_link_is_cut_while_its_connection_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real, own = socket.socket.shutdown, threading.current_thread()

        def shutdown(sock: socket.socket, how: int) -> None:
            if threading.current_thread() is own:
                link.handler.end_session(link.client.client_id)
                deadline = time.monotonic() + 0.2
                while sock.fileno() >= 0 and time.monotonic() < deadline:
                    time.sleep(0.001)
            real(sock, how)

        with testing.linked([service]) as link:
            link.client.rpc("kit", "tells", 1, WAIT)
            monkeypatch.setattr(socket.socket, "shutdown", shutdown)
            link.cut()
            monkeypatch.undo()

    def test_a_link_that_is_held_ends_the_session_after_its_grace(self) -> None:
        options = rpc.Options(session_disconnect_grace=CONNECTS)
        with testing.linked([service], {"options": options}, options=options) as link:
            stream = link.client.stream("kit", "echo", None, WAIT)
            stream.write(1)
            assert stream.read() == 1
            link.hold()
            with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
                stream.read()
            link.release()
            assert link.client.rpc("kit", "tells", 1, WAIT)[3] == 1

    def test_a_server_that_is_restarted_knows_no_session(self) -> None:
        with testing.linked([service], {"server_id": "S"}, server_id="S") as link:
            before = link.handler
            stream = link.client.stream("kit", "echo", None, WAIT)
            stream.write(1)
            assert stream.read() == 1
            link.restart()
            with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
                stream.read()
            assert link.client.rpc("kit", "find", "made for", WAIT) is None
            assert link.handler is not before

    def test_a_server_is_restarted_though_a_state_cannot_be_disposed_of(self) -> None:
        left = [LookupError("once")]

        def dispose(state: Any) -> None:
            if left:
                raise left.pop()

        stubborn = rpc.Service("stubborn", state=lambda context: None, dispose=dispose)
        stubborn.rpc(name="same")(lambda ctx, init: init)
        with testing.linked([stubborn, service]) as link:
            before = link.handler
            stream = link.client.stream("kit", "echo", None, WAIT)
            stream.write(1)
            assert stream.read() == 1
            with pytest.raises(LookupError, match="once"):
                link.restart()
            assert link.handler is not before
            with pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT"):
                stream.read()
            assert link.client.rpc("stubborn", "same", 2, WAIT) == 2

    def test_a_link_ends_though_a_state_cannot_be_disposed_of(self) -> None:
        def dispose(state: Any) -> None:
            raise LookupError("always")

        stubborn = rpc.Service("stubborn", state=lambda context: None, dispose=dispose)
        stubborn.rpc(name="same")(lambda ctx, init: init)
        with (
            pytest.raises(LookupError, match="always"),
            testing.linked([stubborn]) as link,
        ):
            assert link.client.rpc("stubborn", "same", 1, WAIT) == 1
        assert not any(thread.is_alive() for thread in link._threads)
        assert link._held


class TestTarget:
    """A function makes the socket of each attempt."""

    @pytest.mark.parametrize("made", ["socket", None])
    def test_what_is_no_socket_fails_the_attempt(self, made: Any) -> None:
        told: list[tuple[Any, ...]] = []
        options = rpc.Options(session_disconnect_grace=2.0, backoff_base=0.01, backoff_jitter=0)
        with (
            rpc.connect(
                lambda: made, options=options, on_protocol_error=lambda *what: told.append(what)
            ) as client,
            pytest.raises(rpc.RiverError, match="no socket or stream"),
        ):
            client.rpc("kit", "tells", 1, WAIT)

    def test_a_function_that_fails_fails_the_attempt(self) -> None:
        def make() -> socket.socket:
            raise LookupError("nowhere")

        options = rpc.Options(session_disconnect_grace=2.0)
        began = time.monotonic()
        with (
            rpc.connect(make, options=options) as client,
            pytest.raises(rpc.RiverError, match="has failed: LookupError.'nowhere'"),
        ):
            client.rpc("kit", "tells", 1, WAIT)
        assert time.monotonic() - began < WAIT

    def test_a_function_that_exits_fails_the_attempt(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def make() -> socket.socket:
            sys.exit("enough")

        options = rpc.Options(session_disconnect_grace=CONNECTS)
        with (
            rpc.connect(make, options=options) as client,
            pytest.raises(rpc.RiverError, match="UNEXPECTED_DISCONNECT.*SystemExit: enough"),
        ):
            client.rpc("kit", "tells", 1, WAIT)
        assert "in make" in str([record.exc_text for record in caplog.records])
