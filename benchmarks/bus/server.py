"""What is measured: an echo over bare links, or a relay."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from wsmux.bus.relay.setup import serve_relay
from wsmux.bus.session.link import Link
from wsmux.handshake.websocket_server import accept
from wsmux.protocols.base import Role

from ..peers.raw import request_of
from ..sockets import listening
from .moving import DOMAIN, Numbered


@contextmanager
def relay(redis: str | None = None, limit: tuple[int, int] | None = None) -> Iterator[str]:
    """Relay; yield the address."""
    with serve_relay([DOMAIN], Numbered(), redis=redis, limit=limit) as server:
        yield server.url


@contextmanager
def echo() -> Iterator[str]:
    """Send back what comes over links, with nothing in between; yield the address."""
    with listening(_echo) as port:
        yield f"ws://127.0.0.1:{port}"


def _echo(sock: socket.socket) -> None:
    """Serve a link by its own thread, as a relay does."""
    with sock:  # the link has a duplicate
        link = Link(accept(request_of(sock), None).socket, Role.SERVER)
    for data in link.messages():
        if not link.send_nowait(data):
            raise RuntimeError("more is under way than a client of the bench sends")
