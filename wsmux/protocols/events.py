"""Name what a protocol machine reports; every event is an immutable value."""

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
    """Bytes arrived, within the credit given."""

    stream_id: int
    data: bytes


class CreditGranted(NamedTuple):
    """The stream may send; it could not before."""

    stream_id: int


class StreamEnded(NamedTuple):
    """The peer has written everything it will write: the clean end."""

    stream_id: int


class StreamAborted(NamedTuple):
    """The reading half failed; what was not read is void.

    ``code`` is the wire's; ``local`` is true when this side caught the peer overflowing it.
    """

    stream_id: int
    code: int
    local: bool
    detail: str


class WriteStopped(NamedTuple):
    """The peer reads no further; ``code`` is ``None`` when it said so without an error."""

    stream_id: int
    code: int | None


class StreamRejected(NamedTuple):
    """The peer handled nothing of a stream opened here; ``detail`` says why.

    It comes once for each half that this ends.
    """

    stream_id: int
    code: int
    detail: str


class StreamFinished(NamedTuple):
    """Both halves have ended on the wire and the machine has forgotten the stream."""

    stream_id: int


class OpenPermitted(NamedTuple):
    """A stream may be opened; ``may_open`` was false before."""


class GoAwayReceived(NamedTuple):
    """The peer takes no further streams; ``first_refused`` is the first id it did not handle."""

    first_refused: int
    code: int


class PongReceived(NamedTuple):
    """A ping of this side's was answered."""

    stream_id: int | None
    value: int


class PongsEnded(NamedTuple):
    """The pings under way of a stream, or of the connection, are not answered any more."""

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
