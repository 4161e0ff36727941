"""Look inside connections, machines, servers and clients: no other place knows their state."""

from __future__ import annotations

import copy
import socket
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from wsmux.config import Config
from wsmux.diagnostics import stall_watch
from wsmux.exceptions import WsmuxError
from wsmux.mux.connection import Connection
from wsmux.mux.multiplexer import Multiplexer
from wsmux.mux.stream import Stream
from wsmux.mux.stream_record import StreamRecord
from wsmux.runtime.deadline import Deadline
from wsmux.runtime.memory import Holder, process_memory
from wsmux.runtime.parking import OneShotEvent, Parker, wake
from wsmux.transport.message_transport import MessageTransport

if TYPE_CHECKING:
    import pytest

    from wsmux.endpoints.acceptor import Acceptor
    from wsmux.rpc.client import Client
    from wsmux.rpc.engine.call_streams import CallBase
    from wsmux.rpc.engine.client_calls import PendingCall
    from wsmux.rpc.engine.client_engine import ClientEngine
    from wsmux.rpc.engine.server_engine import ServerEngine
    from wsmux.rpc.server import RpcHandler
    from wsmux.rpc.session.session import SendBuffer, Session
    from wsmux.rpc.session.session_registry import Sessions
    from wsmux.rpc.testing import Link
    from wsmux.runtime.parking import WaitQueue
    from wsmux.runtime.thread_pool import ThreadPool
    from wsmux.transport.fair_queue import SendRateEstimator
    from wsmux.tunnel import TunnelServer
    from wsmux.tunnel.request_head import Request
    from wsmux.tunnel.supervisor import Supervisor

__all__ = [
    "Counted",
    "alarm_of",
    "asked_at",
    "call_of",
    "calls_of",
    "channel_of",
    "client_engine_of",
    "connections_made",
    "connections_of",
    "counted",
    "early_credit_of",
    "end_time_of",
    "engine_of",
    "expiries_of",
    "forget_process_memory",
    "half_of",
    "io_thread_rests",
    "is_led",
    "borrowed",
    "listener_of",
    "lock_of",
    "lost_within",
    "memory_reported",
    "multiplexer_of",
    "on_end",
    "on_led_round",
    "on_poll",
    "open_next",
    "orphans_of",
    "pauses",
    "plain_socket_of",
    "pools_of",
    "readers_waiting",
    "record_of",
    "remember",
    "request_kinds_of",
    "requests_waiting",
    "send_buffer_of",
    "send_lock_of",
    "send_rate_of",
    "send_watcher_home",
    "sends_until",
    "session_records_of",
    "socket_of",
    "state_of",
    "stopping_of",
    "threads_resting",
    "waited_for",
    "waits_for_room",
    "wakeup_of",
    "watch_apart",
    "watch_rests",
    "workers_held",
    "writers_waiting",
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


def socket_of(connection: Connection) -> Any:
    """Return what a connection sends to and receives from."""
    return multiplexer_of(connection).transport._socket


def plain_socket_of(connection: Connection) -> socket.socket:
    """Return the socket of the system that a connection is over."""
    plain: socket.socket = socket_of(connection)._sock
    return plain


def wakeup_of(connection: Connection) -> int:
    """Return the descriptor that tells a connection's I/O thread to look."""
    return multiplexer_of(connection).transport._wakeup.fd


def pauses(connection: Connection) -> bool:
    """Return whether a connection does not read, for want of memory."""
    return multiplexer_of(connection).transport._paused


def is_led(connection: Connection) -> bool:
    """Return whether a thread that waits in a read receives for the I/O thread."""
    return borrowed(multiplexer_of(connection).transport)


def sends_until(connection: Connection) -> float:
    """Return when a connection that closes gives up what is queued, and the closing handshake."""
    transport = multiplexer_of(connection).transport
    with transport.mutex:
        return transport._give_up or 0.0


def borrowed(transport: MessageTransport | None) -> bool:
    """Return whether a transport has lent its socket to a thread that waits."""
    return transport is not None and transport._poller.lent is not None


def on_led_round(patch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Call ``action`` in the thread that receives for the I/O thread, within each round."""
    led = MessageTransport._lead_round

    def leads(transport: MessageTransport, parker: Parker) -> bool:
        handle = transport.handle

        def handles(messages: Any) -> None:
            action()
            assert handle is not None
            handle(messages)

        transport.handle = handles
        try:
            return led(transport, parker)
        finally:
            if transport.handle is handles:
                transport.handle = handle

    patch.setattr(MessageTransport, "_lead_round", leads)


def send_rate_of(connection: Connection) -> SendRateEstimator:
    """Return what a connection knows of the pace at which its socket takes bytes."""
    return multiplexer_of(connection).queue._send_rate


def waits_for_room(connection: Connection, writer: WaitQueue) -> bool:
    """Return whether writers wait for room in the send queue of a connection."""
    return writer in multiplexer_of(connection).queue._room


def asked_at(connection: Connection) -> float | None:
    """Return when a connection last asked its silent peer for a sign of life."""
    return multiplexer_of(connection).transport.keep_alive._asked


def early_credit_of(connection: Connection) -> int:
    """Return how much a connection of the native wire may send before an answer to its opens."""
    protocol: Any = multiplexer_of(connection).protocol
    return protocol._early.given


def open_next(connection: Connection, stream_id: int) -> None:
    """Have a connection open its next stream under this id."""
    protocol: Any = multiplexer_of(connection).protocol
    with multiplexer_of(connection).mutex:
        if connection.protocol == "yamux":
            protocol._next_id = stream_id
        elif connection.protocol == "bymux":
            protocol._next = stream_id
        else:
            protocol._ids.next = stream_id


def on_poll(patch: pytest.MonkeyPatch, action: Callable[[MessageTransport], object]) -> None:
    """Call ``action`` with a transport before each time it waits for its socket."""
    wait = MessageTransport.wait

    def waits(transport: MessageTransport, only_look: bool = False) -> None:
        action(transport)
        wait(transport, only_look)

    patch.setattr(MessageTransport, "wait", waits)


def on_end(patch: pytest.MonkeyPatch, action: Callable[[MessageTransport], object]) -> None:
    """Call ``action`` with a transport when it has noted its end; its mutex is held."""
    end = MessageTransport._end_locked

    def ends(transport: MessageTransport, error: WsmuxError) -> None:
        end(transport, error)
        action(transport)

    patch.setattr(MessageTransport, "_end_locked", ends)


def forget_process_memory() -> None:
    """Begin to count the memory of this process anew, under a new lock."""
    process_memory._reset()


def memory_reported(holder: Holder) -> int | None:
    """Return the bytes that an object has reported as held for its peer, if it has any."""
    return process_memory._held.get(holder)


def watch_apart(patch: pytest.MonkeyPatch) -> None:
    """Give the watches of stalls that follow a thread of their own."""
    patch.setattr(stall_watch, "_thread", stall_watch._Thread())


def half_of(stream: Stream) -> Any:
    """Return what the machine of a wire knows of a stream, if it still does."""
    protocol: Any = multiplexer_of(stream.connection).protocol
    return protocol._streams.get(record_of(stream).id)


# What needs no copy; most of what a machine remembers.
PLAIN = frozenset({bool, bytes, float, int, str, type(None)})


def state_of(thing: Any, *ignored: str) -> Any:
    """Return all that a thing remembers, to be compared with what it remembers later.

    Attributes of these names are left out, at any depth, and so are functions and configurations.
    """
    if type(thing) in PLAIN:
        return thing
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
        name: state_of(value, *ignored) for name, value in values.items() if not callable(value)
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


def lock_of(server: Acceptor) -> threading.Lock:
    """Return the lock that a shutdown takes."""
    return server._lock


def listener_of(server: Acceptor) -> socket.socket:
    """Return the socket that a server listens with."""
    return server._listener


def request_kinds_of(server: TunnelServer) -> dict[str, Callable[[Stream, Request], object]]:
    """Return what a server of tunnels does for each kind of request."""
    return cast(Any, server)._kinds


def engine_of(handler: RpcHandler) -> ServerEngine:
    """Return what serves the calls of a handler."""
    return handler._engine


def calls_of(handler: RpcHandler) -> int:
    """Return how many calls a handler holds, of all its sessions."""
    engine = engine_of(handler)
    with engine.mutex:
        return sum(map(len, engine.dispatcher._tables.values()))


def orphans_of(handler: RpcHandler, client_id: str) -> int:
    """Return how many handlers run for cancelled calls of a client."""
    tables = engine_of(handler).dispatcher._tables.items()
    (table,) = (table for record, table in tables if record.session.peer_id == client_id)
    return table._orphans


def connections_of(handler: RpcHandler) -> int:
    """Return how many connections a handler serves, those in their handshake included."""
    return len(engine_of(handler)._channels)


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


def watch_rests(handler: RpcHandler) -> bool:
    """Return whether the thread that keeps a handler's times waits for one."""
    return engine_of(handler)._watch.occupied()


def pools_of(handler: RpcHandler) -> tuple[ThreadPool, ThreadPool]:
    """Return the threads that run a handler's calls, and those that clean up behind them."""
    engine = engine_of(handler)
    return engine.dispatcher._workers, engine.replies._cleaners


def threads_resting(pool: ThreadPool) -> int:
    """Return how many threads of a pool wait for something to do."""
    return len(pool._parked)


def send_watcher_home(pool: ThreadPool) -> bool:
    """Let the watcher of a pool end now; return whether there was one."""
    wakes: list[Parker] = []
    with pool._lock:
        watched, pool._resting = pool._watched, False
        pool._watcher.notify_forced(wakes)
    wake(wakes)
    return watched


def client_engine_of(client: Client) -> ClientEngine:
    """Return what makes the calls of a client."""
    return client._engine


def channel_of(client: Client) -> MessageTransport | None:
    """Return the present connection of a client."""
    return client_engine_of(client).channel


def io_thread_rests(client: Client) -> bool:
    """Return whether a client's thread waits for orders, without a connection."""
    return client_engine_of(client).idle.occupied()


def requests_waiting(client: Client) -> int:
    """Return how many requests of a client wait for room in its send buffer."""
    return len(client_engine_of(client)._room.parked)


def call_of(end: Any) -> CallBase:
    """Return the call that a client's stream, or a handler's context, is an end of."""
    call: CallBase = end._call
    return call


def end_time_of(call: PendingCall) -> None:
    """Let the time of a call be over."""
    call.deadline = Deadline(0)


def readers_waiting(end: Any) -> int:
    """Return how many threads wait for a message of a call."""
    readers = call_of(end).reader._readers
    return 0 if readers is None else len(readers.parked)


def send_buffer_of(session: Session) -> SendBuffer:
    """Return what a session has sent, and counts."""
    return session._send_buffer


def remember(registry: Sessions, session: Session) -> None:
    """Put a session into a registry, as if its client had begun it there."""
    registry._sessions[session.peer_id] = session


def expiries_of(handler: RpcHandler) -> int:
    """Return how many calls a handler is to end when their callers' time is up."""
    engine = engine_of(handler)
    with engine.mutex:
        tables = engine.dispatcher._tables.values()
        return sum(call.expiry is not None for table in tables for call in table._open.values())


def alarm_of(handler: RpcHandler) -> float:
    """Return when the thread that watches times next looks for the calls of a handler."""
    return engine_of(handler).dispatcher._alarm_due


def connections_made(link: Link) -> int:
    """Return how many connections the two ends of a link have had."""
    return len(link._threads)


def stopping_of(supervisor: Supervisor) -> OneShotEvent:
    """Return what is set when a supervisor is being closed."""
    return supervisor._stopping


def lost_within(supervisor: Supervisor, timeout: float) -> bool:
    """Wait until a supervisor has no connection; return whether that happened in time."""
    with supervisor._changed:
        return supervisor._changed.wait_for(lambda: supervisor._connection is None, timeout)
