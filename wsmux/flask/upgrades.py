"""Turn the requests of a route into connections: count, shake hands, serve, end the request."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from ..config import Config
from ..exceptions import HandshakeError
from ..handshake.admission import Admission
from ..handshake.websocket_server import accept
from .request_threads import ConnectionLimit
from .responses import Ended, Response, refusal, request

__all__ = ["Upgrades"]

Wire = TypeVar("Wire", bound=str | None)


class Upgrades:
    """Answer the requests of a route, or of several that share their limits.

    Args:
        config: ``max_connections_per_address`` and ``trusted_proxies``.
        name: what these routes are called in the log.
        max_connections: see ``ConnectionLimit``.
    """

    def __init__(self, config: Config, name: str, max_connections: int | None) -> None:
        self._limit = ConnectionLimit(name, max_connections)
        self._admission = Admission(config, name, max_connections)

    def answer(
        self,
        check: Callable[[dict[str, Any]], Wire],
        serve: Callable[[socket.socket, Wire], object],
    ) -> Response:
        """Answer the request of this thread, which is held until the connection has ended.

        Args:
            check: given the environ, returns the wire to speak, ``None`` for no subprotocol, or
                raises the ``HandshakeError`` that refuses.
            serve: is given the socket and the wire, and closes the socket.
        """
        environ = request.environ
        with ExitStack() as held:
            try:
                wire = check(environ)
                held.callback(self._admission.leave, self._admission.admit(environ))
                held.enter_context(self._limit.held())
                accepted = accept(environ, wire)
            except HandshakeError as error:
                return refusal(error)
            serve(accepted.socket, wire)
            return Ended(accepted.mode)
