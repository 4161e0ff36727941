"""Hand out the events of a Bymux connection with a pause behind each stream that was opened."""

from __future__ import annotations

from collections import deque

from .events import Event, StreamFinished, StreamOpened

__all__ = ["PausedEvents"]

# What is reported of a stream even when it was refused.
_KEPT = (StreamOpened, StreamFinished)


class PausedEvents:
    """Keep what the owner may not hear yet.

    One message brings many packets, and each event costs the same however many wait: a peer could
    otherwise make short messages cost minutes.

    Attributes:
        needed: ``take`` may return something else than it is given.
    """

    def __init__(self) -> None:
        self.needed = False
        self._waiting: deque[Event] = deque()
        self._refused: set[int] = set()  # streams whose events that still wait are void

    def refuse(self, stream_id: int) -> None:
        """Drop what waits of a stream; only its beginning and its end are reported."""
        self._refused.add(stream_id)
        self.needed = True

    def take(self, new: list[Event]) -> list[Event]:
        """Return what waits and then ``new``, up to a ``StreamOpened``."""
        self._waiting += new
        events = []
        while self._waiting:
            event = self._waiting.popleft()
            if isinstance(event, _KEPT) or getattr(event, "stream_id", None) not in self._refused:
                events.append(event)
            if type(event) is StreamOpened:
                return events
        self._refused.clear()
        self.needed = False
        return events
