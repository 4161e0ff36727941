"""Hold the calls that wait for an answer, and end those that have timed out.

Threads and locks: one condition guards the table. Results are set without it, since the callbacks
of futures are user code. One clock thread, started with the first call, ends calls that have timed
out; it sleeps until the next call may expire, and wakes at most a hundred times a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, NamedTuple

from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.threads import daemon_thread
from ..errors import CallTimeout
from ..twins.records import Twin
from ..wire.address import Address

__all__ = ["MAX_CALLS", "Call", "PendingCalls"]

# Calls in progress at once, about 3 KiB each; further ones wait for room.
MAX_CALLS = 10_000

# Seconds between checks for expired calls.
TICK = 0.01

_log = logger("wsmux.bus")


class Call(NamedTuple):
    """Describe a request that was sent.

    Attributes:
        uid: the uid of the envelope, which the answer repeats.
        twin: the record of the twin when it was asked.
        destination: its address; without a session, any session of the twin may answer.
        command: the command that was called.
        sealed: whether the payload was encrypted.
        deadline: when the call expires.
        future: receives the answer.
        read: converts the answer's bytes and schema to the future's value; may raise.
    """

    uid: str
    twin: Twin
    destination: Address
    command: str
    sealed: bool
    deadline: Deadline
    future: Future[Any]
    read: Callable[[bytes, str], Any]

    def is_asked(self, source: Address | None) -> bool:
        """Return whether an answer comes from the twin, and session, that was asked."""
        session = self.destination.session
        if source is None or source.twin != self.twin.id:
            return False
        return session is None or session == source.session

    def remaining(self) -> float:
        """Return the seconds left; a call always has a deadline."""
        left = self.deadline.remaining()
        assert left is not None
        return left


class PendingCalls:
    """Keep the calls of one client by their uid.

    Args:
        name: the name of the client, for its thread.
        limit: the maximum number of calls at once.
    """

    def __init__(self, name: str, limit: int = MAX_CALLS) -> None:
        self._name = name
        self._limit = limit
        self._condition = threading.Condition()
        self._calls: dict[str, Call] = {}
        self._clock = threading.Condition()
        self._next_look = float("inf")
        self._thread: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        """Add a call, blocking until there is room or it expires.

        Raises:
            CallTimeout: there was no room in time; nothing was sent.
            ValueError: the client is closed.
        """
        with self._condition:
            while not self._closed and len(self._calls) >= self._limit:
                if call.deadline.expired():
                    text = f"the limit of {self._limit} calls waiting for answers is reached"
                    raise CallTimeout(text, call.twin.id, retry_safe=True)
                self._condition.wait(call.deadline.remaining())
            if self._closed:
                raise ValueError("this bus client is closed")
            self._calls[call.uid] = call
        self._watch(time.monotonic() + call.remaining())

    def find(self, uid: str) -> Call | None:
        """Return the call that an answer is for, or ``None``."""
        return self._calls.get(uid)

    def remove(self, call: Call) -> bool:
        """Remove a call; ``False`` if another thread did, which then also ends it."""
        with self._condition:
            if self._calls.pop(call.uid, None) is None:
                return False
            self._condition.notify()
            return True

    def settle(self, call: Call, outcome: Any) -> None:
        """End a call with its value, or with its error if that is an exception; once only."""
        if not self.remove(call):
            return
        try:
            if isinstance(outcome, BaseException):
                call.future.set_exception(outcome)
            else:
                call.future.set_result(outcome)
        except InvalidStateError:
            _log.debug("the answer to %s came after it was cancelled", call.command)

    def close(self, make_error: Callable[[Call], Exception], deadline: Deadline) -> None:
        """End every call, and the thread; may be called twice."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            left = list(self._calls.values())
        for call in left:
            self.settle(call, make_error(call))
        with self._clock:
            self._clock.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(deadline.remaining())

    # Clock thread

    def _watch(self, due: float) -> None:
        with self._clock:
            if self._thread is None and not self._closed:
                self._thread = daemon_thread(target=self._keep_time, name=f"{self._name}-clock")
                self._thread.start()
            if due < self._next_look:
                self._next_look = due
                self._clock.notify_all()

    def _keep_time(self) -> None:
        while True:
            with self._clock:
                while not self._closed and (left := self._next_look - time.monotonic()) > 0:
                    self._clock.wait(None if left == float("inf") else left)
                if self._closed:
                    return
                self._next_look = float("inf")
            self._expire()
            with self._clock:
                if not self._closed:
                    self._clock.wait(TICK)

    def _expire(self) -> None:
        with self._condition:
            calls = list(self._calls.values())
        for call in calls:
            if call.deadline.expired():
                text = f"timed out waiting for the answer to {call.command!r}"
                self.settle(call, CallTimeout(text, call.twin.id))
        left = min(
            (call.remaining() for call in calls if not call.deadline.expired()), default=None
        )
        if left is not None:
            self._watch(time.monotonic() + left)
