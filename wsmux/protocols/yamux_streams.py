"""Hold what one end knows of a Yamux stream, and the rules that every frame must keep."""

from __future__ import annotations

from ..config import MAX_WINDOW
from ..exceptions import FlowControlError, FrameError, StreamIdError
from .credit import SendCredit
from .events import Event, StreamAborted, StreamRejected, WriteStopped
from .states import ReadState, WriteState
from .windows import MAX_STREAM_WINDOW
from .yamux_frames import Flag, Head, Type
from .yamux_windows import INITIAL_WINDOW, YamuxWindow

__all__ = ["PEER_DONE", "READING", "WRITING", "YamuxStream", "check", "reset_events"]

# Looking a member up in its class costs too much for each frame.
READING, WRITING = ReadState.OPEN, WriteState.OPEN
PEER_DONE = frozenset({ReadState.ENDED, ReadState.FORGOTTEN})
_SYN, _RST = int(Flag.SYN), int(Flag.RST)
_DATA, _PING, _GO_AWAY = int(Type.DATA), int(Type.PING), int(Type.GO_AWAY)


class YamuxStream:
    """Be one stream; both sides begin with 256 KiB of credit."""

    __slots__ = ("answered", "credit", "early", "id", "local", "read", "window", "write")

    def __init__(self, stream_id: int, local: bool) -> None:
        self.id = stream_id
        self.local = local
        self.answered = not local  # the peer has sent something on it
        self.early: list[Event] | None = None if local else []  # until the owner has taken it
        self.write = WRITING
        self.read = READING
        self.credit = SendCredit()
        self.credit.grant(INITIAL_WINDOW)
        self.window = YamuxWindow()

    @property
    def peer_credit(self) -> int:
        """How many bytes the peer may still send."""
        return self.window.available

    def receive(self, size: int) -> bool:
        """Note the bytes of a frame that means nothing but them; tell whether it can be taken so.

        If not, nothing is noted.
        """
        plain = self.read is READING and self.answered and self.early is None
        return plain and self.window.receive(size)


def check(head: Head, stream: YamuxStream | None, may_open: bool | None, drainable: int) -> None:
    """Refuse a frame that breaks a rule, before anything is stored for it.

    Args:
        head: as it came.
        stream: the one it names, if it is there.
        may_open: whether the peer may open the id; ``None`` when it is of this side's parity.
        drainable: bytes that are still taken for streams that are not there.

    Raises:
        RemoteProtocolError: one of its subclasses, which names the rule.
    """
    version, kind, flags, stream_id, length = head
    if version:
        raise FrameError(f"frame of version {version}, not 0")
    if kind > _GO_AWAY:
        raise FrameError(f"frame of the unknown type {kind}")
    if (kind >= _PING) is not (stream_id == 0):
        raise StreamIdError(f"{Type(kind).name} frame on stream {stream_id}")
    if kind >= _PING:
        return
    if flags & _SYN and not may_open:
        what = "of the parity of this side" if may_open is None else "which is open"
        raise StreamIdError(f"the peer opened stream {stream_id}, {what}")
    if kind == _DATA:
        _check_data(head, stream, drainable)
    elif not flags & _RST:
        credit = INITIAL_WINDOW if flags & _SYN else stream.credit.available if stream else 0
        if credit + length > MAX_WINDOW:
            raise FlowControlError(
                f"window update of {length} bytes lifts the credit of {credit} above 2^32-1"
            )


def _check_data(head: Head, stream: YamuxStream | None, drainable: int) -> None:
    stream_id, length = head.stream_id, head.length
    if length > MAX_STREAM_WINDOW:
        raise FrameError(f"data frame of {length} bytes, above {MAX_STREAM_WINDOW}")
    where = ""
    if stream is not None:
        if length and stream.read in PEER_DONE:
            raise StreamIdError(f"data on stream {stream_id} after its FIN")
        credit = stream.window.available
    elif head.flags & _SYN:
        credit = INITIAL_WINDOW
    else:
        credit, where = drainable, ", which is not open"
    if length > credit:
        raise FlowControlError(
            f"{length} bytes with {credit} bytes of credit on stream {stream_id}{where}"
        )


def reset_events(stream: YamuxStream, code: int) -> list[Event]:
    """Return what is reported when the peer resets a stream."""
    reading, writing = stream.read is READING, stream.write is WRITING
    if not stream.answered:
        rejected = StreamRejected(stream.id, code, "the peer did not take it")
        return [rejected] if reading or writing else []
    events: list[Event] = []
    if reading:
        events.append(StreamAborted(stream.id, code, False, ""))
    if writing:
        events.append(WriteStopped(stream.id, code))
    return events
