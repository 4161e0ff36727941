"""Trace with the real SDK, and keep the spans in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from .waiting import wait_for

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span

__all__ = ["Traced"]


class Traced:
    """The spans of a process whose provider is this one's."""

    def __init__(self) -> None:
        sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs opentelemetry-sdk")
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._exporter = InMemorySpanExporter()
        self.provider = sdk.TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    @contextmanager
    def span(self) -> Iterator[Span]:
        """Run the block in a span of the application."""
        with self.tracer.start_as_current_span("application") as span:
            yield span

    def spans(self) -> tuple[ReadableSpan, ...]:
        """Return the spans that have ended, in that order."""
        return self._exporter.get_finished_spans()

    def ended(self) -> dict[str, ReadableSpan]:
        """Return the spans that have ended, by their names."""
        return {span.name: span for span in self.spans()}

    def of(self, procedure: str) -> tuple[ReadableSpan, ReadableSpan]:
        """Wait for both spans of a call; return the client's and the server's."""
        names = f"river.client.test.{procedure}", f"river.server.test.{procedure}"
        wait_for(lambda: self.ended().keys() >= set(names))
        client, server = (self.ended()[name] for name in names)
        return client, server
