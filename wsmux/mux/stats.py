"""Name the values that tell about a connection."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Cause", "ConnectionStats", "Finding", "HalfStatus", "StreamStats", "Wait"]


class ConnectionStats(NamedTuple):
    """Hold a snapshot of one connection; sizes are bytes, times seconds."""

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


class Wait(NamedTuple):
    """Which thread waits, and for how many seconds it has."""

    thread: str
    seconds: float


class HalfStatus(StrEnum):
    """The state of one half of a stream."""

    OPEN = "open"
    ENDED = "ended"  # by the peer, cleanly
    CLOSED = "closed"  # by this side
    FAILED = "failed"  # reset or refused, by either side


class StreamStats(NamedTuple):
    """Hold a snapshot of one stream; sizes are bytes, times seconds.

    Attributes:
        id: the one on the wire.
        opened_here: this side opened it.
        accepted: the application has it.
        reading, writing: how the halves stand.
        window: what this side lets the peer send without reading it.
        unread_bytes: received, and not yet read.
        credit: what this side may send now; on ``bymux`` at most ``Config.max_frame_size``.
        peer_credit: what the peer may still send; ``None`` where there is no limit.
        bytes_received, bytes_sent: in all, without framing.
        reader, writer: the threads that wait; ``None`` when none does.
        bridged: ``wsmux.bridge`` reads and writes it, and waits for the other connection.
        writer_has_credit: the writer waits for room in the send queue, not for credit.
        offered: for how long it has waited to be accepted; ``None`` when it does not.
        silent: for how long the peer has sent no byte on it; ``None`` when it never has.
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
        """Whether bytes lie unread, nobody reads them, and the peer may send no more."""
        lies = self.unread_bytes > 0 and self.peer_credit == 0 and self.reader is None
        return lies and self.reading is HalfStatus.OPEN


class Cause(StrEnum):
    """Name what is waited for; ``stalls`` tells those that keep bytes from moving."""

    ENDED = "ended"
    SILENT = "silent"  # nothing comes from the peer, which was asked
    SOCKET_FULL = "socket full"  # the peer's system takes no byte
    BOTH_FULL = "both full"  # each side writes, and neither reads
    NO_CREDIT = "no credit"  # the peer does not read
    NO_ROOM = "no room"  # in the send queue
    UNREAD = "unread"  # this side does not read
    NOT_ACCEPTED = "not accepted"  # this side does not accept
    NO_OPENING = "no opening"  # the peer answers no further stream
    NOTHING_TO_READ = "nothing to read"  # the peer writes nothing
    NO_STREAM = "no stream"  # the peer opens none

    @property
    def stalls(self) -> bool:
        """Whether something that is under way stands still; the rest waits for what may come."""
        return self not in (Cause.ENDED, Cause.NOTHING_TO_READ, Cause.NO_STREAM)


class Finding(NamedTuple):
    """Say in a sentence, which ``str`` returns, which thread waits for what and since when.

    Attributes:
        cause: what is waited for.
        stream_id: on which stream; ``None`` for the connection.
        thread: the name of the waiting thread, ``""`` if none waits.
        seconds: for how long; 0 when that is not known.
        moved: what has moved there so far, in bytes; a wait ends when it grows.
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
