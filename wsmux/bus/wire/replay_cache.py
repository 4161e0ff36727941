"""Remember signatures until what they sign has expired. Pure: times are arguments."""

from __future__ import annotations

import heapq

__all__ = ["REMEMBERED", "ReplayCache"]

# Signatures that are remembered, about 300 bytes each.
REMEMBERED = 65_536


class ReplayCache:
    """The signatures that were accepted before; not for several threads at once.

    Beyond the bound those that expire first are forgotten.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._seen: set[bytes] = set()
        self._ends: list[tuple[int, bytes]] = []  # a heap of when each may be forgotten

    def __len__(self) -> int:
        return len(self._ends)

    def knows(self, signature: bytes, now: int) -> bool:
        """Return whether a signature was added and has not ended at ``now``, in Unix seconds."""
        while self._ends and self._ends[0][0] <= now:
            self._seen.discard(heapq.heappop(self._ends)[1])
        return signature in self._seen

    def add(self, signature: bytes, end: int) -> None:
        """Remember a signature that is not known until ``end``."""
        self._seen.add(signature)
        heapq.heappush(self._ends, (end, signature))
        if len(self._ends) > self._remembered:
            self._seen.discard(heapq.heappop(self._ends)[1])
