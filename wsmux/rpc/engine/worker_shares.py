"""Share a server's workers among its sessions, so that none keeps the others from theirs.

A handler holds a worker from its start until it returns, or until it waits without one. A session
may hold ``each`` workers, and never more than are left for the others: the first to fill a server
up gets half of it, the next half of the rest, and a session that holds none always finds one while
any is left. What may not start yet waits, first come, first served within its session, and the
sessions in turn.

There are no threads, clocks or locks here. The server's mutex guards all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Share", "WorkerShares"]

Work = TypeVar("Work")


class Share(Generic[Work]):
    """Hold one session's part.

    Attributes:
        running: the workers that it holds.
        waiting: what has none yet.
        told_waiting, told_refused: it was logged that a call waits, or was refused; once is enough.
    """

    __slots__ = ("running", "told_refused", "told_waiting", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[Work] = deque()
        self.told_waiting = False
        self.told_refused = False


class WorkerShares(Generic[Work]):
    """Decide what starts now and what waits.

    Args:
        each: the most workers of one session.
        total: the most of all.

    Attributes:
        running: the workers that are held.
    """

    def __init__(self, each: int, total: int) -> None:
        self._each = each
        self._total = total
        self.running = 0
        self._in_turn: deque[Share[Work]] = deque()  # those with something that waits

    def ask(self, share: Share[Work], work: Work) -> bool:
        """Take a worker for ``work``; else it waits, and false is returned."""
        if not share.waiting and self._may(share):
            self._take(share)
            return True
        if not share.waiting:
            self._in_turn.append(share)
        share.waiting.append(work)
        return False

    def give_back(self, share: Share[Work]) -> list[Work]:
        """Give a worker back; return what takes one now."""
        share.running -= 1
        self.running -= 1
        return self._start()

    def forget(self, share: Share[Work], keep: Callable[[Work], bool]) -> list[Work]:
        """Let no more wait than ``keep`` says; return what does not wait any more."""
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
