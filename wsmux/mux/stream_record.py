"""Hold what a connection knows of one stream. Guarded by the connection's mutex."""

from __future__ import annotations

from collections.abc import Callable

from ..runtime.parking import Parker, Waiter
from ..transport.fair_queue import FlowState
from .receive_buffer import ByteQueue

__all__ = ["MAX_ID", "Failure", "StreamRecord", "read_closed", "write_closed"]

# Bymux reuses ids: bits above these 64 tell apart streams that shared one. Users see the low bits.
MAX_ID = 2**64 - 1

# Makes a fresh exception each time: threads must not share one traceback. It may run the
# application's code, so it is only called without the mutex.
Failure = Callable[[], BaseException]


def read_closed() -> ValueError:
    """Return what reading raises once this side has closed that half."""
    return ValueError("read from a stream whose reading half was closed by this side")


def write_closed() -> ValueError:
    """Return the same for writing."""
    return ValueError("write to a stream whose writing half was closed by this side")


class StreamRecord:
    """Hold what a connection knows of a stream; lives as long as either of them needs it."""

    __slots__ = (
        "accepted",
        "buffer",
        "closed",
        "ended",
        "enough",
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
        self.enough = 1  # what the waiting reader is woken for
        self.buffer = ByteQueue()
        self.reader = Waiter()
        self.writer = Waiter()
        self.flow = FlowState()  # of what is sent
        self.reading = False  # a thread is in a read
        self.writing = False
        self.ended = False  # the peer has ended its half cleanly
        self.read_failure: Failure | None = None
        self.write_failure: Failure | None = None
        self.closed = False
        self.quiet = 0  # sweeps since bytes came or went
        self.received = self.sent = 0  # bytes, in all
        self.heard: float | None = None  # when bytes came last
        self.accepted = not peer_opened
        self.offered_at: float | None = None  # when it came into the accept queue

    def set_window(self, window: int) -> None:
        """Say what a reader may wait for.

        However credit is returned, the peer can send a quarter of a window when all is read.
        """
        self.window = window
        self.low_water = max(window // 4, 1)

    def fail_read(self, failure: Failure, wakes: list[Parker], own: bool = False) -> None:
        """End reading with an error; the first one stays, but for what this side does itself."""
        if own or self.read_failure is None:
            self.read_failure = failure
            self.reader.notify_forced(wakes)

    def fail_write(self, failure: Failure, wakes: list[Parker], own: bool = False) -> None:
        """End writing with an error; the first one stays, but for what this side does itself."""
        if own or self.write_failure is None:
            self.write_failure = failure
            self.writer.notify_forced(wakes)
