"""Define the handles of a client's calls: a value, an iterator, a writer, or both.

``Completions`` collects rpcs that were started without waiting, and yields them as they end.

Locking: everything here is guarded by the client's mutex, except that an outcome, which is set once
and never changes, may be read without it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from ...runtime.closing import Leaving
from ...runtime.deadline import Deadline, deadline_in
from ...runtime.parking import Parker, Waiter, WaitQueue
from ..abort import Abort
from ..errors import CANCEL, RiverError
from ..options import Options
from ..session.session import Session
from ..wire.envelope import read_result
from .call_spans import ClientSpan
from .call_streams import CallBase, Err, Ok

__all__ = [
    "Call",
    "Calls",
    "Completions",
    "Opened",
    "PendingCall",
    "StreamCall",
    "Subscription",
    "Upload",
]

Request = TypeVar("Request")
Response = TypeVar("Response")


class Calls(ABC):
    """The interface of the client that calls need."""

    @abstractmethod
    def check_process(self) -> None:
        """Raise ``ForkedError`` in a forked child."""

    @abstractmethod
    def send_request(self, call: Call, value: Any, deadline: Deadline) -> None:
        """Send a message of a call; block while the send buffer is full."""

    @abstractmethod
    def wait_locked(self, place: WaitQueue, deadline: Deadline) -> None:
        """Wait as ``place.wait`` does, and receive meanwhile if no other thread does."""

    @abstractmethod
    def send_close(self, call: Call) -> None:
        """Send the end of the requests, unless it was sent."""

    @abstractmethod
    def cancel(self, call: Opened, error: RiverError, outcome: Exception | None = None) -> bool:
        """Cancel a call at the server and end it here, unless it is over.

        Args:
            call: the call.
            error: the error sent to the server.
            outcome: the error raised to the caller; the same by default.
        """


class Opened(ABC):
    """The state of a call that a client has opened.

    Attributes:
        name: the name of the procedure, for messages.
        stream_id: its id on the wire.
        session: the session of the call; ``None`` if it was over before it had one.
        over: nothing more is sent or expected.
        deadline: when the caller stops waiting; the server is told.
        abort: the event that cancels the call when set, if any.
        span: the OpenTelemetry span, if the call is traced.
    """

    __slots__ = ()

    name: str
    deadline: Deadline
    abort: Abort | None
    stream_id: str
    session: Session | None
    over: bool
    span: ClientSpan | None

    def too_late(self) -> TimeoutError:
        """Return what the caller gets when its time is up, whichever side notices first."""
        return TimeoutError(f"{self.name} did not answer in time; it was cancelled")

    def read_payload(self, payload: Any) -> Any:
        """Return the response in a payload, or its ``RiverError``.

        Raises:
            NotAResult: it contains neither.
        """
        return read_result(payload)

    @abstractmethod
    def take_locked(self, item: Any, size: int, wakes: list[Parker]) -> None:
        """Take a response, or the ``RiverError`` of an error result, of ``size`` bytes."""

    @abstractmethod
    def fell_behind(self, options: Options) -> str | None:
        """Return that more is unread than may be, if so."""

    @abstractmethod
    def no_more_locked(self, wakes: list[Parker]) -> bool:
        """Record that the server sends no more; return whether the call is now over."""

    @abstractmethod
    def end_locked(self, error: Any, wakes: list[Parker]) -> None:
        """End the call, with an error if there is one."""

    @abstractmethod
    def cancel(self, message: str) -> object:
        """Cancel the call; thread-safe, called without the mutex."""


class Call(CallBase, Opened):
    """A call of a client; the writer of a subscription is closed from the start."""

    def __init__(
        self,
        client: Calls,
        mutex: threading.Lock,
        name: str,
        raises: bool,
        deadline: Deadline,
        abort: Abort | None = None,
    ) -> None:
        super().__init__(mutex, raises)
        self._client = client
        self.name = name
        self.deadline = deadline
        self.abort = abort
        self.stream_id = ""
        self.session: Session | None = None
        self.span: ClientSpan | None = None

    def take_locked(self, item: Any, size: int, wakes: list[Parker]) -> None:
        self.reader.push_locked(item, size, wakes)

    def fell_behind(self, options: Options) -> str | None:
        return self.reader.fell_behind(options)

    def no_more_locked(self, wakes: list[Parker]) -> bool:
        self.reader.end_locked(wakes)
        return self.completed_locked()

    def send(self, value: Any, deadline: Deadline) -> None:
        self._client.send_request(self, value, deadline)

    def close_writing(self) -> None:
        self._client.send_close(self)

    def cancel(self, message: str) -> None:
        """Cancel the call."""
        if not self.in_child():
            self._client.cancel(self, RiverError(CANCEL, message))

    def result(self, deadline: Deadline) -> Any:
        """Wait for the only answer; cancel on timeout.

        Raises:
            TimeoutError: no answer arrived in time; the call was cancelled.
            RiverError: the answer is an error.
        """
        try:
            return self.reader.read(deadline.remaining())
        except TimeoutError:
            self.cancel("the caller stopped waiting")
            raise self.too_late() from None
        except EOFError:
            error = RiverError(CANCEL, f"{self.name} ended without an answer")
        except BaseException:
            if not self.over:
                self.cancel("the caller was interrupted")
            raise
        return self.reader.outcome(error)


class _Handle(Leaving):
    """The base of the handles returned to users."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def cancel(self, message: str = "cancelled by client") -> None:
        """End the call on both sides; reads and writes raise ``RiverError`` with CANCEL."""
        self._call.cancel(message)

    def _leave(self, error: BaseException | None) -> None:
        """Cancel the call, unless it is over."""
        if not self._call.over:
            self.cancel()

    def _left(self, timeout: float | None) -> float | None:
        """Return the smaller of ``timeout`` and the remaining time of the call."""
        left = self._call.deadline.remaining()
        if timeout is None or left is None:
            return left if timeout is None else timeout
        return min(timeout, left)


class _Reading(_Handle, Generic[Response]):
    def read(self, timeout: float | None = None) -> Response:
        """Return the next response; see ``Readable.read``."""
        value: Response = self._call.reader.read(self._left(timeout))
        return value

    def __iter__(self) -> Iterator[Response]:
        while True:
            try:
                value = self.read()
            except EOFError:
                return
            yield value


class Subscription(_Reading[Response]):
    """Read the responses of a subscription until it ends; leaving the ``with`` block cancels it."""

    def close(self) -> None:
        """Cancel the subscription; a client cannot end one in any other way."""
        if not self._call.over:
            self.cancel()


class StreamCall(_Reading[Response], Generic[Request, Response]):
    """Write requests and read responses; the two directions end independently."""

    def write(self, request: Request, timeout: float | None = None) -> None:
        """Send a request; see ``Writable.write``."""
        self._call.writer.write(request, self._left(timeout))

    def close_write(self) -> None:
        """Send the end of the requests; responses continue."""
        self._call.writer.close()


class Upload(_Handle, Generic[Request, Response]):
    """Write requests, then call ``finish``, which returns the only response."""

    _finished = False

    def write(self, request: Request, timeout: float | None = None) -> None:
        """Send a request; see ``Writable.write``."""
        self._call.writer.write(request, self._left(timeout))

    def finish(self, timeout: float | None = None) -> Response:
        """End the requests, if not yet done, and block until the response arrives.

        Raises:
            TimeoutError: no response arrived in time; the call was cancelled.
            RiverError: the response is an error.
            ValueError: the upload has already been finished.
        """
        if self._finished:
            raise ValueError(f"{self._call.name} has already been finished")
        self._finished = True
        self._call.writer.close()
        value: Response = self._call.result(Deadline(self._left(timeout)))
        return value

    def close_write(self) -> None:
        """Send the end of the requests."""
        self._call.writer.close()


_PENDING: Any = object()  # no outcome yet


class PendingCall(Opened):
    """An rpc that was started; made by ``Client.submit``.

    Any number of threads may ask for the result, any number of times. Dropping it without
    cancelling leaves the call running at the server.
    """

    __slots__ = (
        "_client",
        "_completions",
        "_mutex",
        "_outcome",
        "_raises",
        "_waiting",
        "abort",
        "deadline",
        "name",
        "over",
        "sent",
        "session",
        "size",
        "span",
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
        abort: Abort | None = None,
    ) -> None:
        self._client = client
        self._mutex = mutex
        self._raises = raises
        self.deadline: Deadline = deadline
        self._completions = completions
        self._outcome = _PENDING
        self._waiting: WaitQueue | None = None
        self.name: str = name
        self.abort: Abort | None = abort
        self.stream_id: str = ""
        self.session: Session | None = None
        self.span: ClientSpan | None = None
        self.over: bool = False
        self.sent: int = 0
        """Bytes of the request, without its header."""
        self.size: int = 0
        """Bytes of the response, once it has arrived."""

    def __repr__(self) -> str:
        return f"<PendingCall {self.name} {'done' if self.done() else 'pending'}>"

    # The client's side, with the mutex held

    def take_locked(self, item: Any, size: int, wakes: list[Parker]) -> None:
        self.size = size
        self._settle_locked(item, wakes)

    def fell_behind(self, options: Options) -> str | None:
        return None  # it keeps at most one response

    def no_more_locked(self, wakes: list[Parker]) -> bool:
        self.over = True
        if self._outcome is _PENDING:
            error = RiverError(CANCEL, f"{self.name} ended without an answer")
            self._settle_locked(error, wakes)
        return True

    def end_locked(self, error: Exception | None, wakes: list[Parker]) -> None:
        self.over = True
        self._settle_locked(error, wakes)

    def _settle_locked(self, outcome: Any, wakes: list[Parker]) -> None:
        if self._outcome is not _PENDING:
            return  # the first answer counts
        self._outcome = outcome
        if self._waiting is not None:
            self._waiting.notify(wakes)
        if self._completions is not None:
            self._completions.add_locked(self, wakes)

    # The user's side

    def done(self) -> bool:
        """Return whether ``result`` would return, or raise the error of the call, at once."""
        return self._outcome is not _PENDING

    def result(self, timeout: float | None = None) -> Any:
        """Return the response; block up to ``timeout`` seconds until it arrives.

        Raises:
            TimeoutError: no response arrived in time. If the call's own timeout expired, which
                started with ``submit``, the call was cancelled, here or by the server; otherwise it
                continues.
            RiverError: the response is an error, or the session was lost (UNEXPECTED_DISCONNECT).
            EncodeError: the codec cannot encode the init, or it exceeds ``Options.max_size``;
                nothing was sent.
        """
        if self._outcome is _PENDING:
            self._wait(deadline_in(timeout))
        outcome = self._outcome
        if not isinstance(outcome, Exception):
            return outcome if self._raises else Ok(outcome)
        if not isinstance(outcome, RiverError):  # each raise needs a traceback of its own
            raise type(outcome)(*outcome.args) from outcome.__cause__
        if self._raises:
            raise RiverError(outcome.code, outcome.message, outcome.extra)
        return Err(outcome)

    def _wait(self, patience: Deadline) -> None:
        self._client.check_process()
        with self._mutex:
            if self._waiting is None:
                self._waiting = WaitQueue()
            while self._outcome is _PENDING:
                if self.deadline.expired() or patience.expired():
                    break
                self._client.wait_locked(self._waiting, sooner(self.deadline, patience))
        if not self.expire() and self._outcome is _PENDING:
            raise TimeoutError(f"{self.name} has not answered yet; the call continues")

    def remaining(self) -> float | None:
        """Return the seconds left until the call's own timeout, ``None`` if it has none."""
        return self.deadline.remaining()

    def expire(self) -> bool:
        """Cancel the call if its own timeout has expired; return whether it has.

        ``result`` then raises ``TimeoutError``, unless the call had already ended.
        """
        if not self.deadline.expired():
            return False
        if self._outcome is _PENDING:
            error = RiverError(CANCEL, "the caller stopped waiting")
            self._client.cancel(self, error, self.too_late())
        return True

    def cancel(self, message: str = "cancelled by client") -> bool:
        """End the call on both sides; ``result`` then raises CANCEL. Return false if it had ended.

        A call that has its answer, but was not yet ended by the server, keeps the answer.
        """
        return self._client.cancel(self, RiverError(CANCEL, message))


class Completions:
    """Yield the calls submitted with it, in the order in which they end.

    To be used by one thread.
    """

    def __init__(self, client: Calls, mutex: threading.Lock) -> None:
        self._client = client
        self._mutex = mutex
        self._ended: deque[PendingCall] = deque()
        self._waiter = Waiter()

    def add_locked(self, call: PendingCall, wakes: list[Parker]) -> None:
        """Add a call that has ended."""
        self._ended.append(call)
        self._waiter.notify(wakes)

    def take(self, timeout: float | None = None) -> list[PendingCall]:
        """Return the calls that ended since the last call of ``take``; block until there is one.

        Raises:
            TimeoutError: none ended in ``timeout`` seconds.
            ForkedError: in a forked child.
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
    """Return the earlier deadline."""
    ours, theirs = one.remaining(), other.remaining()
    if theirs is None:
        return one
    return one if ours is not None and ours <= theirs else other
