"""Trace opened streams and River calls with OpenTelemetry.

It costs nothing unless imported; without a configured SDK, it creates the API's no-op spans. Names
and attributes follow OpenTelemetry's conventions for RPC.

Neither a stream nor a call of the library's own River client carries trace context: the spans of
the two ends are not linked, unless the application propagates the context itself.
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
    """Record the class and code of a failure, but not its text, which may contain data."""
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
        connection: the connection on which to open it.
        name: part of the span's name, after ``wsmux``; use a few fixed texts, no data.
        timeout: seconds that opening may block.
        tracer: the global provider's tracer by default.

    Raises: as ``connection.open_stream``. An error in the block resets the stream.
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
    """Return a middleware for River servers: ``rpc.serve(services, middleware=[middleware()])``.

    Each handled call is a span of kind server, which is current while the handler runs.
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
    """Call a procedure of a River client in a span of kind client, and return its result.

    ::

        size = call(client.files.size, "README.md", service="files", method="size", timeout=5)

    For procedures that return at once (stream, upload, subscription) the span covers only the
    opening.
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
