"""Look inside connections, streams and servers: the one place that knows where their state is."""

from __future__ import annotations

from wsmux.mux.connection import Connection
from wsmux.mux.multiplexer import Multiplexer
from wsmux.mux.stream import Stream
from wsmux.mux.stream_record import StreamRecord
from wsmux.rpc import RpcServer

__all__ = ["multiplexer_of", "record_of", "workers_held", "writers_waiting"]


def multiplexer_of(connection: Connection) -> Multiplexer:
    """Return what a connection is made of."""
    return connection._multiplexer


def record_of(stream: Stream) -> StreamRecord:
    """Return what a connection knows of a stream."""
    return stream._record


def writers_waiting(server: RpcServer) -> int:
    """Return how many handlers of a River server wait for room in a send buffer."""
    engine = server.handler._engine
    with engine.mutex:
        records = list(engine._records.values())
        return sum(len(each.room.parked) + len(each.waiting_runs) for each in records)


def workers_held(server: RpcServer) -> int:
    """Return how many handlers of a River server hold a worker."""
    return server.handler._engine.dispatcher._shares.running
