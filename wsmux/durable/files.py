"""Receive durable streams into the files of a folder, where the length of a file is the offset.

What the folder has of a name:

====================== ===========================================================================
``NAME``               the whole file
``.NAME.EPOCH.part``   what has come of it in this epoch; its length is what is committed
``.NAME.EPOCH.done``   the length of the whole file of this epoch, in 8 bytes, from shortly before
                       it has its name until shortly before a file that replaces it has: so a sender
                       whose last answer was lost learns that it is
====================== ===========================================================================

Data and offset are one write, so nothing is lost or there twice after either process was killed at
any moment. Before the sender is told of an offset, the data is synced, and so are the names. A file
of another epoch is another one, so no offset is taken for one of another epoch.

When syncing fails, nobody knows what of the data is on the disk, even if it succeeds later: what
was not synced before is cut off, and the sender sends it again.

A part is locked while it is written, so processes may share a folder. The lock goes with the
process that holds it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..config import KIB, MIB
from ..runtime import clock
from ..runtime.files import FULL, sync_path, write_synced
from ..runtime.logs import logger
from .errors import DurableRefused, Refusal
from .receiver import Handler, ReceivedStream

__all__ = ["FileOffsets", "upload_handler"]

# Bytes of a name: with its epoch and suffix it fits the 255 of most file systems.
MAX_NAME = 200

PART, DONE, NEW = ".part", ".done", ".new"

CHUNK = 256 * KIB

# Bytes written after which they are synced and committed; and seconds after which less is, and
# without data.
COMMIT_EVERY = 8 * MIB
COMMIT_SECONDS = 1.0
LINGER = 0.2

# Seconds: how long unfinished files stay by default, and how often there is a look at them.
EXPIRES = 7 * 86_400.0
SWEEP_EVERY = 60.0

# What whoever receives files has by default: the largest file of a route, what the file system must
# have left, uploads at once, and seconds without data.
MAX_SIZE = 1024 * MIB
MIN_FREE = 256 * MIB
MAX_UPLOADS = 16
IDLE_TIMEOUT = 60.0

_LENGTH = struct.Struct(">Q")

_log = logger("wsmux")


class FileOffsets:
    """Keep data and offsets of durable streams in a folder; any thread, and process, may use it.

    ::

        offsets = wsmux.FileOffsets("incoming")

        @mux.durable_route("/in", offsets=offsets)
        def handle(stream):
            path = offsets.receive(stream)

    Names of streams become names of files: up to 200 bytes of printable characters, without
    slashes, and not beginning with a dot.

    Args:
        folder: is made if it is missing; for this alone. Its file system must have hard links,
            unless ``replace`` is set.
        max_size: the most bytes of a file, ``None`` for no limit.
        min_free: the bytes that the file system must have left for others.
        expires: seconds after which unfinished files are removed to which nothing was added, and
            after which it is forgotten which epoch a finished one is of; ``None`` for never.
        replace: let a file of another epoch replace a finished one, whose sender has to send it
            anew to get it back. Otherwise its sender is refused, as ``EXISTS``.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_size: int | None = None,
        min_free: int = 0,
        expires: float | None = EXPIRES,
        replace: bool = False,
    ) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._max_size = max_size
        self._min_free = min_free
        self._expires = expires
        self._replace = replace
        self._lock = threading.Lock()
        self._parts: dict[str, _Part] = {}
        self._swept = -SWEEP_EVERY

    def committed(self, name: str, epoch: bytes) -> int:
        """Return the length of what is here of a name and an epoch, once it is synced.

        Raises:
            DurableRefused: the name is not allowed, or a finished file has it.
            OSError: the folder cannot be used.
        """
        _check_name(name)
        done = self._finished_length(name, epoch)
        if done is None and not self._replace and os.path.lexists(self._folder / name):
            raise DurableRefused(Refusal.EXISTS, f"there is a file {name!r}, which stays")
        try:
            part = os.open(self._hidden(name, epoch, PART), os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return done or 0
        try:
            os.fsync(part)
            return os.fstat(part).st_size
        finally:
            os.close(part)

    def commit(self, name: str, epoch: bytes, offset: int) -> None:
        """Sync the file that ``receive`` is writing; its length must be the offset.

        Raises:
            ValueError: it has another length, or is not being written.
            OSError: it cannot be synced; what was not synced before is cut off.
        """
        with self._lock:
            part = self._parts.get(name)
        length = self._finished_length(name, epoch) if part is None else part.length
        if length != offset:
            raise ValueError(
                f"offset {offset} of {name!r} cannot be committed, since its file has "
                f"{length or 0} bytes: let receive() write and commit it"
            )
        if part is not None:
            part.sync()

    def receive(self, stream: ReceivedStream) -> Path:
        """Write a stream to its end, and return the finished file.

        To be called by the handler of the stream. It commits every 8 MiB or second, and when
        nothing came for 0.2 s. The file has its name only when all is there, synced, and of the
        digest that the sender gave. Its owner alone may read it. For a sender that has not learned
        that its file is finished it is called again, and returns the same, even if the file was
        taken away.

        Raises:
            DurableRefused: the file is too large, has another digest, or was made by someone else
                meanwhile; or there is no space, or another process is writing it.
            OSError: it cannot be written.

        The others are those of ``ReceivedStream.read``.
        """
        self._sweep()
        name, epoch = stream.name, stream.epoch
        self._check_size(stream, stream.size)
        if self._finished_length(name, epoch) == stream.offset and not self._has_part(name, epoch):
            if stream.read(1):
                text = f"{name!r} is finished with {stream.offset - 1} bytes: use another epoch"
                raise DurableRefused(Refusal.EXISTS, text)
            return self._folder / name
        with self._opened(stream) as part:
            self._check_space(stream, part)
            part.hash_present(stream.check)
            due = clock.monotonic() + COMMIT_SECONDS
            while data := self._next(stream, part):
                self._check_size(stream, part.length + len(data))
                part.write(data)
                if part.length - part.synced >= COMMIT_EVERY or clock.monotonic() >= due:
                    stream.commit()
                    self._check_space(stream, part)
                    due = clock.monotonic() + COMMIT_SECONDS
            if stream.digest not in (None, part.digest()):
                part.path.unlink()
                text = f"the {part.length} bytes of {name!r} have another SHA-256: send them again"
                raise DurableRefused(Refusal.DIGEST, text)
            stream.commit()
            return self._finish(name, epoch, part)

    def _hidden(self, name: str, epoch: bytes, suffix: str) -> Path:
        return self._folder / f".{name}.{epoch.hex()}{suffix}"

    def _has_part(self, name: str, epoch: bytes) -> bool:
        return os.path.lexists(self._hidden(name, epoch, PART))

    def _finished_length(self, name: str, epoch: bytes) -> int | None:
        """Return the length of the whole file, if it had its name or was about to get it."""
        try:
            (length,) = _LENGTH.unpack(self._hidden(name, epoch, DONE).read_bytes())
        except FileNotFoundError:
            return None
        return int(length)

    def _check_size(self, stream: ReceivedStream, size: int | None) -> None:
        if self._max_size is not None and size is not None and size > self._max_size:
            text = f"{stream.name!r} has {size} bytes or more, and {self._max_size} are allowed"
            if self._has_part(stream.name, stream.epoch):
                self._hidden(stream.name, stream.epoch, PART).unlink(missing_ok=True)
            raise DurableRefused(Refusal.TOO_LARGE, text)

    def _check_space(self, stream: ReceivedStream, part: _Part) -> None:
        coming = 0 if stream.size is None else stream.size - part.length
        free = shutil.disk_usage(self._folder).free
        if free < coming + self._min_free:
            raise DurableRefused(
                Refusal.NO_SPACE,
                f"{free} bytes are free, {coming} are to come, and {self._min_free} must be left",
            )

    @contextmanager
    def _opened(self, stream: ReceivedStream) -> Iterator[_Part]:
        part = _Part(self._hidden(stream.name, stream.epoch, PART), create=True)
        try:
            if part.length != stream.offset:
                text = f"another process has written {stream.name!r} meanwhile: open it again"
                raise DurableRefused(Refusal.BUSY, text)
            sync_path(self._folder)
            with self._lock:
                self._parts[stream.name] = part
            yield part
        finally:
            with self._lock:
                self._parts.pop(stream.name, None)
            part.close()

    def _next(self, stream: ReceivedStream, part: _Part) -> bytes:
        """Return the next data, ``b""`` at the end; while it waits, what there is is committed."""
        if part.length > part.synced:
            timeout = stream.timeout
            stream.timeout = LINGER if timeout is None else min(LINGER, timeout)
            try:
                return stream.read(CHUNK)
            except TimeoutError:
                stream.commit()
            finally:
                stream.timeout = timeout
        return stream.read(CHUNK)

    def _finish(self, name: str, epoch: bytes, part: _Part) -> Path:
        """Give a whole and synced file its name. It may have been about to get it before."""
        final, done = self._folder / name, self._hidden(name, epoch, DONE)
        write_synced(done, self._hidden(name, epoch, NEW), _LENGTH.pack(part.length))
        if self._replace:
            # Once before, synced, so that no kill leaves the mark of a file that has been replaced;
            # and once behind, as another process may have finished a file meanwhile.
            if self._drop_other_marks(name, done):
                sync_path(self._folder)
            part.path.replace(final)
            self._drop_other_marks(name, done)
        else:
            try:
                os.link(part.path, final, follow_symlinks=False)
            except FileExistsError:
                if not (final.exists() and final.samefile(part.path)):
                    done.unlink()
                    text = f"a file {name!r} was made meanwhile, which stays"
                    raise DurableRefused(Refusal.EXISTS, text) from None
        # After replace(), too: it does nothing if both are the same file.
        part.path.unlink(missing_ok=True)
        sync_path(self._folder)
        return final

    def _drop_other_marks(self, name: str, done: Path) -> bool:
        """Forget which other epochs of a name were finished; return whether there were any.

        Their senders send the whole again if they come again.
        """
        dropped = False
        with os.scandir(self._folder) as entries:
            for entry in entries:
                # A longer name that begins like this one has a longer mark.
                alike = entry.name.startswith(f".{name}.") and entry.name.endswith(DONE)
                if alike and len(entry.name) == len(done.name) and entry.name != done.name:
                    Path(entry.path).unlink(missing_ok=True)
                    dropped = True
        return dropped

    def _sweep(self) -> None:
        """Remove what has expired, if the last look was long ago."""
        now = clock.monotonic()
        with self._lock:
            if self._expires is None or now - self._swept < SWEEP_EVERY:
                return
            self._swept = now
        oldest = time.time() - self._expires
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") and entry.name.endswith((PART, DONE, NEW)):
                    self._expire(Path(entry.path), oldest)

    def _expire(self, path: Path, oldest: float) -> None:
        try:
            if path.stat(follow_symlinks=False).st_mtime >= oldest:
                return
            if path.suffix != PART:
                path.unlink()
                return
            part = _Part(path, create=False)
        except (FileNotFoundError, DurableRefused):
            return  # another process was faster, or is writing it
        with part:
            if path.stat().st_mtime < oldest:
                path.unlink()
                _log.info("the unfinished file %s has expired", path.name)


class _Part:
    """Write a file that is not finished; locked until it is closed.

    Attributes:
        path: of the file.
        length: its bytes.
        synced: those that survive a crash of the machine.

    Raises:
        DurableRefused: another process has it.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self._hash = hashlib.sha256()
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW
        self._file = self._locked(path, flags | os.O_CREAT if create else flags)
        self.length = self.synced = os.fstat(self._file).st_size

    @staticmethod
    def _locked(path: Path, flags: int) -> int:
        while True:
            file = os.open(path, flags, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False)):
                        return file
            except BlockingIOError:
                os.close(file)
                text = "another process is writing this file: try again later"
                raise DurableRefused(Refusal.BUSY, text) from None
            except BaseException:
                os.close(file)
                raise
            os.close(file)  # it was removed in between

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)  # a forked child may have the descriptor, too
        os.close(self._file)

    def hash_present(self, check: Callable[[], object]) -> None:
        """Read what is there for the digest; the sender waits as for a slow disk meanwhile.

        Args:
            check: raises if that is no longer wanted.
        """
        place = 0
        while data := os.pread(self._file, CHUNK, place):
            check()
            self._hash.update(data)
            place += len(data)

    def digest(self) -> bytes:
        """Return the SHA-256 of the whole."""
        return self._hash.digest()

    def write(self, data: bytes) -> None:
        """Add data; what fits is there when it fails.

        Raises:
            DurableRefused: there is no space.
            OSError: it cannot be written for another reason.
        """
        view = memoryview(data)
        while view:
            try:
                count = os.write(self._file, view)
            except OSError as error:
                if error.errno in FULL:
                    text = f"no space is left for {self.path.name!r} at {self.length} bytes"
                    raise DurableRefused(Refusal.NO_SPACE, text) from error
                raise
            self._hash.update(view[:count])
            self.length += count
            view = view[count:]

    def sync(self) -> None:
        """Return when what is written survives a crash of the machine."""
        length = self.length
        try:
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self.synced)
            raise
        self.synced = length


def upload_handler(
    offsets: FileOffsets,
    finished: Callable[..., object] | None,
    idle_timeout: float = IDLE_TIMEOUT,
) -> Handler:
    """Return a handler that receives files.

    Args:
        offsets: where.
        finished: called with the path of each finished file, and the variables of its route.
        idle_timeout: seconds without data after which a sender is told to come again.
    """

    def handle(stream: ReceivedStream, **variables: Any) -> None:
        stream.timeout = idle_timeout
        try:
            path = offsets.receive(stream)
        except TimeoutError:
            text = f"nothing came for {idle_timeout:g} s: open it again to go on"
            raise DurableRefused(Refusal.BUSY, text) from None
        if finished is not None:
            finished(path, **variables)

    return handle


def _check_name(name: str) -> None:
    length = len(name.encode())
    if length > MAX_NAME or name.startswith(".") or "/" in name or not name.isprintable():
        raise DurableRefused(
            Refusal.NAME,
            f"a file cannot be called {name[:80]!r}: up to {MAX_NAME} bytes of printable "
            "characters are allowed, no slash, and no dot at the beginning",
        )
