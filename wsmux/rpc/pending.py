"""Hold rpcs that were started and not waited for, and tell in which order they are answered.

Threads and locks: everything here is guarded by the client's mutex, but for a glance at an outcome,
which is set once and stays.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from ..bell import Bell
from ..deadlines import Deadline, deadline_in
from ..waiter import Waiter, WaitList
from .calls import Calls, Opened
from .errors import CANCEL, RiverError
from .options import Options
from .pipes import Err, Ok
from .session import Session

__all__ = ["Completions", "PendingCall"]

_PENDING: Any = object()  # no outcome yet


class PendingCall(Opened):
    """Be one rpc that was started; made by ``Client.submit``.

    Any number of threads may ask for the result, and as often as they like. Who drops it without
    cancelling it leaves the server to its work.
    """

    __slots__ = (
        "_client",
        "_completions",
        "_deadline",
        "_mutex",
        "_outcome",
        "_raises",
        "_waiting",
        "name",
        "over",
        "sent",
        "session",
        "size",
        "stream_id",
    )

    def __init__(
        self,
        client: Calls,
        mutex: threading.Lock,
        name: str,
        raises: bool,
        deadline: Deadline,
        completions: Completions | None = None,
    ) -> None:
        self._client = client
        self._mutex = mutex
        self._raises = raises
        self._deadline = deadline
        self._completions = completions
        self._outcome = _PENDING
        self._waiting: WaitList | None = None
        self.name = name
        self.stream_id = ""
        self.session: Session | None = None
        self.over = False
        self.sent = 0
        """Bytes of the request, before it gets its head."""
        self.size = 0
        """Bytes of the response, once it is there."""

    def __repr__(self) -> str:
        return f"<PendingCall {self.name} {'done' if self.done() else 'pending'}>"

    # The client's side, with the mutex held

    def take_locked(self, item: Any, size: int, wakes: list[Bell]) -> None:
        self.size = size
        self._settle_locked(item, wakes)

    def fell_behind(self, options: Options) -> bool:
        return False  # it keeps one response, whatever comes

    def no_more_locked(self, wakes: list[Bell]) -> bool:
        self.over = True
        if self._outcome is _PENDING:
            error = RiverError(CANCEL, f"{self.name} ended without an answer")
            self._settle_locked(error, wakes)
        return True

    def end_locked(self, error: Exception | None, wakes: list[Bell]) -> None:
        self.over = True
        self._settle_locked(error, wakes)

    def _settle_locked(self, outcome: Any, wakes: list[Bell]) -> None:
        if self._outcome is not _PENDING:
            return  # the first answer counts
        self._outcome = outcome
        if self._waiting is not None:
            self._waiting.collect(wakes)
        if self._completions is not None:
            self._completions.add_locked(self, wakes)

    # The user's side

    def done(self) -> bool:
        """Tell whether ``result`` would return, or raise the call's own error, at once."""
        return self._outcome is not _PENDING

    def result(self, timeout: float | None = None) -> Any:
        """Return the response, waiting for it at most ``timeout`` seconds.

        Raises:
            TimeoutError: it did not come in time. If it was the call's own time, which began with
                ``submit``, the call was cancelled; else it goes on.
            RiverError: it is an error, or the session was lost (UNEXPECTED_DISCONNECT).
            EncodeError: the codec cannot carry what was to be sent; nothing was.
        """
        if self._outcome is _PENDING:
            self._wait(deadline_in(timeout))
        outcome = self._outcome
        if not isinstance(outcome, Exception):
            return outcome if self._raises else Ok(outcome)
        if not isinstance(outcome, RiverError):  # each raise has a traceback of its own
            raise type(outcome)(*outcome.args) from outcome.__cause__
        if self._raises:
            raise RiverError(outcome.code, outcome.message, outcome.extra)
        return Err(outcome)

    def _wait(self, patience: Deadline) -> None:
        self._client.check_process()
        with self._mutex:
            if self._waiting is None:
                self._waiting = WaitList()
            while self._outcome is _PENDING:
                if self._deadline.expired() or patience.expired():
                    break
                self._waiting.wait(self._mutex, sooner(self._deadline, patience))
        if not self.expire() and self._outcome is _PENDING:
            raise TimeoutError(f"{self.name} did not answer yet; it goes on")

    def remaining(self) -> float | None:
        """Return the seconds that are left of the call's own time, ``None`` if it has no end."""
        return self._deadline.remaining()

    def expire(self) -> bool:
        """Cancel the call if its own time is over; tell whether it is.

        Its result raises ``TimeoutError`` then, unless it was there before.
        """
        if not self._deadline.expired():
            return False
        if self._outcome is _PENDING:
            late = TimeoutError(f"{self.name} did not answer in time; it was cancelled")
            self._client.cancel(self, RiverError(CANCEL, "the caller waits no longer"), late)
        return True

    def cancel(self, message: str = "cancelled by client") -> bool:
        """End the call at both sides; false if it had ended. Its result raises CANCEL then.

        A call that is answered, and that the server has not ended yet, keeps its answer.
        """
        return self._client.cancel(self, RiverError(CANCEL, message))


class Completions:
    """Hand out the calls that were submitted with it, in the order in which they end.

    One thread takes them.
    """

    def __init__(self, client: Calls, mutex: threading.Lock) -> None:
        self._client = client
        self._mutex = mutex
        self._ended: deque[PendingCall] = deque()
        self._waiter = Waiter()

    def add_locked(self, call: PendingCall, wakes: list[Bell]) -> None:
        """Note that a call has an outcome."""
        self._ended.append(call)
        self._waiter.collect(wakes)

    def take(self, timeout: float | None = None) -> list[PendingCall]:
        """Return those that have ended since the last time, at least one.

        Raises:
            TimeoutError: none did in ``timeout`` seconds. ForkedError: in a forked child.
        """
        self._client.check_process()
        deadline = deadline_in(timeout)
        with self._mutex:
            while not self._ended:
                if deadline.expired():
                    raise TimeoutError("no call ended in time")
                self._waiter.wait(self._mutex, deadline)
            ended = list(self._ended)
            self._ended.clear()
        return ended


def sooner(one: Deadline, other: Deadline) -> Deadline:
    """Return the deadline that comes first."""
    ours, theirs = one.remaining(), other.remaining()
    if theirs is None:
        return one
    return one if ours is not None and ours <= theirs else other
