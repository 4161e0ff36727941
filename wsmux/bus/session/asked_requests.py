"""Remember what this twin was asked and how it answered, beyond the life of one call.

Threads and locks: one lock, held for moments.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from .answer_cache import AnswerCache

__all__ = ["AskedRequests"]

# Requests whose payload was encrypted; the oldest is forgotten.
MAX_REQUESTS = 100_000


class AskedRequests:
    """Know, by uid and source, which requests came encrypted, and the answers to all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._encrypted: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._answers = AnswerCache()

    def note(self, uid: str, source: str, *, encrypted: bool) -> None:
        """Note a request."""
        if not encrypted:
            return
        with self._lock:
            self._encrypted[uid, source] = None
            if len(self._encrypted) > MAX_REQUESTS:
                self._encrypted.popitem(last=False)

    def was_encrypted(self, uid: str, source: str) -> bool:
        """Return whether the answer must be encrypted."""
        with self._lock:
            return (uid, source) in self._encrypted

    def answered(self, uid: str, source: str, signed: bytes) -> None:
        """Note an answer as it travels."""
        with self._lock:
            self._answers.keep((uid, source), signed)

    def answer(self, uid: str, source: str) -> bytes | None:
        """Return the answer to a request that comes again."""
        with self._lock:
            return self._answers.find((uid, source))
