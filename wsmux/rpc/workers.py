"""Run handlers in a bounded set of threads that are reused."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Workers"]

# Seconds that an idle thread waits for more to do.
IDLE = 10.0

_log = logging.getLogger("wsmux.rpc")


class Workers:
    """Run actions in at most ``limit`` daemon threads; further ones wait in a queue.

    The caller bounds what waits.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)
        self._waiting: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._count = 0
        self._closed = False

    def submit(self, action: Callable[[], None]) -> None:
        """Have an action run; never blocks."""
        with self._lock:
            self._waiting.append(action)
            starts = self._starts_locked()
            if not starts:
                self._wanted.notify()
        if starts:
            self._start()

    def _starts_locked(self) -> bool:
        """Tell whether a further thread is to be started, which is counted then."""
        starts = len(self._waiting) > self._idle and self._count < self._limit
        self._count += starts
        return starts

    def _start(self) -> None:
        name = f"{self._name}-worker-{self._count}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError:
            _log.exception("no thread for %s; calls wait for the running ones", name)
            with self._lock:
                self._count -= 1

    def close(self) -> None:
        """End each thread as soon as it has nothing to do; what is submitted later is still run."""
        with self._lock:
            self._closed = True
            self._wanted.notify_all()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
                while not self._waiting:
                    if self._closed or not self._wanted.wait(IDLE) and not self._waiting:
                        self._idle -= 1
                        self._count -= 1
                        return
                self._idle -= 1
                action = self._waiting.popleft()
            try:
                action()
            except Exception:
                _log.exception("an action of %s failed", self._name)
            except BaseException:  # such as SystemExit, which ends this thread
                with self._lock:
                    self._count -= 1
                    starts = self._starts_locked()
                if starts:
                    self._start()
                raise
