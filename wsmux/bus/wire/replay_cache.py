"""Remember signatures until their envelopes have expired. Pure: times are arguments.

Room is shared fairly between sources. When all of it is taken, a source that holds its share or
more makes room for itself: its signatures that end first are forgotten. A source below its share
takes room from the one that holds most. Either way, only a source that sent much loses anything.

A source whose signatures were forgotten is held to the last of their ends: none of its envelopes
that ends then or earlier is accepted any more, since it may be a copy. So forgetting a signature
never lets its envelope be accepted twice; a flood costs its own source envelopes, and no other.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

__all__ = ["REMEMBERED", "ReplayCache"]

# Maximum number of signatures, about 300 bytes each.
REMEMBERED = 65_536

# Of what a source holds beyond its share, the part that is forgotten at once: finding the source
# takes a look at all of them.
SURPLUS_PART = 8


class _Source:
    """Hold what one source has sent: a heap of ends and signatures, and the last forgotten end."""

    __slots__ = ("forgotten", "held")

    def __init__(self) -> None:
        self.held: list[tuple[int, bytes]] = []
        self.forgotten = 0


class ReplayCache:
    """Keep the signatures of accepted envelopes; not thread-safe.

    Args:
        remembered: the maximum number of signatures.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._ends: dict[bytes, int] = {}
        self._sources: defaultdict[bytes, _Source] = defaultdict(_Source)
        self._looked: int | None = None  # when expired signatures were last removed
        self._expired = 0  # the last end of those

    def __len__(self) -> int:
        return len(self._ends)

    def knows(self, signature: bytes, now: int) -> bool:
        """Return whether a signature was added and has not expired at ``now``, in Unix seconds."""
        self._remove_expired(now)
        return self._ends.get(signature, now) > now

    def add(self, source: bytes, signature: bytes, end: int, now: int) -> bool:
        """Add a new signature of a source, to be kept until ``end``.

        Returns:
            Whether it was added. If not, the envelope may be a copy of one that was forgotten, or
            there is no room for another source; it must not be accepted.
        """
        self._remove_expired(now)
        # If the clock was set back, what had expired before must not be accepted again.
        if end <= self._expired:
            return False
        known = self._sources.get(source)
        if known is not None and end <= known.forgotten:
            return False
        if len(self._ends) >= self._remembered and not self._make_room(known, end):
            return False
        heapq.heappush(self._sources[source].held, (end, signature))
        self._ends[signature] = end
        return True

    def forget(self, source: bytes, signature: bytes) -> None:
        """Remove a signature whose envelope was not accepted after all."""
        known = self._sources.get(source)
        entry = (self._ends.get(signature, 0), signature)
        if known is None or entry not in known.held:
            return
        del self._ends[signature]
        known.held.remove(entry)
        heapq.heapify(known.held)
        if not known.held and not known.forgotten:
            del self._sources[source]

    def _make_room(self, known: _Source | None, end: int) -> bool:
        """Forget signatures for one more of a source, which ends at ``end``."""
        held = 0 if known is None else len(known.held)
        share = self._remembered // (len(self._sources) + (known is None))
        if known is not None and held and held >= share:
            if end <= known.held[0][0]:
                return False  # it would be the first to be forgotten
            self._drop(known, 1)
            return True
        largest = max(self._sources.values(), key=lambda source: len(source.held))
        surplus = len(largest.held) - max(share, 1)
        if surplus <= 0:
            return False
        self._drop(largest, max(1, surplus // SURPLUS_PART))
        return True

    def _drop(self, source: _Source, count: int) -> None:
        """Forget the signatures of a source that end first."""
        for _ in range(count):
            source.forgotten, signature = heapq.heappop(source.held)
            del self._ends[signature]

    def _remove_expired(self, now: int) -> None:
        if now == self._looked:
            return
        self._looked = now
        for name, source in list(self._sources.items()):
            while source.held and source.held[0][0] <= now:
                end, signature = heapq.heappop(source.held)
                del self._ends[signature]
                self._expired = max(self._expired, end)
            if not source.held and source.forgotten <= now:
                self._expired = max(self._expired, source.forgotten)
                del self._sources[name]
