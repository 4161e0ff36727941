"""Know which stream ids have been opened: two numbers, and the few ranges that were left out."""

from __future__ import annotations

from collections import deque

from ..exceptions import StreamIdError, StreamsExhausted
from .base import Role
from .varint import MAX_VARINT

__all__ = ["MAX_GAPS", "StreamIds"]

# Ranges of ids remembered as left out by the peer; no peer that counts up leaves out any.
MAX_GAPS = 64


class StreamIds:
    """Count the ids of both sides: even ones are the client's, odd ones the server's.

    Attributes:
        next: the id that this side opens next.
        peer_next: the high-water mark; lower ids of the peer have been opened, or left out.
        ignore_from: the first id of the peer that this side takes no more, since its GO_AWAY.
    """

    def __init__(self, role: Role, strict: bool) -> None:
        self.next = 0 if role is Role.CLIENT else 1
        self.peer_next = 1 - self.next
        self.ignore_from: int | None = None
        self._strict = strict
        self._left_out: deque[tuple[int, int]] = deque(maxlen=MAX_GAPS)

    def open(self) -> int:
        """Return an id for a stream of this side."""
        if self.next > MAX_VARINT:
            raise StreamsExhausted(61)
        self.next += 2
        return self.next - 2

    def peer_opened(self, stream_id: int) -> None:
        """Note an id that the peer opened."""
        if stream_id > self.peer_next:
            self._left_out.append((self.peer_next, stream_id - 2))
        self.peer_next = stream_id + 2

    def seen(self, stream_id: int) -> bool:
        """Tell whether an id was opened before; one that never can be any more is illegal."""
        if (stream_id - self.next) % 2 == 0:
            if stream_id < self.next:
                return True
            raise StreamIdError(
                f"stream {stream_id} has the parity of this side, which has not opened it"
            )
        if stream_id >= self.peer_next:
            return False
        if self._strict and any(first <= stream_id <= last for first, last in self._left_out):
            raise StreamIdError(
                f"stream {stream_id} is new, but not above {self.peer_next - 2}, opened before"
            )
        return True

    def check_seen(self, stream_id: int, kind: str) -> None:
        """Refuse a message on an id that has not been opened."""
        if not self.seen(stream_id):
            raise StreamIdError(f"the first message on stream {stream_id} is {kind}, not ACK")

    def ignored(self, stream_id: int) -> bool:
        """Tell whether the peer opened an id without having heard that none is taken any more."""
        first = self.ignore_from
        return first is not None and stream_id >= first and (stream_id - first) % 2 == 0

    def go_away(self) -> int:
        """Take no further ids from the peer; return the first one that is not taken."""
        self.ignore_from = self.peer_next
        return self.peer_next

    def check_go_away(self, stream_id: int) -> None:
        """Refuse a GO_AWAY that names no id of this side, or one it has not reached."""
        if (stream_id - self.next) % 2 or stream_id > self.next:
            raise StreamIdError(
                f"GO_AWAY names stream {stream_id}; the next one here would be {self.next}"
            )
