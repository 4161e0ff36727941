"""Hold the calls that wait for an answer, end those that have timed out, and repeat some.

A request whose command may run more than once is sent again, byte for byte, at growing intervals
until it is answered. Receivers of this package run such a copy once and answer it again; others may
run it again. ``resender`` sends all requests again when a connection is lost.

Threads and locks: one condition guards the table. Results are set without it. One clock thread,
started with the first call, ends and repeats calls; it sleeps until the next call is due, and wakes
at most a hundred times a second. The callbacks of futures are user code, which may call again and
wait: they run in threads of a pool, so that neither the clock nor a connection waits for them.
Those that wait for a thread count as calls do, for the limit; not for calls that are made in such a
thread, or all of them might wait for each other.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, NamedTuple

from ...config import MIB
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition
from ...runtime.thread_pool import ThreadPool
from ...runtime.threads import daemon_thread, start_thread
from ..errors import CallTimeout
from ..twins.records import Twin
from ..wire.address import Address
from ..wire.names import name_of
from .resender import Unanswered

__all__ = ["MAX_CALLS", "Call", "CallFuture", "PendingCalls"]

# Calls in progress at once, about 3 KiB each; further ones wait for room.
MAX_CALLS = 10_000

# Callbacks of futures that run at once.
CALLBACKS = 16

# Bytes of the envelopes that are kept to be sent again; a call beyond that is not.
MAX_KEPT = 64 * MIB

# Seconds between two looks at the calls.
TICK = 0.01

# Seconds until a request is sent again, doubled each time up to the maximum.
REPEAT, LONGEST_REPEAT = 2.0, 16.0

_log = logger("wsmux.bus")


_here = threading.local()  # distinguishes threads that run callbacks

Callback = Callable[[Future[Any]], object]


class CallFuture(Future[Any]):
    """Receive the answer to a call; made by ``PendingCalls.future``.

    Whoever sets the result does not run the callbacks.
    """

    def __init__(self, call_back: Callable[[Callback, Future[Any]], None]) -> None:
        super().__init__()
        self._call_back = call_back

    def add_done_callback(self, fn: Callback) -> None:
        """Call a function with this future once it is done: now if it is, else in another thread.

        That thread may wait, for further calls too. Callbacks may run at once, in any order.
        """
        super().add_done_callback(fn if self.done() else partial(self._call_back, fn))


class Call(NamedTuple):
    """Describe a request that was sent.

    Attributes:
        uid: the uid of the envelope, which the answer repeats.
        twin: the record of the twin when it was asked.
        destination: its address; without a session, or if it is that of a name, any session of the
            twin may answer.
        command: the command that was called.
        sealed: whether the payload was encrypted.
        deadline: when the call expires.
        future: receives the answer.
        read: converts the answer's bytes and schema to the future's value; may raise.
        signed: the envelope, to send it again; empty if too much is kept already.
    """

    uid: str
    twin: Twin
    destination: Address
    command: str
    sealed: bool
    deadline: Deadline
    future: Future[Any]
    read: Callable[[bytes, str], Any]
    signed: bytes

    def is_asked(self, source: Address | None) -> bool:
        """Return whether an answer comes from the twin, and session, that was asked."""
        session = self.destination.session
        if source is None or source.twin != self.twin.id:
            return False
        return session in (None, source.session) or name_of(self.destination) is not None

    def remaining(self) -> float:
        """Return the seconds left; a call always has a deadline."""
        left = self.deadline.remaining()
        assert left is not None
        return left


class _Repeat:
    """Decide when a request is sent again."""

    __slots__ = ("copies", "due", "interval")

    def __init__(self, now: float) -> None:
        self.copies = 0
        self.interval = REPEAT
        self.due = now + REPEAT

    def sent(self, now: float) -> None:
        self.copies += 1
        self.interval = min(2 * self.interval, LONGEST_REPEAT)
        self.due = now + self.interval


class PendingCalls:
    """Keep the calls of one client by their uid.

    Args:
        name: the name of the client, for its thread.
        offer: sends an envelope again, without blocking.
        limit: the maximum number of calls at once.
    """

    def __init__(self, name: str, offer: Callable[[bytes], object], limit: int = MAX_CALLS) -> None:
        self._name = name
        self._offer = offer
        self._limit = limit
        self._repeats: dict[str, _Repeat] = {}
        self._resent: set[str] = set()  # by a resender, after a loss
        self._condition = Condition()
        self._calls: dict[str, Call] = {}
        self._kept = 0  # bytes of their envelopes
        self._clock = Condition()
        self._next_look = float("inf")
        self._thread: threading.Thread | None = None
        self._callbacks = ThreadPool(CALLBACKS, f"{name}-callbacks")
        self._waiting = 0  # callbacks without a thread
        self._nested = 0  # calls that wait for room in callbacks
        self._closed = False

    def __len__(self) -> int:
        return len(self._calls)

    def future(self) -> CallFuture:
        """Return a future for a call."""
        return CallFuture(self._call_back)

    def add(self, call: Call) -> None:
        """Add a call, blocking until there is room or it expires.

        Raises:
            CallTimeout: there was no room in time; nothing was sent.
            NoThreadError: the system has no thread left; the next call tries again.
            ValueError: the client is closed.
        """
        self._start_clock()
        nested = getattr(_here, "calls_back", False)
        with self._condition:
            while not self._closed:
                waiting = 0 if nested else self._waiting
                if len(self._calls) + waiting < self._limit:
                    break
                if call.deadline.expired():
                    text = (
                        f"the limit of {self._limit} calls waiting for answers is reached: "
                        f"{waiting} of them for a thread that runs a callback"
                    )
                    raise CallTimeout(text, call.twin.id, retry_safe=True)
                self._nested += nested
                try:
                    self._condition.wait(call.deadline.remaining())
                finally:
                    self._nested -= nested
            if self._closed:
                raise ValueError("this bus client is closed")
            if self._kept + len(call.signed) > MAX_KEPT:
                call = call._replace(signed=b"")
            self._kept += len(call.signed)
            self._calls[call.uid] = call
        self._watch(time.monotonic() + call.remaining())

    def repeat(self, call: Call) -> None:
        """Send a request again from now on, until its call ends; it was sent once."""
        now = time.monotonic()
        with self._condition:
            known = self._calls.get(call.uid)
            if known is not None and known.signed:
                self._repeats[call.uid] = _Repeat(now)
        self._watch(now + REPEAT)

    def find(self, uid: str) -> Call | None:
        """Return the call that an answer is for, or ``None``."""
        return self._calls.get(uid)

    def copies(self, call: Call) -> int:
        """Return how often a request was sent again, or is about to be."""
        repeat = self._repeats.get(call.uid)
        return (call.uid in self._resent) + (0 if repeat is None else repeat.copies)

    def unanswered(self) -> list[Unanswered]:
        """Return the calls that wait, to be sent again."""
        with self._condition:
            calls = [each for each in self._calls.values() if each.signed]
            self._resent.update(each.uid for each in calls)
        return [Unanswered(each.signed, each.deadline, each.twin.id) for each in calls]

    def remove(self, call: Call) -> bool:
        """Remove a call; ``False`` if another thread did, which then also ends it."""
        with self._condition:
            known = self._calls.pop(call.uid, None)
            if known is None:
                return False
            self._kept -= len(known.signed)
            self._repeats.pop(call.uid, None)
            self._resent.discard(call.uid)
            if self._nested:  # there may be room for these alone
                self._condition.notify_all()
            else:
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
        """End every call, and the clock; may be called twice. Callbacks go on; see ``join``."""
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
        self._callbacks.close()

    def join(self, deadline: Deadline) -> None:
        """Wait, after ``close``, for the callbacks of futures, except in one of those."""
        self._callbacks.join(deadline)

    def _call_back(self, function: Callback, future: Future[Any]) -> None:
        with self._condition:
            self._waiting += 1
        self._callbacks.submit(partial(self._run_callback, function, future))

    def _run_callback(self, function: Callback, future: Future[Any]) -> None:
        with self._condition:
            self._waiting -= 1
            self._condition.notify()
        _here.calls_back = True
        function(future)

    # Clock thread

    def _start_clock(self) -> None:
        """Start the thread with the first call, before anything relies on it."""
        if self._thread is not None:
            return
        with self._clock:
            if self._thread is None and not self._closed:
                thread = daemon_thread(target=self._keep_time, name=f"{self._name}-clock")
                start_thread(thread)
                self._thread = thread

    def _watch(self, due: float) -> None:
        with self._clock:
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
            self._look()
            with self._clock:
                if not self._closed:
                    self._clock.wait(TICK)

    def _look(self) -> None:
        """End calls that have timed out, send others again, and watch for what is due next."""
        now = time.monotonic()
        with self._condition:
            calls = list(self._calls.values())
            due = [uid for uid, repeat in self._repeats.items() if repeat.due <= now]
            for uid in due:
                self._repeats[uid].sent(now)
            again = [self._calls[uid] for uid in due]
            nearest = min((repeat.due for repeat in self._repeats.values()), default=math.inf)
        for call in calls:
            if call.deadline.expired():
                text = f"timed out waiting for the answer to {call.command!r}"
                self.settle(call, CallTimeout(text, call.twin.id))
            else:
                nearest = min(nearest, now + call.remaining())
        for call in again:
            if not call.future.done():
                _log.info("the request %s of %r is sent again", call.uid, call.command)
                self._offer(call.signed)
        if nearest < math.inf:
            self._watch(nearest)
