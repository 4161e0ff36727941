"""Run actions that belong together one after the other, in the threads of a pool."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable

from ..pool import Workers

__all__ = ["Ordered"]

Action = Callable[[], None]


class Ordered:
    """Keep the order of the actions of each key; those of different keys run at once.

    The caller bounds what waits.
    """

    def __init__(self, pool: Workers) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._left: dict[Hashable, deque[Action]] = {}

    def submit(self, key: Hashable, action: Action) -> None:
        """Have an action run behind those of its key; never blocks."""
        with self._lock:
            left = self._left.get(key)
            if left is not None:
                left.append(action)
                return
            self._left[key] = deque([action])
        self._pool.submit(lambda: self._run(key))

    def _run(self, key: Hashable) -> None:
        """Run the first one, and come back for the next in turn with everybody else."""
        with self._lock:
            action = self._left[key][0]
        try:
            action()
        finally:
            with self._lock:
                left = self._left[key]
                left.popleft()
                more = bool(left)
                if not more:
                    del self._left[key]
            if more:
                self._pool.submit(lambda: self._run(key))
