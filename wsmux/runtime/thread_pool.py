"""Run handlers in a bounded pool of reusable threads.

Waking a thread costs more than a small handler does, and threads that all compute only slow each
other down. So an action wakes a worker only if no other action was queued, and that worker
continues with whatever has been queued since. While actions are queued, a watcher checks every
``TICK`` whether more workers would help: because none was taken, or because the process uses little
CPU time, so that the handlers must be waiting for something. Then it adds one worker, next time
two, then four and so on, but never more than there are actions for which none is on its way.

``SerialExecutor`` runs the actions of one key one after another, in the threads of a pool.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable

from .deadline import Deadline, RealDeadline
from .logs import logger
from .parking import Condition, Parker, Waiter, wake
from .threads import daemon_thread

__all__ = ["SerialExecutor", "ThreadPool"]

# Seconds after which an idle thread ends.
IDLE = 10.0

# Seconds between two checks of the queue: what a burst of handlers that wait may lose at first.
TICK = 0.001

# The fraction of one processor from which on the process counts as computing.
COMPUTING = 0.5

# Seconds after which a queued action is worth another worker in any case.
PATIENCE = 0.02

_log = logger("wsmux")


class ThreadPool:
    """Run actions in at most ``limit`` daemon threads; further actions are queued.

    The caller limits the queue.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._lock = threading.Lock()
        self._left: deque[tuple[float, Callable[[], None]]] = deque()  # since when, and which
        self._taken = 0  # actions ever taken
        self._parked: list[Waiter] = []
        self._coming = 0  # workers that were called and have not yet checked the queue
        self._count = 0
        self._watcher = Waiter()
        self._watched = False  # the watcher's thread runs
        self._resting = False  # the watcher has nothing to watch
        self._closed = False
        self._gone = Condition(self._lock)  # a worker has ended
        self._here = threading.local()  # distinguishes workers from other threads

    @property
    def threads(self) -> int:
        """The current number of workers."""
        return self._count

    def submit(self, action: Callable[[], None]) -> None:
        """Run an action in a worker. Never blocks."""
        wakes: list[Parker] = []
        self.add(action, wakes)
        wake(wakes)

    def add(self, action: Callable[[], None], wakes: list[Parker]) -> None:
        """Run an action in a worker once ``wakes`` are woken, perhaps after adding several."""
        workers = watchers = 0
        with self._lock:
            self._left.append((time.monotonic(), action))
            if len(self._left) == 1:
                if not self._coming:
                    workers = self._call_locked(1, wakes)
            elif not self._watched:
                self._watched, watchers = True, 1
            elif self._resting:
                self._resting = False
                self._watcher.notify(wakes)
        self._start(workers, watchers)

    def close(self) -> None:
        """End each thread once the queue is empty; actions submitted later still run."""
        wakes: list[Parker] = []
        with self._lock:
            self._closed = True
            self._call_locked(len(self._parked), wakes)
            self._resting = False
            self._watcher.notify(wakes)
        wake(wakes)

    def join(self, deadline: Deadline) -> None:
        """Wait, after ``close``, until every worker except the calling thread has ended."""
        with self._lock:
            while self._count > self._is_own() and not deadline.expired():
                self._gone.wait(deadline.remaining())

    def _is_own(self) -> bool:
        return getattr(self._here, "works", False)

    def _call_locked(self, count: int, wakes: list[Parker]) -> int:
        """Wake workers, the last one active first; return how many threads to start."""
        woken = min(count, len(self._parked))
        for _ in range(woken):
            self._parked.pop().notify(wakes)
        started = min(count - woken, self._limit - self._count)
        self._count += started
        self._coming += woken + started
        return started

    def _start(self, workers: int, watchers: int = 0) -> None:
        try:
            for _ in range(workers):
                name = f"{self._name}-worker-{self._count}"
                daemon_thread(target=self._work, name=name).start()
                workers -= 1
            for _ in range(watchers):
                name = f"{self._name}-watcher"
                daemon_thread(target=self._watch, name=name).start()
                watchers -= 1
        except RuntimeError:
            _log.exception(
                "no thread can be started for %s; new work waits for the running threads",
                self._name,
            )
            with self._lock:
                self._count -= workers
                self._coming -= workers
                self._watched = self._watched and not watchers
                # It asks for a worker again, and that may be the only one for what is queued.
                retries = bool(self._left) and not self._watched and not watchers
                self._watched = self._watched or retries
            if retries:
                self._start(0, 1)

    def _work(self) -> None:
        self._here.works = True
        waiter = Waiter()
        with self._lock:
            self._coming -= 1
        while (action := self._take(waiter)) is not None:
            try:
                action()
            except Exception:
                _log.exception("a task of %s failed", self._name)
            except BaseException:  # such as SystemExit, which ends this thread
                wakes: list[Parker] = []
                with self._lock:
                    self._count -= 1
                    self._gone.notify_all()
                    workers = self._call_locked(1, wakes) if self._left else 0
                wake(wakes)
                self._start(workers)
                raise
            del action  # a waiting thread must not keep it alive

    def _take(self, waiter: Waiter) -> Callable[[], None] | None:
        """Return the next action, waiting for it; ``None`` when the thread is to end."""
        with self._lock:
            deadline: Deadline | None = None
            while not self._left:
                deadline = deadline or Deadline(IDLE)
                if self._closed or deadline.expired():
                    self._count -= 1
                    self._gone.notify_all()
                    return None
                self._parked.append(waiter)
                waiter.wait(self._lock, deadline)
                if waiter in self._parked:  # it was not called
                    self._parked.remove(waiter)
                else:
                    self._coming -= 1
            self._taken += 1
            return self._left.popleft()[1]

    # The watcher

    def _watch(self) -> None:
        wakes: list[Parker] = []
        while self._rest():
            more = 1
            while True:
                with self._lock:
                    taken, computed = self._taken, time.process_time()
                    began = time.monotonic()
                    can_help = self._parked or self._count < self._limit
                    self._watcher.wait(self._lock, RealDeadline(TICK if can_help else PATIENCE))
                    if not self._left:
                        break
                    now = time.monotonic()
                    computes = time.process_time() - computed > COMPUTING * (now - began)
                    late = now - self._left[0][0] > PATIENCE
                    helps = self._taken == taken or not computes or late
                    more = min(more, len(self._left)) if helps else 0
                    # On a busy machine, those that were called may take many ticks to come.
                    uncovered = max(0, len(self._left) - self._coming)
                    workers = self._call_locked(min(more, uncovered), wakes)
                    more = 2 * more or 1
                wake(wakes)
                self._start(workers)

    def _rest(self) -> bool:
        """Wait until an action is queued; return false when the thread is to end."""
        with self._lock:
            deadline = Deadline(IDLE)
            self._resting = not self._left
            while self._resting and not self._closed and not deadline.expired():
                self._watcher.wait(self._lock, deadline)
            self._watched = bool(self._left)
            self._resting = False
            return self._watched


Action = Callable[[], None]


class SerialExecutor:
    """Run the actions of each key in order; those of different keys run concurrently.

    The caller limits the queue.
    """

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._left: dict[Hashable, deque[Action]] = {}

    def submit(self, key: Hashable, action: Action) -> None:
        """Run an action after the earlier ones of its key. Never blocks."""
        with self._lock:
            left = self._left.get(key)
            if left is not None:
                left.append(action)
                return
            self._left[key] = deque([action])
        self._pool.submit(lambda: self._run(key))

    def _run(self, key: Hashable) -> None:
        """Run the first action, and queue for the next in turn with the other keys."""
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
