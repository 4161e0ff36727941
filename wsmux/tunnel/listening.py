"""Listen, and carry each connection that comes through a stream."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from ..config import Config
from ..endpoints.acceptor import DRAIN, Acceptor, listen, listen_unix
from ..exceptions import WsmuxError
from ..mux.stream import Stream
from ..mux.stream_socket import carry, reset_on_close
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from .places import Place, Tcp, Unix
from .socks import SocksError, SocksServer

__all__ = ["MAX_TUNNELS", "Enter", "Entrance", "Open", "open_by_socks"]

# Makes the stream to a place.
Open = Callable[[Place], Stream]

# Makes the stream for a socket that was accepted at a place; it may talk to its client first.
Enter = Callable[[Place, socket.socket], Stream]

# Connections carried at once at one entrance, two threads each; further ones are closed.
MAX_TUNNELS = 256

# Seconds that a SOCKS client has for its part.
SOCKS_TIMEOUT = 10.0

# Seconds for threads to end whose streams were reset.
LAST = 2.0

_log = logger("wsmux.tunnel")


class Entrance(Acceptor):
    """Listen at a place until ``shutdown``, in threads of its own.

    Args:
        place: where; port 0 takes a free one, which ``place`` then tells.
        enter: given the place and each accepted socket, returns the stream that it belongs to. It
            may raise what wsmux and sockets do; then the socket is reset.
        max_tunnels: connections at once; further ones are closed at once.

    Raises:
        OSError: nothing can listen there.
    """

    def __init__(
        self,
        place: Place,
        enter: Enter,
        *,
        max_tunnels: int = MAX_TUNNELS,
    ) -> None:
        self._enter = enter
        self._streams: set[Stream] = set()
        if isinstance(place, Unix):
            listener = listen_unix(place.path)
        else:
            listener = listen(place.host, place.port)
            place = Tcp(place.host, listener.getsockname()[1])
        self.place: Place = place  # before the first connection is accepted
        super().__init__(
            listener,
            # One program of a neighbour may have as many as ``max_tunnels``.
            Config(max_connections_per_address=None, max_handshakes_per_address=None),
            scheme="tcp",
            http=False,
            ssl_context=None,
            max_connections=max_tunnels,
        )

    def __repr__(self) -> str:
        return f"<Entrance {self.place} tunnels={len(self._streams)}>"

    def shutdown(self, timeout: float | None = DRAIN) -> None:
        """Stop listening; tunnels have ``timeout`` seconds to end, then they are reset."""
        self._shut_down_once(timeout)

    def _end(self, deadline: Deadline) -> None:
        self._join_threads(deadline)
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.reset()
        self._join_threads(Deadline(LAST))

    def _serve(self, sock: socket.socket, address: Any) -> None:
        try:
            self._settle()
            with self._cut_by_shutdown(sock):
                if not self._unix:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream = self._enter(self.place, sock)
        except (WsmuxError, OSError) as error:
            _log.warning("a connection to %s could not be tunnelled: %s", self.place, error)
            if not isinstance(error, SocksError):  # that client was told
                reset_on_close(sock)
            sock.close()
            return
        except BaseException:
            sock.close()
            raise
        with self._lock:
            self._streams.add(stream)
        try:
            carry(stream, sock)
        except (WsmuxError, OSError) as error:
            _log.info("a tunnel from %s ended: %s", self.place, error)
        finally:
            with self._lock:
                self._streams.discard(stream)


def open_by_socks(open_stream: Open, entrance: Place, sock: socket.socket) -> Stream:
    """Let the client at a socket say by SOCKS5 where it goes, and return the stream to there.

    Raises:
        SocksError: it does not speak SOCKS5, or cannot go there; it was told.
        TimeoutError: it took too long. OSError: it has left.
    """
    deadline = Deadline(SOCKS_TIMEOUT)
    client = SocksServer()
    while client.place is None:
        sock.settimeout(max(deadline.remaining() or 0.0, 0.001))
        data = sock.recv(1024)
        if not data:
            raise ConnectionAbortedError(
                "a SOCKS client disconnected before naming its destination"
            )
        try:
            client.receive(data)
        finally:
            _send(client, sock)
        if deadline.expired():
            raise TimeoutError("a SOCKS client took too long to name its destination")
    try:
        stream = open_stream(client.place)
    except WsmuxError as error:
        client.answer(getattr(error, "status", 502))
        _send(client, sock)
        raise SocksError(str(error)) from error
    try:
        client.answer(200)
        _send(client, sock)
        if client.early():
            stream.write(client.early())
    except BaseException:
        stream.reset()
        raise
    return stream


def _send(client: SocksServer, sock: socket.socket) -> None:
    sock.settimeout(SOCKS_TIMEOUT)
    sock.sendall(client.data_to_send())
