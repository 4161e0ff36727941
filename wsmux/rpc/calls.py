"""Give a client's calls their shapes: an iterator, a writer, or both; a value is in ``pending``."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from ..bell import Bell
from ..deadlines import Deadline
from .errors import CANCEL, RiverError
from .options import Options
from .pipes import Line
from .session import Session

__all__ = ["Call", "Calls", "Opened", "StreamCall", "Subscription", "Upload"]

Request = TypeVar("Request")
Response = TypeVar("Response")


class Calls(ABC):
    """Be what calls need of their client."""

    @abstractmethod
    def check_process(self) -> None:
        """Raise ``ForkedError`` in a forked child."""

    @abstractmethod
    def send_request(self, call: Call, value: Any, deadline: Deadline) -> None:
        """Send a message of a call, waiting while too much is not acknowledged."""

    @abstractmethod
    def send_close(self, call: Call) -> None:
        """Send the end of the requests, if that is still to be said."""

    @abstractmethod
    def cancel(self, call: Opened, error: RiverError, outcome: Exception | None = None) -> bool:
        """Cancel a call at the server, if it is not over, and end it here.

        Args:
            call: which.
            error: what the server is told.
            outcome: what the caller is told, the same by default.
        """


class Opened(ABC):
    """Be what a client knows of a call that it has opened.

    Attributes:
        name: that of the procedure, for sentences.
        stream_id: names it on the wire.
        session: whose call it is; ``None`` if it was over before it had one.
        over: nothing more is sent or expected.
    """

    __slots__ = ()

    name: str
    stream_id: str
    session: Session | None
    over: bool

    @abstractmethod
    def take_locked(self, item: Any, size: int, wakes: list[Bell]) -> None:
        """Take a response, or the ``RiverError`` of an error result, of ``size`` bytes."""

    @abstractmethod
    def fell_behind(self, options: Options) -> bool:
        """Tell whether more is unread than may be."""

    @abstractmethod
    def no_more_locked(self, wakes: list[Bell]) -> bool:
        """Note that the server sends no more; tell whether the call is over now."""

    @abstractmethod
    def end_locked(self, error: Any, wakes: list[Bell]) -> None:
        """End it, with an error if there is one."""


class Call(Line, Opened):
    """Be one call of a client; a subscription's writer is closed from the start."""

    def __init__(self, client: Calls, mutex: threading.Lock, name: str, raises: bool) -> None:
        super().__init__(mutex, raises)
        self._client = client
        self.name = name
        self.stream_id = ""
        self.session: Session | None = None

    def take_locked(self, item: Any, size: int, wakes: list[Bell]) -> None:
        self.reader.push_locked(item, size, wakes)

    def fell_behind(self, options: Options) -> bool:
        return self.reader.fell_behind(options)

    def no_more_locked(self, wakes: list[Bell]) -> bool:
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
        """Wait for the one answer of an upload; out of time, cancel.

        Raises:
            TimeoutError: the answer did not come; the server was told.
            RiverError: it is an error.
        """
        try:
            return self.reader.read(deadline.remaining())
        except TimeoutError:
            self.cancel("the caller waits no longer")
            raise TimeoutError(f"{self.name} did not answer in time; it was cancelled") from None
        except EOFError:
            error = RiverError(CANCEL, f"{self.name} ended without an answer")
        except BaseException:
            if not self.over:
                self.cancel("the caller was interrupted")
            raise
        return self.reader.outcome(error)


class _Handle:
    """Be the base of what the user holds."""

    def __init__(self, call: Call, deadline: Deadline) -> None:
        self._call = call
        self._deadline = deadline

    def cancel(self, message: str = "cancelled by client") -> None:
        """End the call at both sides; reads and writes raise ``RiverError`` with CANCEL."""
        self._call.cancel(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel what is not over."""
        if not self._call.over:
            self.cancel()

    def _left(self, timeout: float | None) -> float | None:
        """Return the smaller of a timeout and what is left of the call's."""
        left = self._deadline.remaining()
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
    """Read what a procedure sends, until it ends or the block is left, which cancels it."""

    def close(self) -> None:
        """Cancel the subscription, which is the only way a client can end one."""
        if not self._call.over:
            self.cancel()


class StreamCall(_Reading[Response], Generic[Request, Response]):
    """Write requests and read responses, each side for as long as it likes."""

    def write(self, request: Request, timeout: float | None = None) -> None:
        """Send a request; see ``Writable.write``."""
        self._call.writer.write(request, self._left(timeout))

    def close_write(self) -> None:
        """Tell the server that no more requests come; responses go on."""
        self._call.writer.close()


class Upload(_Handle, Generic[Request, Response]):
    """Write requests, then ``finish``, which returns the one response."""

    _finished = False

    def write(self, request: Request, timeout: float | None = None) -> None:
        """Send a request; see ``Writable.write``."""
        self._call.writer.write(request, self._left(timeout))

    def finish(self, timeout: float | None = None) -> Response:
        """Close the requests, if that was not done, and wait for the response.

        Raises:
            TimeoutError: it did not come in time; the call was cancelled.
            RiverError: it is an error.
            ValueError: the upload was finished before.
        """
        if self._finished:
            raise ValueError(f"{self._call.name} was finished before")
        self._finished = True
        self._call.writer.close()
        value: Response = self._call.result(Deadline(self._left(timeout)))
        return value

    def close_write(self) -> None:
        """Tell the server that no more requests come."""
        self._call.writer.close()
