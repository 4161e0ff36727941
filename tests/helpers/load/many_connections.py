"""Open connections, more than have a thread each, leave them idle, echo on each, and close them.

``python -m tests.helpers.load.many_connections WIRE COUNT``.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any

import wsmux
from wsmux.transport.shared_io import OWN

from .many_streams import read
from .measuring import WAIT, Process, far_end, per_cent, report, wait_until

NEAR = Process(os.getpid())

KB = 1000

# At either end the first connections have a thread each for their I/O, the others one in common. At
# the server each connection has another one, for its handshake and its streams.
FOR_IO = OWN + 1

ECHOED = bytes(range(64))


def main(protocol: str, count: str) -> dict[str, Any]:
    with far_end("echo", protocol) as far, ExitStack() as open_ones:
        with wsmux.connect(far.url, protocol=protocol) as first:
            echo(first)  # everything is imported, and both ends have done it all once
        wait_until(lambda: far.threads() == 2 and NEAR.threads() == 1)
        ends = (NEAR, far)
        threads = [end.threads() for end in ends]
        memory = [end.memory() for end in ends]
        descriptors = [end.descriptors() for end in ends]
        start = time.monotonic()
        connections = [
            open_ones.enter_context(wsmux.connect(far.url, protocol=protocol))
            for _ in range(int(count))
        ]
        connected = time.monotonic() - start
        # The server's threads may begin after the client has its answer.
        wait_until(lambda: far.threads() - threads[1] >= int(count) + FOR_IO)
        idle = [end.memory() - before for end, before in zip(ends, memory, strict=True)]
        more = [end.threads() - before for end, before in zip(ends, threads, strict=True)]
        echoes = [echo(connection) for connection in connections]
        for connection in connections:
            connection.begin_close()
        wait_until(lambda: [end.threads() for end in ends] == threads)
        ended = time.monotonic()
        left = [end.descriptors() - before for end, before in zip(ends, descriptors, strict=True)]
        return {
            "connect_s": connected,
            "near_kb_each": idle[0] / KB / int(count),
            "far_kb_each": idle[1] / KB / int(count),
            "near_threads": more[0],
            "far_threads": more[1],
            "p50_ms": per_cent(echoes, 50) * 1000,
            "p99_ms": per_cent(echoes, 99) * 1000,
            "back_s": ended - start - connected - sum(echoes),
            "descriptors_left": left,
        }


def echo(connection: wsmux.Connection) -> float:
    """Echo on a fresh stream; return the seconds that took."""
    start = time.monotonic()
    with connection.open_stream(WAIT) as stream:
        stream.timeout = WAIT
        stream.write(ECHOED)
        assert read(stream) == ECHOED
    return time.monotonic() - start


if __name__ == "__main__":
    report(main)
