"""Hold the state of one stream; guarded by the connection's mutex."""

from __future__ import annotations

from collections.abc import Callable

from ..protocols.base import MAX_ID
from ..runtime.parking import Parker, Waiter
from ..transport.fair_queue import FlowState
from .receive_buffer import ByteQueue

__all__ = ["Failure", "StreamRecord", "read_closed", "write_closed"]

# Makes a new exception each time: threads must not share a traceback. It may run application code,
# so it is called only without the mutex.
Failure = Callable[[], BaseException]


def read_closed() -> ValueError:
    """Return the error of a read after this side has closed the reading half."""
    return ValueError("read from a stream whose reading half was closed by this side")


def write_closed() -> ValueError:
    """Return the error of a write after this side has closed the writing half."""
    return ValueError("write to a stream whose writing half was closed by this side")


class StreamRecord:
    """Hold the state of a stream for the connection and the application."""

    __slots__ = (
        "accepted",
        "buffer",
        "closed",
        "ended",
        "enough",
        "finished",
        "heard",
        "id",
        "low_water",
        "offered_at",
        "peer_opened",
        "quiet",
        "read_failure",
        "received",
        "sent",
        "window",
        "reader",
        "reading",
        "flow",
        "write_failure",
        "writer",
        "writing",
    )

    def __init__(self, stream_id: int, peer_opened: bool, window: int = 0) -> None:
        self.id = stream_id
        self.peer_opened = peer_opened
        self.set_window(window)
        self.enough = 1  # bytes for which the waiting reader is woken
        self.buffer = ByteQueue()
        self.reader = Waiter()
        self.writer = Waiter()
        self.flow = FlowState()  # of the sending half
        self.reading = False  # a thread is reading
        self.writing = False
        self.ended = False  # the peer has ended its half cleanly
        self.read_failure: Failure | None = None
        self.write_failure: Failure | None = None
        self.closed = False
        self.finished = False  # both halves have ended on the wire
        self.quiet = 0  # checks by the reaper since the last progress
        self.received = self.sent = 0  # bytes, in all
        self.heard: float | None = None  # when bytes last arrived
        self.accepted = not peer_opened
        self.offered_at: float | None = None  # when it entered the accept queue

    @property
    def number(self) -> int:
        """The id that users see."""
        return self.id & MAX_ID

    def set_window(self, window: int) -> None:
        """Set the window, and the number of bytes for which a reader may wait.

        However credit is returned, the peer can always send a quarter of a window once all is read.
        """
        self.window = window
        self.low_water = max(window // 4, 1)

    def fail_read(self, failure: Failure, wakes: list[Parker], own: bool = False) -> None:
        """End reading with an error; the first is kept, unless this side's ``own`` replaces it."""
        if own or self.read_failure is None:
            self.read_failure = failure
            self.reader.notify_forced(wakes)

    def fail_write(self, failure: Failure, wakes: list[Parker], own: bool = False) -> None:
        """End writing with an error; the first is kept, unless this side's ``own`` replaces it."""
        if own or self.write_failure is None:
            self.write_failure = failure
            self.writer.notify_forced(wakes)
