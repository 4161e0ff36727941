"""Define the snapshots of connections and streams."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Cause", "ConnectionStats", "Finding", "HalfStatus", "StreamStats", "Wait"]


class ConnectionStats(NamedTuple):
    """Hold a snapshot of one connection; sizes are bytes, times are seconds.

    The last three are of a resumable one: how often it has got another socket, how long it has had
    none (``None`` while it has one), and the bytes of its wire, with headers, that the peer has not
    acknowledged.
    """

    streams: int
    unaccepted: int
    streams_opened: int
    streams_accepted: int
    streams_refused: int
    waiting_readers: int
    waiting_writers: int
    waiting_for_room: int
    unread_bytes: int
    queued_bytes: int
    bytes_received: int
    bytes_sent: int
    rtt: float | None
    reconnects: int = 0
    detached: float | None = None
    unacknowledged_bytes: int = 0


class Wait(NamedTuple):
    """Hold the name of a waiting thread, and the seconds it has waited."""

    thread: str
    seconds: float


class HalfStatus(StrEnum):
    """Name the state of one half of a stream."""

    OPEN = "open"
    ENDED = "ended"  # by the peer, cleanly
    CLOSED = "closed"  # by this side
    FAILED = "failed"  # reset or refused, by either side


class StreamStats(NamedTuple):
    """Hold a snapshot of one stream; sizes are bytes, times are seconds.

    Attributes:
        id: the id on the wire.
        opened_here: this side opened it.
        accepted: it was handed to the application.
        reading, writing: the states of the halves.
        window: the unread bytes that this side allows the peer to send.
        unread_bytes: received and not yet read.
        credit: the bytes that this side may send now; on ``bymux`` at most
            ``Config.max_frame_size``.
        peer_credit: the bytes that the peer may still send; ``None`` for no limit.
        bytes_received, bytes_sent: totals, without framing.
        reader, writer: the waiting threads; ``None`` if there is none.
        bridged: ``wsmux.bridge`` reads and writes it, and waits for the other connection.
        writer_has_credit: the writer waits for room in the send queue, not for credit.
        offered: how long it has waited to be accepted; ``None`` if it does not wait.
        silent: how long the peer has sent no byte on it; ``None`` if it never sent any.
    """

    id: int
    opened_here: bool
    accepted: bool
    reading: HalfStatus
    writing: HalfStatus
    window: int
    unread_bytes: int
    credit: int
    peer_credit: int | None
    bytes_received: int
    bytes_sent: int
    reader: Wait | None
    writer: Wait | None
    writer_has_credit: bool
    bridged: bool
    offered: float | None
    silent: float | None

    @property
    def full(self) -> bool:
        """Whether there are unread bytes, no thread reads, and the peer has no credit left."""
        lies = self.unread_bytes > 0 and self.peer_credit == 0 and self.reader is None
        return lies and self.reading is HalfStatus.OPEN


class Cause(StrEnum):
    """Name the cause of a wait."""

    ENDED = "ended"
    DETACHED = "detached"  # a resumable connection has no socket
    SILENT = "silent"  # nothing comes from the peer, despite a ping
    SOCKET_FULL = "socket full"  # the peer's system accepts no bytes
    BOTH_FULL = "both full"  # each side writes, and neither reads
    NO_CREDIT = "no credit"  # the peer does not read
    NO_ROOM = "no room"  # in the send queue
    UNREAD = "unread"  # this side does not read
    NOT_ACCEPTED = "not accepted"  # this side does not accept
    NO_OPENING = "no opening"  # the peer acknowledges no more streams
    NOTHING_TO_READ = "nothing to read"  # the peer writes nothing
    NO_STREAM = "no stream"  # the peer opens none

    @property
    def stalls(self) -> bool:
        """Whether data in transit is stuck; other causes wait for something new to happen."""
        return self not in (Cause.ENDED, Cause.NOTHING_TO_READ, Cause.NO_STREAM)


class Finding(NamedTuple):
    """Describe in a sentence, returned by ``str``, what a thread waits for and since when.

    Attributes:
        cause: the cause of the wait.
        stream_id: the id of the stream; ``None`` for the connection.
        thread: the name of the waiting thread, ``""`` if none waits.
        seconds: the duration; 0 if unknown.
        moved: bytes transferred there so far; the wait is over when it grows.
        text: the sentence.
    """

    cause: Cause
    stream_id: int | None
    thread: str
    seconds: float
    moved: int
    text: str

    def __str__(self) -> str:
        return self.text
