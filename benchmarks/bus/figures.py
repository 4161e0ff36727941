"""Say what a client of the bus must measure; needs no package."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from statistics import median

__all__ = ["BusClient", "timed", "trips_p50"]


class BusClient(ABC):
    """Take the figures of one variant; those that a variant leaves out are not asked of it."""

    @abstractmethod
    def trip_p50(self, seconds: float) -> float:
        """Return the median of the microseconds that a message to another and one back take."""

    def call_p50(self, seconds: float) -> float:
        """Return the median of the microseconds that a call takes, encrypted and signed."""
        raise NotImplementedError(f"{type(self).__name__} makes no calls")

    def messages(self, twins: int, seconds: float) -> float:
        """Return how many messages a second come to so many twins."""
        raise NotImplementedError(f"{type(self).__name__} has no twins")

    def kept(self, count: int) -> float:
        """Send messages to a twin that is away and comes then; return the seconds for all that."""
        raise NotImplementedError(f"{type(self).__name__} keeps nothing")

    def idle(self, count: int) -> float:
        """Connect twins that then do nothing; return by how many bytes for each it has grown."""
        raise NotImplementedError(f"{type(self).__name__} has no twins")

    def flooded(self, seconds: float) -> float:
        """Return the p99 of round trips while another twin floods, in percent of it without."""
        raise NotImplementedError(f"{type(self).__name__} has no limits")


def trips_p50(trip: Callable[[], object], seconds: float) -> float:
    """Return the median of the microseconds that one trip takes, after one that is not counted."""
    trip()
    return median(timed(trip, seconds)) * 1e6


def timed(trip: Callable[[], object], seconds: float) -> list[float]:
    """Repeat a trip for so many seconds, at least once; return the seconds that each took."""
    took: list[float] = []
    now = time.perf_counter()
    stop = now + seconds
    while now < stop or not took:
        trip()
        before, now = now, time.perf_counter()
        took.append(now - before)
    return took
