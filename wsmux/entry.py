"""Hold what a connection knows of one stream. Guarded by the connection's mutex."""

from __future__ import annotations

from collections.abc import Callable

from .bell import Bell
from .buffer import ByteQueue
from .waiter import Waiter

__all__ = ["Entry", "Failure", "read_closed", "write_closed"]

# Makes a fresh exception each time: threads must not share one traceback. It may run the
# application's code, so it is only called without the mutex.
Failure = Callable[[], BaseException]


def read_closed() -> ValueError:
    """Return what reading raises once this side has closed that half."""
    return ValueError("read from a stream whose reading half was closed by this side")


def write_closed() -> ValueError:
    """Return the same for writing."""
    return ValueError("write to a stream whose writing half was closed by this side")


class Entry:
    """Hold what a connection knows of a stream; lives as long as either of them needs it."""

    __slots__ = (
        "accepted",
        "buffer",
        "closed",
        "ended",
        "id",
        "offered_at",
        "peer_opened",
        "read_failure",
        "reader",
        "reading",
        "write_failure",
        "writer",
        "writing",
    )

    def __init__(self, stream_id: int, peer_opened: bool) -> None:
        self.id = stream_id
        self.peer_opened = peer_opened
        self.buffer = ByteQueue()
        self.reader = Waiter()
        self.writer = Waiter()
        self.reading = False  # a thread is in a read
        self.writing = False
        self.ended = False  # the peer has ended its half cleanly
        self.read_failure: Failure | None = None
        self.write_failure: Failure | None = None
        self.closed = False
        self.accepted = not peer_opened
        self.offered_at: float | None = None  # when it came into the accept queue

    def fail_read(self, failure: Failure, wakes: list[Bell], own: bool = False) -> None:
        """End reading with an error; the first one stays, but for what this side does itself."""
        if own or self.read_failure is None:
            self.read_failure = failure
            self.reader.rouse(wakes)

    def fail_write(self, failure: Failure, wakes: list[Bell], own: bool = False) -> None:
        """End writing with an error; the first one stays, but for what this side does itself."""
        if own or self.write_failure is None:
            self.write_failure = failure
            self.writer.rouse(wakes)
