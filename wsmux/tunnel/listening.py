"""Listen, and carry each incoming connection through a stream."""

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

# Opens the stream to a destination.
Open = Callable[[Place], Stream]

# Opens the stream for a socket accepted at an address; it may first talk to its client.
Enter = Callable[[Place, socket.socket], Stream]

# Concurrent connections per listening address, two threads each; further ones are closed.
MAX_TUNNELS = 256

# Seconds that a SOCKS client has for its request.
SOCKS_TIMEOUT = 10.0

# Seconds for the threads of reset streams to end.
LAST = 2.0

_log = logger("wsmux.tunnel")


class Entrance(Acceptor):
    """Listen at an address until ``shutdown``, in threads of its own.

    Args:
        place: the address; port 0 picks a free port, which ``place`` then holds.
        enter: called with the address and each accepted socket; returns the stream to join it to.
            If it raises an error of wsmux or of sockets, the socket is reset.
        max_tunnels: concurrent connections; further ones are closed at once.

    Raises:
        OSError: listening failed.
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
            # A single program on a neighbouring host may use all of ``max_tunnels``.
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
            if not isinstance(error, SocksError):  # that client got a reply
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
    """Let a client choose its destination by SOCKS5, and return the stream to it.

    Raises:
        SocksError: it does not use SOCKS5, or its destination is refused; it got a reply.
        TimeoutError: it took too long.
        OSError: it has disconnected.
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
