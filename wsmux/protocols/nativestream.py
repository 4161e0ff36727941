"""Hold what the native machine knows of one stream."""

from __future__ import annotations

from .credit import ReceiveWindow, SendCredit
from .states import ReadState, WriteState
from .varint import encode_varint

__all__ = ["NativeStream"]


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
        "window",
        "write",
    )

    def __init__(self, stream_id: int, data: bytes, window: ReceiveWindow, local: bool) -> None:
        self.id = stream_id
        self.head = encode_varint(stream_id)
        self.data_head = self.head + data  # the same with the type DATA
        self.write = WriteState.OPEN
        self.read = ReadState.OPEN
        self.credit = SendCredit()
        self.window = window
        self.local = local
        self.answered = not local  # the peer has sent something on it
