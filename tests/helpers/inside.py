"""Look inside connections, machines and servers: the one place that knows where their state is."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from wsmux.config import Config
from wsmux.mux.connection import Connection
from wsmux.mux.multiplexer import Multiplexer
from wsmux.mux.stream import Stream
from wsmux.mux.stream_record import StreamRecord

if TYPE_CHECKING:
    from wsmux.endpoints.acceptor import Acceptor
    from wsmux.rpc.engine.server_engine import ServerEngine
    from wsmux.rpc.server import RpcHandler

__all__ = [
    "Counted",
    "calls_of",
    "counted",
    "engine_of",
    "waited_for",
    "workers_held",
    "writers_waiting",
    "multiplexer_of",
    "record_of",
    "send_lock_of",
    "session_records_of",
    "state_of",
]


def multiplexer_of(connection: Connection) -> Multiplexer:
    """Return what a connection is made of."""
    return connection._multiplexer


def send_lock_of(connection: Connection) -> threading.Lock:
    """Return the lock that whoever sends holds."""
    return connection._multiplexer.queue._send_lock


def record_of(stream: Stream) -> StreamRecord:
    """Return what a connection knows of a stream."""
    return stream._record


def state_of(thing: Any, *ignored: str) -> Any:
    """Return all that a thing remembers, to be compared with what it remembers later.

    Attributes of these names are left out, at any depth, and so are functions and configurations.
    """
    if isinstance(thing, dict):
        return {key: state_of(value, *ignored) for key, value in thing.items()}
    if isinstance(thing, list | deque):
        return [state_of(value, *ignored) for value in thing]
    own = type(thing).__module__.startswith("wsmux.")
    if not own or isinstance(thing, tuple | Enum | Config):
        return copy.copy(thing)
    names = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
    names += getattr(thing, "__dict__", ())
    values = {name: getattr(thing, name) for name in names if name not in ignored}
    return {
        name: state_of(value, *ignored)
        for name, value in values.items()
        if not isinstance(value, Callable)
    }


class Counted(NamedTuple):
    """What a server counts of its clients.

    Attributes:
        guests: the connections, those in their handshake included.
        unfinished: those whose handshake is not complete.
        held: the bytes of heads that have come of these.
        handshakes, connections: how many each address has.
    """

    guests: int
    unfinished: int
    held: int
    handshakes: dict[str, int]
    connections: dict[str, int]


def counted(server: Acceptor) -> Counted:
    """Return what a server counts at this moment."""
    counts = server._admission
    with counts._lock:
        return Counted(
            len(counts._guests),
            len(counts._opening),
            counts._held,
            dict(counts._handshakes),
            dict(counts._connections),
        )


def waited_for(server: Acceptor) -> int:
    """Return for how many clients a server waits that are not served yet."""
    return len(server._opening)


def engine_of(handler: RpcHandler) -> ServerEngine:
    """Return what serves the calls of a handler."""
    return handler._engine


def calls_of(handler: RpcHandler) -> int:
    """Return how many calls a handler holds, of all its sessions."""
    engine = engine_of(handler)
    with engine.mutex:
        return sum(map(len, engine.dispatcher._tables.values()))


def session_records_of(handler: RpcHandler) -> list[Any]:
    """Return what a handler knows of each of its sessions."""
    return list(engine_of(handler)._records.values())


def writers_waiting(handler: RpcHandler) -> int:
    """Return how many handlers wait for room in a send buffer."""
    with engine_of(handler).mutex:
        records = session_records_of(handler)
        return sum(len(each.room.parked) + len(each.waiting_runs) for each in records)


def workers_held(handler: RpcHandler) -> int:
    """Return how many handlers hold a worker."""
    return engine_of(handler).dispatcher._shares.running
