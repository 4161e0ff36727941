"""Hold what the native machine knows of one stream, and the rules of its messages' bodies."""

from __future__ import annotations

from ..exceptions import FlowControlError, FrameError, StreamIdError
from .base import Buffer
from .credit import SendCredit
from .states import ReadInput, ReadState, WriteState, advance_read
from .varint import decode_varint, encode_varint
from .windows import GrowingWindow

__all__ = [
    "READ",
    "WRITE",
    "WRITE_DONE",
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


class StoppedStreams(dict[int, int]):
    """Map the streams that have finished here to what the peer may still be writing on them."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def keep(self, stream: NativeStream) -> None:
        """Note a stream; the oldest one gives way."""
        self[stream.id] = stream.window.available
        if len(self) > self._limit:
            del self[next(iter(self))]

    def receive(self, stream_id: int, size: int) -> None:
        """Note bytes for one of them, or for a stream that never got credit."""
        credit = self.get(stream_id, 0)
        if size > credit:
            raise overflow(stream_id, size, credit)
        if size:
            self[stream_id] = credit - size


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
