"""Keep the messages of one topic, in order and within bounds. Pure: times are arguments.

A message is

- *new*, until its publication is appended;
- *kept*, from then until a bound drops it, oldest first;
- *dropped*: readers behind it are told that it is missing.

Its publication is *remembered* from when it is appended until its envelope expires, kept or
dropped: until then a copy may come, and gets the position of the first one. When no more can be
remembered, publications are refused, since they could not be told from copies later.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from itertools import islice
from typing import NamedTuple

from ...config import MIB
from ..wire.topics import MAX_ANSWER, NEW, OLDEST, Batch, Position

__all__ = ["OVERHEAD", "REMEMBERED", "Retention", "TopicLog", "retention_of"]

# Bytes that a message costs beside its data.
OVERHEAD = 256

# Bytes that a topic keeps at least, so that any message fits, and seconds at most: ten years.
LEAST_SIZE, LONGEST_AGE = 2 * MIB, 3.2e8

# Publications of one topic whose envelopes have not expired.
REMEMBERED = 65_536


class Retention(NamedTuple):
    """Bound what a topic keeps.

    Attributes:
        messages: their number.
        size: bytes of their envelopes, with ``OVERHEAD`` for each.
        age: seconds.
    """

    messages: int = 10_000
    size: int = 16 * MIB
    age: float = 86_400.0


def retention_of(bounds: tuple[int, int, float] | None) -> Retention:
    """Return the retention of messages, bytes and seconds that was asked for, or the default.

    Raises:
        ValueError: a number is too low.
    """
    if bounds is None:
        return Retention()
    made = Retention(*bounds)
    if made.messages < 1 or made.size < LEAST_SIZE or not 0 < made.age <= LONGEST_AGE:
        raise ValueError(
            f"expected a retention of at least 1 message and {LEAST_SIZE} bytes, for up to "
            f"{LONGEST_AGE:.0f} seconds, got {made.messages}, {made.size} and {made.age:g}"
        )
    return made


class _Kept(NamedTuple):
    data: bytes
    at: float


class TopicLog:
    """Keep messages of one topic; not thread-safe.

    Args:
        epoch: tells it from other logs of this name.
        retention: what it keeps.
        remembered: the maximum number of publications that are remembered.

    Attributes:
        epoch: as given.
        size: bytes of the messages that are kept, with ``OVERHEAD`` for each.
    """

    def __init__(self, epoch: int, retention: Retention, remembered: int = REMEMBERED) -> None:
        self.epoch = epoch
        self.size = 0
        self._retention = retention
        self._remembered = remembered
        self._kept: deque[_Kept] = deque()
        self._next = 1
        self._numbers: dict[Hashable, int] = {}
        self._ends: list[tuple[int, int, Hashable]] = []  # a heap

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def remembered(self) -> int:
        """The number of publications that are remembered."""
        return len(self._numbers)

    def append(
        self, key: Hashable, data: bytes, end: int, now: float, room: int = REMEMBERED
    ) -> Position | None:
        """Append a message, unless a copy of its publication was, and return its position.

        Args:
            key: what copies of the publication share.
            data: its envelope.
            end: when that expires, in Unix seconds; the caller refuses what has.
            now: Unix seconds.
            room: how many publications may be remembered now, if that is less than ever.

        Returns:
            The position, that of the first copy if there was one; ``None`` if the publication
            cannot be remembered.
        """
        self.trim(now)
        number = self._numbers.get(key)
        if number is not None:
            return Position(self.epoch, number)
        if len(self._numbers) >= min(self._remembered, room):
            return None
        number = self._next
        self._next += 1
        self._numbers[key] = number
        heapq.heappush(self._ends, (end, number, key))
        self._kept.append(_Kept(data, now))
        self.size += len(data) + OVERHEAD
        self.trim(now)
        return Position(self.epoch, number)

    def read(self, after: Position | str, credit: int, now: float) -> Batch:
        """Return messages behind a position, up to ``credit`` and ``MAX_ANSWER`` bytes.

        A position of another log is before all messages of this one.
        """
        self.trim(now)
        oldest = self._next - len(self._kept)
        if isinstance(after, Position):
            known = after.epoch == self.epoch
            first = max(oldest, after.number + 1) if known else oldest
        else:
            first = {OLDEST: oldest, NEW: self._next}[after]
        found: list[bytes] = []
        size = 0
        for each in islice(self._kept, first - oldest, first - oldest + credit):
            size += len(each.data)
            if found and size > MAX_ANSWER:
                break
            found.append(each.data)
        return Batch(self.epoch, first, found)

    def drop(self, count: int) -> None:
        """Drop the oldest messages."""
        for _ in range(min(count, len(self._kept))):
            self.size -= len(self._kept.popleft().data) + OVERHEAD

    def trim(self, now: float) -> None:
        """Drop what is beyond a bound, and forget publications that have expired."""
        count, size, age = self._retention
        kept = self._kept
        while kept and (len(kept) > count or self.size > size or kept[0].at <= now - age):
            self.drop(1)
        while self._ends and self._ends[0][0] <= now:
            del self._numbers[heapq.heappop(self._ends)[2]]

    def is_idle(self) -> bool:
        """Return whether nothing is kept or remembered, so that the log may be forgotten."""
        return not self._kept and not self._numbers
