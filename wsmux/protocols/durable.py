r"""Define the protocol of durable streams, and what one end of one has to remember.

It is spoken inside one ordinary stream, on any wire. The data goes one way, from the *sender*, who
opened the stream, to the *receiver*; integers are big-endian:

======== ==== =====================================================================================
OPEN     \-   magic ``wsmuxdur``, version uint8, epoch 16 B, size uint64, name length uint8, name
DATA     1    offset uint64, length uint32, as many bytes
END      2    offset uint64, digest length uint8, digest
ACCEPTED 16   epoch 16 B, committed uint64
COMMIT   17   committed uint64
COMPLETE 18   committed uint64
REFUSED  19   kind uint8, reason length uint16, reason in UTF-8
======== ==== =====================================================================================

- The sender begins with OPEN. ``epoch`` stands for what the sender sends under this name; when that
  is another thing, such as a changed file, the epoch is another one. ``size`` is the final offset,
  all ones if it is not known yet.
- The receiver answers with ACCEPTED: what it has committed of this name in this very epoch, and the
  epoch again, so that an offset is never taken for one of another epoch. The first DATA has this
  offset, and each further one follows the one before without a gap.
- COMMIT says that everything before an offset survives with its effect. The sender may forget it.
- END has the final offset, and the SHA-256 of all data if the sender knows it. Nothing follows.
- COMPLETE answers END when all is committed. Without it, the sender opens the name again later.
- REFUSED says why it does not go on. It may come any time before COMPLETE, and nothing follows.
- A stream that ends in any other way is an interruption: what is committed stays committed.

This module is pure: no threads, sockets or clocks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import NamedTuple

from ..config import KIB
from ..exceptions import FlowControlError, FrameError, LocalProtocolError, RemoteProtocolError
from .base import Buffer

__all__ = [
    "DIGEST_SIZE",
    "EPOCH_SIZE",
    "MAGIC",
    "MAX_DATA",
    "MAX_NAME",
    "NO_EPOCH",
    "Accepted",
    "Committed",
    "Complete",
    "Data",
    "DurableReceiver",
    "DurableSender",
    "End",
    "FrameType",
    "HeadReader",
    "Open",
    "Phase",
    "Refusal",
    "Refused",
    "check_open",
    "parse_open",
    "size_of_answer",
    "size_of_frame",
    "size_of_open",
]

MAGIC = b"wsmuxdur"
VERSION = 1

EPOCH_SIZE = 16
# Of a name that always stands for the same data.
NO_EPOCH = bytes(EPOCH_SIZE)
DIGEST_SIZE = 32
UNKNOWN_SIZE = 2**64 - 1

# Bytes: a name fits one of its length; DATA is small enough that a sender which has begun one soon
# ends it; a reason is a sentence.
MAX_NAME = 255
MAX_DATA = 256 * KIB
MAX_REASON = 500

_OPEN = struct.Struct(">8sB16sQB")
_DATA = struct.Struct(">BQI")
_END = struct.Struct(">BQB")
_ACCEPTED = struct.Struct(">B16sQ")
_OFFSET = struct.Struct(">BQ")
_REFUSED = struct.Struct(">BBH")


class FrameType(IntEnum):
    """The first byte of each frame but OPEN."""

    DATA = 1
    END = 2
    ACCEPTED = 16
    COMMIT = 17
    COMPLETE = 18
    REFUSED = 19


class Refusal(IntEnum):
    """Say why a receiver does not take a stream, or not any further."""

    UNKNOWN = 0
    """A reason that this version does not know."""
    MALFORMED = 1
    """The sender broke the protocol."""
    NAME = 2
    """The name is not allowed."""
    EXISTS = 3
    """The name is taken by something else, which is not replaced."""
    TOO_LARGE = 4
    """The receiver takes no more bytes of a name."""
    DIGEST = 5
    """The data has another digest than the sender says; what was received is dropped."""
    SUPERSEDED = 6
    """Another sender has opened the same name."""
    NO_SPACE = 7
    """The receiver has no room at present."""
    BUSY = 8
    """The receiver has too much to do at present, or another sender uses the name."""
    FAILED = 9
    """The receiver failed; what is committed stays committed."""

    @property
    def temporary(self) -> bool:
        """Whether the same may succeed later."""
        return self >= Refusal.NO_SPACE


class Open(NamedTuple):
    """The beginning of a stream.

    Attributes:
        name: of the data.
        epoch: of the sender.
        size: the final offset, ``None`` if the sender does not know it yet.
    """

    name: str
    epoch: bytes
    size: int | None


class Data(NamedTuple):
    """Bytes, in order; a DATA frame comes in as many pieces as the stream gives it."""

    data: memoryview


class End(NamedTuple):
    """Nothing follows.

    Attributes:
        offset: the final one.
        digest: the SHA-256 of all data, ``None`` if the sender does not give it.
    """

    offset: int
    digest: bytes | None


class Accepted(NamedTuple):
    """The receiver takes data from this offset on."""

    committed: int


class Committed(NamedTuple):
    """Everything before the offset survives."""

    committed: int


class Complete(NamedTuple):
    """Everything survives, up to END."""

    committed: int


class Refused(NamedTuple):
    """It does not go on."""

    kind: Refusal
    reason: str


Received = Open | Data | End
Answer = Accepted | Committed | Complete | Refused


def check_open(name: str, epoch: bytes, size: int | None) -> None:
    """Raise ``ValueError`` or ``TypeError`` for what OPEN cannot say."""
    if not isinstance(name, str):
        raise TypeError(f"a durable name must be a string, not {type(name).__name__}")
    length = len(name.encode(errors="surrogatepass"))
    if not 0 < length <= MAX_NAME:
        raise ValueError(f"a durable name has from 1 to {MAX_NAME} bytes of UTF-8, not {length}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the durable name {name!r} is not valid Unicode") from None
    if len(epoch) != EPOCH_SIZE:
        raise ValueError(
            f"an epoch has {EPOCH_SIZE} bytes, not {len(epoch)}: hash whatever tells apart what is "
            f"sent under the name, and take the first {EPOCH_SIZE}"
        )
    if size is not None and not 0 <= size < UNKNOWN_SIZE:
        raise ValueError(f"a size is from 0 to 2^64 - 2 bytes, not {size}")


class HeadReader:
    """Collect the head of one frame after another.

    Args:
        size_of: returns how many bytes a head has, as far as its first bytes tell; raises
            ``FrameError`` if they begin none.
    """

    def __init__(self, size_of: Callable[[bytearray], int]) -> None:
        self._size_of = size_of
        self._held = bytearray()

    def take(self, view: memoryview) -> tuple[bytes | None, memoryview]:
        """Return a whole head, if there is one, and the bytes behind it."""
        held = self._held
        while missing := self._size_of(held) - len(held):
            if not len(view):
                return None, view
            held += view[:missing]
            view = view[missing:]
        head = bytes(held)
        held.clear()
        return head, view


class Phase(Enum):
    """Where a stream stands; each side has its own.

    ::

        NEW -> OPENED -> FLOWING -> ENDED -> OVER
    """

    NEW = "before OPEN"
    OPENED = "before the answer to OPEN"
    FLOWING = "between the answer and END"
    ENDED = "after END"
    OVER = "after COMPLETE or REFUSED"


class _End:
    """What both ends have in common."""

    def __init__(self) -> None:
        self.phase = Phase.NEW

    def _check_own(self, what: str, *phases: Phase) -> None:
        if self.phase not in phases:
            raise LocalProtocolError(f"{what} cannot be sent {self.phase.value}")

    def _check_peer(self, what: str, *phases: Phase) -> None:
        if self.phase not in phases:
            raise RemoteProtocolError(
                f"the peer of a durable stream sent {what} {self.phase.value}"
            )


class DurableSender(_End):
    """The end that has the data. Its owner holds one lock around every call.

    After ``RemoteProtocolError`` it is over.

    Attributes:
        phase: where the stream stands.
        opened: what OPEN says.
        sent: the offset behind the last DATA.
        committed: the highest offset that the receiver has committed.
    """

    def __init__(self, name: str, epoch: bytes, size: int | None) -> None:
        check_open(name, epoch, size)
        super().__init__()
        self.opened = Open(name, epoch, size)
        self.sent = self.committed = 0
        self._heads = HeadReader(size_of_answer)

    def open(self) -> bytes:
        """Return OPEN, the first bytes of the stream."""
        self._check_own("OPEN", Phase.NEW)
        self.phase = Phase.OPENED
        name, epoch, size = self.opened
        text = name.encode()
        known = UNKNOWN_SIZE if size is None else size
        return _OPEN.pack(MAGIC, VERSION, epoch, known, len(text)) + text

    def data(self, length: int) -> bytes:
        """Return the head of DATA; ``length`` bytes of data have to follow it.

        Raises:
            LocalProtocolError: it is not allowed now, the length is not from 1 to ``MAX_DATA``, or
                there would be more data than OPEN says.
        """
        self._check_own("DATA", Phase.FLOWING)
        if not 0 < length <= MAX_DATA:
            raise LocalProtocolError(f"DATA has from 1 to {MAX_DATA} bytes, not {length}")
        size = self.opened.size
        if size is not None and self.sent + length > size:
            raise LocalProtocolError(
                f"{self.sent + length} bytes of {self.opened.name!r}, which was opened for {size}: "
                "open it with the size that it has, or without one"
            )
        head = _DATA.pack(FrameType.DATA, self.sent, length)
        self.sent += length
        return head

    def end(self, digest: bytes | None = None) -> bytes:
        """Return END.

        Raises:
            LocalProtocolError: it is not allowed now, the digest is no SHA-256, or there is less
                data than OPEN says.
        """
        self._check_own("END", Phase.FLOWING)
        if digest is not None and len(digest) != DIGEST_SIZE:
            raise LocalProtocolError(f"a SHA-256 has {DIGEST_SIZE} bytes, not {len(digest)}")
        size = self.opened.size
        if size is not None and self.sent != size:
            raise LocalProtocolError(
                f"the end of {self.opened.name!r} at {self.sent}, which was opened for {size} bytes"
            )
        self.phase = Phase.ENDED
        digest = digest or b""
        return _END.pack(FrameType.END, self.sent, len(digest)) + digest

    def receive(self, data: Buffer) -> list[Answer]:
        """Return what the receiver says.

        Raises:
            RemoteProtocolError: it is not allowed here.
        """
        answers: list[Answer] = []
        view = memoryview(data)
        try:
            while len(view):
                head, view = self._heads.take(view)
                if head is not None:
                    answers.append(self._answer(head))
        except RemoteProtocolError:
            self.phase = Phase.OVER
            raise
        return answers

    def _answer(self, head: bytes) -> Answer:
        kind = head[0]
        if kind == FrameType.REFUSED:
            self._check_peer("REFUSED", Phase.OPENED, Phase.FLOWING, Phase.ENDED)
            self.phase = Phase.OVER
            number = head[1]
            known = number in Refusal.__members__.values()
            reason = str(head[_REFUSED.size :], "utf-8", "replace")
            return Refused(Refusal(number) if known else Refusal.UNKNOWN, reason)
        if kind == FrameType.ACCEPTED:
            self._check_peer("ACCEPTED", Phase.OPENED)
            _, epoch, committed = _ACCEPTED.unpack(head)
            return self._accepted(epoch, committed)
        (_, committed) = _OFFSET.unpack(head)
        if kind == FrameType.COMMIT:
            self._check_peer("COMMIT", Phase.FLOWING, Phase.ENDED)
            self._commit(committed)
            return Committed(committed)
        self._check_peer("COMPLETE", Phase.ENDED)
        self._commit(committed)
        if committed != self.sent:
            raise RemoteProtocolError(
                f"COMPLETE at {committed}, where the data ends at {self.sent}"
            )
        self.phase = Phase.OVER
        return Complete(committed)

    def _accepted(self, epoch: bytes, committed: int) -> Accepted:
        name, own, size = self.opened
        if epoch != own:
            raise RemoteProtocolError(
                f"the offset of {name!r} is of epoch {epoch.hex()}, and {own.hex()} was asked for"
            )
        if size is not None and committed > size:
            raise RemoteProtocolError(
                f"{committed} bytes of {name!r} are said to be committed, which has {size}"
            )
        self.sent = self.committed = committed
        self.phase = Phase.FLOWING
        return Accepted(committed)

    def _commit(self, committed: int) -> None:
        if not self.committed <= committed <= self.sent:
            raise RemoteProtocolError(
                f"{committed} bytes are said to be committed; {self.committed} were before, and "
                f"{self.sent} are sent"
            )
        self.committed = committed


def size_of_answer(held: bytearray) -> int:
    """Return the size of a receiver's frame, for ``HeadReader``."""
    if not held:
        return 1
    kind = held[0]
    if kind == FrameType.ACCEPTED:
        return _ACCEPTED.size
    if kind in (FrameType.COMMIT, FrameType.COMPLETE):
        return _OFFSET.size
    if kind != FrameType.REFUSED:
        raise FrameError(
            f"a receiver of durable streams answers with frames of type 16 to 19, not {kind}"
        )
    if len(held) < _REFUSED.size:
        return _REFUSED.size
    length: int = _REFUSED.unpack_from(held)[2]
    if length > MAX_REASON:
        raise FrameError(f"a reason of {length} bytes, where at most {MAX_REASON} are allowed")
    return _REFUSED.size + length


class DurableReceiver(_End):
    """The end that the data comes to. Its owner holds one lock around every call.

    After ``RemoteProtocolError`` only ``refuse`` may be called.

    Attributes:
        phase: where the stream stands.
        opened: what OPEN says, ``None`` before it.
        received: the offset behind the data received, in whole frames or not.
        committed: the offset that the sender was last told.
    """

    def __init__(self) -> None:
        super().__init__()
        self.opened: Open | None = None
        self.received = self.committed = 0
        self._body = 0  # bytes that the DATA being received has left
        self._heads = HeadReader(self._size_of_head)

    def receive(self, data: Buffer) -> list[Received]:
        """Return what the sender says; the pieces of data are views of ``data``.

        Raises:
            RemoteProtocolError: it is not allowed here.
        """
        events: list[Received] = []
        view = memoryview(data)
        while len(view):
            if self._body:
                piece, view = view[: self._body], view[self._body :]
                self._body -= len(piece)
                self.received += len(piece)
                events.append(Data(piece))
                continue
            head, view = self._heads.take(view)
            if head is not None:
                self._head(head, events)
        return events

    def _head(self, head: bytes, events: list[Received]) -> None:
        if self.opened is None:
            self.opened = parse_open(head)
            self.phase = Phase.OPENED
            events.append(self.opened)
        elif head[0] == FrameType.DATA:
            self._check_peer("DATA", Phase.FLOWING)
            _, offset, length = _DATA.unpack(head)
            self._check_data(offset, length)
            self._body = length
        else:
            self._check_peer("END", Phase.FLOWING)
            _, offset, _ = _END.unpack_from(head)
            self._check_end(offset)
            self.phase = Phase.ENDED
            events.append(End(offset, head[_END.size :] or None))

    def _check_data(self, offset: int, length: int) -> None:
        assert self.opened is not None
        if offset != self.received:
            raise RemoteProtocolError(f"DATA at offset {offset}, where {self.received} comes next")
        if not 0 < length <= MAX_DATA:
            raise FrameError(f"DATA of {length} bytes, where 1 to {MAX_DATA} are allowed")
        size = UNKNOWN_SIZE if self.opened.size is None else self.opened.size
        if offset + length > size:
            raise FlowControlError(
                f"DATA up to {offset + length}, of a stream that was opened for {size} bytes"
            )

    def _check_end(self, offset: int) -> None:
        assert self.opened is not None
        size = self.opened.size
        if offset != self.received or size not in (None, offset):
            raise RemoteProtocolError(
                f"END at {offset}, after data up to {self.received} of a stream that was opened "
                f"for {'any number of' if size is None else size} bytes"
            )

    def _size_of_head(self, held: bytearray) -> int:
        return size_of_open(held) if self.opened is None else size_of_frame(held)

    def accept(self, committed: int) -> bytes:
        """Return ACCEPTED.

        Args:
            committed: the offset that is committed of the name and epoch of ``opened``.

        Raises:
            LocalProtocolError: it is not allowed now.
        """
        self._check_own("ACCEPTED", Phase.OPENED)
        assert self.opened is not None
        self.phase = Phase.FLOWING
        self.received = self.committed = committed
        return _ACCEPTED.pack(FrameType.ACCEPTED, self.opened.epoch, committed)

    def commit(self, offset: int) -> bytes:
        """Return COMMIT.

        Raises:
            LocalProtocolError: it is not allowed now, less than before, or more than was received.
        """
        self._check_own("COMMIT", Phase.FLOWING, Phase.ENDED)
        if not self.committed <= offset <= self.received:
            raise LocalProtocolError(
                f"{offset} cannot be committed: {self.committed} is, and {self.received} were "
                "received"
            )
        self.committed = offset
        return _OFFSET.pack(FrameType.COMMIT, offset)

    def complete(self) -> bytes:
        """Return COMPLETE.

        Raises:
            LocalProtocolError: it is not allowed now, or not all is committed.
        """
        self._check_own("COMPLETE", Phase.ENDED)
        if self.committed != self.received:
            raise LocalProtocolError(
                f"{self.committed} of {self.received} bytes are committed: commit the rest first"
            )
        self.phase = Phase.OVER
        return _OFFSET.pack(FrameType.COMPLETE, self.committed)

    def refuse(self, kind: Refusal, reason: str) -> bytes:
        """Return REFUSED; a long reason is cut between characters.

        Raises:
            LocalProtocolError: the stream is over.
        """
        self._check_own("REFUSED", Phase.NEW, Phase.OPENED, Phase.FLOWING, Phase.ENDED)
        self.phase = Phase.OVER
        text = reason.encode(errors="replace")[:MAX_REASON].decode(errors="ignore").encode()
        return _REFUSED.pack(FrameType.REFUSED, kind, len(text)) + text


def size_of_frame(held: bytearray) -> int:
    """Return the size of the head of a sender's frame behind OPEN, for ``HeadReader``."""
    if not held:
        return 1
    if held[0] == FrameType.DATA:
        return _DATA.size
    if held[0] != FrameType.END:
        raise FrameError(f"a sender of durable streams sends frames of type 1 and 2, not {held[0]}")
    if len(held) < _END.size:
        return _END.size
    length = held[_END.size - 1]
    if length not in (0, DIGEST_SIZE):
        raise FrameError(f"a digest has 0 or {DIGEST_SIZE} bytes, not {length}")
    return _END.size + length


def size_of_open(held: bytearray) -> int:
    """Return the size of OPEN; raise at the first byte that cannot be of one."""
    if held[: len(MAGIC)] != MAGIC[: len(held)]:
        raise FrameError(
            f"a durable stream begins with {MAGIC!r}, not with {bytes(held[: len(MAGIC)])!r}: was "
            "it opened without durable=?"
        )
    if len(held) > len(MAGIC) and held[len(MAGIC)] != VERSION:
        raise FrameError(
            f"a durable stream of version {held[len(MAGIC)]}, and this side speaks {VERSION}"
        )
    if len(held) < _OPEN.size:
        return _OPEN.size
    return _OPEN.size + held[_OPEN.size - 1]


def parse_open(head: bytes) -> Open:
    """Return what OPEN says.

    Raises:
        FrameError: the name is empty, or not UTF-8.
    """
    _, _, epoch, size, _ = _OPEN.unpack_from(head)
    try:
        name = str(head[_OPEN.size :], "utf-8")
    except UnicodeDecodeError:
        raise FrameError("OPEN with a name that is not UTF-8") from None
    if not name:
        raise FrameError("OPEN without a name")
    return Open(name, epoch, None if size == UNKNOWN_SIZE else size)
