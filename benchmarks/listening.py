"""Accept sockets for a server of the bench, a thread for each."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["listening"]

BACKLOG = 256


@contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """Call ``serve`` with each socket, which does not wait to send; yield the port."""
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        thread = threading.Thread(target=_accept, args=(listener, serve), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread, as closing does not
            thread.join()


def _accept(listener: socket.socket, serve: Callable[[socket.socket], object]) -> None:
    with suppress(OSError):  # the measurement is over
        while True:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_served, args=(sock, serve), daemon=True).start()


def _served(sock: socket.socket, serve: Callable[[socket.socket], object]) -> None:
    with suppress(OSError):  # the client has gone
        serve(sock)
