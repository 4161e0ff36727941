"""Follow the messages of a topic: positions, retention, and what is missing. Pure.

A position is an epoch and a number. The numbers of an epoch begin with 1 and have no holes, so
whoever has read one message and then sees another knows how many it has missed. An epoch begins
with a topic, and again whenever Redis was started again, since then it may lack messages that it
had. Later epochs are greater.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from .errors import TopicGap

__all__ = [
    "MAX_MESSAGE",
    "NEW",
    "NOTHING",
    "OLDEST",
    "Batch",
    "Follower",
    "Position",
    "Retention",
    "TopicMessage",
    "parse_position",
]

# Bytes of a message.
MAX_MESSAGE = 1 << 20

NEW, OLDEST = "new", "oldest"

_TEXT = re.compile(r"([0-9]{1,16})-([0-9]{1,16})")


class Position(NamedTuple):
    """The place of a message in a topic; ``str`` makes a text of it, for ``subscribe``."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.number}"


# The position before the first message of any topic.
NOTHING = Position(0, 0)


class Retention(NamedTuple):
    """Bound what a topic keeps.

    Attributes:
        messages: their number.
        size: bytes of their data.
        idle: seconds after the last message, after which the topic is forgotten.
    """

    messages: int = 10_000
    size: int = 16 << 20
    idle: float = 86_400.0


class TopicMessage(NamedTuple):
    """Hold a message of a topic.

    Attributes:
        topic: the topic.
        position: its place in the topic.
        data: what was published.
    """

    topic: str
    position: Position
    data: bytes


class Batch(NamedTuple):
    """Hold what a store has behind a position.

    Attributes:
        last: the position of the newest message; ``NOTHING`` if there is no such topic.
        messages: the oldest of those behind the position that was asked for.
        oldest: the position of the oldest message that is kept, or that behind ``last``.
    """

    last: Position
    messages: Sequence[tuple[Position, bytes]]
    oldest: Position


def parse_position(start: Position | str) -> Position | str:
    """Return where a subscription begins: a position, ``NEW`` or ``OLDEST``.

    Raises:
        ValueError: it is none of these.
    """
    if start in (NEW, OLDEST):
        return start
    text = str(start) if isinstance(start, Position) else start
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        text = f"expected {NEW!r}, {OLDEST!r} or a position to start at, got {str(start)[:80]!r}"
        raise ValueError(text)
    return Position(int(found[1]), int(found[2]))


class Follower:
    """Turn batches into the messages of one subscription, and the gaps between them.

    Args:
        topic: the topic.
        start: from ``parse_position``.

    Attributes:
        position: that of the last message that was handed out; ``None`` until the first batch of
            a subscription that begins with ``NEW`` or ``OLDEST``.
    """

    def __init__(self, topic: str, start: Position | str) -> None:
        self._topic = topic
        self._start = start
        self.position = start if isinstance(start, Position) else None

    def got(self, batch: Batch) -> list[TopicMessage | TopicGap]:
        """Return what follows, in order; the position moves behind all of it.

        The first batch of a subscription that begins with ``NEW`` or ``OLDEST`` has no messages; it
        says where those are.
        """
        if batch.last == NOTHING:
            self.position = self.position or NOTHING
            return []
        if self.position is None:
            first = batch.oldest if self._start == OLDEST else batch.last
            number = first.number - 1 if self._start == OLDEST else first.number
            self.position = Position(first.epoch, number)
            return []
        found: list[TopicMessage | TopicGap] = []
        at = self.position
        for position, data in batch.messages:
            if position <= at:
                continue
            found += self._gap(at, position)
            found.append(TopicMessage(self._topic, position, data))
            at = position
        if not batch.messages and batch.last != at:
            # What was published meanwhile is dropped already, or another epoch has begun.
            found += self._gap(at, Position(batch.last.epoch, batch.last.number + 1))
            at = batch.last
        self.position = at  # last: an interrupt before this loses nothing, as all is read again
        return found

    def _gap(self, at: Position, to: Position) -> list[TopicGap]:
        """Return the gap before a message, if there is one."""
        known = at.epoch in (to.epoch, NOTHING.epoch)
        count = to.number - at.number - 1 if known else None
        return [] if count == 0 else [TopicGap(self._topic, str(at), str(to), count)]
