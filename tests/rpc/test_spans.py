"""A call in a span is a span at both ends, which the wire's ``tracing`` joins."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from wsmux import rpc
from wsmux.rpc.engine import call_dispatcher
from wsmux.rpc.engine.call_spans import MAX_STATE
from wsmux.rpc.engine.server_calls import ServerCall
from wsmux.rpc.errors import UNEXPECTED_DISCONNECT

from ..helpers.inside import end_time_of
from ..helpers.rpc.procedures import WAIT, Gate, offered
from ..helpers.traced import Traced
from ..helpers.waiting import wait_for

pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Traced:
    made = Traced()
    monkeypatch.setattr(trace, "get_tracer", made.provider.get_tracer)
    return made


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def client(gate: Gate) -> Iterator[rpc.Client]:
    with rpc.serve([offered(gate)]) as server, rpc.connect(server.url) as client:
        yield client


def finish(client: rpc.Client, kind: str) -> None:
    """Make a call of a kind from its beginning to its end."""
    match kind:
        case "same":
            assert client.rpc("test", "same", 1, WAIT) == 1
        case "count":
            assert list(client.subscribe("test", "count", 2)) == [0, 1]
        case "total":
            with client.upload("test", "total", None) as total:
                total.write(2)
                assert total.finish(WAIT) == 2
        case "echo":
            with client.stream("test", "echo", None) as echo:
                echo.write(1)
                assert echo.read(WAIT) == 1
                echo.close_write()
                assert list(echo) == []


@pytest.mark.parametrize("kind", ["same", "count", "total", "echo"])
def test_a_call_is_a_span_at_both_ends(traced: Traced, client: rpc.Client, kind: str) -> None:
    with traced.span() as application:
        finish(client, kind)
    ours, theirs = traced.of(kind)
    assert (ours.kind, theirs.kind) == (SpanKind.CLIENT, SpanKind.SERVER)
    assert ours.parent == application.get_span_context()
    assert theirs.parent is not None
    assert theirs.parent.span_id == ours.context.span_id
    assert theirs.parent.is_remote
    assert theirs.context.trace_id == ours.context.trace_id == ours.parent.trace_id
    called = {"rpc.system": "river", "rpc.service": "test", "rpc.method": kind}
    assert ours.attributes == called
    assert theirs.attributes == {**called, "wsmux.client.id": client.client_id}
    assert {span.status.status_code for span in (ours, theirs)} == {StatusCode.UNSET}


def test_each_of_many_calls_is_a_span(traced: Traced, client: rpc.Client) -> None:
    with traced.span():
        for call in client.submit_many("test", "same", range(3), WAIT):
            call.result()
    wait_for(lambda: len(traced.spans()) == 7)


def test_without_a_current_span_nothing_is_made_or_sent(
    traced: Traced, client: rpc.Client, told: list[Any]
) -> None:
    finish(client, "same")
    finish(client, "echo")
    assert traced.ended() == {}
    assert told == []


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what servers are told of clients' spans, as it comes."""
    seen: list[Any] = []

    def note(*called: Any) -> None:
        seen.append(called[-1])

    monkeypatch.setattr(call_dispatcher, "server_span", note)
    return seen


def test_the_server_is_told_by_w3c_s_trace_context(
    traced: Traced, client: rpc.Client, told: list[Any]
) -> None:
    state = trace.TraceState([("vendor", "value")])
    remote = trace.SpanContext(1, 2, True, trace.TraceFlags(1), state)
    with trace.use_span(trace.NonRecordingSpan(remote)):
        finish(client, "same")
    wait_for(traced.ended)
    ours = traced.ended()["river.client.test.same"]
    span_id = f"{ours.context.span_id:016x}"
    assert told == [(f"00-{1:032x}-{span_id}-01", "vendor=value")]


def test_what_a_handler_does_belongs_to_its_call(traced: Traced) -> None:
    service = rpc.Service("test")

    @service.rpc()
    def same(ctx: rpc.Context, init: Any) -> None:
        with traced.tracer.start_as_current_span("inner"):
            pass

    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        with traced.span():
            client.rpc("test", "same", None, WAIT)
        _, theirs = traced.of("same")
    inner = traced.ended()["inner"]
    assert inner.parent == theirs.context


# What the client tells is anybody's word


@pytest.fixture
def tells(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Replace what a call has told its server by the last element."""
    said: list[tuple[str, str]] = []

    class Told(ServerCall):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, said[-1] if name == "tracing" and value else value)

    monkeypatch.setattr(call_dispatcher, "ServerCall", Told)
    return said


PARENT = f"00-{1:032x}-{2:016x}-01"


@pytest.mark.parametrize("parent", ["00", "x" * 100_000, f"00-{0:032x}-{0:016x}-01"])
def test_a_parent_that_is_none_makes_no_span(
    traced: Traced, client: rpc.Client, tells: list[tuple[str, str]], parent: str
) -> None:
    tells.append((parent, ""))
    with traced.span():
        finish(client, "same")
    wait_for(lambda: "river.client.test.same" in traced.ended())
    assert "river.server.test.same" not in traced.ended()


@pytest.mark.parametrize("state", ["a=b", "x=" + "y" * MAX_STATE, "=,=;"])
def test_a_state_is_passed_on_if_it_is_one_and_not_too_long(
    traced: Traced, client: rpc.Client, tells: list[tuple[str, str]], state: str
) -> None:
    tells.append((PARENT, state))
    with traced.span():
        finish(client, "same")
    _, theirs = traced.of("same")
    assert theirs.parent is not None
    assert theirs.parent.trace_id == 1
    assert dict(theirs.context.trace_state) == ({"a": "b"} if state == "a=b" else {})


# Errors


def errors_of(*spans: ReadableSpan) -> list[tuple[Any, Any]]:
    """Return the class and the code of what each span failed with."""
    assert {span.status.status_code for span in spans} == {StatusCode.ERROR}
    return [
        ((span.attributes or {})["error.type"], (span.attributes or {}).get("wsmux.error.code"))
        for span in spans
    ]


@pytest.mark.parametrize(
    ("init", "ours", "theirs"),
    [
        ("declared", "BAD", ("RiverError", "BAD")),
        ("undeclared", "UNCAUGHT_ERROR", ("RiverError", "WORSE")),
        ("any other", "UNCAUGHT_ERROR", ("LookupError", None)),
    ],
)
def test_what_a_handler_raises_is_noted_by_class_and_code(
    traced: Traced, client: rpc.Client, init: str, ours: str, theirs: tuple[str, str | None]
) -> None:
    with traced.span(), pytest.raises(rpc.RiverError):
        client.rpc("test", "fails", init, WAIT)
    spans = traced.of("fails")
    assert errors_of(*spans) == [("RiverError", ours), theirs]
    for span in spans:
        assert not any(word in span.to_json() for word in ("as declared", "a secret"))


def test_an_error_within_a_stream_is_noted(traced: Traced, client: rpc.Client) -> None:
    with traced.span(), client.stream("test", "halves", None) as halves:
        halves.write(1)
        with pytest.raises(rpc.RiverError):
            halves.read(WAIT)
        halves.write(2)
        halves.close_write()
        assert list(halves) == [1]
    ours, _ = traced.of("halves")
    assert errors_of(ours) == [("RiverError", "BAD")]


def test_a_call_out_of_time_has_failed(traced: Traced, client: rpc.Client, gate: Gate) -> None:
    with traced.span():
        call = client.submit("test", "hangs", None, WAIT)
        assert gate.entered.wait(WAIT)
        end_time_of(call)
        with pytest.raises(TimeoutError):
            call.result()
    ours, _ = traced.of("hangs")
    assert errors_of(ours) == [("TimeoutError", None)]


def test_a_call_that_its_caller_leaves_has_not_failed(
    traced: Traced, client: rpc.Client, gate: Gate
) -> None:
    with traced.span(), client.subscribe("test", "watch", None) as watch:
        assert watch.read(WAIT) == "first"
    ours, _ = traced.of("watch")
    assert ours.status.status_code is StatusCode.UNSET


def test_a_call_that_is_lost_has_failed_and_so_has_one_after_the_end(
    traced: Traced, client: rpc.Client, gate: Gate
) -> None:
    with traced.span():
        watch = client.subscribe("test", "watch", None)
        assert watch.read(WAIT) == "first"
        client.close()
        with pytest.raises(rpc.RiverError):
            client.rpc("test", "same", 1, WAIT)
    wait_for(lambda: len(traced.ended()) == 4)
    lost, late = (traced.ended()[f"river.client.test.{name}"] for name in ("watch", "same"))
    assert errors_of(lost, late) == 2 * [("RiverError", UNEXPECTED_DISCONNECT)]


# The application's own code runs where a span ends


class Calling(SpanProcessor):
    """Call the client when its span ends, then fail."""

    def __init__(self, client: rpc.Client) -> None:
        self._client = client
        self.calls: list[rpc.PendingCall] = []

    def on_end(self, span: ReadableSpan) -> None:
        if span.name.startswith("river.client"):
            with trace.use_span(trace.INVALID_SPAN):
                self.calls.append(self._client.submit("test", "same", 2, WAIT))
            raise LookupError("of the processor")


def test_what_is_done_with_ended_spans_may_call_and_fail(
    traced: Traced, client: rpc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    calling = Calling(client)
    traced.provider.add_span_processor(calling)
    with caplog.at_level(logging.ERROR, "wsmux.rpc"), traced.span():
        finish(client, "same")
        wait_for(lambda: calling.calls)
        assert calling.calls[0].result(WAIT) == 2
        wait_for(lambda: "could not be ended" in caplog.text)
        finish(client, "count")


# Who does not trace


def test_nothing_of_it_is_imported_for_who_does_not_use_it() -> None:
    program = """
import sys
from wsmux import rpc
from wsmux.rpc.session.session import Session
send = Session.send
def traced(self, packed, **fields):  # as a client that traces
    if fields.get("service"):
        fields["tracing"] = ("00-1-2-01", "")
    send(self, packed, **fields)
Session.send = traced
service = rpc.Service("test")
service.rpc(name="same")(lambda ctx, init: init)
with rpc.serve([service]) as server, rpc.connect(server.url) as client:
    assert client.rpc("test", "same", 1, 20) == 1
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


def test_a_generator_that_waits_keeps_its_span(traced: Traced) -> None:
    """Each part of it runs in the span, in whichever thread, and the last part ends it."""
    service = rpc.Service("test")
    seen: list[trace.SpanContext] = []

    @service.subscription()
    def ticks(ctx: rpc.Context, init: Any) -> Iterator[Any]:
        for number in range(3):
            seen.append(trace.get_current_span().get_span_context())
            yield number
            yield from ctx.wait(timeout=0.01)
            assert "river.server.test.ticks" not in traced.ended()

    with rpc.serve([service]) as server, rpc.connect(server.url) as client:
        with traced.span():
            assert list(client.subscribe("test", "ticks", None, WAIT)) == [0, 1, 2]
        _, theirs = traced.of("ticks")
    assert {context.span_id for context in seen} == {theirs.context.span_id}
    assert len(seen) == 3
