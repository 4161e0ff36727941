"""Forward ports of this side and of the server's through one connection, as ``ssh`` does."""

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
    """Carry connections through a server that offers tunnels, until ``close``.

    The connection to it is made again whenever it is lost. Tunnels that it carried are reset, and
    new ones wait for the next connection.

    ::

        connect = functools.partial(wsmux.connect, url, headers={"Authorization": token})
        with Forwarder(connect, local=[parse_forward("6379:redis.internal:6379")]) as forwarder:
            ...

    Args:
        connect: called with the arguments of ``wsmux.connect`` that tell of incoming streams, each
            time that a connection is needed.
        local: places to listen at here, and to be connected to by the server.
        remote: places for the server to listen at, and to be connected to from here.
        socks: places to listen at here, where each client says by SOCKS5 where it goes.
        max_tunnels: connections at once at each entrance, and that the server may bring.
        patience: seconds that a new connection waits for the server.
        tell: called with a sentence for each change of the connection and of where the server
            listens, from any thread.

    Attributes:
        local, socks: where it listens here; ports are real ones even if 0 was asked for.

    Raises:
        OSError: nothing can listen here, or no connection came about. TunnelError: the server does
        not listen; on later connections that is told, and asked for again beside the tunnels.
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
        # The server says with each connection which of the forwards it is for.
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
        """Stop listening, here and there, reset the tunnels, and close the connection."""
        self._supervisor.close()  # first: threads that wait for it release the listeners
        self._stack.close()

    @property
    def remote(self) -> list[Forward]:
        """Where the server listens, and where what comes there goes.

        After a reconnect the ports may be others where 0 was asked for, and what the server refuses
        is missing until it is granted.
        """
        return self._listening.forwards

    # From here to there

    def _open(self, place: Place) -> Stream:
        return self._supervisor.open(Request("CONNECT", str(place)), self._patience)

    def _enter(self, to: Place, entrance: Place, sock: socket.socket) -> Stream:
        return self._open(to)

    # From there to here

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
