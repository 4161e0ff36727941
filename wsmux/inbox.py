"""Take what came from the socket, and set control frames apart from messages.

For the I/O thread alone; nothing here is locked.
"""

from __future__ import annotations

from .protocols.carrier import Framing, Kind, Received
from .sockio import Socket

__all__ = ["Inbox"]


class Inbox:
    """Read one socket.

    Attributes:
        bytes_received: what the socket gave.
        ended: the peer ended the connection, with a Close or without.
        close_payload: that of the peer's Close, until somebody takes it.
        pings_and_pongs: those among what ``read`` returned last, to be handled and cleared.
        peer_closed: a Close has come.
    """

    def __init__(self, sock: Socket, framing: Framing) -> None:
        self.bytes_received = 0
        self.ended = False
        self.close_payload: bytes | None = None
        self.pings_and_pongs: list[tuple[Kind, bytes]] = []
        self.peer_closed = False
        self._socket = sock
        self._framing = framing

    def read(self) -> list[Received] | None:
        """Return the messages that came; ``None`` when no byte did, for now or for ever."""
        framing = self._framing
        count = self._socket.recv_into(framing.get_buffer())
        if not count:
            framing.filled = False
            self.ended = count is not None
            return None
        self.bytes_received += count
        frames = framing.received(count)
        return self._sort(frames) if framing.controls or self.peer_closed else frames

    def _sort(self, frames: list[Received]) -> list[Received]:
        """Set control frames apart; return the messages, which count even before a failure."""
        messages = []
        for kind, data in frames:
            if self.peer_closed:
                break  # RFC 6455 section 5.5.1: nothing follows a Close
            if kind < Kind.CLOSE:
                messages.append((kind, data))
            elif kind is Kind.CLOSE:
                self.peer_closed = True
                self.close_payload = bytes(data)
            else:
                self.pings_and_pongs.append((kind, bytes(data)))
        return messages
