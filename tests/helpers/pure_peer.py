"""A peer without threads: it reads, answers and sends when the test tells it to."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Self

import wsmux
from wsmux.protocols.base import Role
from wsmux.protocols.events import Event, StreamOpened
from wsmux.protocols.framing import Opcode
from wsmux.protocols.registry import wire

from .timeouts import WAIT

__all__ = ["PurePeer"]


class PurePeer:
    """Drive the machine of a wire over a plain socket by hand.

    Attributes:
        machine: what to call; ``send`` then sends what it has to say.
        close_frame: the payload of the other side's, once it was received.
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
        self.close_frame: bytes | None = None
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
        """Wait for bytes, and return what they brought about; ``EOFError`` at the end of them.

        Streams that the other side opens are accepted with the window of the config.
        """
        target = self._framing.get_buffer()
        count = self.sock.recv_into(target)
        if not count:
            raise EOFError
        seen: list[Event] = []
        for kind, message in self._framing.received(count):
            if kind is Opcode.CLOSE:
                self.close_frame = bytes(message)
                break
            self.machine.receive_data(message)
            while events := self.machine.events():
                for event in events:
                    if isinstance(event, StreamOpened):
                        self.machine.accept(event.stream_id, self.machine.config.receive_window)
                seen += events
        return seen

    def accept(self, count: int) -> list[int]:
        """Accept the next streams that the other side opens, and say so; return their ids."""
        taken: list[int] = []
        while len(taken) < count:
            taken += [e.stream_id for e in self.receive() if isinstance(e, StreamOpened)]
        self.send()
        return taken

    def serve(self) -> None:
        """Answer what comes until the connection ends; read nothing from its streams."""
        with suppress(EOFError, OSError):
            while True:
                self.receive()
                self.send()
