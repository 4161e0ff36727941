"""Forward local ports and ports of the server through one connection, as ``ssh`` does."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from ..mux.connection import Connection
from ..mux.stream import Stream
from ..runtime.closing import Closing
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from .dial import dial
from .errors import TunnelError
from .exchange import HEAD_TIMEOUT, answer, receive_request
from .listening import MAX_TUNNELS, Entrance, open_by_socks
from .places import Forward, Place
from .remote_listening import RemoteListening
from .request_head import Request
from .serving import through
from .supervisor import PATIENCE, Supervisor

__all__ = ["Forwarder"]

_log = logger("wsmux.tunnel")


class Forwarder(Closing):
    """Carry connections through a tunnel server, until ``close``.

    The connection to the server is re-established whenever it is lost. Its tunnels are reset then,
    and new ones wait for the next connection.

    ::

        connect = functools.partial(wsmux.connect, url, headers={"Authorization": token})
        with Forwarder(connect, local=[parse_forward("6379:redis.internal:6379")]) as forwarder:
            ...

    Args:
        connect: called for each connection, with those arguments of ``wsmux.connect`` that concern
            incoming streams.
        local: where to listen here, and where the server connects to.
        remote: where the server listens, and where to connect to from here.
        socks: where to listen here for SOCKS5 clients, which name their destinations.
        max_tunnels: concurrent connections per listening address, and from the server.
        patience: seconds that a new connection waits for the server.
        tell: called from any thread with a sentence for each change of the connection, and of where
            the server listens.

    Attributes:
        local, socks: where it listens here; with the actual ports, even if 0 was requested.

    Raises:
        OSError: listening here failed, or the connection could not be established.
        TunnelError: the server refuses to listen; on later connections this is reported and retried
            in the background.
        WsmuxError: as ``wsmux.connect``.
    """

    def __init__(
        self,
        connect: Callable[..., Connection],
        *,
        local: Iterable[Forward] = (),
        remote: Iterable[Forward] = (),
        socks: Iterable[Place] = (),
        max_tunnels: int = MAX_TUNNELS,
        patience: float = PATIENCE,
        tell: Callable[[str], None] = _log.warning,
    ) -> None:
        self._patience = patience
        wanted = tuple(remote)
        self.local: list[Forward] = []
        self.socks: list[Place] = []
        # For each connection, the server names the forward that it belongs to.
        self._targets = {(str(key),): forward.to for key, forward in enumerate(wanted)}
        self._listening = RemoteListening(wanted, tell)
        incoming: dict[str, Any] = {"accept_streams": False}
        if wanted:
            incoming = {"stream_handler": self._incoming, "workers": max_tunnels}
        with ExitStack() as stack:
            self._supervisor = Supervisor(
                partial(connect, **incoming), prepare=self._listening.begin, tell=tell
            )
            stack.callback(self._listening.close)
            stack.callback(self._supervisor.close)
            for forward in local:
                entrance = Entrance(
                    forward.listen, partial(self._enter, forward.to), max_tunnels=max_tunnels
                )
                stack.callback(entrance.shutdown, 0.0)
                self.local.append(Forward(entrance.place, forward.to))
            for place in socks:
                entrance = Entrance(
                    place, partial(open_by_socks, self._open), max_tunnels=max_tunnels
                )
                stack.callback(entrance.shutdown, 0.0)
                self.socks.append(entrance.place)
            self._stack = stack.pop_all()

    def __repr__(self) -> str:
        ways = (*self.local, *self.remote, *(f"SOCKS at {place}" for place in self.socks))
        return f"<Forwarder {', '.join(map(str, ways))}>"

    def close(self) -> None:
        """Stop listening on both sides, reset the tunnels, and close the connection."""
        self._supervisor.close()  # first: threads that wait for it release the listeners
        self._stack.close()

    @property
    def remote(self) -> list[Forward]:
        """Where the server listens, and where connections from there go.

        After a reconnect the ports may differ if 0 was requested, and refused ones are missing
        until they are granted.
        """
        return self._listening.forwards

    # Outgoing

    def _open(self, place: Place) -> Stream:
        return self._supervisor.open(Request("CONNECT", str(place)), self._patience)

    def _enter(self, to: Place, entrance: Place, sock: socket.socket) -> Stream:
        return self._open(to)

    # Incoming

    def _incoming(self, stream: Stream) -> None:
        try:
            request = receive_request(stream, Deadline(HEAD_TIMEOUT))
            if request.method != "CONNECT" or request.arguments not in self._targets:
                raise TunnelError(403, "that was not requested")
            place = self._targets[request.arguments]
            through(stream, place, dial(place, None))
        except TunnelError as error:
            _log.warning("a connection from the server could not be tunnelled: %s", error)
            answer(stream, error.status, error.words)
