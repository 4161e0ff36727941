"""Make connections and end them, without the garbage collector; look at what stays.

``python -m tests.helpers.load.ended_connections WIRE COUNT HOW``, where HOW is how each ends, or
what uses it until then.
"""

from __future__ import annotations

import gc
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import wsmux
from wsmux import rpc
from wsmux.endpoints import stream_handlers
from wsmux.endpoints.bridge import RelayedHalf
from wsmux.mux.multiplexer import Multiplexer
from wsmux.mux.stream_record import StreamRecord
from wsmux.mux.stream_table import StreamTable
from wsmux.protocols.base import MuxProtocol
from wsmux.protocols.framing import Framing
from wsmux.recording.recorder import Recorder
from wsmux.rpc.engine.client_calls import PendingCall
from wsmux.rpc.engine.client_engine import ClientEngine
from wsmux.rpc.session.session import Session
from wsmux.runtime import thread_pool
from wsmux.transport.message_transport import MessageTransport
from wsmux.tunnel import Forwarder, Tcp, TunnelServer, parse_forward

from ..inside import multiplexer_of, plain_socket_of
from .far import echo
from .measuring import MB, WAIT, Process, report, wait_until

PARTS = (
    *(
        wsmux.Connection,
        wsmux.Stream,
        Multiplexer,
        MessageTransport,
        Framing,
        MuxProtocol,
        StreamTable,
        StreamRecord,
    ),
    *(Recorder, RelayedHalf, rpc.Client, ClientEngine, Session, PendingCall),
)

# Makes something and ends it; then tells whether its server has noticed.
Once = tuple[Callable[[], None], Callable[[], bool]]
Stand = AbstractContextManager[Once]

# Bytes written on each, for its buffers to grow.
BULK = bytes(300 * 1024)


def close(connection: wsmux.Connection) -> None:
    connection.close()


def abort(connection: wsmux.Connection) -> None:
    connection.abort()


def reset(connection: wsmux.Connection) -> None:
    """Have TCP say that the peer has vanished."""
    sock = plain_socket_of(connection)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.abort()


def break_a_rule(connection: wsmux.Connection) -> None:
    """Send what no wire knows, so that the server ends the connection for it."""
    with multiplexer_of(connection).mutex:
        multiplexer_of(connection).queue.add_data_locked([(b"\xff" * 16, b"")])
    multiplexer_of(connection).flush()
    assert connection.wait_closed(WAIT)


ENDS: dict[str, Callable[[wsmux.Connection], None]] = {
    "close": close,
    "abort": abort,
    "reset": reset,
    "broken": break_a_rule,
}


def exchange(connection: wsmux.Connection) -> None:
    stream = connection.open_stream(WAIT)
    stream.timeout = WAIT
    stream.write(b"!")
    stream.read(1)
    with connection.open_stream(WAIT) as bulk:
        bulk.timeout = WAIT
        bulk.write(BULK)
        bulk.read(1)


@contextmanager
def plain(protocol: str, how: str, config: wsmux.Config | None = None) -> Iterator[Once]:
    with wsmux.serve(stream_handler=echo, protocols=[protocol], config=config) as server:

        def once() -> None:
            with wsmux.connect(server.url, protocol=protocol, config=config) as connection:
                exchange(connection)
                ENDS[how](connection)

        yield once, lambda: not server.connections


def recorded(protocol: str) -> Stand:
    """Have both ends keep the last frames."""
    return plain(protocol, "close", wsmux.Config(recording=wsmux.Recording()))


@contextmanager
def bridged(protocol: str) -> Iterator[Once]:
    """Carry each connection to a server behind a bridge."""
    with wsmux.serve(stream_handler=echo, protocols=[protocol]) as behind:

        def carry(connection: wsmux.Connection) -> None:
            with wsmux.connect(behind.url, protocol=protocol) as further:
                wsmux.bridge(connection, further)

        with wsmux.serve(carry, protocols=[protocol]) as front:

            def once() -> None:
                with wsmux.connect(front.url, protocol=protocol) as connection:
                    exchange(connection)

            yield once, lambda: not front.connections and not behind.connections


@contextmanager
def through_one_bridge(protocol: str) -> Iterator[Once]:
    """Have streams come and go over one bridge that stays; a stream stands for a connection."""
    with ExitStack() as stack:
        behind = stack.enter_context(wsmux.serve(stream_handler=echo, protocols=[protocol]))
        far, near = wsmux.pair(protocol=protocol)
        further = stack.enter_context(wsmux.connect(behind.url, protocol=protocol))
        thread = threading.Thread(target=wsmux.bridge, args=(near, further), daemon=True)
        thread.start()

        def once() -> None:
            with far.open_stream(WAIT) as stream:
                stream.timeout = WAIT
                stream.write(b"!")
                stream.read(1)
                stream.close_write()
                assert stream.read() == b""

        def quiet() -> bool:
            return not any(each.stats().streams for each in (far, near, further))

        yield once, quiet
        far.close()
        thread.join(WAIT)


@contextmanager
def as_socket(protocol: str) -> Iterator[Once]:
    """Leave the socket of a stream, then the stream: the order in which a ``with`` closes."""
    with wsmux.serve(stream_handler=echo, protocols=[protocol]) as server:

        def once() -> None:
            with (
                wsmux.connect(server.url, protocol=protocol) as connection,
                connection.open_stream(WAIT) as stream,
                stream.as_socket() as sock,
            ):
                sock.sendall(b"!")
                sock.recv(1)

        yield once, lambda: not server.connections


@contextmanager
def forwarded(protocol: str) -> Iterator[Once]:
    """Forward a port through each connection, whose tunnel is cut with it."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        host, port = place.getsockname()
        served = TunnelServer(connect=[f"{host}:{port}"]).serve
        forward = parse_forward(f"0:{host}:{port}")
        with wsmux.serve(stream_handler=served, protocols=[protocol]) as server:

            def once() -> None:
                connect = partial(wsmux.connect, server.url, protocol=protocol)
                with Forwarder(connect, local=[forward]) as forwarder:
                    listen = forwarder.local[0].listen
                    assert isinstance(listen, Tcp)
                    with socket.create_connection((listen.host, listen.port), WAIT) as near:
                        far, _ = place.accept()
                        with far:
                            near.sendall(b"!")
                            far.recv(1)

            yield once, lambda: not server.connections


@contextmanager
def called(protocol: str) -> Iterator[Once]:
    """Call procedures of River, one of them for ever."""
    service = rpc.Service("test")

    @service.rpc()
    def same(ctx: rpc.Context, init: object) -> object:
        return init

    @service.subscription()
    def watch(ctx: rpc.Context, init: object, responses: rpc.Writable[object]) -> None:
        responses.write(init)
        ctx.ended.wait(WAIT)

    brief = rpc.Options(session_disconnect_grace=0.01)
    with rpc.serve([service], options=brief) as server:

        def once() -> None:
            with rpc.connect(server.url) as client:
                assert client.rpc("test", "same", 1, WAIT) == 1
                assert client.subscribe("test", "watch", 2, WAIT).read() == 2

        yield once, lambda: server.handler.sessions == 0


STANDS: dict[str, Callable[[str], Stand]] = {
    **{how: partial(plain, how=how) for how in ENDS},
    "recorded": recorded,
    "bridged": bridged,
    "one-bridge": through_one_bridge,
    "as-socket": as_socket,
    "forwarded": forwarded,
    "rpc": called,
}


def main(protocol: str, count: str, how: str) -> dict[str, Any]:
    # A worker that has nothing to do ends; ten seconds later would say no more.
    thread_pool.IDLE = stream_handlers.IDLE = 0.5
    me = Process(os.getpid())
    with STANDS[how](protocol) as (once, quiet):

        def some(number: int) -> None:
            for _ in range(number):
                once()
            wait_until(quiet)

        some(20)  # everything is imported, and the allocator has what it wants
        threads = me.threads()  # a pool's among them
        gc.collect()
        gc.disable()
        kept = alive()
        some(int(count) // 5)
        before, start = me.memory(), time.monotonic()
        some(int(count) - int(count) // 5)
        wait_until(lambda: me.threads() <= threads)
        with suppress(AssertionError):  # what ends last may be about to; what stays is told
            wait_until(lambda: not alive() - kept)
        grown, took = me.memory() - before, time.monotonic() - start
        left = alive() - kept
    return {"grown_mb": grown / MB, "seconds": took, "alive": left}


def alive() -> Counter[str]:
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, PARTS))


if __name__ == "__main__":
    report(main)
