"""Follow one subscription: what was asked for, got and delivered. Pure.

It is either

- *quiet*: nothing is asked of a relay; ``ask`` moves it to
- *asking*: a relay has a read with a position and a credit; ``got`` or ``failed`` move it back.

What was got waits, as messages and gaps in order, until it is taken. The next read begins behind
what was got, wherever it goes: a relay that is asked again after a loss continues there. Taking
moves the position of the subscription, which a program may keep to go on later.

Credit: what waits and what is asked for are never more than the credit. A read is asked for once
half of it is free, so that a slow program holds its relay, and a fast one need not wait for it.

Illegal moves: to ask while asking, or to get without asking, is a fault of this side. To give more
than the credit, or what comes before the position, is one of the relay, and changes nothing.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..errors import FAILED, BusError
from ..wire.topics import Batch, Position, TopicGap, gap

__all__ = ["Entry", "SubscriptionState"]


class Entry(NamedTuple):
    """Hold a message, unchecked, and its position."""

    position: Position
    data: bytes


class SubscriptionState:
    """Follow a subscription; not thread-safe.

    Args:
        topic: the topic.
        after: the position behind which it begins.
        credit: messages that may wait or be asked for, from 1.

    Attributes:
        position: that of the last message that was taken, or behind the gap that was.
        asking: whether a read is under way.
    """

    def __init__(self, topic: str, after: Position, credit: int) -> None:
        self.position = after
        self.asking = False
        self._topic = topic
        self._credit = credit
        self._next_after = after
        self._asked = 0
        self._waiting: deque[Entry | TopicGap] = deque()
        self._messages = 0

    def wants(self) -> bool:
        """Return whether it is time to ask for more."""
        return not self.asking and 2 * self._messages <= self._credit and not self._is_full()

    def ask(self) -> tuple[Position, int]:
        """Begin a read; return the position behind which to read, and its credit."""
        if self.asking or self._is_full():
            raise RuntimeError("a read is under way, or there is no room for another")
        self.asking = True
        self._asked = self._credit - self._messages
        return self._next_after, self._asked

    def failed(self) -> None:
        """End a read that got no answer."""
        self.asking = False

    def got(self, batch: Batch) -> None:
        """End a read with its answer.

        Raises:
            BusError: code 500; the relay gave what was not asked for.
        """
        if not self.asking:
            raise RuntimeError("no read is under way")
        self.asking = False
        after, count = self._next_after, len(batch.envelopes)
        if count > self._asked:
            text = f"a relay gave {count} messages of {self._topic!r}, and {self._asked} were asked"
            raise BusError(FAILED, f"{text}: they are refused")
        if batch.epoch == after.epoch and batch.first <= after.number:
            text = f"a relay gave messages of {self._topic!r} from {batch.first} on, after {after}"
            raise BusError(FAILED, f"{text}: they are refused")
        missing = gap(self._topic, after, batch)
        if missing is not None:
            self._waiting.append(missing)
        for number, data in enumerate(batch.envelopes, batch.first):
            self._waiting.append(Entry(Position(batch.epoch, number), data))
        self._messages += count
        self._next_after = batch.end()

    def head(self) -> Entry | TopicGap | None:
        """Return what is to be delivered next; it stays."""
        return self._waiting[0] if self._waiting else None

    def take(self) -> None:
        """Remove what was delivered."""
        head = self._waiting.popleft()
        if isinstance(head, Entry):
            self._messages -= 1
            self.position = head.position
        else:
            self.position = Position(head.before.epoch, head.before.number - 1)

    def _is_full(self) -> bool:
        return self._messages >= self._credit
