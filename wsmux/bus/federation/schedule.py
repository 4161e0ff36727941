"""Decide which message is offered to which relay next.

A message is offered to its relays one after the other, best first; that is a pass. Three passes
with short pauses make a round. After a round without success the twin is looked up again and the
next round starts ``RETRY`` seconds later, until the message expires. This follows the reference
relay with one exception: there, any refusal ends the message. Here a relay that refuses permanently
is not asked again, and the message ends when the last relay has refused.

At most ``LANE`` attempts at one relay are in progress, so a relay that hangs delays only its own
messages and leaves workers for the others. ``room`` leaves room for them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count

__all__ = ["LANE", "LOOK_UP", "PASSES", "RETRY", "Job", "Schedule"]

# Minimum and maximum seconds between passes, and seconds before a round is repeated; as the
# reference relay.
PAUSES = ((0.1, 0.15), (0.2, 0.3))
PASSES = len(PAUSES) + 1
RETRY = 3.0

# Attempts at one relay, or look-ups of twins, in progress at once.
LANE = 16

# The lane of messages whose relays must be looked up.
LOOK_UP = ""


class Job:
    """Track one message on its way to another relay.

    Args:
        ticket: the ticket of its queue entry.
        data: the envelope's bytes.
        expires_at: when to give it up, by the clock of the schedule.

    Attributes:
        reason: why the last attempt failed.
        domains: the relays of the twin, as far as they are known; for their share of the room.
    """

    __slots__ = (
        "_left",
        "_passes",
        "_route",
        "data",
        "domains",
        "expires_at",
        "reason",
        "ticket",
    )

    def __init__(self, ticket: str, data: bytes, expires_at: float) -> None:
        self.ticket = ticket
        self.data = data
        self.expires_at = expires_at
        self.reason = ""
        self.domains: tuple[str, ...] = ()
        self._route: list[str] = []  # relays that have not refused, best first
        self._left: deque[str] = deque()  # relays left in this pass
        self._passes = 0

    @property
    def lane(self) -> str:
        """Return the domain to try next, or ``LOOK_UP``."""
        return self._left[0] if self._left else LOOK_UP

    def routed(self, domains: Iterable[str]) -> None:
        """Start a round over these relays, best first."""
        self._route = list(domains)
        self._left = deque(self._route)
        self._passes = 0

    def refused(self, reason: str) -> bool:
        """Drop the relay that refused; return whether another is left."""
        self.reason = reason
        self._route.remove(self._left.popleft())
        if self._route and not self._left:
            self._left = deque(self._route)
        return bool(self._route)

    def failed(
        self, reason: str, order: Callable[[Iterable[str]], list[str]], random: float
    ) -> float:
        """Record a failed attempt and return the seconds to wait before the next.

        Args:
            reason: why it failed.
            order: ranks relays for the next pass.
            random: a number from 0 up to 1, which spreads the pauses.
        """
        self.reason = reason
        if not self._left:  # the look-up failed
            return RETRY
        self._left.popleft()
        if self._left:
            return 0.0
        self._passes += 1
        if self._passes == PASSES:
            self._route = []
            return RETRY
        self._route = order(self._route)
        self._left = deque(self._route)
        low, high = PAUSES[self._passes - 1]
        return low + (high - low) * random


class Schedule:
    """Keep jobs until they are due and their lane has room; not thread-safe."""

    def __init__(self, lane: int = LANE) -> None:
        self._lane = lane
        self._order = count()  # ties between jobs that are due at the same time
        self._due: list[tuple[float, int, Job]] = []
        self._busy: dict[str, int] = {}
        self._waiting: dict[str, deque[Job]] = {}

    def add(self, job: Job, due: float) -> None:
        """Keep a job until ``due``, or until it expires if that is earlier."""
        heapq.heappush(self._due, (min(due, job.expires_at), next(self._order), job))

    def next_due(self) -> float | None:
        """Return when the next job is due, ``None`` if there is none."""
        return self._due[0][0] if self._due else None

    def take(self, now: float) -> tuple[Job, str] | None:
        """Return a due job and its lane, which it occupies until ``release``; or ``None``."""
        while self._due and self._due[0][0] <= now:
            job = heapq.heappop(self._due)[2]
            lane, busy = job.lane, self._busy.get(job.lane, 0)
            if busy < self._lane:
                self._busy[lane] = busy + 1
                return job, lane
            self._waiting.setdefault(lane, deque()).append(job)
        return None

    def newest(self, lane: str) -> Job | None:
        """Return the last of the jobs that are due and wait for a place in a lane."""
        waiting = self._waiting.get(lane)
        return waiting[-1] if waiting else None

    def drop_newest(self, lane: str) -> None:
        """Forget the job that ``newest`` has returned."""
        self._waiting[lane].pop()
        if not self._waiting[lane]:
            del self._waiting[lane]

    def release(self, lane: str, now: float) -> None:
        """Free a place in a lane, and schedule the next job waiting for it."""
        self._busy[lane] -= 1
        if not self._busy[lane]:
            del self._busy[lane]
        waiting = self._waiting.get(lane)
        if waiting:
            self.add(waiting.popleft(), now)
            if not waiting:
                del self._waiting[lane]
