"""Share a server's workers among its sessions, so that none keeps the others from theirs.

A handler holds a worker until it returns, or until it waits without a thread. A session may hold
at most ``each`` workers, and never more than are free: the first session to use all it can gets
half of the server, the next one half of the rest, and a session without any worker finds one while
any is free. Handlers that may not start yet wait. Within a session they start in the order in which
they came, and sessions take turns.

This module has no threads, clocks or locks; its caller holds the server's mutex.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Share", "WorkerShares"]

Work = TypeVar("Work")


class Share(Generic[Work]):
    """Hold what one session has of the workers.

    Attributes:
        running: the number of workers that it holds.
        waiting: the work that has none yet.
        told_waiting, told_refused: whether it was logged, once, that calls wait or were refused.
    """

    __slots__ = ("running", "told_refused", "told_waiting", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[Work] = deque()
        self.told_waiting = False
        self.told_refused = False


class WorkerShares(Generic[Work]):
    """Decide which work starts and which waits.

    Args:
        each: maximum number of workers of one session.
        total: maximum number of workers of all sessions.

    Attributes:
        running: the number of workers in use.
    """

    def __init__(self, each: int, total: int) -> None:
        self._each = each
        self._total = total
        self.running = 0
        self._in_turn: deque[Share[Work]] = deque()  # those with waiting work

    def ask(self, share: Share[Work], work: Work) -> bool:
        """Take a worker for ``work``; if none is free for it, let it wait and return ``False``."""
        if not share.waiting and self._may(share):
            self._take(share)
            return True
        if not share.waiting:
            self._in_turn.append(share)
        share.waiting.append(work)
        return False

    def give_back(self, share: Share[Work]) -> list[Work]:
        """Return a worker; the result is the work that takes one instead."""
        share.running -= 1
        self.running -= 1
        return self._start()

    def forget(self, share: Share[Work], keep: Callable[[Work], bool]) -> list[Work]:
        """Remove the waiting work for which ``keep`` is false, and return it."""
        left = [work for work in share.waiting if not keep(work)]
        if left:
            share.waiting = deque(work for work in share.waiting if keep(work))
            if not share.waiting:
                self._in_turn.remove(share)
        return left

    def _may(self, share: Share[Work]) -> bool:
        return share.running < min(self._each, self._total - self.running)

    def _take(self, share: Share[Work]) -> None:
        share.running += 1
        self.running += 1

    def _start(self) -> list[Work]:
        started: list[Work] = []
        for _ in range(len(self._in_turn)):
            if self.running >= self._total:
                break
            share = self._in_turn.popleft()
            if self._may(share):
                self._take(share)
                started.append(share.waiting.popleft())
            if share.waiting:
                self._in_turn.append(share)
        return started
