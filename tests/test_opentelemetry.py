"""Trace streams and River calls with the real SDK, exporting to memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import wsmux
from wsmux import rpc

from .helpers.traced import Traced
from .helpers.wsgi_apps import WAIT, talking

pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")

from opentelemetry.trace import SpanKind, StatusCode

from wsmux.opentelemetry import call, middleware, open_stream

STREAM = {"type": "integer"}

files = rpc.Service("files")


@files.rpc(init=STREAM, response=STREAM)
def half(ctx: Any, init: int) -> int:
    if init % 2:
        raise rpc.RiverError("ODD", f"no half of {init}")
    return init // 2


@files.subscription(init=STREAM, response=STREAM)
def count(ctx: Any, init: int) -> Any:
    yield from range(init)


@pytest.fixture
def traced() -> Traced:
    return Traced()


def test_a_stream_is_a_span(traced: Traced) -> None:
    with talking(lambda stream: stream.write(stream.read(5))) as connection:
        with open_stream(connection, "files", timeout=WAIT, tracer=traced.tracer) as stream:
            stream.write(b"hello")
            assert stream.read(5) == b"hello"
        assert stream.closed
    [span] = traced.spans()
    assert (span.name, span.kind) == ("wsmux files", SpanKind.CLIENT)
    assert span.attributes["network.protocol.name"] == "wsmux"
    assert span.attributes["wsmux.stream.id"] == stream.id
    assert span.status.status_code is StatusCode.UNSET


def test_a_reset_is_an_error_of_the_span_and_resets_nothing_else(traced: Traced) -> None:
    def read_all(connection: wsmux.Connection) -> None:
        with open_stream(connection, timeout=WAIT, tracer=traced.tracer) as stream:
            stream.read()

    with (
        talking(lambda stream: stream.reset(70)) as connection,
        pytest.raises(wsmux.StreamReset),
    ):
        read_all(connection)
    [span] = traced.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "StreamReset"
    assert span.attributes["wsmux.error.code"] == 70
    assert span.attributes["wsmux.error.side"] == "remote"


def test_calls_are_spans_at_both_ends(traced: Traced) -> None:
    layers = [middleware(traced.tracer)]
    names = {"service": "files", "tracer": traced.tracer}
    with (
        rpc.serve([files], middleware=layers) as server,
        rpc.connect(server.url, schema=[files]) as client,
    ):
        assert call(client.files.half, 4, method="half", timeout=WAIT, **names) == 2
        with pytest.raises(rpc.RiverError):
            call(client.files.half, 3, method="half", timeout=WAIT, **names)
        assert list(call(client.files.count, 3, method="count", **names)) == [0, 1, 2]
    spans = traced.spans()
    served = [span for span in spans if span.kind is SpanKind.SERVER]
    made = [span for span in spans if span.kind is SpanKind.CLIENT]
    assert [span.name for span in made] == ["files/half", "files/half", "files/count"]
    assert sorted(span.name for span in served) == ["files/count", "files/half", "files/half"]
    assert all(span.attributes["rpc.system"] == "river" for span in spans)
    failed = [span for span in spans if span.status.status_code is StatusCode.ERROR]
    codes = sorted(span.attributes["wsmux.error.code"] for span in failed)
    assert codes == ["ODD", "UNCAUGHT_ERROR"]  # the procedure does not declare it to clients
    assert not any("no half" in str(span.attributes) for span in spans)


def test_without_a_configured_sdk_nothing_is_recorded() -> None:
    with (
        talking(lambda stream: stream.close()) as connection,
        open_stream(connection, timeout=WAIT) as stream,
    ):
        assert stream.read() == b""


def test_who_does_not_trace_does_not_import_it() -> None:
    program = (
        "import sys, wsmux, wsmux.rpc; c, s = wsmux.pair(); c.close(); s.close(); "
        "print([m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
