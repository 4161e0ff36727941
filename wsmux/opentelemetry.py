"""Trace opened streams and River calls by OpenTelemetry.

Who does not import this module pays nothing; and without a configured SDK, what it makes are the
API's own empty spans. Names and attributes follow OpenTelemetry's conventions for RPC.

A stream, and a River call of the library's own client, carries no trace context: spans of the two
ends are not joined, but by what the application sends itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .runtime.hints import how_to_install

try:
    from opentelemetry import trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
except ImportError as error:  # pragma: no cover - depends on what is installed
    text = f"wsmux.opentelemetry needs opentelemetry-api: {how_to_install('tracing')}"
    raise ImportError(text) from error

from .exceptions import WsmuxError
from .mux.connection import Connection
from .mux.stream import Stream

__all__ = ["call", "middleware", "open_stream"]


def _tracer(given: Tracer | None) -> Tracer:
    return trace.get_tracer("wsmux") if given is None else given


@contextmanager
def _failing(span: Span) -> Iterator[None]:
    """Note what a call failed with: its class and code, not its text, which may hold data."""
    try:
        yield
    except BaseException as error:
        span.set_attribute("error.type", type(error).__name__)
        code = getattr(error, "code", None)
        if isinstance(code, (str, int)):
            span.set_attribute("wsmux.error.code", code)
        side = getattr(error, "side", None)
        if isinstance(error, WsmuxError) and side is not None:
            span.set_attribute("wsmux.error.side", side)
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        raise


@contextmanager
def open_stream(
    connection: Connection,
    name: str = "stream",
    *,
    timeout: float | None = None,
    tracer: Tracer | None = None,
) -> Iterator[Stream]:
    """Open a stream and close it at the end of the block, all in one span.

    Args:
        connection: what carries it.
        name: what the span is called after ``wsmux``: one of a few texts, not data.
        timeout: seconds that opening may block.
        tracer: else the global provider's.

    Raises: as ``connection.open_stream``. The block's own error resets the stream.
    """
    with (
        _tracer(tracer).start_as_current_span(
            f"wsmux {name}",
            kind=SpanKind.CLIENT,
            record_exception=False,
            set_status_on_exception=False,
        ) as span,
        _failing(span),
    ):
        span.set_attribute("network.protocol.name", connection.protocol)
        span.set_attribute("wsmux.connection", connection.name)
        with connection.open_stream(timeout) as stream:
            span.set_attribute("wsmux.stream.id", stream.id)
            yield stream


def middleware(tracer: Tracer | None = None) -> Callable[..., Any]:
    """Return a layer for River servers: ``rpc.serve(services, middleware=[middleware()])``.

    Each handled call is a span of kind server, current while the handler runs.
    """

    def traced(ctx: Any, init: Any, proceed: Callable[[], Any]) -> Any:
        with (
            _tracer(tracer).start_as_current_span(
                f"{ctx.service}/{ctx.procedure}",
                kind=SpanKind.SERVER,
                attributes={
                    "rpc.system": "river",
                    "rpc.service": ctx.service,
                    "rpc.method": ctx.procedure,
                    "wsmux.client.id": ctx.client_id,
                },
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
            _failing(span),
        ):
            return proceed()

    return traced


def call(
    procedure: Callable[..., Any],
    *arguments: Any,
    service: str,
    method: str,
    tracer: Tracer | None = None,
    **options: Any,
) -> Any:
    """Call a procedure of a River client in a span of kind client, and return what it returns.

    ::

        size = call(client.files.size, "README.md", service="files", method="size", timeout=5)

    For the kinds that return at once (stream, upload, subscription) the span is the opening.
    """
    with (
        _tracer(tracer).start_as_current_span(
            f"{service}/{method}",
            kind=SpanKind.CLIENT,
            attributes={"rpc.system": "river", "rpc.service": service, "rpc.method": method},
            record_exception=False,
            set_status_on_exception=False,
        ) as span,
        _failing(span),
    ):
        return procedure(*arguments, **options)
