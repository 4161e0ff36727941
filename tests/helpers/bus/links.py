"""Run links in threads, and keep what they bring."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any, Self

from wsmux.bus.session.link import Link
from wsmux.protocols.base import Role
from wsmux.runtime.deadline import Deadline

from ..raw_peer import WAIT, RawPeer

__all__ = ["Running", "link_and_peer", "pair"]


class Running:
    """A link with its I/O thread; ``got`` has what came, ``None`` at the end."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.got: Queue[bytes | None] = Queue()
        self.thread = threading.Thread(target=self._run, name=f"{link.name}-test", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for data in self.link.messages():
            self.got.put(data)
        self.got.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.abort()
        self.thread.join(WAIT)
        assert not self.thread.is_alive()

    def send(self, data: bytes) -> None:
        self.link.send(data, Deadline(WAIT))

    def next(self) -> bytes | None:
        return self.got.get(timeout=WAIT)


@contextmanager
def pair(**options: Any) -> Iterator[tuple[Running, Running]]:
    """Join a client's link to a relay's."""
    ours, theirs = socket.socketpair()
    client, relay = Link(ours, Role.CLIENT, **options), Link(theirs, Role.SERVER, **options)
    with Running(client) as first, Running(relay) as second:
        yield first, second


@contextmanager
def link_and_peer(role: Role, **options: Any) -> Iterator[tuple[Running, RawPeer]]:
    """Join a link to a peer by hand."""
    ours, theirs = socket.socketpair()
    with (
        RawPeer(theirs, masks=role is Role.SERVER) as peer,
        Running(Link(ours, role, **options)) as running,
    ):
        yield running, peer
