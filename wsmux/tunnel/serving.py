"""Serve requests at the start of streams: tunnels, listening, commands."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from functools import partial

from ..exceptions import WsmuxError
from ..mux.stream import Stream
from ..mux.stream_socket import CHUNK, carry
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from .allow import AllowList
from .dial import CONNECT_TIMEOUT, dial
from .errors import TunnelError
from .exchange import HEAD_TIMEOUT, answer, ask, receive_request
from .listening import MAX_TUNNELS, Entrance
from .places import Place, parse_place
from .programs import Programs
from .request_head import Request

__all__ = ["TunnelServer", "place_of", "through"]

_log = logger("wsmux.tunnel")


class TunnelServer:
    """Offer tunnels and commands; ``serve`` is the handler of each stream.

    ::

        tunnels = wsmux.tunnel.TunnelServer(connect=["redis.internal:6379"])
        wsmux.serve(stream_handler=tunnels.serve, workers=256)
        mux.stream_route("/tunnel")(tunnels.serve)  # the same in Flask

    Only what is named here is allowed. The server or the route decides who may connect at all; the
    streams of all clients are served alike.

    Args:
        connect: patterns of allowed destinations, or with ``!`` of denied ones; see ``AllowList``.
            Wildcards exclude loopback and other special addresses.
        listen: patterns of addresses at which the server may listen for a client; port 0 needs
            ``*``.
        programs: the allowed commands: absolute paths, or names looked up on ``PATH`` now.
        max_tunnels: concurrent streams, and connections per listening address; further ones are
            answered with 503. Two threads each.
        connect_timeout: seconds to connect to a destination.

    Raises:
        ValueError: a pattern is invalid, or there is no such program.
        TypeError: one of the first three is not a collection of strings.
    """

    def __init__(
        self,
        *,
        connect: Iterable[str] = (),
        listen: Iterable[str] = (),
        programs: Iterable[str] = (),
        max_tunnels: int = MAX_TUNNELS,
        connect_timeout: float = CONNECT_TIMEOUT,
    ) -> None:
        self._connect = AllowList(connect, name="connect")
        self._listen = AllowList(listen, name="listen")
        self._programs = Programs(programs)
        self._max_tunnels = max_tunnels
        self._connect_timeout = connect_timeout
        self._slots = threading.BoundedSemaphore(max_tunnels)
        self._kinds = {
            "CONNECT": self._carry,
            "LISTEN": self._listen_for,
            "EXEC": self._programs.run,
            "STDIO": self._programs.attach,
            "STDERR": self._programs.attach,
        }

    def serve(self, stream: Stream) -> None:
        """Fulfil the request at the start of a stream, until the stream has ended.

        Raises:
            WsmuxError: the stream ended before it was answered.
        """
        try:
            request = receive_request(stream, Deadline(HEAD_TIMEOUT))
            kind = self._kinds.get(request.method)
            if kind is None:
                raise TunnelError(400, f"there is no request {request.method}")
            if not self._slots.acquire(blocking=False):
                raise TunnelError(503, f"{self._max_tunnels} tunnels are already open")
            try:
                kind(stream, request)
            finally:
                self._slots.release()
        except TunnelError as error:
            _log.info("stream %d of %s: %s", stream.id, stream.connection.name, error)
            answer(stream, error.status, error.words)

    def _carry(self, stream: Stream, request: Request) -> None:
        place = place_of(request)
        through(stream, place, dial(place, self._connect, self._connect_timeout))

    def _listen_for(self, stream: Stream, request: Request) -> None:
        """Listen until the client closes the stream of the request."""
        place = place_of(request, listening=True)
        if not self._listen.may_listen(place):
            raise TunnelError(403, f"{place} is not on the list of allowed addresses to listen on")
        try:
            entrance = Entrance(
                place, partial(self._back, stream, request.arguments), max_tunnels=self._max_tunnels
            )
        except OSError as error:
            raise TunnelError(502, f"nothing can listen at {place}: {error.strerror}") from error
        with entrance:
            answer(stream, 200, str(entrance.place))
            _log.info("%s listens at %s", stream.connection.name, entrance.place)
            while stream.read(CHUNK):
                pass

    def _back(
        self, control: Stream, key: tuple[str, ...], place: Place, sock: socket.socket
    ) -> Stream:
        """Open a stream to the client for an incoming connection, with the key that it sent."""
        deadline = Deadline(self._connect_timeout + HEAD_TIMEOUT)
        stream = control.connection.open_stream(deadline.remaining())
        try:
            ask(stream, Request("CONNECT", str(place), key), deadline)
        except BaseException:
            stream.reset()
            raise
        return stream


def through(stream: Stream, place: Place, sock: socket.socket) -> None:
    """Answer that the tunnel is open, and carry until it has ended."""
    try:
        answer(stream, 200, "OK")
    except BaseException:
        sock.close()
        raise
    try:
        carry(stream, sock)
    except OSError as error:
        if isinstance(error, WsmuxError):
            raise
        _log.info("the tunnel to %s ended: %s", place, error)


def place_of(request: Request, *, listening: bool = False) -> Place:
    """Return the destination or address in a request.

    Raises:
        TunnelError: its target is invalid.
    """
    try:
        return parse_place(request.target, listening=listening)
    except ValueError as error:
        raise TunnelError(400, str(error)) from error
