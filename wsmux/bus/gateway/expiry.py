"""Know when requests expire that wait for an answer, so that each caller is told."""

from __future__ import annotations

import heapq
import threading

__all__ = ["Expiry"]


class Expiry:
    """Keep the uids of requests by the time at which they expire; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._resent: set[str] = set()

    def add(self, uid: str, end: float) -> None:
        """Add a request that expires at ``end``, in Unix seconds; a later end replaces it."""
        with self._lock:
            if self._ends.get(uid) != end:
                self._ends[uid] = end
                heapq.heappush(self._heap, (end, uid))

    def note_resent(self, uid: str) -> None:
        """Record that a request was sent again, unless it is not known."""
        with self._lock:
            if uid in self._ends:
                self._resent.add(uid)

    def was_resent(self, uid: str) -> bool:
        """Return whether a request was sent more than once."""
        return uid in self._resent

    def remove(self, uid: str) -> None:
        """Forget a request that was answered."""
        with self._lock:
            self._ends.pop(uid, None)
            self._resent.discard(uid)
            if len(self._heap) > 2 * len(self._ends) + 100:  # mostly answered ones
                self._heap = [(end, each) for each, end in self._ends.items()]
                heapq.heapify(self._heap)

    def take(self, now: float) -> list[str]:
        """Remove and return the requests that have expired."""
        taken = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                end, uid = heapq.heappop(self._heap)
                if self._ends.get(uid) == end:
                    del self._ends[uid]
                    self._resent.discard(uid)
                    taken.append(uid)
        return taken
