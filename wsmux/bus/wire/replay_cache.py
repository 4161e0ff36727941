"""Remember signatures until their envelopes have expired. Pure: times are arguments."""

from __future__ import annotations

import heapq

__all__ = ["REMEMBERED", "ReplayCache"]

# Maximum number of signatures, about 300 bytes each.
REMEMBERED = 65_536


class ReplayCache:
    """Keep the signatures of accepted envelopes; not thread-safe.

    Beyond the maximum, the first to expire are forgotten.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._seen: set[bytes] = set()
        self._ends: list[tuple[int, bytes]] = []  # a heap by time of expiry

    def __len__(self) -> int:
        return len(self._ends)

    def knows(self, signature: bytes, now: int) -> bool:
        """Return whether a signature was added and has not expired at ``now``, in Unix seconds."""
        while self._ends and self._ends[0][0] <= now:
            self._seen.discard(heapq.heappop(self._ends)[1])
        return signature in self._seen

    def add(self, signature: bytes, end: int) -> None:
        """Add a new signature, to be kept until ``end``."""
        self._seen.add(signature)
        heapq.heappush(self._ends, (end, signature))
        if len(self._ends) > self._remembered:
            self._seen.discard(heapq.heappop(self._ends)[1])
