"""Remember answers, to send them again when a request arrives twice; pure.

Relays deliver at least once, and a gateway that was killed resends requests without an answer. A
repeated request is not run again, but since its answer may have been lost, the answer is resent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

__all__ = ["AnswerCache"]

# Answers and their bytes; beyond either, the oldest is forgotten.
MAX_COUNT = 10_000
MAX_BYTES = 16 * 1024 * 1024


class AnswerCache:
    """Keep answers by a key of their requests; not thread-safe."""

    def __init__(self, max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._bytes = 0

    def keep(self, request: Hashable, answer: bytes) -> None:
        """Remember the answer to a request, replacing an earlier one."""
        self._bytes += len(answer) - len(self._kept.pop(request, b""))
        self._kept[request] = answer
        while self._bytes > self._max_bytes or len(self._kept) > self._max_count:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest)

    def find(self, request: Hashable) -> bytes | None:
        """Return the answer to a request, or ``None``."""
        return self._kept.get(request)
