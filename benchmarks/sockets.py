"""Accept sockets for a server, a thread for each, and make what both ends need for TLS."""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BACKLOG = 256

# What must be installed for TLS.
AUTHORITY = ("trustme",)


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


def connected(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Return a socket that does not wait to send."""
    sock = socket.create_connection((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@contextmanager
def server_context(wanted: bool) -> Iterator[tuple[ssl.SSLContext | None, str | None]]:
    """Yield a server's settings, and the file of the authority that its clients must trust."""
    if not wanted:
        yield None, None
        return
    import trustme

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "authority.pem")
        authority.cert_pem.write_to_path(str(path))
        yield context, str(path)


def client_context(certificate: str | None) -> ssl.SSLContext | None:
    """Return the settings of a client that trusts that authority alone."""
    return ssl.create_default_context(cafile=certificate) if certificate else None
