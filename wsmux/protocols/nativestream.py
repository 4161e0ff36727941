"""Hold what the native machine knows of one stream, and the rules of its messages' bodies."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import SMALLEST_WINDOW
from ..exceptions import FlowControlError, FrameError, LocalProtocolError, StreamIdError
from .base import Buffer
from .credit import SendCredit
from .states import ReadInput, ReadState, WriteState, advance_read
from .varint import decode_varint, encode_varint
from .windows import GrowingWindow

__all__ = [
    "READ",
    "WRITE",
    "WRITE_DONE",
    "EarlyBytes",
    "NativeStream",
    "StoppedStreams",
    "check_body",
    "direction_of",
    "parse_head",
]

WRITE_DONE = frozenset({WriteState.CLOSED, WriteState.RESET, WriteState.STOPPED})

# Directions, named from the receiver.
READ, WRITE = 0, 1


class NativeStream:
    """Be one entry of the machine's table."""

    __slots__ = (
        "answered",
        "credit",
        "data_head",
        "early",
        "head",
        "id",
        "local",
        "read",
        "reset",
        "window",
        "write",
    )

    def __init__(self, stream_id: int, data: bytes, window: GrowingWindow, local: bool) -> None:
        self.id = stream_id
        self.head = encode_varint(stream_id)
        self.data_head = self.head + data  # the same with the type DATA
        self.write = WriteState.OPEN
        self.read = ReadState.OPEN
        self.credit = SendCredit()
        self.window = window
        self.local = local
        self.answered = not local  # the peer has sent something on it
        self.early: int | None = 0  # what it was given before its window, until that comes
        self.reset = False  # the peer has, and was charged with it

    def ended(self, direction: int) -> bool:
        """Tell whether the half that an end in ``direction`` is for has ended before."""
        if direction == READ:
            return self.read is not ReadState.OPEN
        return self.write in WRITE_DONE

    @property
    def peer_credit(self) -> int:
        """How many bytes the peer may still send."""
        return self.window.available

    def receive_unread(self, size: int) -> None:
        """Note bytes that nobody will read any more; they are limited all the same."""
        try:
            self.read = advance_read(self.read, ReadInput.DATA)
        except KeyError:
            raise StreamIdError(
                f"DATA on stream {self.id} after the peer ended its writing half"
            ) from None
        if not self.window.receive(size):
            raise overflow(self.id, size, self.window.available)


@dataclass(init=False)
class EarlyBytes:
    """Say what goes on a stream before the ACK that answers it, which saves a round trip.

    The rule; ``wsmux.js`` keeps the same one:

    - Each end makes one promise for the whole connection: of a stream that the peer opens it takes
      its receive window, but at most 16 KiB, before it answers, however late that is. Of a stream
      that it refuses, or leaves out since its own GO_AWAY, it drops as much.
    - The promise is heard with the first window that the end announces, and holds from then on:
      its windows are all at least 16 KiB, or all of one size.
    - So the opener of a stream may send as much as the smallest window that it has heard of, at
      most 16 KiB, before the answer. While it has heard of none, it waits.
    - These bytes are part of the window that the answer announces. It is never exceeded.

    The founding text has the sender wait, and so has js-ws.

    Attributes:
        given: what this side may send so.
        taken: what the peer may.

    Args:
        window: what this side is going to announce; 0 has both sides wait.
    """

    given: int
    taken: int
    _most: int
    _smallest: int
    _promised: bool

    def __init__(self, window: int) -> None:
        self.given = 0
        self.taken = min(window, SMALLEST_WINDOW)
        self._most = self._smallest = SMALLEST_WINDOW if window else 0
        self._promised = False

    def announce(self, window: int) -> int:
        """Note a window that this side announces for a stream, and return it.

        Raises:
            LocalProtocolError: it breaks the promise that the first one was.
        """
        taken = min(window, self._most)
        if self._promised and taken != self.taken:
            more = " or more" if self.taken == self._most else ""
            raise LocalProtocolError(
                f"a window of {window} bytes breaks the promise that the first one was; "
                f"announce {self.taken}{more}"
            )
        self.taken, self._promised = taken, True
        return window

    def heard(self, stream: NativeStream, window: int) -> int:
        """Note the window that the peer announces for a stream; return what is left to grant of it.

        Raises:
            FlowControlError: it is smaller than what might be sent before it.
        """
        early = stream.early or 0
        if window < early:
            raise FlowControlError(
                f"ACK of {window} bytes answers stream {stream.id}, where {early} could be expected"
            )
        stream.early = None
        self.given = self._smallest = min(self._smallest, window)
        return window - early


class StoppedStreams(dict[int, int]):
    """Map the streams that have finished here to what the peer may still be writing on them.

    Args:
        limit: how many are known; of more, the oldest give way.
        early: tells what the peer may write on a stream that this side has never taken.
    """

    def __init__(self, limit: int, early: EarlyBytes) -> None:
        super().__init__()
        self._limit = limit
        self._early = early

    def keep(self, stream: NativeStream) -> None:
        """Note a stream."""
        self._note(stream.id, stream.window.available)

    def receive(self, stream_id: int, size: int) -> None:
        """Note bytes for one of them, or for a stream that was never taken."""
        credit = self.get(stream_id, self._early.taken)
        if size > credit:
            raise overflow(stream_id, size, credit)
        if size:
            self._note(stream_id, credit - size)

    def _note(self, stream_id: int, credit: int) -> None:
        self[stream_id] = credit
        if len(self) > self._limit:
            del self[next(iter(self))]


def parse_head(data: Buffer, width: int) -> tuple[int, int, int]:
    """Return the id and the type of a message, and where its body begins."""
    parsed = decode_varint(data)
    if parsed is None:
        raise FrameError("message without a whole stream id" if data else "empty message")
    stream_id, offset = parsed
    end = offset + width
    if end > len(data):
        raise FrameError(f"message for stream {stream_id} ends before its type")
    return stream_id, int.from_bytes(data[offset:end], "big"), end


def direction_of(kind: str, stream_id: int, data: Buffer, offset: int) -> int:
    """Return the direction that a body begins with."""
    if offset >= len(data):
        raise FrameError(f"{kind} on stream {stream_id} without a direction")
    direction = data[offset]
    if direction > WRITE:
        raise FrameError(f"{kind} on stream {stream_id} with the direction {direction}")
    return direction


def check_body(kind: str, stream_id: int, size: int, wanted: int, longer: bool) -> None:
    """Refuse a body of the wrong length, or only one too short where ``longer`` ones are legal."""
    if size != wanted and not (longer and size > wanted):
        raise FrameError(f"{kind} on stream {stream_id} has a body of the wrong length")


def overflow(stream_id: int, size: int, credit: int) -> FlowControlError:
    """Return what ends the connection of a peer that goes on past its credit unread."""
    return FlowControlError(
        f"{size} bytes with {credit} of credit on stream {stream_id}, which is read no further"
    )
