"""Define where topics are kept; keep them in memory, where they are lost with the process.

Who holds what: a store holds the logs, and who created each; ``topics`` holds who waits for which.
A store says that a topic may have changed, and does not know who wants to know.

In memory, one lock guards all; it is held only for operations on logs. When all logs together
exceed their bound, the largest loses its older half. When too many publications are remembered,
topics with no less than their share are refused more. So flooding a topic affects that topic alone.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

from ...config import MIB
from ...runtime import fork
from ...runtime.deadline import Deadline
from ..errors import FAILED, BusError
from ..wire.topics import Batch, Position
from .topic_log import REMEMBERED, Retention, TopicLog

__all__ = ["ANYBODY", "NOWHERE", "Changed", "MemoryTopics", "NewMessage", "TopicFull", "TopicStore"]

# Bytes of all topics in memory together.
MAX_BYTES = 256 * MIB

# Publications that are remembered in memory, about 256 bytes each, beyond which each topic is held
# to its share. So there may be twice as many.
REMEMBERED_IN_ALL = 262_144

# Topics in all, and those that one twin has created.
MAX_TOPICS, MAX_TOPICS_OF_TWIN = 256, 16

# Counts as the creator of topics that the relay was told of: they count for no twin.
ANYBODY = 0

# What is read of a topic that nobody has published to.
NOWHERE = Batch(0, 1, ())

# Called with the topics that may have changed; ``None`` for any of them.
Changed = Callable[[Collection[str] | None], None]


class TopicFull(BusError):
    """Report that a message cannot be kept for one of the bounds."""

    def __init__(self, message: str) -> None:
        super().__init__(FAILED, message, retry_safe=True)


class NewMessage(NamedTuple):
    """Describe a publication.

    Attributes:
        topic: the topic.
        twin: who published, or ``ANYBODY`` if the topic is to count for nobody.
        key: what copies of the publication share.
        data: the envelope.
        end: when that expires, in Unix seconds.
    """

    topic: str
    twin: int
    key: str
    data: bytes
    end: int


class TopicStore(ABC):
    """Keep topics. Any thread may use it."""

    @abstractmethod
    def watch(self, changed: Changed) -> None:
        """Call this, which must not block, when there may be more to read; set once, at first."""

    @abstractmethod
    def append(self, message: NewMessage, deadline: Deadline) -> Position:
        """Keep a message, or find its copy; return its position. Blocks until it is kept.

        Raises:
            TopicFull: a bound is reached.
            QueueUnavailable: it could not be kept before the deadline.
        """

    @abstractmethod
    def read(self, topic: str, after: Position | str, credit: int, deadline: Deadline) -> Batch:
        """Return messages behind a position, as ``TopicLog.read``; ``NOWHERE`` without a log.

        Raises:
            QueueUnavailable: it could not be read before the deadline.
        """

    @abstractmethod
    def close(self, deadline: Deadline) -> None:
        """Stop background threads."""


class MemoryTopics(TopicStore):
    """Keep topics in memory; see the module for the bounds.

    Args:
        retention: what each topic keeps.
        max_bytes: bytes of all topics together.
        max_topics: topics in all, beyond which only those of ``ANYBODY`` are created.
        max_of_twin: topics that one twin has created.
        remembered: publications of one topic that are remembered.
        remembered_in_all: those of all, beyond which each topic is held to its share.
        clock: returns Unix seconds.
    """

    def __init__(
        self,
        retention: Retention | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        max_topics: int = MAX_TOPICS,
        max_of_twin: int = MAX_TOPICS_OF_TWIN,
        remembered: int = REMEMBERED,
        remembered_in_all: int = REMEMBERED_IN_ALL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._retention = retention or Retention()
        self._max_bytes = max_bytes
        self._max_topics, self._max_of_twin = max_topics, max_of_twin
        self._remembered, self._remembered_in_all = remembered, remembered_in_all
        self._clock = clock
        self._lock = threading.Lock()
        self._logs: dict[str, TopicLog] = {}
        self._creators: dict[str, int] = {}
        self._changed: Changed = _nobody
        fork.register(self)

    def __repr__(self) -> str:
        return f"<MemoryTopics topics={len(self._logs)}>"

    def forked(self) -> None:
        """Empty the copy in a forked child; see ``runtime.fork``."""
        self._lock = threading.Lock()
        self._logs.clear()
        self._creators.clear()

    def watch(self, changed: Changed) -> None:
        self._changed = changed

    def append(self, message: NewMessage, deadline: Deadline) -> Position:
        now = self._clock()
        with self._lock:
            log = self._logs.get(message.topic) or self._create_locked(message, now)
            room = self._room_locked(now)
            position = log.append(message.key, message.data, message.end, now, room)
            self._make_room_locked()
        if position is None:
            raise TopicFull(too_many_publications(message.topic, min(room, self._remembered)))
        self._changed([message.topic])
        return position

    def read(self, topic: str, after: Position | str, credit: int, deadline: Deadline) -> Batch:
        with self._lock:
            log = self._logs.get(topic)
            return NOWHERE if log is None else log.read(after, credit, self._clock())

    def close(self, deadline: Deadline) -> None:
        with self._lock:
            self._logs.clear()
            self._creators.clear()

    def _create_locked(self, message: NewMessage, now: float) -> TopicLog:
        topic, twin = message.topic, message.twin
        if len(self._logs) >= self._max_topics:
            self._forget_locked(now)
        if twin != ANYBODY and len(self._logs) >= self._max_topics:
            raise TopicFull(too_many_topics(topic, self._max_topics))
        if twin != ANYBODY and Counter(self._creators.values())[twin] >= self._max_of_twin:
            self._forget_locked(now)
            if Counter(self._creators.values())[twin] >= self._max_of_twin:
                raise TopicFull(too_many_of_twin(topic, twin, self._max_of_twin))
        log = TopicLog(int(now * 1000), self._retention, self._remembered)
        self._logs[topic] = log
        self._creators[topic] = twin
        return log

    def _forget_locked(self, now: float) -> None:
        """Forget the topics that keep nothing."""
        for topic, log in list(self._logs.items()):
            log.trim(now)
            if log.is_idle():
                del self._logs[topic], self._creators[topic]

    def _room_locked(self, now: float) -> int:
        """Return how many publications of one topic may be remembered now."""
        if self._all_remembered_locked() < self._remembered_in_all:
            return self._remembered
        for log in self._logs.values():
            log.trim(now)
        if self._all_remembered_locked() < self._remembered_in_all:
            return self._remembered
        return self._remembered_in_all // len(self._logs)

    def _all_remembered_locked(self) -> int:
        return sum(log.remembered for log in self._logs.values())

    def _make_room_locked(self) -> None:
        """Halve the largest log until the total is within its bound."""
        while sum(log.size for log in self._logs.values()) > self._max_bytes:
            largest = max(self._logs.values(), key=lambda log: log.size)
            largest.drop((len(largest) + 1) // 2)


def too_many_topics(topic: str, most: int) -> str:
    """Say that there are too many topics."""
    return f"{topic!r} is not created: there are {most} topics; publish to one of those"


def too_many_of_twin(topic: str, twin: int, most: int) -> str:
    """Say that a twin has too many topics."""
    text = f"{topic!r} is not created: twin {twin} has created {most} topics, as many as it may"
    return f"{text}; publish to one of those, or have the relay name it with --topic"


def too_many_publications(topic: str, most: int) -> str:
    """Say that no more publications can be told from copies."""
    text = f"{most} messages were published to {topic!r} whose time has not run out"
    return f"{text}: publish fewer, or with a shorter timeout"


def _nobody(topics: Collection[str] | None) -> None:
    """Wake nobody."""
