"""Ask Redis in threads of our own, so that nobody waits for it longer than he wants to.

The client of Redis knows one timeout for all calls, and none of those that a caller has. Nor does
it outlive Ctrl-C at any step: a connection may go back to its pool with the reply to come, which
the next caller then takes for his own, or the lock of the pool may stay locked for ever. So a call
is made in a thread that no signal handler interrupts, and whoever asked waits for it as long as he
may; what he has given up runs to its end by itself, within the timeouts of the client.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..runtime.deadline import Deadline
from ..runtime.parking import OneShotEvent, Parker, WaitQueue, wake
from ..runtime.threads import daemon_thread, start_thread
from ..storage.redis_client import explain, run_together
from .errors import Unreachable

if TYPE_CHECKING:
    import redis

__all__ = ["CallsHere", "RedisCalls", "understood"]

# Threads that call Redis; as many as the connections of a client.
THREADS = 32

# Calls that wait for a thread: more than any process has threads that wait for them, so they are
# calls that were given up.
MAX_WAITING = 4096

# Seconds after which an idle thread ends.
IDLE = 10.0

# What a result raises that is not of the form that was expected.
_ODD = (TypeError, ValueError, IndexError, AttributeError)

Call = tuple[str, tuple[str, ...], tuple[Any, ...]]


@contextmanager
def understood() -> Iterator[None]:
    """Say of a result that cannot be understood that Redis is not what has answered.

    Raises:
        Unreachable: what the block or function does with the result has failed.
    """
    try:
        yield
    except _ODD as error:
        raise Unreachable(f"Redis answered what was not expected: {error}") from error


class _Pending:
    """Hold one call: what is asked, and what became of it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.done = OneShotEvent()
        self.result: Any = None
        self.error: Exception | None = None

    def make(self, client: redis.Redis) -> None:
        script, keys, arguments = self.call
        command = ("EVAL", script, len(keys), *keys, *arguments)
        try:
            (self.result,) = run_together(client, [command])
            if isinstance(self.result, Exception):
                self.error = self.result
        except Exception as error:  # of any type, for a reply that no Redis gives
            self.error = error
        finally:
            self.done.set()

    def outcome(self) -> Any:
        if self.error is not None:
            raise Unreachable(explain(self.error)) from self.error
        return self.result


class RedisCalls:
    """Run scripts in Redis. Any thread may use it; it starts its threads as it needs them.

    Args:
        client: of a Redis; it belongs to the caller.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._mutex = threading.Lock()
        self._left: deque[_Pending] = deque()
        self._idle = WaitQueue()
        self._threads: set[threading.Thread] = set()  # each adds itself, and removes itself
        self._closed = False

    def run(self, script: str, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        """Run one script, and return its result.

        Blocks until there is a reply, or for the timeouts of the client, but not beyond the
        enclosing ``deadline`` block.

        Raises:
            Unreachable: Redis has failed, or has not answered in time; whether the script has run
                is not known.
        """
        deadline = Deadline(None)
        pending = _Pending((script, keys, arguments))
        wakes: list[Parker] = []
        with self._mutex:
            if self._closed:
                raise Unreachable("this node has left the cluster")
            if len(self._left) >= MAX_WAITING:
                raise Unreachable(f"Redis has not answered {MAX_WAITING} calls before this one")
            self._left.append(pending)
            starts = not self._idle.parked and len(self._threads) < THREADS
            self._idle.notify(wakes, 1)
        wake(wakes)
        if starts:
            start_thread(daemon_thread(target=self._work, name="wsmux-cluster-redis"))
        if not pending.done.wait(deadline.remaining()):
            raise Unreachable("Redis has not answered in time")
        return pending.outcome()

    def close(self) -> None:
        """Refuse further calls, and wait until those that are under way have ended.

        Blocks for as long as the timeouts of the client. May be repeated.
        """
        wakes: list[Parker] = []
        with self._mutex:
            self._closed = True
            self._idle.notify_forced(wakes)
            threads = list(self._threads)
        wake(wakes)
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        """Run what is asked, until there is nothing for a while."""
        thread = threading.current_thread()
        with self._mutex:
            # Several that were started at once may be too many. Nor may one begin behind the end.
            if len(self._threads) >= THREADS or (self._closed and not self._left):
                return
            self._threads.add(thread)
        while (pending := self._next(thread)) is not None:
            pending.make(self._client)
            del pending  # which has a stack of frames, if it failed

    def _next(self, thread: threading.Thread) -> _Pending | None:
        """Return the next call, waiting for it; ``None`` when the thread is to end."""
        deadline = Deadline(IDLE)
        with self._mutex:
            while not self._left:
                if self._closed or deadline.expired():
                    self._threads.discard(thread)
                    return None
                self._idle.wait(self._mutex, deadline)
            return self._left.popleft()


class CallsHere(RedisCalls):
    """Run scripts in the thread that asks, which no signal handler may interrupt."""

    def run(self, script: str, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        pending = _Pending((script, keys, arguments))
        pending.make(self._client)
        return pending.outcome()
