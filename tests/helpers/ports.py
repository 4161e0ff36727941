"""Find a port for what is started by its number."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port", "kept_port"]

# Below those that the system gives to whoever asks for any port.
KEPT = range(20_000, 30_000)


def free_port() -> int:
    """Return a port of the loopback where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def kept_port() -> int:
    """Return a port of the loopback that nobody gets by chance while nobody listens there.

    A client that dials a port of the system's again and again may be connected to itself.
    """
    while True:
        port = random.choice(KEPT)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue  # somebody has it
        return port
