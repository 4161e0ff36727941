"""Look inside a connection and a stream: the one place that knows where their state is."""

from __future__ import annotations

from wsmux.mux.connection import Connection
from wsmux.mux.multiplexer import Multiplexer
from wsmux.mux.stream import Stream
from wsmux.mux.stream_record import StreamRecord

__all__ = ["multiplexer_of", "record_of"]


def multiplexer_of(connection: Connection) -> Multiplexer:
    """Return what a connection is made of."""
    return connection._multiplexer


def record_of(stream: Stream) -> StreamRecord:
    """Return what a connection knows of a stream."""
    return stream._record
