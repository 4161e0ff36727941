"""Exclude threads, or processes too, and wait for that no longer than told."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...rpc import RiverError
from ...runtime.backoff import Backoff
from ...runtime.deadline import Deadline
from ..protocol import Code, refusal

__all__ = ["FIRST_PAUSE", "LONGEST_PAUSE", "FileLock", "ThreadLock"]

# Seconds between two looks at what another process holds: at first, and at most. The system wakes
# nobody who waits with a timeout.
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.02


class ThreadLock:
    """Exclude the threads of this process from each other; it is not reentrant.

    Args:
        shown: what to call it in errors. timeout: seconds that may pass until it is had.
        threads: the lock, if others share it.
    """

    def __init__(self, shown: str, timeout: float, threads: threading.Lock | None = None) -> None:
        self._shown = shown
        self._timeout = timeout
        self._threads = threads or threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            RiverError: BUSY, when the time is up.
        """
        if not self._threads.acquire(timeout=Deadline(self._timeout).park_seconds()):
            raise self._busy("this process")
        try:
            yield
        finally:
            self._threads.release()

    def _busy(self, holder: str) -> RiverError:
        text = f"{self._shown} was held by {holder} for {self._timeout:g} s"
        return refusal(Code.BUSY, f"{text}: nothing was changed, and asking again is safe")


class FileLock(ThreadLock):
    """Lock a file with ``flock``, which the system frees when its holder dies.

    Threads of one process that share the object wake each other; other processes, and other
    objects of the same file, look again every few milliseconds. It is not reentrant.

    Args:
        path: the file, made if it is not there. shown: what to call it in errors.
        timeout: seconds that may pass until the lock is had.
    """

    def __init__(self, path: Path, shown: str, timeout: float) -> None:
        super().__init__(shown, timeout)
        self._path = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            RiverError: BUSY, when the time is up. OSError: the file cannot be opened or locked.
        """
        deadline = Deadline(self._timeout)
        with super().held():
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o666)
            try:
                self._lock(descriptor, deadline)
                yield
            finally:
                os.close(descriptor)

    def _lock(self, descriptor: int, deadline: Deadline) -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.5)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if deadline.expired():
                    raise self._busy("another process") from error
            time.sleep(min(backoff.next(), deadline.remaining() or 0.0))
