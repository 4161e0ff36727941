"""Give the two halves of a call as blocking objects: what is read, and what is written.

Both are guarded by the endpoint's mutex, which ``CallBase`` holds, and any thread may use them; of
threads that read at once each value goes to one. In a forked child reads and writes raise
``ForkedError``, even where something is left to read; ends do nothing.

Other than in shipped code, no loop locks a reader for life: one that was left may be taken up
again. A writer waits while too much is not acknowledged, where shipped code only says so.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...exceptions import ForkedError
from ...runtime.closing import Closing
from ...runtime.deadline import Deadline
from ...runtime.parking import Parker, WaitQueue, wake
from ..errors import READABLE_BROKEN, UNEXPECTED_DISCONNECT, RiverError
from ..options import Options

__all__ = ["CallBase", "Err", "Ok", "Readable", "Result", "Writable"]

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Ok(Generic[Value]):
    """A success, for a client that asked for results instead of exceptions."""

    value: Value

    @property
    def ok(self) -> bool:
        """``True``: this is no error."""
        return True


@dataclass(frozen=True, slots=True)
class Err:
    """An error, for a client that asked for results instead of exceptions.

    A handler may write or yield one, with a declared error, and go on; raising ends it.
    """

    error: RiverError

    @property
    def ok(self) -> bool:
        """``False``: this is no success."""
        return False


Result = Ok[Value] | Err


class CallBase(ABC):
    """One call, seen from one end: both its halves, and what ends them.

    It holds its halves, and they do not hold it: else a call, its session and its client would stay
    until the garbage collector comes by. Whoever may still change a call holds it until it is over.

    Attributes:
        mutex: guards everything of the endpoint.
        reader, writer: the halves.
        over: nothing more is sent or expected.
    """

    def __init__(self, mutex: threading.Lock, raises: bool = True) -> None:
        self.mutex = mutex
        self._pid = os.getpid()
        self.reader: Readable[Any] = Readable(self, raises)
        self.writer: Writable[Any] = Writable(self)
        self.over = False

    def in_child(self) -> bool:
        """Return whether this is a forked child's useless copy."""
        return self._pid != os.getpid()

    def check_process(self) -> None:
        """Raise ``ForkedError`` in a forked child."""
        _check_process(self._pid)

    def end_locked(self, error: RiverError | None, wakes: list[Parker]) -> None:
        """End both halves, with an error if there is one."""
        self.over = True
        if error is not None:
            if not self.reader.ended:
                self.reader.push_locked(error, 0, wakes)
            self.writer.fail_locked(error)
        self.reader.end_locked(wakes)

    def completed_locked(self) -> bool:
        """Note that the call is over if both halves have ended; tell whether that is now."""
        if self.over or not (self.reader.ended and self.writer.closed):
            return False
        self.over = True
        return True

    @abstractmethod
    def send(self, value: Any, deadline: Deadline) -> None:
        """Send a message of the call, waiting while too much is not acknowledged."""

    @abstractmethod
    def close_writing(self) -> None:
        """Signal the end to the peer, once."""


def _check_process(pid: int) -> None:
    """Raise ``ForkedError`` in a forked child: nobody would wake it, nor let go of locks."""
    if pid != os.getpid():
        raise ForkedError("this call belongs to the parent process")


class Readable(Generic[Value]):
    """Read the messages of a call, in order; made by the endpoint.

    Iterating ends at the clean end. An error result raises ``RiverError``; where the stream goes
    on after it, so does reading.
    """

    __slots__ = (
        "_ended",
        "_items",
        "_mutex",
        "_pid",
        "_raises",
        "_readers",
        "_stopped",
        "unread_bytes",
        "unread_messages",
    )

    def __init__(self, call: CallBase, raises: bool = True) -> None:
        self._mutex = call.mutex
        self._pid = call._pid
        self._raises = raises
        self._items: deque[tuple[Any, int]] | None = None  # made when something comes
        self._readers: WaitQueue | None = None  # made when somebody waits
        self._ended = False
        self._stopped = False  # this side reads no more
        self.unread_messages: int = 0
        self.unread_bytes: int = 0

    # The endpoint's side, with the mutex held

    def push_locked(self, item: Any, size: int, wakes: list[Parker]) -> None:
        """Add a value, or the ``RiverError`` of an error result, of ``size`` bytes."""
        if self._ended or self._stopped:
            return
        if self._items is None:
            self._items = deque()
        self._items.append((item, size))
        self.unread_messages += 1
        self.unread_bytes += size
        if self._readers is not None:
            self._readers.notify(wakes, 1)

    def end_locked(self, wakes: list[Parker]) -> None:
        """Note the end; what was pushed before stays readable."""
        self._ended = True
        if self._readers is not None:
            self._readers.notify(wakes)

    def fell_behind(self, options: Options) -> bool:
        """Return whether more is unread than may be; the newest message may be of any size."""
        newest = self._items[-1][1] if self._items else 0
        return (
            self.unread_messages > options.unread_messages
            or self.unread_bytes - newest > options.unread_bytes
        )

    # The user's side

    def read(self, timeout: float | None = None) -> Value:
        """Return the next value; blocks until it comes.

        Raises:
            EOFError: the peer has ended its half, and everything was read.
            TimeoutError: nothing came in ``timeout`` seconds; the call goes on.
            RiverError: an error result, the call's cancellation, the loss of the session, or
                (once) that this side had stopped reading.
        """
        _check_process(self._pid)
        deadline = Deadline(timeout)
        with self._mutex:
            while not self._items:
                if self._stopped:
                    raise EOFError("this side has stopped reading")
                if self._ended:
                    raise EOFError("the peer has ended its half of the call")
                if deadline.expired():
                    raise TimeoutError("no message arrived in time")
                if self._readers is None:
                    self._readers = WaitQueue()
                self._readers.wait(self._mutex, deadline)
            item, size = self._items.popleft()
            self.unread_messages -= 1
            self.unread_bytes -= size
        value: Value = self.outcome(item)  # a reader of results is made as a Readable[Result]
        return value

    def outcome(self, item: Any) -> Any:
        """Return a value, or raise a ``RiverError``; or return either as a result."""
        if isinstance(item, RiverError):
            if self._raises:
                raise RiverError(item.code, item.message, item.extra)
            return Err(item)
        return item if self._raises else Ok(item)

    def __iter__(self) -> Iterator[Value]:
        while True:
            try:
                value = self.read()
            except EOFError:
                return
            yield value

    def stop(self) -> None:
        """Read no more: drop what is unread and what will come; the peer is not told."""
        if self._pid != os.getpid():
            return
        wakes: list[Parker] = []
        with self._mutex:
            if self._stopped or (self._ended and not self._items):
                return
            self._stopped = True
            error = RiverError(READABLE_BROKEN, "this side has stopped reading")
            self._items = deque([(error, 0)])
            self.unread_messages, self.unread_bytes = 1, 0
            if self._readers is not None:
                self._readers.notify(wakes)
        wake(wakes)

    @property
    def ended(self) -> bool:
        """Whether the peer has ended its half; there may be something left to read."""
        return self._ended


class Writable(Closing, Generic[Value]):
    """Write the messages of a call; made by the endpoint."""

    __slots__ = ("_closed", "_failure", "_call")

    def __init__(self, call: CallBase) -> None:
        self._call = weakref.ref(call)
        self._closed = False
        self._failure: RiverError | None = None

    # The endpoint's side, with the mutex held

    def fail_locked(self, error: RiverError) -> None:
        """End it because the call was cancelled, or the session lost."""
        if not self._closed and self._failure is None:
            self._failure = error

    def check_locked(self) -> None:
        """Raise what ended it."""
        if self._closed:
            raise ValueError("write to a call whose requests this side has closed")
        if self._failure is not None:
            error = self._failure
            raise RiverError(error.code, error.message, error.extra)

    def close_locked(self) -> bool:
        """Note that this side closes it; tell whether the peer is to be told."""
        closes = not self._closed and self._failure is None
        self._closed = True
        return closes

    # The user's side

    def write(self, value: Value, timeout: float | None = None) -> None:
        """Send a value; blocks while too much that was sent is not acknowledged.

        Raises:
            TimeoutError: there was no room in ``timeout`` seconds; nothing was sent.
            EncodeError: the codec cannot carry the value, or it is above ``Options.max_size``;
                nothing was sent.
            RiverError: the call was cancelled, or its session lost.
            ValueError: this side has closed its half; or, at a server, the schema forbids the
                value, or the procedure does not declare the error.
        """
        call = self._call()
        if call is None:  # it is over, and nobody changes it any more
            self.check_locked()
            raise RiverError(UNEXPECTED_DISCONNECT, "the call is over")
        call.check_process()
        call.send(value, Deadline(timeout))

    def close(self) -> None:
        """Signal the end to the peer; closing twice is fine. Never blocks."""
        call = self._call()
        if call is None:
            self._closed = True
        elif not call.in_child():
            call.close_writing()

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more, whoever ended it."""
        return self._closed or self._failure is not None
