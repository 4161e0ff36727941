"""Define the events of the protocol machines; all are immutable values."""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "CreditGranted",
    "DataReceived",
    "Event",
    "GoAwayReceived",
    "OpenPermitted",
    "PongReceived",
    "PongsEnded",
    "StreamAborted",
    "StreamEnded",
    "StreamFinished",
    "StreamOpened",
    "StreamRejected",
    "WriteStopped",
]


class StreamOpened(NamedTuple):
    """The peer opened a stream: the owner must ``accept`` or ``refuse`` it at once."""

    stream_id: int


class DataReceived(NamedTuple):
    """Bytes arrived, within the granted credit."""

    stream_id: int
    data: bytes


class CreditGranted(NamedTuple):
    """The stream may send again."""

    stream_id: int


class StreamEnded(NamedTuple):
    """The peer has finished writing: the clean end."""

    stream_id: int


class StreamAborted(NamedTuple):
    """The reading half failed; unread bytes are void.

    ``code`` is the code of the wire; ``local`` is true if this side detected an overflow by the
    peer.
    """

    stream_id: int
    code: int
    local: bool
    detail: str


class WriteStopped(NamedTuple):
    """The peer has stopped reading; ``code`` is ``None`` if it did so without an error."""

    stream_id: int
    code: int | None


class StreamRejected(NamedTuple):
    """The peer processed nothing of a stream opened here; ``detail`` says why.

    Reported once for each half that this ends.
    """

    stream_id: int
    code: int
    detail: str


class StreamFinished(NamedTuple):
    """Both halves have ended on the wire, and the machine has removed the stream."""

    stream_id: int


class OpenPermitted(NamedTuple):
    """A stream may be opened again, after ``may_open`` was false."""


class GoAwayReceived(NamedTuple):
    """The peer accepts no more streams; ``first_refused`` is the first id it did not process."""

    first_refused: int
    code: int


class PongReceived(NamedTuple):
    """A ping of this side was answered."""

    stream_id: int | None
    value: int


class PongsEnded(NamedTuple):
    """The pings in flight of a stream, or of the connection, will not be answered any more."""

    stream_id: int | None


Event = (
    StreamOpened
    | DataReceived
    | CreditGranted
    | StreamEnded
    | StreamAborted
    | WriteStopped
    | StreamRejected
    | StreamFinished
    | OpenPermitted
    | GoAwayReceived
    | PongReceived
    | PongsEnded
)
