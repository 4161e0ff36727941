"""Trace opened streams and River calls with OpenTelemetry.

River calls are traced without this module: where the caller has a current span, the call is a span
of its own, ``river.client.SERVICE.PROCEDURE``, whose context goes to the server; the handler runs
in its child, ``river.server.SERVICE.PROCEDURE``, if OpenTelemetry is in use there. This module
makes spans where there is none yet, or with a tracer other than the global provider's.

It costs nothing unless imported; without a configured SDK, it creates the API's no-op spans. Names
and attributes follow OpenTelemetry's conventions for RPC. Of an error the class and the code are
recorded, not the text, which may contain data. A stream carries no trace context: the spans of its
two ends are not linked, unless the application propagates the context itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .runtime.hints import how_to_install

try:
    from opentelemetry.trace import SpanKind, Tracer
except ImportError as error:  # pragma: no cover - depends on what is installed
    text = f"wsmux.opentelemetry needs opentelemetry-api: {how_to_install('tracing')}"
    raise ImportError(text) from error

from .diagnostics.spans import called, current_span
from .mux.connection import Connection
from .mux.stream import Stream

__all__ = ["call", "middleware", "open_stream"]


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
    attributes = {
        "network.protocol.name": connection.protocol,
        "wsmux.connection": connection.name,
    }
    with (
        current_span(f"wsmux {name}", SpanKind.CLIENT, attributes, tracer=tracer) as span,
        connection.open_stream(timeout) as stream,
    ):
        span.set_attribute("wsmux.stream.id", stream.id)
        yield stream


def middleware(tracer: Tracer | None = None) -> Callable[..., Any]:
    """Return a middleware for River servers: ``rpc.serve(services, middleware=[middleware()])``.

    Each handled call is a span of kind server, which is current while the handler runs, whether its
    client sent a trace context or not; if it did, both spans belong to one trace.
    """

    def traced(ctx: Any, init: Any, proceed: Callable[[], Any]) -> Any:
        name = f"{ctx.service}/{ctx.procedure}"
        attributes = called(ctx.service, ctx.procedure) | {"wsmux.client.id": ctx.client_id}
        with current_span(name, SpanKind.SERVER, attributes, tracer=tracer):
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
    attributes = called(service, method)
    with current_span(f"{service}/{method}", SpanKind.CLIENT, attributes, tracer=tracer):
        return procedure(*arguments, **options)
