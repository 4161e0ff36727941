"""Describe where the topics of a cluster are kept, and keep them in this process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from typing import Protocol

from ..runtime import clock
from ..runtime.deadline import LONGEST_WAIT, Deadline
from ..runtime.parking import Condition
from .errors import ClusterError
from .positions import NOTHING, Batch, Position, Retention

__all__ = ["READ_MESSAGES", "READ_SIZE", "Bell", "MemoryTopics", "TopicStore"]

# Messages and bytes that one read returns, at most; but at least one message.
READ_MESSAGES, READ_SIZE = 1000, 4 << 20

# Topics of a process without Redis, or whose changes it counts one by one.
MAX_TOPICS = 10_000

# Seconds after which a waiting reader of such a process reads again, at least.
LOOK = 0.01


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
    """Hold one topic.

    Attributes:
        epoch, next: of the next message.
        kept, size: the messages, and the bytes of their data.
        appended, used: when a message was appended last, and appended or read.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next = 1
        self.size = 0
        self.kept: deque[tuple[Position, bytes]] = deque()
        self.appended = self.used = 0.0


class MemoryTopics:
    """Keep topics in this process, by the rules of ``RedisTopics``.

    A topic is forgotten when its last message is older than ``Retention.idle``, but as long as it
    is read, its epoch and numbers go on.
    """

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._lock = threading.Lock()
        self._logs: OrderedDict[str, _MemoryLog] = OrderedDict()  # who was used last comes last
        self._epoch = 0  # the last that has begun
        self._bell = Bell()
        self.closed = False

    def append(self, topic: str, data: bytes) -> Position:
        messages, size, _ = self._retention
        with self._lock:
            log = self._used_locked(topic)
            if log is None:
                if len(self._logs) >= MAX_TOPICS:
                    raise ClusterError(f"{MAX_TOPICS} topics are the most without Redis")
                self._epoch = max(time.time_ns() // 1_000_000, self._epoch + 1)
                log = self._logs[topic] = _MemoryLog(self._epoch)
                log.used = clock.monotonic()
            log.appended = log.used
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
            log = self._used_locked(topic)
            if log is None:
                return Batch(NOTHING, (), NOTHING)
            last = Position(log.epoch, log.next - 1)
            oldest = log.kept[0][0] if log.kept else Position(log.epoch, log.next)
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

    def _used_locked(self, topic: str) -> _MemoryLog | None:
        """Return what is kept of a topic that is used now, after forgetting what was idle."""
        now = clock.monotonic()
        due = now - self._retention.idle
        while self._logs and next(iter(self._logs.values())).used <= due:
            self._logs.popitem(last=False)
        log = self._logs.get(topic)
        if log is not None:
            log.used = now
            self._logs.move_to_end(topic)
            if log.appended <= due:
                log.kept.clear()
                log.size = 0
        return log

    def changes(self, topic: str) -> int:
        return self._bell.changes(topic)

    def wait(self, topic: str, changes: int, deadline: Deadline) -> None:
        # A reader that waits reads again from time to time, so the topic is used.
        look = min(max(LOOK, self._retention.idle / 2), LONGEST_WAIT)
        remaining = deadline.remaining()
        until = Deadline(look if remaining is None else min(look, remaining))
        self._bell.wait(topic, changes, until)

    def wake(self, topic: str) -> None:
        self._bell.ring(topic)

    def close(self) -> None:
        self.closed = True
        self._bell.ring(None)
