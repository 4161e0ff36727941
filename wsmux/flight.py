"""Keep the last frames of a connection, to tell afterwards what happened on it.

Two rings, one for each direction. Each is filled by one thread at a time, without a lock: the I/O
thread fills the one of what is received; whoever holds the send lock, the other. A copy of a ring
is one step of the interpreter, so anybody may take one. Heads are read when a recording is told,
but where the wire cuts its bytes itself.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any

from .config import Config
from .exceptions import ConnectionClosed, ConnectionClosedOK, FrameError, WsmuxError
from .logs import logger
from .protocols.base import Buffer, Message
from .protocols.carrier import Framing, Kind, Received
from .protocols.heads import KEPT, Cutter, cutter, read_head
from .recording import Recording
from .recordings import Entry, Header, entry_line, header_line
from .websocket.framing import WebSocketFraming

if TYPE_CHECKING:
    from .channel import Channel

__all__ = ["Recorder"]

# Of the files in a directory, those that are ours.
PREFIX, SUFFIX = "wsmux-recording-", ".jsonl"

# Looking a member up in its class costs too much for each frame.
_BINARY, _CLOSE = Kind.BINARY, int(Kind.CLOSE)

_log = logger("wsmux")

# When, what the carrier calls it, the frame or its start, the size of it all.
_Kept = tuple[float, Kind, bytes, int]

# As in the send queue.
_Frame = tuple[Kind, Message, int]

_now = time.monotonic


class _Ring:
    """Keep the last frames of one direction.

    Attributes:
        frames: those that are kept, the oldest first.
        begun: how many there have been, with those that are just being kept.
        keep: keeps one more, at the cost of the oldest.
    """

    def __init__(self, plan: Recording) -> None:
        self.frames: deque[_Kept] = deque(maxlen=plan.frames)
        self.begun = 0
        self.keep: Callable[[_Kept], None] = self.frames.append
        self._dropped = 0  # counted only where bytes are limited
        self._limited = plan.payload is not None
        if plan.payload is not None:
            self._room = plan.payload
            self.keep = self._keep

    def _keep(self, frame: _Kept) -> None:
        when, kind, start, size = frame
        if len(start) < size:  # alone it exceeds the limit
            start = start[:KEPT]
        self._room -= len(start)
        frames = self.frames
        while frames and (self._room < 0 or len(frames) == frames.maxlen):
            self._dropped += 1
            self._room += len(frames.popleft()[2])
        frames.append((when, kind, start, size))

    def add(self, when: float, kind: Kind, start: bytes, size: int) -> None:
        """Count a frame and keep it."""
        self.begun += 1
        self.keep((when, kind, start, size))

    def copy(self) -> tuple[list[_Kept], int]:
        """Return the frames and how many came before them, or were about to: rather too many."""
        kept = list(self.frames.copy())
        if self._limited:
            return kept, self._dropped
        return kept, self.begun - len(kept) if len(kept) == self.frames.maxlen else 0


def _receiving(ring: _Ring, most: int) -> Callable[[list[Received]], None]:
    """Return what keeps each message as a frame."""
    keep, now = ring.keep, _now
    start_of = Struct(f"{most}s").unpack_from  # a cut and a copy in one call

    def received(frames: list[Received]) -> None:
        ring.begun += len(frames)
        when = now()
        for kind, data in frames:
            size = len(data)
            keep((when, kind, start_of(data)[0] if size > most else bytes(data), size))

    return received


def _sending(ring: _Ring, most: int) -> Callable[[list[_Frame]], None]:
    """Return the same for messages whose head is apart: all of it, but where all is short."""
    keep, now = ring.keep, _now

    def sent(frames: list[_Frame]) -> None:
        ring.begun += len(frames)
        when = now()
        for kind, (head, body), size in frames:
            start = head if size > most else head + body
            keep((when, kind, start, size or len(start)))

    return sent


class Recorder:
    """Keep the last frames of one connection, as a ``Recording`` says.

    Attributes:
        received: keeps what has come; for the I/O thread.
        sent: keeps what is about to go out; for the holder of the send lock.
    """

    def __init__(self, plan: Recording, channel: Channel, wire: str, framing: Framing) -> None:
        self._plan = plan
        self._channel = channel
        self._wire = wire
        self._carrier = "websocket" if isinstance(framing, WebSocketFraming) else "bytes"
        self._controls = framing.has_controls
        self._begun = _now()
        self._started = datetime.now(UTC).isoformat(timespec="microseconds")
        self._sent, self._received = _Ring(plan), _Ring(plan)
        # Of a frame that alone exceeds the limit, its start is kept.
        self._most = KEPT if plan.payload is None else max(KEPT, plan.payload)
        self._joined = cutter(wire, plan.payload is not None)
        self._cutter = cutter(wire, plan.payload is not None)

        # What is shown comes on top of every message, with cold caches, so nothing is looked up
        # that can be bound before. To be called by the I/O thread, and by who may send.
        plain = _receiving(self._received, self._most)
        self.received = plain if self._cutter is None else self._receive_bytes
        simple = wire != "bymux" and self._controls
        self.sent = _sending(self._sent, self._most) if simple else self._send

    def _receive_bytes(self, frames: list[Received]) -> None:
        ring, cutter = self._received, self._cutter
        for kind, data in frames:
            if kind is _BINARY and cutter is not None:
                self._cut(ring, cutter, data)
            else:
                ring.add(_now(), kind, bytes(data), len(data))

    def _send(self, frames: list[_Frame]) -> None:
        ring, most = self._sent, self._most
        for kind, (head, body), size in frames:
            if not head and kind is _BINARY and self._joined is not None:
                self._cut(ring, self._joined, body)  # several frames in one message
            elif kind < _CLOSE or self._controls:
                start = head if size > most else head + body
                ring.add(_now(), kind, start, size or len(start))

    def _cut(self, ring: _Ring, cutter: Cutter, data: Buffer) -> None:
        now = _now()
        try:
            for start, size in cutter.feed(data, self._most):
                ring.add(now, _BINARY, start, size)
        except FrameError:  # the machine ends the connection for it
            start = bytes(data[:KEPT])
            ring.add(now, _BINARY, start, len(start))

    def text(self) -> str:
        """Return the recording so far, from any thread."""
        (sent, lost_sent), (received, lost_received) = self._sent.copy(), self._received.copy()
        channel = self._channel
        error = channel.error
        header = Header(
            version=import_module("wsmux").__version__,
            wire=self._wire,
            role=channel.role.value,
            carrier=self._carrier,
            name=channel.name,
            started=self._started,
            frames=len(sent) + len(received),
            lost_sent=lost_sent,
            lost_received=lost_received,
            config=_changed(channel.config),
            ended=None if error is None else f"{type(error).__name__}: {error}",
            code=error.code if isinstance(error, ConnectionClosed) else None,
        )
        entries = heapq.merge(
            self._entries(received, False), self._entries(sent, True), key=attrgetter("time")
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
        """Hand the recording over if the end was abnormal; for the I/O thread, which is ending."""
        to = self._plan.to
        if to is None or isinstance(error, ConnectionClosedOK):
            return
        try:
            if callable(to):
                to(self.text())
            else:
                _write(Path(to), self.text(), self._plan.files)
        except Exception:
            _log.exception("the recording of %s could not be handed over", self._channel.name)


def _changed(config: Config) -> dict[str, Any]:
    """Return what of a config is not the default, and can be told as JSON."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    defaults = {field.name: field.default for field in fields(config)}
    return {
        name: value
        for name, value in values.items()
        if name != "recording" and value != defaults[name]
    }


def _write(directory: Path, text: str, most: int) -> None:
    """Write a file as a whole, for its owner alone; delete the oldest of ours beyond so many."""
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
