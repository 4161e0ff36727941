"""Take what came from the socket, and set control frames apart from messages.

For the I/O thread alone; nothing here is locked.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from .protocols.carrier import Framing, Kind, Received
from .sockio import Socket

if TYPE_CHECKING:
    from .flight import Recorder

__all__ = ["Inbox", "Part"]

# Messages, and the pings and pongs that came behind them.
Part = tuple[list[Received], list[tuple[Kind, bytes]]]


class Inbox:
    """Read one socket.

    Attributes:
        bytes_received: what the socket gave.
        ended: the peer ended the connection, with a Close or without.
        close_payload: that of the peer's Close, until somebody takes it.
        peer_closed: a Close has come.
        recorder: keeps the frames of the connection, where that was asked for.
    """

    def __init__(self, sock: Socket, framing: Framing) -> None:
        self.bytes_received = 0
        self.ended = False
        self.close_payload: bytes | None = None
        self.peer_closed = False
        self.recorder: Recorder | None = None
        self._pings_and_pongs: list[tuple[int, Kind, bytes]] = []  # and the messages before each
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
        if self.recorder is not None:
            self.recorder.received(frames)
        return self._sort(frames) if framing.controls or self.peer_closed else frames

    def in_order(self, messages: list[Received]) -> list[Part]:
        """Cut what ``read`` returned last behind the pings and pongs that came in between."""
        if not self._pings_and_pongs:
            return [(messages, [])]
        parts: list[Part] = []
        start = 0
        for before, group in groupby(self._pings_and_pongs, itemgetter(0)):
            parts.append((messages[start:before], [control[1:] for control in group]))
            start = before
        self._pings_and_pongs.clear()
        parts.append((messages[start:], []))
        return parts

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
                self._pings_and_pongs.append((len(messages), kind, bytes(data)))
        return messages
