"""Give tests both ends of a resumable connection, and a proxy between that takes carriers away."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import wsmux
from wsmux.testing import FaultProxy
from wsmux.testing.link import How

from .certificates import Certificates
from .raw_peer import in_thread
from .timeouts import WAIT
from .waiting import wait_for

__all__ = [
    "MIB",
    "Pair",
    "check_bulk_over_cuts",
    "cut_off",
    "draining",
    "joined",
    "pair",
    "read_all",
]

MIB = 1 << 20


def cut_off(proxy: FaultProxy, *connections: wsmux.Connection) -> None:
    """Take the carrier of connections away, and let no other through."""
    proxy.refusing = True
    proxy.reset()
    for each in connections:
        wait_for(lambda each=each: each.stats().detached is not None)


@contextmanager
def draining(
    url: str, shutdown: Callable[[float], None], *, resume: wsmux.Resume | bool = True
) -> Iterator[wsmux.Connection]:
    """Shut an echo server down while a stream is open; yield its connection.

    Args:
        shutdown: of the server; called in a thread, with the seconds that streams have to end.
    """
    with (
        wsmux.connect(url, timeout=WAIT, resume=resume) as connection,
        connection.open_stream() as stream,
    ):
        stream.timeout = WAIT
        stream.write(b"open")
        assert stream.read(4) == b"open"
        ending = in_thread(shutdown, 10 * WAIT)
        wait_for(lambda: _goes_away(connection))
        try:
            yield connection
        finally:
            if not connection.closed:
                stream.reset()
            ending.result(WAIT)


def _goes_away(connection: wsmux.Connection) -> bool:
    """Return whether the other side opens no streams any more."""
    try:
        connection.open_stream(timeout=WAIT).reset()
    except wsmux.StreamRefused:
        return True
    return False


class Pair(NamedTuple):
    """Both ends of a resumable connection, and what is between."""

    client: wsmux.Connection
    server: wsmux.Connection
    proxy: FaultProxy

    def outage(self) -> None:
        """Take the carrier away, and let no other through until ``over``."""
        cut_off(self.proxy, self.client, self.server)

    def over(self) -> None:
        """Let the client through again."""
        self.proxy.refusing = False
        self.client.reconnect_now()


@contextmanager
def pair(
    grace: float = WAIT,
    protocol: str = "wsmux",
    buffer: int = MIB,
    tls: Certificates | None = None,
    **options: Any,
) -> Iterator[Pair]:
    """Yield both ends; ``tls`` is for both, other options too."""
    resume = wsmux.Resume(grace=grace, buffer=buffer)
    with (
        wsmux.serve(
            lambda connection: connection.wait_closed(),
            protocols=[protocol],
            resume=resume,
            ssl_context=None if tls is None else tls.server,
            **options,
        ) as server,
        FaultProxy(server.port) as proxy,
    ):
        client = wsmux.connect(
            proxy.url if tls is None else proxy.url.replace("ws:", "wss:"),
            protocol=protocol,
            resume=resume,
            ssl_context=None if tls is None else tls.client,
            **options,
        )
        try:
            wait_for(lambda: server.connections)
            yield Pair(client, server.connections[0], proxy)
        finally:
            client.abort()
            server.shutdown(0)


def joined(ends: Pair) -> tuple[wsmux.Stream, wsmux.Stream]:
    """Open a stream, and take it at the other end."""
    ours = ends.client.open_stream(timeout=WAIT)
    ours.write(b"?")
    theirs = ends.server.accept_stream(WAIT)
    ours.timeout = theirs.timeout = WAIT
    assert theirs.read(1) == b"?"
    return ours, theirs


def read_all(stream: wsmux.Stream, size: int) -> bytes:
    """Return so many bytes of a stream, of which each read has its timeout."""
    received = bytearray()
    while len(received) < size:
        received += stream.read(65536)
    return bytes(received)


def check_bulk_over_cuts(ends: Pair, way: str, how: How, last: int) -> None:
    """Check that 3 MiB arrive while carriers end after 1 MiB, half of that, and ``last`` bytes."""
    data = os.urandom(3 * MIB)
    ours, theirs = joined(ends)
    writer, reader = (ours, theirs) if way == "up" else (theirs, ours)
    ends.proxy.cut_after(MIB, MIB // 2, last, way=way, how=how)
    writing = in_thread(writer.write, data)
    assert read_all(reader, len(data)) == data
    writing.result(WAIT)
    assert not ends.proxy.cutting
    assert ends.client.stats().reconnects >= 2  # the last cut may have met a handshake
