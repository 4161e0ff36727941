"""Remember the requests that this twin received, and its answers, after each call has ended.

Threads and locks: one lock, held briefly.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from ..wire.envelope import request_mark
from .answer_cache import AnswerCache

__all__ = ["AskedRequests"]

# Requests with an encrypted payload, about 200 bytes each; beyond it, the oldest is forgotten.
MAX_REQUESTS = 100_000


class AskedRequests:
    """Remember, by uid and source, which requests were encrypted, and all answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._encrypted: OrderedDict[bytes, None] = OrderedDict()
        self._answers = AnswerCache()

    def note(self, uid: str, source: str, *, encrypted: bool) -> None:
        """Record a request."""
        if not encrypted:
            return
        mark = request_mark(uid, source)
        with self._lock:
            self._encrypted[mark] = None
            if len(self._encrypted) > MAX_REQUESTS:
                self._encrypted.popitem(last=False)

    def was_encrypted(self, uid: str, source: str) -> bool:
        """Return whether the answer must be encrypted."""
        mark = request_mark(uid, source)
        with self._lock:
            return mark in self._encrypted

    def answered(self, uid: str, source: str, signed: bytes) -> None:
        """Record a signed answer."""
        with self._lock:
            self._answers.keep(request_mark(uid, source), signed)

    def answer(self, uid: str, source: str) -> bytes | None:
        """Return the answer to a repeated request, or ``None``."""
        with self._lock:
            return self._answers.find(request_mark(uid, source))
