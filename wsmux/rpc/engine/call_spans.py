"""Make a span of OpenTelemetry for each end of a call, and join the two by the wire's ``tracing``.

A client makes one if its caller has a current span, a server if the client has told of one. As an
application that has a current span has imported OpenTelemetry, nothing of it is imported for one
that has not.
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

# Characters of a trace state that is parsed and passed on; as many as everybody has to (section
# 3.3.1.5). What is longer may be left out.
MAX_STATE = 512

_log = logger("wsmux.rpc")


def has_current_span() -> bool:
    """Return whether calls of this thread are traced."""
    # What another thread imports at this moment has no spans yet, and perhaps no function.
    current = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    return current is not None and current().get_span_context().is_valid


class ClientSpan(Parker):
    """The span of a client's call.

    It is ended with the threads that are woken, after the mutex was released: what becomes of an
    ended span is the application's.

    Attributes:
        tracing: what the server is told.
    """

    __slots__ = ("_end", "_error", "_name", "_span", "tracing")

    def __init__(self, name: str, span: Span, tracing: Tracing) -> None:
        self._name = name
        self._span = span
        self._error: Exception | None = None
        self._end = 0
        self.tracing = tracing

    def failed(self, error: Exception) -> None:
        """Note what the call failed with; the first counts."""
        if self._error is None:
            self._error = error

    def over(self) -> None:
        """Note that the call is over now."""
        self._end = time.time_ns()

    def unpark(self) -> None:
        """End the span."""
        from ...diagnostics import spans

        try:
            spans.end_span(self._span, self._error, self._end)
        except Exception:  # of the application's, in a thread of ours
            _log.exception("the span %s could not be ended", self._name)

    def park(self, deadline: Deadline) -> None:
        raise AssertionError("nobody waits for a span")


def client_span(service: str, procedure: str) -> ClientSpan:
    """Begin the span of a call, a child of the current one."""
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
        """Make it the current span of the block; what the block raises ends it."""
        from ...diagnostics import spans

        try:
            with spans.in_span(self._span):
                yield
        except BaseException as error:
            spans.end_span(self._span, error)
            raise

    def end(self) -> None:
        """End it: the handler has returned."""
        self._span.end()


def server_span(
    service: str, procedure: str, client_id: str, tracing: Tracing
) -> ServerSpan | None:
    """Begin the span of a call, a child of the client's.

    Returns ``None`` where OpenTelemetry is not in use, or the client has sent no valid context.
    """
    if sys.modules.get("opentelemetry.trace") is None:
        return None
    from ...diagnostics import spans

    name = f"river.server.{service}.{procedure}"
    attributes = spans.called(service, procedure) | {"wsmux.client.id": client_id}
    parent, state = tracing
    span = spans.server_span(name, attributes, parent, state if len(state) <= MAX_STATE else "")
    return None if span is None else ServerSpan(span)
