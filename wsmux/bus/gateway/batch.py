"""Wait until the messages of one batch of a connection were dealt with."""

from __future__ import annotations

from ...runtime.deadline import Deadline
from ...runtime.parking import Condition

__all__ = ["Batch"]


class Batch:
    """Count the messages of a batch that are in progress; any thread may use it."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._count = 0

    def begin(self) -> None:
        """Count a message."""
        with self._condition:
            self._count += 1

    def end(self) -> None:
        """Record that a message was dealt with."""
        with self._condition:
            self._count -= 1
            if not self._count:
                self._condition.notify_all()

    def wait(self, deadline: Deadline) -> None:
        """Wait until none is in progress, at most until the deadline."""
        with self._condition:
            while self._count and not deadline.expired():
                self._condition.wait(deadline.remaining())
