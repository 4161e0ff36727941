"""Keep the last frames of a connection, to reconstruct afterwards what happened on it.

There are two rings, one for each direction. Each is filled by one thread at a time, without a lock:
the I/O thread fills that of received frames, the holder of the send lock the other one. Any thread
may copy a ring meanwhile, and leaves out an entry that is just being written. Headers are parsed
only when a recording is requested, except on wires that form a byte stream.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from operator import attrgetter, itemgetter
from pathlib import Path
from struct import Struct
from typing import Any

from ..config import Config, Recording
from ..exceptions import ConnectionClosed, ConnectionClosedOK, FrameError, WsmuxError
from ..protocols.base import Buffer, Message, Role
from ..protocols.framing import Framing, Opcode, Received
from ..protocols.resumable_framing import ResumableFraming
from ..protocols.websocket import WebSocketFraming
from ..runtime.logs import logger
from .file_format import Entry, Header, entry_line, header_line
from .frame_parser import KEPT, Cutter, cutter, read_carried, read_head

__all__ = ["Recorder"]

# Names of recordings in a directory.
PREFIX, SUFFIX = "wsmux-recording-", ".jsonl"

# Looking these up in the class for each frame costs too much.
_BINARY, _CLOSE = Opcode.BINARY, int(Opcode.CLOSE)

_log = logger("wsmux")

# Time, opcode of the carrier, the frame or its start, its total size.
_Kept = tuple[float, Opcode, bytes, int]

# In the place of a frame and its number.
_NO_FRAME: tuple[int, _Kept] = (-1, (0.0, Opcode.BINARY, b"", 0))

# As in the send queue.
_Frame = tuple[Opcode, Message, int]

_now = time.monotonic

# Time, total size, opcode of the carrier, start of the frame, number (from 1). ``pack_into`` zeroes
# an entry first, and writes the number last.
_ENTRY = Struct(f"=dQB{KEPT + 1}p14xQ")
_SIZE = _ENTRY.size

# How often a ring is copied at most, until half of its entries did not change meanwhile.
ATTEMPTS = 100


class _Heads:
    """Keep the headers of the last frames of one direction.

    They are stored in one block, each overwriting the oldest: objects freed a thousand frames later
    are no longer in any cache, which was a third of the cost of a recorder.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._block = bytearray(_SIZE * most)
        self._count = 0

    def add(self, when: float, kind: Opcode, start: bytes, size: int) -> None:
        """Store a frame, in place of the oldest."""
        offset = self._count % self._most * _SIZE
        self._count += 1
        _ENTRY.pack_into(self._block, offset, when, size, kind, start, self._count)

    def copy(self) -> tuple[list[_Kept], int]:
        """Return the frames, oldest first, and how many preceded them; from any thread."""
        # Without the GIL entries are copied while others are written. One of which the copy has a
        # part has no number yet, or differs in the next copy; so do those written in between.
        after = bytes(self._block)
        whole: list[tuple[Any, ...]] = []
        for _ in range(ATTEMPTS):
            before, after = after, bytes(self._block)
            pairs = zip(_ENTRY.iter_unpack(before), _ENTRY.iter_unpack(after), strict=True)
            whole = [one for one, other in pairs if one[-1] and one == other]
            if 2 * len(whole) >= min(self._count, self._most):
                break
        whole.sort(key=itemgetter(-1))
        first = whole[0][-1] if whole else 1
        kept = [
            (when, Opcode(kind), start, size)
            for place, (when, size, kind, start, number) in enumerate(whole, first)
            if number == place  # up to the first that is left out
        ]
        return kept, first - 1

    # Recording comes on top of every message, with cold caches, so all names that a frame needs are
    # bound beforehand, or are global.

    def receiver(self) -> Callable[[list[Received]], None]:
        """Return a function that stores each message as a frame."""
        block, most, pack = self._block, self._most, _ENTRY.pack_into
        start_of = Struct(f"{KEPT}s").unpack_from  # slices and copies in one call

        def received(frames: list[Received]) -> None:
            when, count = _now(), self._count
            for kind, data in frames:
                size, offset = len(data), count % most * _SIZE
                count += 1
                start = start_of(data)[0] if size > KEPT else bytes(data)
                pack(block, offset, when, size, kind, start, count)
            self._count = count

        return received

    def sender(self) -> Callable[[list[_Frame]], None]:
        """Return the same for outgoing messages, whose header is separate."""
        block, most, pack = self._block, self._most, _ENTRY.pack_into

        def sent(frames: list[_Frame]) -> None:
            when, count = _now(), self._count
            for kind, (head, body), size in frames:
                start = head if size > KEPT else head + body
                offset = count % most * _SIZE
                count += 1
                pack(block, offset, when, size or len(start), kind, start, count)
            self._count = count

        return sent


class _Whole:
    """Keep the last frames of one direction in full, except those larger than the limit."""

    def __init__(self, most: int, payload: int) -> None:
        # A list, which any thread copies in one step, with or without the GIL; a deque is not.
        self._frames = [_NO_FRAME] * most
        self._oldest = self._count = 0
        self._payload = self._room = payload

    def add(self, when: float, kind: Opcode, start: bytes, size: int) -> None:
        """Store a frame, in place of as many old ones as necessary."""
        if len(start) < size:  # larger than the limit by itself
            start = start[:KEPT]
        frames, count, oldest = self._frames, self._count, self._oldest
        most, room = len(frames), self._room - len(start)
        while oldest < count and (room < 0 or count - oldest == most):
            place = oldest % most
            room += len(frames[place][1][2])
            frames[place] = _NO_FRAME
            oldest += 1
        self._room, self._oldest, self._count = room, oldest, count + 1
        frames[count % most] = (count, (when, kind, start, size))

    def copy(self) -> tuple[list[_Kept], int]:
        """See ``_Heads.copy``."""
        frames = sorted(each for each in self._frames.copy() if each is not _NO_FRAME)
        return [kept for _, kept in frames], frames[0][0] if frames else 0

    def receiver(self) -> Callable[[list[Received]], None]:
        """See ``_Heads.receiver``."""
        most = max(KEPT, self._payload)

        def received(frames: list[Received]) -> None:
            when = _now()
            for kind, data in frames:
                self.add(when, kind, bytes(data[:most]), len(data))

        return received

    def sender(self) -> Callable[[list[_Frame]], None]:
        """See ``_Heads.sender``."""
        most = max(KEPT, self._payload)

        def sent(frames: list[_Frame]) -> None:
            when = _now()
            for kind, (head, body), size in frames:
                start = head if size > most else head + body
                self.add(when, kind, start, size or len(start))

        return sent


_Ring = _Heads | _Whole


def _ring(plan: Recording) -> _Ring:
    return _Heads(plan.frames) if plan.payload is None else _Whole(plan.frames, plan.payload)


class Recorder:
    """Keep the last frames of one connection, as configured by a ``Recording``.

    The connection refers to it, but not the other way round, so that neither needs the garbage
    collector.

    Attributes:
        received: stores received frames; for the I/O thread.
        sent: stores outgoing frames; for the holder of the send lock.

    Messages of a resumable connection beside those of its wire are kept apart, as many of them as
    of frames.
    """

    def __init__(
        self, plan: Recording, role: Role, name: str, config: Config, wire: str, framing: Framing
    ) -> None:
        self._plan = plan
        self._role = role
        self._name = name
        self._config = config
        self._wire = wire
        self._carrier = "websocket" if isinstance(framing, WebSocketFraming) else "bytes"
        self._controls = framing.has_controls
        self._begun = _now()
        self._started = datetime.now(UTC).isoformat(timespec="microseconds")
        self._sent, self._received = _ring(plan), _ring(plan)
        whole = plan.payload is not None
        coming, going = cutter(wire, whole), cutter(wire, whole)

        # Called by the I/O thread, and by the thread that holds the send lock.
        self.received = self._received.receiver()
        if coming is not None:
            self.received = partial(_receive_bytes, self._received, coming, _most(plan))
        self.sent = self._sent.sender()
        if wire == "bymux" or not self._controls:
            self.sent = partial(_send_bytes, self._sent, going, _most(plan), self._controls)

        # Time, whether it was sent, the message. Two threads add, any copies; see ``_Whole``.
        self._carried: list[tuple[float, bool, bytes] | None] = [None] * plan.frames
        self._places = itertools.count()
        if isinstance(framing, ResumableFraming):
            framing.untold = []
            framing.tap = partial(self.carried, True)
            self.received = partial(self._receive_carried, self.received, framing.untold)

    def carried(self, sent: bool, message: bytes) -> None:
        """Store a message of a resumable connection that carries none of its wire."""
        self._carried[next(self._places) % self._plan.frames] = (_now(), sent, message)

    def _receive_carried(
        self,
        store: Callable[[list[Received]], None],
        untold: list[tuple[int, bytes]],
        frames: list[Received],
    ) -> None:
        """Store what one read of a resumable connection gave, in order."""
        done = 0
        for before, message in untold:
            store(frames[done:before])
            self.carried(False, message)
            done = before
        untold.clear()
        store(frames[done:])

    def text(self, error: WsmuxError | None) -> str:
        """Return the recording so far; from any thread.

        Args:
            error: why the connection ended, if it has.
        """
        (sent, lost_sent), (received, lost_received) = self._sent.copy(), self._received.copy()
        carried = sorted(filter(None, self._carried.copy()))
        header = Header(
            version=import_module("wsmux").__version__,
            wire=self._wire,
            role=self._role.value,
            carrier=self._carrier,
            name=self._name,
            started=self._started,
            frames=len(sent) + len(received) + len(carried),
            lost_sent=lost_sent,
            lost_received=lost_received,
            config=_changed(self._config),
            ended=None if error is None else f"{type(error).__name__}: {error}",
            code=error.code if isinstance(error, ConnectionClosed) else None,
        )
        entries = heapq.merge(
            self._entries(received, False),
            self._entries(sent, True),
            (
                Entry(max(0.0, when - self._begun), is_sent, read_carried(message), len(message))
                for when, is_sent, message in carried
            ),
            key=attrgetter("time"),
        )
        lines = itertools.chain((header_line(header),), map(entry_line, entries))
        return "".join(f"{line}\n" for line in lines)

    def _entries(self, frames: Iterable[_Kept], sent: bool) -> Iterator[Entry]:
        whole = self._plan.payload is not None
        for when, kind, data, size in frames:
            head = read_head(self._wire, data, size, kind)
            raw = data if whole and len(data) == size else None
            yield Entry(max(0.0, when - self._begun), sent, head, size, raw)

    def ended(self, error: WsmuxError | None) -> None:
        """Deliver the recording after an abnormal end; for the I/O thread, which is ending."""
        to = self._plan.to
        if to is None or isinstance(error, ConnectionClosedOK):
            return
        try:
            if callable(to):
                to(self.text(error))
            else:
                _write(Path(to), self.text(error), self._plan.files)
        except Exception:
            _log.exception("the recording of %s could not be delivered", self._name)


def _most(plan: Recording) -> int:
    """Return how many bytes of a frame may be kept; of a larger one only the start is."""
    return KEPT if plan.payload is None else max(KEPT, plan.payload)


def _receive_bytes(ring: _Ring, cutter: Cutter, most: int, frames: list[Received]) -> None:
    """Store what was received on a carrier without messages."""
    for kind, data in frames:
        if kind is _BINARY:
            _cut(ring, cutter, most, data)
        else:
            ring.add(_now(), kind, bytes(data), len(data))


def _send_bytes(
    ring: _Ring, cutter: Cutter | None, most: int, controls: bool, frames: list[_Frame]
) -> None:
    """Store outgoing data where a message may hold several frames, or none."""
    for kind, (head, body), size in frames:
        if not head and kind is _BINARY and cutter is not None:
            _cut(ring, cutter, most, body)  # several frames in one message
        elif kind < _CLOSE or controls:
            start = head if size > most else head + body
            ring.add(_now(), kind, start, size or len(start))


def _cut(ring: _Ring, cutter: Cutter, most: int, data: Buffer) -> None:
    now = _now()
    try:
        for start, size in cutter.feed(data, most):
            ring.add(now, _BINARY, start, size)
    except FrameError:  # the protocol machine ends the connection because of it
        start = bytes(data[:KEPT])
        ring.add(now, _BINARY, start, len(start))


def _changed(config: Config) -> dict[str, Any]:
    """Return the fields of a config that differ from the default, as far as JSON can hold them."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    defaults = {field.name: field.default for field in fields(config)}
    return {
        name: value
        for name, value in values.items()
        if name != "recording" and value != defaults[name]
    }


def _write(directory: Path, text: str, most: int) -> None:
    """Write a file atomically, readable only by its owner; delete the oldest beyond ``most``."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    path = directory / f"{PREFIX}{stamp}-{os.getpid()}-{secrets.token_hex(2)}{SUFFIX}"
    draft = path.with_suffix(".part")
    try:
        with open(draft, "x", encoding="utf-8", opener=_private) as file:
            file.write(text)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    ours = sorted(name for name in os.listdir(directory) if _OURS.fullmatch(name))
    for name in ours[:-most]:
        with contextlib.suppress(FileNotFoundError):  # another process has deleted it
            (directory / name).unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


_OURS = re.compile(re.escape(PREFIX) + r"\d{8}T\d{6}\.\d{6}-\d+-[0-9a-f]{4}" + re.escape(SUFFIX))
