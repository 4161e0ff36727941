"""Make spans of OpenTelemetry, for calls of River and for whoever asks for one.

It imports OpenTelemetry, so it is imported only where that is in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..exceptions import WsmuxError

__all__ = ["called", "client_span", "current_span", "end_span", "in_span", "server_span"]

_W3C = TraceContextTextMapPropagator()


def _tracer(given: Tracer | None = None) -> Tracer:
    return trace.get_tracer("wsmux") if given is None else given


def called(service: str, method: str) -> dict[str, str]:
    """Return the attributes of a call's span, as OpenTelemetry's conventions for RPC have them."""
    return {"rpc.system": "river", "rpc.service": service, "rpc.method": method}


@contextmanager
def current_span(
    name: str,
    kind: SpanKind,
    attributes: dict[str, str],
    *,
    tracer: Tracer | None = None,
) -> Iterator[Span]:
    """Make a span of the block, and the current one; what the block raises is noted."""
    with _tracer(tracer).start_as_current_span(
        name,
        kind=kind,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            _note(span, error)
            raise


def _note(span: Span, error: BaseException) -> None:
    """Note what a call failed with: its class and code, not its text, which may hold data."""
    span.set_attribute("error.type", type(error).__name__)
    code = getattr(error, "code", None)
    if isinstance(code, (str, int)):
        span.set_attribute("wsmux.error.code", code)
    side = getattr(error, "side", None)
    if isinstance(error, WsmuxError) and side is not None:
        span.set_attribute("wsmux.error.side", side)
    span.set_status(Status(StatusCode.ERROR, type(error).__name__))


# The two ends of a call


def client_span(name: str, attributes: dict[str, str]) -> tuple[Span, tuple[str, str]]:
    """Begin a span, a child of the current one.

    Returns: the span, and the ``traceparent`` and ``tracestate`` that tell a server of it.
    """
    span = _tracer().start_span(name, kind=SpanKind.CLIENT, attributes=attributes)
    told: dict[str, str] = {}
    _W3C.inject(told, trace.set_span_in_context(span))
    return span, (told.get("traceparent", ""), told.get("tracestate", ""))


def end_span(span: Span, error: BaseException | None, at: int | None = None) -> None:
    """End a span, with an error if there is one, now or at a time in nanoseconds since 1970."""
    if error is not None:
        _note(span, error)
    span.end(at)


def server_span(
    name: str, attributes: dict[str, str], traceparent: str, tracestate: str
) -> Span | None:
    """Begin a span, a child of the client's; ``None`` if the client sent no valid context."""
    parent = _W3C.extract({"traceparent": traceparent, "tracestate": tracestate}, Context())
    if not trace.get_current_span(parent).get_span_context().is_valid:
        return None
    return _tracer().start_span(name, parent, kind=SpanKind.SERVER, attributes=attributes)


@contextmanager
def in_span(span: Span) -> Iterator[None]:
    """Make a span the current one of the block, at the end of which it goes on."""
    with trace.use_span(span, record_exception=False, set_status_on_exception=False):
        yield
