"""Add up the unread bytes of all connections of the process.

Each connection counts its own bytes under its own mutex and reports the sum once per batch of
received messages. ``_lock`` is never held across a call out.
"""

from __future__ import annotations

import os
import threading
from typing import Generic, TypeVar

__all__ = ["ProcessMemory"]

Owner = TypeVar("Owner")


class ProcessMemory(Generic[Owner]):
    """Know what every owner holds, and which one holds most."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Owner, int] = {}
        self.total = 0

    def report(self, owner: Owner, held: int, limit: int) -> Owner | None:
        """Set what an owner holds, in bytes; return the largest one if the sum is above ``limit``.

        What others hold may be stale by what they have read since their last report, so the one
        named must report before it acts.
        """
        with self._lock:
            self.total += held - self._held.get(owner, 0)
            self._held[owner] = held
            return max(self._held, key=self._held.__getitem__) if self.total > limit else None

    def forget(self, owner: Owner) -> None:
        """Drop an owner that has ended."""
        with self._lock:
            self.total -= self._held.pop(owner, 0)
