"""Give tests both ends of a resumable connection, and a proxy between that takes carriers away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import wsmux
from wsmux.testing import FaultProxy

from .certificates import Certificates
from .timeouts import WAIT
from .waiting import wait_for

__all__ = ["MIB", "Pair", "joined", "pair"]

MIB = 1 << 20


class Pair(NamedTuple):
    """Both ends of a resumable connection, and what is between."""

    client: wsmux.Connection
    server: wsmux.Connection
    proxy: FaultProxy

    def outage(self) -> None:
        """Take the carrier away, and let no other through until ``over``."""
        self.proxy.refusing = True
        self.proxy.reset()
        for end in (self.client, self.server):
            wait_for(lambda end=end: end.stats().detached is not None)

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
