"""Add up the memory that peers have filled, over all connections of the process.

Two kinds of holders report here: what carries messages, for those that are not whole yet, and what
carries streams, for their unread bytes. Each counts its own and reports a sum once per batch of
received messages. Above the limit the holder of most must give something up: it is woken, since
only its own thread may do that. ``_lock`` is never held across a call out.
"""

from __future__ import annotations

import os
import threading
from enum import Enum, auto
from typing import Protocol

__all__ = ["PRESSURE", "REPORT_STEP", "Holder", "ProcessMemory", "Verdict", "process_memory"]

# The share of the limit above which everybody saves: buffers that only make reading faster stay
# small, since nobody counts them.
PRESSURE = 0.5

# Bytes by which a holder may change before it reports: a lock for each message costs.
REPORT_STEP = 16 * 1024


class Holder(Protocol):
    """Hold bytes that a peer has sent."""

    def wake(self) -> None:
        """Make the thread that may give something up look at the sum. Never blocks."""


class Verdict(Enum):
    """Say what a holder must do that has just reported."""

    FINE = auto()
    WAIT = auto()  # take nothing further until it is woken
    GIVE_UP = auto()  # let go of something, and report again


class ProcessMemory:
    """Know what every holder holds, and which one holds most.

    Above the limit one holder at a time is asked: the largest. The next one is looked for when it
    has reported or ended, so that a thousand reports a second cost no more than a few.

    Attributes:
        total: the sum in bytes; may be read without a lock.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Holder, int] = {}
        self._waiting: dict[Holder, int] = {}  # and their limits, in the order they came
        self._asked: Holder | None = None
        self.total = 0

    def report(self, holder: Holder, held: int, limit: int, *, waits: bool = False) -> Verdict:
        """Set what a holder holds, in bytes; return what it must do. Never blocks.

        Where the sum is above ``limit`` and somebody else holds more, that one is woken: what it
        holds may be less by now, so it must report before it acts. A holder that ``waits`` is woken
        when there is room again.
        """
        with self._lock:
            self.total += held - self._held.get(holder, 0)
            self._held[holder] = held
            self._waiting.pop(holder, None)
            if self._asked is holder:
                self._asked = None
            if self.total <= limit:
                verdict, woken = Verdict.FINE, self._next()
            else:
                verdict, woken = self._over(holder, limit, waits)
        if woken is not None:
            woken.wake()
        return verdict

    def _over(self, holder: Holder, limit: int, waits: bool) -> tuple[Verdict, Holder | None]:
        """Decide above the limit; return the verdict, and which connection is asked instead."""
        asked = None
        if self._asked is None:
            largest = max(self._held, key=self._held.__getitem__)
            if largest is holder and self._held[holder]:
                return Verdict.GIVE_UP, None
            if largest is not holder:
                self._asked = asked = largest
        if waits:
            self._waiting[holder] = limit
            return Verdict.WAIT, asked
        return Verdict.FINE, asked

    def _next(self) -> Holder | None:
        """Return the first of those that wait for whom there is room."""
        return next((each for each, limit in self._waiting.items() if self.total <= limit), None)

    def forget(self, holder: Holder) -> None:
        """Drop a holder that has ended."""
        with self._lock:
            self.total -= self._held.pop(holder, 0)
            self._waiting.pop(holder, None)
            woken = self._next()
            if self._asked is holder:
                # The reporting thread looks for the next one.
                self._asked = None
                woken = woken or next(iter(self._waiting), None)
        if woken is not None:
            woken.wake()


process_memory = ProcessMemory()
