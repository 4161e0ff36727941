"""Find the frames of durable streams in the data of a connection's streams.

A stream is a durable one if the data of one direction begins with OPEN. Like ``frame_parser``, this
checks no rules of the protocol. It needs payloads, from the start of a stream on.
"""

from __future__ import annotations

from ..exceptions import FrameError
from ..protocols.base import Buffer
from ..protocols.durable import (
    MAGIC,
    FrameType,
    HeadReader,
    parse_open,
    size_of_answer,
    size_of_frame,
    size_of_open,
)
from .frame_parser import FrameHead

__all__ = ["DurableFrames"]

# Directions of streams that are known at once; of more, the oldest are forgotten.
MAX_KNOWN = 4096


class _Direction:
    """Parse the data of one direction of a durable stream.

    Attributes:
        opens: it is the one that begins with OPEN.
        opened: OPEN was parsed.
    """

    def __init__(self, stream: int, opens: bool) -> None:
        self.opens = opens
        self.opened = False
        self._stream = stream
        self._body = 0  # bytes that a DATA has left
        self._heads = HeadReader(self._size)

    def _size(self, held: bytearray) -> int:
        if not self.opens:
            return size_of_answer(held)
        return size_of_frame(held) if self.opened else size_of_open(held)

    def feed(self, data: Buffer) -> list[FrameHead]:
        """Return the frames whose heads are whole.

        Raises:
            FrameError: nothing that follows can be parsed.
        """
        found: list[FrameHead] = []
        view = memoryview(data)
        while len(view):
            skipped = min(self._body, len(view))
            self._body -= skipped
            head, view = self._heads.take(view[skipped:])
            if head is not None:
                found.append(self._parsed(head))
        return found

    def _parsed(self, head: bytes) -> FrameHead:
        stream = self._stream
        if self.opens and not self.opened:
            name, epoch, size = parse_open(head)
            self.opened = True
            known = "unknown" if size is None else size
            detail = f"name {name!r} epoch {epoch.hex()} size {known}"
            return FrameHead("DURABLE_OPEN", stream, detail=detail)
        kind = FrameType(head[0])
        text = f"DURABLE_{kind.name}"
        if kind is FrameType.REFUSED:
            return FrameHead(text, stream, code=head[1], detail=str(head[4:], "utf-8", "replace"))
        start = 17 if kind is FrameType.ACCEPTED else 1
        position = int.from_bytes(head[start : start + 8], "big")
        if kind is not FrameType.DATA:
            return FrameHead(text, stream, position=position)
        self._body = int.from_bytes(head[9:], "big")
        return FrameHead(text, stream, length=self._body, position=position)


class DurableFrames:
    """Follow the streams of one connection."""

    def __init__(self) -> None:
        # ``None`` for what is no durable stream, or can no longer be parsed.
        self._known: dict[tuple[int, bool], _Direction | None] = {}

    def feed(self, sent: bool, head: FrameHead, raw: bytes | None) -> list[FrameHead]:
        """Return the frames of durable streams whose heads end in a frame of a wire.

        Args:
            sent: its direction.
            head: its header.
            raw: the whole frame, ``None`` if it was not kept.
        """
        stream = head.stream
        if stream is None:
            return []
        if head.type == "CLOSE" and head.direction is None:  # Bymux may use the id again
            self._known.pop((stream, sent), None)
        if head.type not in ("DATA", "WRITE") or not head.length:
            return []
        known, key = self._known, (stream, sent)
        if raw is None:
            known[key] = None
            return []
        data = raw[-head.length :]
        if key not in known:
            if len(known) >= MAX_KNOWN:
                del known[next(iter(known))]
            known[key] = self._begun(stream, sent, data)
        direction = known[key]
        try:
            return [] if direction is None else direction.feed(data)
        except FrameError as error:
            known[key] = None
            if direction is None or (direction.opens and not direction.opened):
                return []  # it only began like a durable stream
            return [FrameHead("MALFORMED", stream, detail=f"durable stream: {error}")]

    def _begun(self, stream: int, sent: bool, data: bytes) -> _Direction | None:
        start = data[: len(MAGIC)]
        if start == MAGIC[: len(start)]:
            return _Direction(stream, opens=True)
        other = self._known.get((stream, not sent))
        answers = other is not None and other.opens and other.opened
        return _Direction(stream, opens=False) if answers else None
