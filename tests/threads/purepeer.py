"""Be a peer without threads: it reads, answers and sends when the test tells it to."""

from __future__ import annotations

import socket
from typing import Self

import wsmux
from wsmux.protocols.base import Role
from wsmux.protocols.events import Event, StreamOpened
from wsmux.transports.wires import wire

from .scripted import WAIT

__all__ = ["PurePeer"]


class PurePeer:
    """Drive the machine of a wire over a plain socket by hand.

    Attributes:
        machine: what to call; ``send`` then sends what it has to say.
    """

    def __init__(
        self,
        sock: socket.socket,
        protocol: str,
        role: Role = Role.SERVER,
        config: wsmux.Config | None = None,
    ) -> None:
        sock.settimeout(WAIT)
        self.sock = sock
        parts = wire(protocol).over_bytes(role, config or wsmux.Config(), None)
        self._framing, self.machine = parts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def output(self) -> bytes:
        """Return what the machine has to say, as bytes of the carrier."""
        messages = self.machine.control_to_send() + self.machine.data_to_send()
        return b"".join(b"".join(self._framing.encode(message)) for message in messages)

    def send(self) -> None:
        self.sock.sendall(self.output())

    def receive(self) -> list[Event]:
        """Wait for bytes, and return what they brought about; nothing at the end of them."""
        target = self._framing.get_buffer()
        for _, message in self._framing.received(self.sock.recv_into(target)):
            self.machine.receive_data(message)
        return self.machine.events()

    def accept(self, count: int) -> list[int]:
        """Take the next streams that the other side opens, with the window of the config."""
        taken: list[int] = []
        while len(taken) < count:
            events = self.receive()
            while events:
                for event in events:
                    if isinstance(event, StreamOpened):
                        self.machine.accept(event.stream_id, self.machine.config.receive_window)
                        taken.append(event.stream_id)
                events = self.machine.events()
        self.send()
        return taken
