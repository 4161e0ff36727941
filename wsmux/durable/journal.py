"""Keep in files what a sender has written and its receiver has not committed.

A journal is a folder with ``lock``, ``epoch`` and segments. A segment is a file of records, named
by the offset at which it begins, in 20 digits. A record is

    magic 2 B | kind 1 B | size 4 B | offset 8 B | synced 8 B | CRC-32 4 B | data

in network order, where the CRC is that of a secret of the journal and of everything else: data that
look like a record are none. A record of kind ``DATA`` has ``size`` bytes of data, the first of
which is at ``offset``; one of kind ``TRIM`` has none, and says that what is before ``offset`` was
dropped. ``epoch`` has the epoch and that secret. Offsets have no holes, and segments follow each
other.

A process that is killed leaves at most one record that is not whole, the last one of the last
segment; it is cut off when the journal is opened. A power cut may also leave holes, with whole
records behind them, but not in what was synced; each record says up to which offset that was when
it was written. So what is behind a hole is cut off, too, and a hole in what was synced is damage,
which is never cut off. A segment is synced before the next one is begun.

In a segment that another one follows, nothing counts from the first record on that is not whole: it
is damage unless the next segment begins at the very offset that was reached, as when a ``TRIM`` was
written in part before the next segment was begun.

After a failed fsync nobody knows what is on the disk, and the system may say that all is well the
next time (see "Can Applications Recover from fsync Failures?", Rebello et al., 2020). So a journal
then takes no more until it is opened again, which reads what is there.

Threads: one lock guards everything, and is held during writes and syncs; whoever waits for room
does not hold it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import struct
import threading
import zlib
from pathlib import Path
from typing import NamedTuple

from ..config import KIB, MIB
from ..exceptions import ForkedError
from ..runtime import fork
from ..runtime.closing import Closing
from ..runtime.deadline import Deadline
from ..runtime.files import FULL, sync_path, write_synced
from ..runtime.parking import Condition
from .errors import JournalDamaged, JournalError, JournalFull

__all__ = ["Journal"]

EPOCH_SIZE, SECRET_SIZE = 16, 16

DATA, TRIM = 1, 2

MAGIC = b"wJ"
_FIELDS = struct.Struct(">BIQQ")
_HEAD = struct.Struct(">2sBIQQI")

# The greatest record, and the distance of the positions that are remembered of a segment.
MAX_RECORD = 1 * MIB
STEP = 64 * KIB

# Defaults: bytes that are kept, and of a segment.
MAX_BYTES, SEGMENT_BYTES = 256 * MIB, 16 * MIB

# Errors that mean that a file could not be opened now; later it may.
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})

_NAME = re.compile(r"\d{20}")


class _Record(NamedTuple):
    """Describe a record: what its head says, where its data are in the file, and how many."""

    kind: int
    offset: int
    synced: int
    position: int
    size: int

    @property
    def behind(self) -> int:
        return self.position + self.size


class _Segment:
    """Hold what is known of one file.

    Attributes:
        start, end: the offsets of its data.
        steps: offsets of some records and their positions, in order.
    """

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        self.start = self.end = start
        self.steps: list[tuple[int, int]] = []

    def note(self, record: _Record) -> None:
        """Remember where a record is, if the last that is remembered is far from it."""
        if not self.steps or record.position - self.steps[-1][1] >= STEP:
            self.steps.append((record.offset, record.position - _HEAD.size))

    def position_before(self, offset: int) -> int:
        """Return the position of a record at or before an offset."""
        low, high = 0, len(self.steps)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.steps[middle][0] <= offset else (low, middle)
        return self.steps[low][1]


class Journal(Closing):
    """Keep what was written until a receiver has committed it, across crashes of this process.

    ::

        with wsmux.Journal("outgoing") as journal, wsmux.connect(url, resume=True) as connection:
            with connection.open_stream(durable="log", journal=journal) as stream:
                stream.write(line)

    Any thread may use it; one process at a time.

    Args:
        folder: is made if it is missing; for this alone.
        max_bytes: the most bytes that are kept; writers wait until the receiver has committed some.
        segment_bytes: the bytes after which a new file is begun; files are removed as a whole.
        sync_every: the bytes after which what was written is synced to the disk: 0 for each write,
            ``None`` to leave that to the system. What is not synced survives the process, and not a
            power cut.

    Attributes:
        epoch: 16 random bytes, made once with the journal.
        max_bytes: as given.

    Raises:
        JournalError: another process has it open.
        JournalDamaged: a file is damaged, or missing.
        OSError: the folder cannot be used.
        ValueError: a number is too small.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_bytes: int = MAX_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        sync_every: int | None = 0,
    ) -> None:
        if max_bytes < 1 or segment_bytes < 1 or (sync_every is not None and sync_every < 0):
            raise ValueError(
                "max_bytes and segment_bytes must be at least 1, and sync_every at least 0"
            )
        self._folder = Path(folder)
        self.max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._sync_every = sync_every
        self._room = Condition(threading.Lock())
        self._in_child = self._closed = False
        self._failure: str | None = None
        self._unsynced = self._size = self._synced = 0
        self._file = self._lock_file = -1
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._lock_folder()
            epoch, self._secret = self._read_epoch()
            self.epoch: bytes = epoch
            self._start = 0
            self._segments = self._scan()
        except BaseException:
            self._let_go()
            raise
        fork.register(self)

    def __repr__(self) -> str:
        return f"<Journal {self._folder} {self.start} to {self.end}>"

    @property
    def start(self) -> int:
        """The offset of the oldest byte that is kept."""
        return self._start

    @property
    def end(self) -> int:
        """The offset behind the newest byte."""
        return self._segments[-1].end

    def append(self, data: bytes, timeout: float | None = None) -> int:
        """Add data, and return the offset behind it; wait while there is no room for all of it.

        Raises:
            TimeoutError: there was no room within ``timeout`` seconds, and nothing was added.
            JournalFull: the disk is full, or the process has no descriptor for the next file, and
                nothing was added.
            JournalError: writing or syncing failed, and the journal takes no more.
            ValueError: it is larger than ``max_bytes``, or the journal is closed.
        """
        if len(data) > self.max_bytes:
            raise ValueError(
                f"{len(data)} bytes are more than a journal of {self.max_bytes} bytes keeps: "
                "give it more max_bytes"
            )
        deadline = Deadline(timeout)
        with self._room:
            while True:
                self._check_locked()
                if self.end - self._start + len(data) <= self.max_bytes:
                    break
                if deadline.expired():
                    raise TimeoutError(
                        f"the journal {self._folder} keeps {self.end - self._start} bytes that are "
                        f"not committed, and has no room for {len(data)} more"
                    )
                self._room.wait(deadline.remaining())
            self._add_locked(bytes(data))
            return self.end

    def read(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes from an offset that is kept; fewer only at the end.

        Raises:
            ValueError: the offset is not kept, or the journal is closed.
            JournalDamaged: what is there is not what was written.
        """
        with self._room:
            self._check_open_locked()
            if not self._start <= offset <= self.end:
                raise ValueError(
                    f"the journal {self._folder} keeps {self._start} to {self.end}, not {offset}"
                )
            parts: list[bytes] = []
            for segment in self._segments:
                if segment.start <= offset < segment.end and size > 0:
                    part = self._read_segment(segment, offset, size)
                    parts.append(part)
                    offset, size = offset + len(part), size - len(part)
            return b"".join(parts)

    def trim(self, offset: int) -> None:
        """Drop what is before an offset, and let writers go on that wait for room.

        A process that is killed may find some of it again.

        Raises:
            JournalError: writing failed, and the journal takes no more.
            ValueError: there is nothing behind it, or the journal is closed.
        """
        with self._room:
            self._check_locked()
            if offset > self.end:
                raise ValueError(f"the journal {self._folder} ends at {self.end}, before {offset}")
            if offset <= self._start:
                return
            try:
                size = self._write_locked(self._record(TRIM, offset, b""))
            except JournalFull:
                size = self._size  # what is removed makes room, and may be found again
            self._size, self._start = size, offset  # no signal is handled in between
            self._drop(self._segments)
            self._room.notify_all()

    def sync(self) -> None:
        """Return when everything that was added survives a power cut.

        Raises:
            JournalError: it failed, and the journal takes no more.
        """
        with self._room:
            self._check_locked()
            self._sync_locked()

    def close(self) -> None:
        """Sync and close it; what is kept stays. Waiting writers get ``ValueError``.

        Raises:
            JournalError: the last sync failed.
        """
        with self._room:
            if self._closed or self._in_child:
                return
            self._closed = True
            self._room.notify_all()
            try:
                if self._failure is None:
                    self._cut()
                    self._sync_locked()
            except OSError as error:
                raise self._failed("written", error) from error
            finally:
                self._let_go()

    def forked(self) -> None:
        """Close the files in a forked child; the parent keeps the journal."""
        self._room = Condition(threading.Lock())
        self._in_child = True
        self._let_go()

    # Opening

    def _lock_folder(self) -> None:
        self._lock_file = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock_file, 20, 0).decode("ascii", "replace").strip()
            raise JournalError(
                f"the journal {self._folder} is open in process {holder or 'unknown'}: give each "
                "process a folder of its own"
            ) from error
        os.ftruncate(self._lock_file, 0)
        os.pwrite(self._lock_file, b"%d\n" % os.getpid(), 0)

    def _read_epoch(self) -> tuple[bytes, int]:
        path = self._folder / "epoch"
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            if any(map(_NAME.fullmatch, os.listdir(self._folder))):
                raise JournalDamaged(str(path), 0, "it is missing, though there are data") from None
            found = secrets.token_bytes(EPOCH_SIZE + SECRET_SIZE)
            write_synced(path, path.with_suffix(".new"), found)
        if len(found) != EPOCH_SIZE + SECRET_SIZE:
            text = f"it has {len(found)} bytes, not {EPOCH_SIZE + SECRET_SIZE}"
            raise JournalDamaged(str(path), len(found), text)
        return found[:EPOCH_SIZE], zlib.crc32(found)

    def _scan(self) -> list[_Segment]:
        """Return what is there, after cutting off a record that is not whole."""
        names = sorted(filter(_NAME.fullmatch, os.listdir(self._folder)))
        segments: list[_Segment] = []
        for at, name in enumerate(names):
            segment = _Segment(self._folder / name, int(name))
            if segments and segment.start != segments[-1].end:
                before = segments[-1].end
                text = f"it begins with offset {segment.start}, and the one before ends at {before}"
                raise JournalDamaged(str(segment.path), 0, text)
            segments.append(segment)
            if not at:
                self._start = segment.start
            following = int(names[at + 1]) if at + 1 < len(names) else None
            whole = self._scan_segment(segment, following)
            if following is None:
                self._open_for_writing(segment, whole)
        if not segments:
            segment, self._file = self._new_segment(0)
            sync_path(self._folder)
            segments.append(segment)
        # A record of what was dropped may be newer than the data behind it that a power cut took.
        self._start = min(self._start, segments[-1].end)
        self._drop(segments)
        return segments

    def _drop(self, segments: list[_Segment]) -> None:
        """Remove the files of which nothing is kept."""
        while len(segments) > 1 and segments[0].end <= self._start:
            segments[0].path.unlink(missing_ok=True)
            del segments[0]

    def _scan_segment(self, segment: _Segment, following: int | None) -> int:
        """Read a segment; return the size up to its last whole record.

        Args:
            segment: whose end becomes known.
            following: the offset at which the next one begins, ``None`` if this is the last.
        """
        data = segment.path.read_bytes()
        position = 0
        while position < len(data):
            record = _parse(data, position, self._secret)
            if record is None or (record.kind == DATA and record.offset != segment.end):
                if following is None:
                    lost = self._synced_behind(data, position) > segment.end
                else:
                    lost = following != segment.end
                if lost:
                    text = "a record is damaged" if record is None else "a record is missing"
                    raise JournalDamaged(str(segment.path), position, text)
                return position
            if record.kind == TRIM:
                self._start = max(self._start, record.offset)
            else:
                segment.note(record)
                segment.end = record.offset + record.size
            position = record.behind
        return position

    def _synced_behind(self, data: bytes, position: int) -> int:
        """Return up to which offset all was synced, as records behind a position say."""
        synced = 0
        while (position := data.find(MAGIC, position + 1)) >= 0:
            record = _parse(data, position, self._secret)
            if record is not None:
                synced = max(synced, record.synced)
        return synced

    def _open_for_writing(self, segment: _Segment, size: int) -> None:
        self._file = os.open(segment.path, os.O_RDWR)
        self._size = size
        self._cut()
        os.fsync(self._file)  # a process that was killed may not have come to it
        self._synced = segment.end

    def _new_segment(self, start: int) -> tuple[_Segment, int]:
        """Make an empty file; return it and its descriptor."""
        segment = _Segment(self._folder / f"{start:020d}", start)
        return segment, os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def _cut(self) -> None:
        """Cut off what a kill, an error or an interrupt has left behind what is whole."""
        if os.fstat(self._file).st_size > self._size:
            os.ftruncate(self._file, self._size)

    # Writing and reading; the lock is held

    def _check_open_locked(self) -> None:
        if self._in_child:
            raise ForkedError(f"the journal {self._folder} belongs to the parent process")
        if self._closed:
            raise ValueError(f"the journal {self._folder} is closed")

    def _check_locked(self) -> None:
        self._check_open_locked()
        if self._failure is not None:
            raise JournalError(self._failure)

    def _add_locked(self, data: bytes) -> None:
        """Write all of data, or nothing."""
        segment = self._segments[-1]
        if self._size >= self._segment_bytes and segment.end > segment.start:
            segment = self._begin_segment_locked(segment.end)
        start, before = segment.end, self._size
        steps = range(0, len(data), MAX_RECORD)
        records = [self._record(DATA, start + at, data[at : at + MAX_RECORD]) for at in steps]
        size = self._write_locked(b"".join(records))
        self._unsynced += len(data)
        synced = self._synced
        if self._sync_every is not None and self._unsynced > self._sync_every:
            self._sync_file_locked()
            synced = start + len(data)
        for at, record in zip(steps, records, strict=True):
            position = before + _HEAD.size
            segment.note(_Record(DATA, start + at, 0, position, len(record) - _HEAD.size))
            before += len(record)
        # No signal is handled in between: what was written is either wholly there or written over.
        self._size, segment.end, self._synced = size, start + len(data), synced

    def _begin_segment_locked(self, start: int) -> _Segment:
        """Go on in a new file. After an error or an interrupt the old one is still in use."""
        self._sync_locked()
        try:
            segment, file = self._new_segment(start)
        except OSError as error:
            raise self._unwritten(error) from error
        try:
            sync_path(self._folder)
        except BaseException as error:
            os.close(file)
            if not isinstance(error, OSError):
                raise
            if error.errno in NO_DESCRIPTOR:  # it was not synced yet, so nothing is unknown
                raise self._unwritten(error) from error
            raise self._failed("synced", error) from error
        segments, before = [*self._segments, segment], self._file
        # No signal is handled in between.
        self._segments, self._file, self._size = segments, file, 0
        os.close(before)
        return segment

    def _record(self, kind: int, offset: int, data: bytes) -> bytes:
        fields = kind, len(data), offset, self._synced
        return _HEAD.pack(MAGIC, *fields, _checksum(fields, data, self._secret)) + data

    def _write_locked(self, data: bytes) -> int:
        """Write behind what is whole, and return the size with it, which the caller takes over.

        Until then, the next call writes over it, as it does over what an interrupt has left, and
        ``close`` cuts that off.
        """
        try:
            self._cut()
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._size + written)
        except OSError as error:
            raise self._unwritten(error) from error
        return self._size + len(data)

    def _unwritten(self, error: OSError) -> JournalError:
        """Return what to raise where the system wrote nothing, or only a part."""
        if error.errno not in FULL | NO_DESCRIPTOR:
            return self._failed("written", error)
        try:
            self._cut()  # whole records among it would be found by the next opening
        except OSError as worse:
            return self._failed("written", worse)
        return JournalFull(
            f"the journal {self._folder} cannot grow, and nothing was added: {error}"
        )

    def _sync_locked(self) -> None:
        if self._unsynced:
            self._sync_file_locked()
            self._synced = self.end

    def _sync_file_locked(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._failed("synced", error) from error
        self._unsynced = 0

    def _failed(self, what: str, error: OSError) -> JournalError:
        self._failure = (
            f"the journal {self._folder} could not be {what}, so what is on the disk is unknown: "
            f"{error}; close it, and open it again to see"
        )
        self._room.notify_all()
        return JournalError(self._failure)

    def _read_segment(self, segment: _Segment, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes of one file."""
        parts: list[bytes] = []
        position = segment.position_before(offset)
        # Behind the end may be a whole record: of an append that was interrupted, or not synced.
        size = min(size, segment.end - offset)
        with open(segment.path, "rb") as file:
            while size > 0:
                file.seek(position)
                data = file.read(_HEAD.size + MAX_RECORD)
                at = 0
                while size > 0 and (record := _parse(data, at, self._secret)) is not None:
                    if record.kind == DATA and record.offset <= offset:
                        begin = record.position + offset - record.offset
                        parts.append(data[begin : record.behind][:size])
                        offset, size = offset + len(parts[-1]), size - len(parts[-1])
                    at = record.behind
                if not at:
                    raise JournalDamaged(str(segment.path), position, "a record has changed")
                position += at
        return b"".join(parts)

    def _let_go(self) -> None:
        files = self._file, self._lock_file
        self._file = self._lock_file = -1  # before they are closed: an interrupt may come then
        for file in files:
            if file >= 0:
                os.close(file)


def _checksum(fields: tuple[int, int, int, int], data: bytes, secret: int) -> int:
    return zlib.crc32(data, zlib.crc32(_FIELDS.pack(*fields), secret))


def _parse(data: bytes, position: int, secret: int) -> _Record | None:
    """Return the record at a position, ``None`` if there is no whole one."""
    begin = position + _HEAD.size
    if begin > len(data):
        return None
    magic, kind, size, offset, synced, crc = _HEAD.unpack_from(data, position)
    behind = begin + size
    if magic != MAGIC or kind not in (DATA, TRIM) or size > MAX_RECORD or behind > len(data):
        return None
    if _checksum((kind, size, offset, synced), data[begin:behind], secret) != crc:
        return None
    return _Record(kind, offset, synced, begin, size)
