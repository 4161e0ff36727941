"""Remember answers, to give them again when a request comes twice; pure.

Relays deliver at least once, and a gateway that was killed sends again what it has no answer to. A
request that comes again is not run again, but its answer may have been lost: it is sent once more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

__all__ = ["AnswerCache"]

# Answers, and their bytes; the oldest is forgotten.
MAX_COUNT = 10_000
MAX_BYTES = 16 * 1024 * 1024


class AnswerCache:
    """Keep answers by what names their requests; the caller guards it."""

    def __init__(self, max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._bytes = 0

    def keep(self, request: Hashable, answer: bytes) -> None:
        """Remember the answer to a request; a later one takes its place."""
        self._bytes += len(answer) - len(self._kept.pop(request, b""))
        self._kept[request] = answer
        while self._bytes > self._max_bytes or len(self._kept) > self._max_count:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest)

    def find(self, request: Hashable) -> bytes | None:
        """Return the answer to a request, if it is still known."""
        return self._kept.get(request)
