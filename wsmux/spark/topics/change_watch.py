"""Wait for topics to change, whichever process changes them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...runtime.deadline import Deadline
from ...runtime.parking import Condition
from ..store.base import Heads

__all__ = ["POLL", "ChangeWatch"]

# Seconds between two looks for changes by other processes.
POLL = 0.05


class _Topic:
    def __init__(self) -> None:
        self.changed = Condition()
        self.count = 0  # of changes
        self.waiting = 0
        self.led = False  # one of the waiting threads looks for all


class ChangeWatch:
    """Wake threads that wait for a topic.

    A change by this process wakes them at once. For changes by others, one of the waiting threads
    looks every ``poll`` seconds and wakes the rest; nothing is polled while no thread waits.

    Args:
        poll: ``None`` if no other process has access.
    """

    def __init__(self, poll: float | None) -> None:
        self._poll = poll
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}

    def tell(self, name: str) -> None:
        """Say that a topic has changed."""
        with self._lock:
            topic = self._topics.get(name)
        if topic is not None:
            _tell(topic)

    def tell_all(self) -> None:
        """Say that any topic may have changed."""
        with self._lock:
            topics = [*self._topics.values()]
        for topic in topics:
            _tell(topic)

    def wait(
        self, name: str, look: Callable[[], Heads], seen: Heads | None, timeout: float
    ) -> Heads:
        """Return the result of ``look`` as soon as it differs from ``seen``, or when time is up."""
        deadline = Deadline(timeout)
        with self._lock:
            topic = self._topics.setdefault(name, _Topic())
            topic.waiting += 1
        leads = False
        try:
            while True:
                count = topic.count
                heads = look()
                if heads != seen or deadline.expired():
                    return heads
                with topic.changed:
                    if topic.count == count:
                        if self._poll is not None and not topic.led:
                            topic.led = leads = True
                        left = deadline.remaining() or 0.0
                        topic.changed.wait(min(left, self._poll) if leads and self._poll else left)
        finally:
            if leads:
                topic.led = False
                _tell(topic)  # there was a change, or another thread must look from now on
            with self._lock:
                topic.waiting -= 1
                if not topic.waiting:
                    del self._topics[name]


def _tell(topic: _Topic) -> None:
    with topic.changed:
        topic.count += 1
        topic.changed.notify_all()
