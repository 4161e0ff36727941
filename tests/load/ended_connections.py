"""Make connections and end them, without the garbage collector; look at what stays.

``python -m tests.load.ended_connections WIRE COUNT HOW``, where HOW is how each ends.
"""

from __future__ import annotations

import gc
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import wsmux
from wsmux.channel import Channel
from wsmux.engine import Engine
from wsmux.entry import Entry
from wsmux.protocols.base import MuxProtocol
from wsmux.protocols.carrier import Framing
from wsmux.streamtable import StreamTable

from .far import echo
from .measuring import MB, WAIT, Process, report, wait_until

PARTS = (wsmux.Connection, wsmux.Stream, Engine, Channel, Framing, MuxProtocol, StreamTable, Entry)

# Bytes written on each, for its buffers to grow.
BULK = bytes(300 * 1024)


def close(connection: wsmux.Connection) -> None:
    connection.close()


def abort(connection: wsmux.Connection) -> None:
    connection.abort()


def reset(connection: wsmux.Connection) -> None:
    """Have TCP say that the peer has vanished."""
    sock = connection._engine.channel._socket._sock
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.abort()


def break_a_rule(connection: wsmux.Connection) -> None:
    """Send what no wire knows, so that the server ends the connection for it."""
    with connection._engine.mutex:
        connection._engine.queue.add_data_locked([(b"\xff" * 16, b"")])
    connection._engine.flush()
    assert connection.wait_closed(WAIT)


ENDS: dict[str, Callable[[wsmux.Connection], None]] = {
    "close": close,
    "abort": abort,
    "reset": reset,
    "broken": break_a_rule,
}


def main(protocol: str, count: str, how: str) -> dict[str, Any]:
    me = Process(os.getpid())
    with wsmux.serve(stream_handler=echo, protocols=[protocol]) as server:

        def once() -> None:
            with wsmux.connect(server.url, protocol=protocol) as connection:
                stream = connection.open_stream(WAIT)
                stream.timeout = WAIT
                stream.write(b"!")
                stream.read(1)
                with connection.open_stream(WAIT) as bulk:
                    bulk.timeout = WAIT
                    bulk.write(BULK)
                    bulk.read(1)
                ENDS[how](connection)

        def some(number: int) -> None:
            for _ in range(number):
                once()
            wait_until(lambda: not server.connections and me.threads() == 2)

        some(20)  # everything is imported, and the allocator has what it wants
        gc.collect()
        gc.disable()
        some(int(count) // 5)
        before, start = me.memory(), time.monotonic()
        some(int(count) - int(count) // 5)
        grown, took = me.memory() - before, time.monotonic() - start
        alive = Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, PARTS))
    return {"grown_mb": grown / MB, "seconds": took, "alive": alive}


if __name__ == "__main__":
    report(main)
