"""Add up the memory filled by peers, over all connections of the process.

Two kinds of holders report here: message transports, for incomplete messages, and multiplexers, for
unread bytes of streams. Each counts its own bytes and reports the sum once per batch of received
messages. Above the limit, the largest holder must give something up: it is woken, since only its
own thread may do that. ``_lock`` is never held during a call to another object.
"""

from __future__ import annotations

import os
import threading
from enum import Enum, auto
from typing import Protocol

__all__ = ["PRESSURE", "REPORT_STEP", "Holder", "ProcessMemory", "Verdict", "process_memory"]

# The fraction of the limit above which buffers that only speed up reading stay small, since they
# are not counted.
PRESSURE = 0.5

# Bytes by which a holder may change before it reports, since a report per message costs a lock.
REPORT_STEP = 16 * 1024


class Holder(Protocol):
    """Describe an object that holds bytes sent by a peer."""

    def wake(self) -> None:
        """Make the thread that can give something up check the sum. Never blocks."""


class Verdict(Enum):
    """Name the action that a holder must take after its report."""

    FINE = auto()
    WAIT = auto()  # stop reading until woken
    GIVE_UP = auto()  # free something, and report again


class ProcessMemory:
    """Track the bytes of every holder, and which one holds most.

    Above the limit, one holder at a time is asked: the largest. The next is selected only when that
    one has reported or ended, so that a thousand reports a second cost no more than a few.

    Attributes:
        total: the sum in bytes; may be read without a lock.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Holder, int] = {}
        self._waiting: dict[Holder, int] = {}  # with their limits, in order of arrival
        self._asked: Holder | None = None
        self.total = 0

    def report(self, holder: Holder, held: int, limit: int, *, waits: bool = False) -> Verdict:
        """Record the bytes of a holder; return what it must do. Never blocks.

        If the sum exceeds ``limit`` and another holder has more, that one is woken; it must report
        before it acts, since it may hold less by then. A holder that ``waits`` is woken when the
        sum is within its limit again.
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
        """Decide above the limit; return the verdict, and which other holder to wake."""
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
        """Return the first waiting holder whose limit is no longer exceeded."""
        return next((each for each, limit in self._waiting.items() if self.total <= limit), None)

    def forget(self, holder: Holder) -> None:
        """Remove a holder that has ended."""
        with self._lock:
            self.total -= self._held.pop(holder, 0)
            self._waiting.pop(holder, None)
            woken = self._next()
            if self._asked is holder:
                # The reporting thread selects the next one.
                self._asked = None
                woken = woken or next(iter(self._waiting), None)
        if woken is not None:
            woken.wake()


process_memory = ProcessMemory()
