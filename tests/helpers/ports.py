"""Find a port for what is started by its number."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]

# Below those that the system gives to whoever asks for any port, or connects.
PORTS = range(20_000, 30_000)


def free_port() -> int:
    """Return a port of the loopback where nobody listens, and that nobody gets by chance.

    One of the system's own may belong to another test by the time a server has started, or has
    started again; and a client that dials it again and again may be connected to itself.
    """
    while True:
        port = random.choice(PORTS)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue  # somebody has it
        return port
