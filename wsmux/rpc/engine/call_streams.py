"""Provide the two halves of a call as blocking objects, one to read and one to write.

Both are guarded by the endpoint's mutex, held in ``CallBase``, and are thread-safe; if several
threads read, each value goes to one of them. In a forked child, reads and writes raise
``ForkedError``, even if values are left to read; closing does nothing.

Unlike in other implementations, no loop locks a reader for life: a reader may be used again after a
loop was left. A writer blocks while the send buffer is full, where other implementations only
report it.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...exceptions import ForkedError
from ...runtime.closing import Closing
from ...runtime.deadline import Deadline
from ...runtime.parking import Parker, WaitQueue, wake
from ..errors import CANCEL, READABLE_BROKEN, UNEXPECTED_DISCONNECT, RiverError
from ..options import Options

__all__ = ["CallBase", "Err", "Ok", "Readable", "Result", "Writable", "unread_locked"]

# Begins the text of the error; which bound was exceeded follows.
FELL_BEHIND = "reader fell behind"

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Ok(Generic[Value]):
    """A success, for a client with ``errors="results"``."""

    value: Value

    @property
    def ok(self) -> bool:
        """``True``."""
        return True


@dataclass(frozen=True, slots=True)
class Err:
    """An error, for a client with ``errors="results"``.

    A handler may write or yield one with a declared error and continue; raising the error ends it.
    """

    error: RiverError

    @property
    def ok(self) -> bool:
        """``False``."""
        return False


Result = Ok[Value] | Err


class CallBase(ABC):
    """A call as seen from one end: both halves, and how they end.

    It references its halves, but they do not keep it alive: such a cycle would keep a call, its
    session and its client until the next garbage collection. Code that may still change a call
    keeps a reference to it until it is over.

    Attributes:
        mutex: guards all state of the endpoint.
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
        """Return whether this is a copy in a forked child, which cannot be used."""
        return self._pid != os.getpid()

    def check_process(self) -> None:
        """Raise ``ForkedError`` in a forked child."""
        _check_process(self._pid)

    def end_locked(self, error: RiverError | TimeoutError | None, wakes: list[Parker]) -> None:
        """End both halves, with an error if there is one."""
        self.over = True
        if error is not None:
            if not self.reader.ended:
                self.reader.push_locked(error, 0, wakes)
            self.writer.fail_locked(error)
        self.reader.end_locked(wakes)

    def completed_locked(self) -> bool:
        """Mark the call over if both halves have ended; return whether that happened now."""
        if self.over or not (self.reader.ended and self.writer.closed):
            return False
        self.over = True
        return True

    @abstractmethod
    def send(self, value: Any, deadline: Deadline) -> None:
        """Send a message of the call; block while the send buffer is full."""

    @abstractmethod
    def close_writing(self) -> None:
        """Send the end of this half, once."""


def unread_locked(calls: Iterable[object]) -> tuple[int, int]:
    """Return how many messages, and bytes, lie unread in those of the calls that have a reader."""
    readers = [call.reader for call in calls if isinstance(call, CallBase)]
    return (
        sum(reader.unread_messages for reader in readers),
        sum(reader.unread_bytes for reader in readers),
    )


def _check_process(pid: int) -> None:
    """Raise ``ForkedError`` in a forked child, where no thread would wake it or release locks."""
    if pid != os.getpid():
        raise ForkedError("this call belongs to the parent process")


class Readable(Generic[Value]):
    """Read the messages of a call, in order; made by the endpoint.

    Iteration stops at the clean end. An error result raises ``RiverError``; if the stream continues
    after it, reading can continue too.
    """

    __slots__ = (
        "_broken",
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
        self._items: deque[tuple[Any, int]] | None = None  # made when the first value arrives
        self._readers: WaitQueue | None = None  # made when the first thread waits
        self._ended = False
        self._stopped = False  # this side has stopped reading
        self._broken: RiverError | None = None  # says so to whoever reads next
        self.unread_messages: int = 0
        self.unread_bytes: int = 0

    # The endpoint's side, with the mutex held

    def push_locked(self, item: Any, size: int, wakes: list[Parker]) -> None:
        """Add a value, or the error that is read in its place, of ``size`` bytes."""
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

    def stop_locked(self, wakes: list[Parker]) -> None:
        """Drop unread and future values; whoever still reads gets an error, once."""
        if self._stopped or (self._ended and not self._items):
            return
        self._stopped = True
        self._broken = RiverError(READABLE_BROKEN, "this side has stopped reading")
        self._items = None
        self.unread_messages = self.unread_bytes = 0
        if self._readers is not None:
            self._readers.notify(wakes)

    def fell_behind(self, options: Options) -> str | None:
        """Return that more is unread than may be; the newest message may be of any size."""
        newest = self._items[-1][1] if self._items else 0
        if self.unread_bytes - newest > options.unread_bytes:
            return f"{FELL_BEHIND}: Options.unread_bytes is {options.unread_bytes}"
        most = options.unread_messages
        if most is not None and self.unread_messages > most:
            return f"{FELL_BEHIND}: Options.unread_messages is {most}"
        return None

    # The user's side

    def read(self, timeout: float | None = None) -> Value:
        """Return the next value; block until it arrives.

        Raises:
            EOFError: the peer has ended its half, and everything was read.
            TimeoutError: no value arrived in ``timeout`` seconds; the call continues. Or the time
                of the caller is up, and the call is over; that is raised once.
            RiverError: an error result, the cancellation of the call, the loss of the session, or
                (once) that this side has stopped reading.
        """
        _check_process(self._pid)
        deadline = Deadline(timeout)
        value: Value  # a reader of results is made as a Readable[Result]
        with self._mutex:
            while not self._items:
                if self._broken is not None:
                    broken, self._broken = self._broken, None
                    value = self.outcome(broken)
                    return value
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
        value = self.outcome(item)
        return value

    def outcome(self, item: Any) -> Any:
        """Return a value, or raise a ``RiverError``; or return either as a result.

        The end of the caller's time is no result, and always raised.
        """
        if isinstance(item, TimeoutError):
            raise TimeoutError(*item.args)
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
        """Stop reading: drop unread and future values; the peer is not notified."""
        if self._pid != os.getpid():
            return
        wakes: list[Parker] = []
        with self._mutex:
            self.stop_locked(wakes)
        wake(wakes)

    @property
    def ended(self) -> bool:
        """Whether the peer has ended its half; values may be left to read."""
        return self._ended


class Writable(Closing, Generic[Value]):
    """Write the messages of a call; made by the endpoint."""

    __slots__ = ("_closed", "_failure", "_call")

    def __init__(self, call: CallBase) -> None:
        self._call = weakref.ref(call)
        self._closed = False
        self._failure: RiverError | TimeoutError | None = None

    # The endpoint's side, with the mutex held

    def fail_locked(self, error: RiverError | TimeoutError) -> None:
        """End this half: the call was cancelled, its time is up, or the session was lost."""
        if not self._closed and self._failure is None:
            self._failure = error

    def check_locked(self) -> None:
        """Raise the error that ended this half; a timeout once, and CANCEL from then on.

        Whoever tries again after a timeout would otherwise never end.
        """
        if self._closed:
            raise ValueError("write to a call whose requests this side has closed")
        error = self._failure
        if isinstance(error, TimeoutError):
            self._failure = RiverError(CANCEL, str(error))
            raise TimeoutError(*error.args)
        if error is not None:
            raise RiverError(error.code, error.message, error.extra)

    def close_locked(self) -> bool:
        """Close this half; return whether the peer must be notified."""
        closes = not self._closed and self._failure is None
        self._closed = True
        return closes

    # The user's side

    def write(self, value: Value, timeout: float | None = None) -> None:
        """Send a value; block while the send buffer is full.

        Raises:
            TimeoutError: the buffer was full for ``timeout`` seconds, or, raised once, the time of
                the caller is up, and the call is over; nothing was sent.
            EncodeError: the codec cannot encode the value, or it exceeds ``Options.max_size``;
                nothing was sent.
            RiverError: the call was cancelled, or its session lost.
            ValueError: this side has closed its half; or, at a server, the schema forbids the
                value, or the procedure does not declare the error.
        """
        call = self._call()
        if call is None:  # the call is over, and no longer changes
            self.check_locked()
            raise RiverError(UNEXPECTED_DISCONNECT, "the call is over")
        call.check_process()
        call.send(value, Deadline(timeout))

    def close(self) -> None:
        """Send the end of this half; closing twice is safe. Never blocks."""
        call = self._call()
        if call is None:
            self._closed = True
        elif not call.in_child():
            call.close_writing()

    @property
    def closed(self) -> bool:
        """Whether this half can no longer be written, whichever side ended it."""
        return self._closed or self._failure is not None
