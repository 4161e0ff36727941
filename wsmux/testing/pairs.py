"""Join two real connections through a ``FaultProxy``, for tests of handlers and their clients."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from ..client import connect
from ..config import Config
from ..endpoints.stream_handlers import StreamHandler
from ..mux.connection import Connection
from ..server import serve
from .faultproxy import FaultProxy
from .link import Faults

__all__ = ["FaultyPair", "faulty_pair"]


class FaultyPair(NamedTuple):
    """Two connections, and the proxy between them."""

    client: Connection
    server: Connection
    proxy: FaultProxy


@contextmanager
def faulty_pair(
    protocol: str = "wsmux",
    *,
    transport: Literal["websocket", "tcp"] = "websocket",
    stream_handler: StreamHandler | None = None,
    config: Config | None = None,
    up: Faults | None = None,
    down: Faults | None = None,
    seed: int = 0,
    timeout: float = 10.0,
    **options: Any,
) -> Iterator[FaultyPair]:
    """Serve on loopback, and connect to it through a proxy that can fail.

    These are real threads and sockets: where a connection is cut is exact, when is not. For
    machines in memory, with exact times, see ``Network``.

    Args:
        protocol, config: used at both ends.
        transport: a WebSocket with its handshake, or a plain socket.
        stream_handler: runs at the server for each stream that the client opens; without one, use
            ``server.accept_stream``.
        up, down, seed: as for ``FaultProxy``.
        timeout: seconds for connecting, and for closing each end.
        options: more arguments for ``wsmux.connect``.

    Raises:
        HandshakeError, TimeoutError, OSError: as ``wsmux.connect``.

    >>> import wsmux
    >>> from wsmux.testing import faulty_pair
    >>> with faulty_pair(stream_handler=lambda stream: stream.write(stream.read())) as pair:
    ...     with pair.client.open_stream() as stream:
    ...         pair.proxy.reset()
    ...         try:
    ...             stream.read()
    ...         except wsmux.ConnectionClosedError as error:
    ...             error.code
    1006
    """
    accepted: queue.Queue[Connection] = queue.Queue()

    def handler(connection: Connection) -> None:
        accepted.put(connection)
        connection.wait_closed()

    serving: dict[str, Any] = {
        "protocols": [protocol],
        "transport": transport,
        "stream_handler": stream_handler,
        "config": config,
    }
    with (
        serve(handler, **serving) as server,
        FaultProxy(server.port, up=up, down=down, seed=seed) as proxy,
    ):
        scheme = "ws" if transport == "websocket" else "tcp"
        url = f"{scheme}://{proxy.host}:{proxy.port}"
        client = connect(url, protocol=protocol, config=config, timeout=timeout, **options)
        try:
            far = accepted.get(timeout=timeout)
            try:
                yield FaultyPair(client, far, proxy)
            finally:
                proxy.thaw()
                client.close(timeout)
                far.close(timeout)
        finally:
            client.abort()
