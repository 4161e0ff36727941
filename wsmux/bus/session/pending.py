"""Hold the calls that wait for an answer, and end those whose time is over.

Threads and locks: one condition guards the table. Futures are settled without it, since their
callbacks are the user's. One thread, started with the first call, looks after the time; it sleeps
until the first call may expire, and looks at most a hundred times a second.
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

# Calls under way at once; further ones wait for room. About 3 KiB each.
MAX_CALLS = 10_000

# Seconds between two looks at the time.
TICK = 0.01

_log = logger("wsmux.bus")


class Call(NamedTuple):
    """A request that was sent.

    Attributes:
        uid: that of the envelope, which the answer repeats.
        twin: the twin that was asked, as the directory had it then.
        destination: where; without a session any session of the twin may answer.
        command: what was asked for.
        sealed: the payload was encrypted.
        deadline: when it expires.
        future: what its answer is put into.
        read: turns the answer's bytes and schema into the future's value; may raise.
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
        """Return whether an answer comes from whom was asked."""
        session = self.destination.session
        if source is None or source.twin != self.twin.id:
            return False
        return session is None or session == source.session

    def remaining(self) -> float:
        """Return the seconds left; a call always has an end."""
        left = self.deadline.remaining()
        assert left is not None
        return left


class PendingCalls:
    """Keep the calls of one client by their uid.

    Args:
        name: that of the client, for its thread.
        limit: calls at once.
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
        """Keep a call, waiting for room until it expires.

        Raises:
            CallTimeout: there was no room in time; nothing was sent.
            ValueError: the client is closed.
        """
        with self._condition:
            while not self._closed and len(self._calls) >= self._limit:
                if call.deadline.expired():
                    text = f"{self._limit} calls wait for their answers already"
                    raise CallTimeout(text, call.twin.id, retry_safe=True)
                self._condition.wait(call.deadline.remaining())
            if self._closed:
                raise ValueError("this client of the bus is closed")
            self._calls[call.uid] = call
        self._watch(time.monotonic() + call.remaining())

    def find(self, uid: str) -> Call | None:
        """Return the call that an answer is for."""
        return self._calls.get(uid)

    def remove(self, call: Call) -> bool:
        """Forget a call; false if another thread did, which then answers its caller."""
        with self._condition:
            if self._calls.pop(call.uid, None) is None:
                return False
            self._condition.notify()
            return True

    def settle(self, call: Call, outcome: Any) -> None:
        """End a call with its value or, if it is an exception, its error; the first one counts."""
        if not self.remove(call):
            return
        try:
            if isinstance(outcome, BaseException):
                call.future.set_exception(outcome)
            else:
                call.future.set_result(outcome)
        except InvalidStateError:
            _log.debug("the answer to %s came when it was cancelled", call.command)

    def close(self, make_error: Callable[[Call], Exception], deadline: Deadline) -> None:
        """End every call, and the thread; twice is fine."""
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

    # The time

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
                text = f"no answer to {call.command!r} in time"
                self.settle(call, CallTimeout(text, call.twin.id))
        left = min(
            (call.remaining() for call in calls if not call.deadline.expired()), default=None
        )
        if left is not None:
            self._watch(time.monotonic() + left)
