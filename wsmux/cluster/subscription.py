"""Read the messages of a topic."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Self

from ..exceptions import ConcurrencyError, ForkedError
from ..runtime import fork
from ..runtime.closing import Closing
from ..runtime.deadline import Deadline
from ..runtime.logs import logger
from .errors import TopicGap, Unreachable
from .positions import NEW, Follower, Position, TopicMessage
from .topics import TopicStore

__all__ = ["Subscription"]

_log = logger("wsmux.cluster")


class Subscription(Closing):
    """Yield the messages of a topic, in order; made by ``Cluster.subscribe``.

    Messages that were dropped before they were read raise ``TopicGap``; reading goes on behind
    them. One thread reads at a time; ``close`` may be called from any thread, and ends its wait, as
    the ``close`` of the cluster does.

    Attributes:
        topic: the topic.
    """

    def __init__(self, store: TopicStore, topic: str, start: Position | str) -> None:
        self.topic = topic
        self._store = store
        self._follower = Follower(topic, start)
        self._left: deque[TopicMessage | TopicGap] = deque()
        self._lock = threading.Lock()
        self._reading = self._closed = self._forked = self._failed = False
        fork.register(self)
        if start == NEW:
            self._follower.got(store.read(topic, None))
        self._at = self._follower.position

    @property
    def position(self) -> Position | None:
        """The position of the last message that was returned, or behind which reading begins.

        ``None`` before the first message of a subscription that begins with the oldest. Keep it,
        for ``since=``, together with the effects of the message.
        """
        return self._at

    def read(self, timeout: float | None = None) -> TopicMessage:
        """Return the next message. Blocks until there is one, also while Redis is away.

        Raises:
            TimeoutError: none came within ``timeout`` seconds.
            TopicGap: messages were dropped before they were read.
            ConcurrencyError: another thread is reading.
            ValueError: it was closed, or its cluster was.
            ForkedError: it was begun before a fork, and this is the child.
        """
        if self._forked:
            raise ForkedError(
                f"this subscription of {self.topic!r} is of the parent process: subscribe again, "
                "since= its position"
            )
        deadline = Deadline(timeout)
        reads = False
        try:
            with self._lock:
                if self._reading:
                    raise ConcurrencyError(f"another thread is reading topic {self.topic!r}")
                self._reading = reads = True  # no signal is handled in between
            while not self._left:
                self._fetch(deadline)
            found = self._left.popleft()
            if isinstance(found, TopicGap):
                raise found
            self._at = found.position
            return found
        finally:
            if reads:
                self._reading = False

    def _fetch(self, deadline: Deadline) -> None:
        """Get what the store has, or wait for it."""
        # First: whatever happens from now on, such as an end, is another number to the wait below.
        changes = self._store.changes(self.topic)
        if self._closed:
            raise ValueError("this subscription is closed")
        if self._store.closed:
            raise ValueError("the cluster of this subscription was left: close() has been called")
        try:
            if self._follower.position is None:
                self._follower.got(self._store.read(self.topic, None))
            batch = self._store.read(self.topic, self._follower.position)
            self._left += self._follower.got(batch)
            self._failed = False
        except Unreachable as error:
            level = logging.DEBUG if self._failed else logging.WARNING  # once for each outage
            self._failed = True
            _log.log(level, "topic %r is read again and again: %s", self.topic, error)
        if not self._left:
            if deadline.expired():
                raise TimeoutError(f"no message of {self.topic!r} came in time")
            self._store.wait(self.topic, changes, deadline)

    def close(self) -> None:
        """End reading; a thread that waits gets ``ValueError``."""
        self._closed = True
        if not self._forked:
            self._store.wake(self.topic)

    def forked(self) -> None:
        """Refuse to read in a forked child, where nobody hears the bell, and locks may be held."""
        self._forked = True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TopicMessage:
        try:
            return self.read()
        except ValueError:
            if self._closed or self._store.closed:
                raise StopIteration from None
            raise
