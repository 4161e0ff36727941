"""Make OpenTelemetry spans for both ends of a call, joined by the wire's field ``tracing``.

A client makes a span if its caller has a current one, and a server if the client has sent one. An
application with a current span has imported OpenTelemetry, so it is not imported for any other.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Parker

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["ClientSpan", "ServerSpan", "client_span", "has_current_span", "server_span"]

# The wire's ``tracing``: ``traceparent`` and ``tracestate`` of W3C's Trace Context.
Tracing = tuple[str, str]

# Longest trace state that is passed on, in characters. It is the length that everybody has to pass
# on (section 3.3.1.5); a longer one may be left out.
MAX_STATE = 512

_log = logger("wsmux.rpc")


def has_current_span() -> bool:
    """Return whether calls of this thread are traced."""
    # While another thread imports the module, it has no spans yet, and perhaps no such function.
    current = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    return current is not None and current().get_span_context().is_valid


class ClientSpan(Parker):
    """The span of a client's call.

    It is ended without the mutex, together with the threads that are woken, because ending a span
    runs code of the application.

    Attributes:
        tracing: the fields to send to the server.
    """

    __slots__ = ("_end", "_error", "_name", "_span", "tracing")

    def __init__(self, name: str, span: Span, tracing: Tracing) -> None:
        self._name = name
        self._span = span
        self._error: Exception | None = None
        self._end = 0
        self.tracing = tracing

    def failed(self, error: Exception) -> None:
        """Record the error of the call, unless there is one already."""
        if self._error is None:
            self._error = error

    def over(self) -> None:
        """Record that the call ends now."""
        self._end = time.time_ns()

    def unpark(self) -> None:
        """End the span."""
        from ...diagnostics import spans

        try:
            spans.end_span(self._span, self._error, self._end)
        except Exception:  # raised by the application, in a thread of this package
            _log.exception("the span %s could not be ended", self._name)

    def park(self, deadline: Deadline) -> None:
        raise AssertionError("no thread waits for a span")


def client_span(service: str, procedure: str) -> ClientSpan:
    """Start the span of a call, as a child of the current one."""
    from ...diagnostics import spans

    name = f"river.client.{service}.{procedure}"
    return ClientSpan(name, *spans.client_span(name, spans.called(service, procedure)))


class ServerSpan:
    """The span of a server's call, for as long as its handler runs or waits."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the current span of a block; an exception in the block ends it."""
        from ...diagnostics import spans

        try:
            with spans.in_span(self._span):
                yield
        except BaseException as error:
            spans.end_span(self._span, error)
            raise

    def end(self) -> None:
        """End the span, after the handler has returned."""
        self._span.end()


def server_span(
    service: str, procedure: str, client_id: str, tracing: Tracing
) -> ServerSpan | None:
    """Start the span of a call, as a child of the client's.

    Returns ``None`` if OpenTelemetry is not in use, or the client has sent no valid context.
    """
    if sys.modules.get("opentelemetry.trace") is None:
        return None
    from ...diagnostics import spans

    name = f"river.server.{service}.{procedure}"
    attributes = spans.called(service, procedure) | {"wsmux.client.id": client_id}
    parent, state = tracing
    span = spans.server_span(name, attributes, parent, state if len(state) <= MAX_STATE else "")
    return None if span is None else ServerSpan(span)
