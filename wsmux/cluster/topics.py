"""Describe where the topics of a cluster are kept, and keep them in this process."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

from ..runtime.deadline import Deadline
from ..runtime.parking import Condition
from .errors import ClusterError
from .positions import NOTHING, Batch, Position, Retention

__all__ = ["READ_MESSAGES", "READ_SIZE", "Bell", "MemoryTopics", "TopicStore"]

# Messages and bytes that one read returns, at most; but at least one message.
READ_MESSAGES, READ_SIZE = 1000, 4 << 20

# Topics of a process without Redis, or whose changes it counts one by one.
MAX_TOPICS = 10_000


class TopicStore(Protocol):
    """Describe where topics are kept. Any thread may use it.

    Attributes:
        closed: whether ``close`` was called.
    """

    closed: bool

    def append(self, topic: str, data: bytes) -> Position:
        """Keep a message, and return its position.

        Raises:
            Unreachable: whether it was kept is not known.
        """

    def read(self, topic: str, after: Position | None) -> Batch:
        """Return what is behind a position; only where the topic begins and ends without one.

        Raises:
            Unreachable: Redis has failed.
        """

    def changes(self, topic: str) -> int:
        """Return a number that changes with each message of a topic."""

    def wait(self, topic: str, changes: int, deadline: Deadline) -> None:
        """Wait until the number is another one, or for a while."""

    def wake(self, topic: str) -> None:
        """Wake the readers of a topic, though nothing was published."""

    def close(self) -> None:
        """Wake all readers, and end all threads."""


class Bell:
    """Wake the readers of a topic when it has changed."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._changes: dict[str, int] = {}
        self._all = 0

    def ring(self, topic: str | None) -> None:
        """Say that a topic may have changed, or any."""
        with self._changed:
            if topic is None or len(self._changes) >= MAX_TOPICS:
                self._all += 1
                self._changes.clear()
            else:
                self._changes[topic] = self._changes.get(topic, 0) + 1
            self._changed.notify_all()

    def changes(self, topic: str) -> int:
        with self._changed:
            return self._all * (1 << 32) + self._changes.get(topic, 0)

    def wait(self, topic: str, changes: int, deadline: Deadline) -> None:
        with self._changed:
            while self.changes(topic) == changes and not deadline.expired():
                self._changed.wait(deadline.remaining())


class _MemoryLog:
    """Hold one topic."""

    def __init__(self) -> None:
        self.epoch = time.time_ns() // 1_000_000
        self.next = 1
        self.size = 0
        self.kept: deque[tuple[Position, bytes]] = deque()


class MemoryTopics:
    """Keep topics in this process."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._lock = threading.Lock()
        self._logs: dict[str, _MemoryLog] = {}
        self._bell = Bell()
        self.closed = False

    def append(self, topic: str, data: bytes) -> Position:
        messages, size, _ = self._retention
        with self._lock:
            log = self._logs.get(topic)
            if log is None:
                if len(self._logs) >= MAX_TOPICS:
                    raise ClusterError(f"{MAX_TOPICS} topics are the most without Redis")
                log = self._logs[topic] = _MemoryLog()
            position = Position(log.epoch, log.next)
            log.kept.append((position, data))
            log.next += 1
            log.size += len(data)
            while len(log.kept) > messages or (log.size > size and len(log.kept) > 1):
                log.size -= len(log.kept.popleft()[1])
        self._bell.ring(topic)
        return position

    def read(self, topic: str, after: Position | None) -> Batch:
        with self._lock:
            log = self._logs.get(topic)
            if log is None:
                return Batch(NOTHING, (), NOTHING)
            last = Position(log.epoch, log.next - 1)
            oldest = log.kept[0][0]
            found: list[tuple[Position, bytes]] = []
            if after is not None and after < last:
                # Numbers have no holes, so the place of the first one is known.
                skip = 0 if after < oldest else after.number - oldest.number + 1
                size = 0
                for at in range(skip, min(len(log.kept), skip + READ_MESSAGES)):
                    size += len(log.kept[at][1])
                    if found and size > READ_SIZE:
                        break
                    found.append(log.kept[at])
            return Batch(last, found, oldest)

    def changes(self, topic: str) -> int:
        return self._bell.changes(topic)

    def wait(self, topic: str, changes: int, deadline: Deadline) -> None:
        self._bell.wait(topic, changes, deadline)

    def wake(self, topic: str) -> None:
        self._bell.ring(topic)

    def close(self) -> None:
        self.closed = True
        self._bell.ring(None)
