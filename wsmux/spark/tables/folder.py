"""Keep the files of a table: what a folder must do, and one of a local file system.

All that a table does to files goes through a ``Folder``. A name is that of a file below it, with
slashes. What differs between a file system and an object store is told here; what a table makes of
it is the same for both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

from ...runtime.files import sync_path
from ...runtime.lazy_imports import pa
from ..store.directory import checked_path, read_object, real_directory, write_new
from .file_lock import FileLock

__all__ = ["Folder", "LocalFolder", "Lock", "Mark"]


class Mark(NamedTuple):
    """What tells a file from another one of its name: of its content or place, time and size."""

    ident: object
    modified_ns: int
    size: int

    @property
    def time(self) -> float:
        """When it was written, in seconds since 1970."""
        return self.modified_ns / 1e9


class Lock(Protocol):
    """Exclude others; how far that reaches depends on the folder."""

    def held(self) -> AbstractContextManager[None]:
        """Hold the lock.

        Raises:
            RiverError: BUSY, when the time is up.
        """


class Folder(ABC):
    """Keep the files of one table, or of all tables of a store.

    Errors are those of the system, or STORE_FAILED; ``FileNotFoundError`` for what is gone.

    Attributes:
        locks: whether a lock excludes all others that write here. If not, ``create`` does: servers
            of any host may then commit at any time between two steps of this one.
        far: whether each look takes a request over a network.
        open_files: files of one part that may be written at once; each needs memory, a descriptor.
        address, options: what delta-rs opens it by.
    """

    locks: bool
    far: bool
    open_files: int
    address: str
    options: Mapping[str, str] | None = None

    @abstractmethod
    def below(self, name: str) -> Folder:
        """Return a folder in this one, there or not."""

    @abstractmethod
    def identity(self, shown: str) -> object | None:
        """Return what tells this folder from another one of its name, ``None`` if it is not there.

        Raises:
            RiverError: CORRUPT, if something else is.
        """

    @abstractmethod
    def is_folder(self, name: str, shown: str) -> bool:
        """Return whether a folder is there, or may be.

        Raises:
            RiverError: CORRUPT, if something else is.
        """

    @abstractmethod
    def make(self, name: str = "", *, safe: bool = False) -> None:
        """Make a folder in this one; ``safe`` from a crash, with the one that it is in."""

    @abstractmethod
    def make_partition(self, name: str, shown: str) -> None:
        """Make a folder and all above it.

        Raises:
            RiverError: CORRUPT, if one is something else.
        """

    @abstractmethod
    def names(self, name: str = "") -> list[str]:
        """Return the names in a folder."""

    # Files

    @abstractmethod
    def mark(self, name: str) -> Mark | None:
        """Return what tells a file from another one, ``None`` if it is not there."""

    @abstractmethod
    def size(self, name: str, shown: str) -> int:
        """Return the bytes of a file.

        Raises:
            RiverError: CORRUPT, for a link, or what is outside of the folder.
        """

    @abstractmethod
    def read(self, name: str) -> tuple[bytes, Mark]:
        """Return a file, and its mark from before it was read.

        Raises:
            ValueError: it is no file.
        """

    def read_all(self, names: Sequence[str]) -> Iterator[tuple[bytes, Mark]]:
        """Yield several files, in this order."""
        return map(self.read, names)

    @abstractmethod
    def read_object(self, name: str, shown: str) -> dict[str, Any] | None:
        """Return the JSON object in a file, ``None`` if the file is not there.

        Raises:
            RiverError: CORRUPT.
        """

    @abstractmethod
    def put(self, name: str, data: bytes, *, safe: bool = True, beside: str | None = None) -> None:
        """Write a file, or replace it: whoever reads it finds it whole.

        Args:
            safe: whether it is to outlive a crash of the machine.
            beside: a file that has to be there, in the same folder; without, the folder is new.
        """

    @abstractmethod
    def touch(self, name: str) -> None:
        """Make an empty file in a folder that is there."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write a file, all at once and safe, unless there is one; return whether it was written.

        Of all who try at once, one writes it.
        """

    @abstractmethod
    def writer(self, name: str) -> Any:
        """Return a file of pyarrow to write a new file by."""

    @abstractmethod
    def seal(self, name: str) -> int:
        """Make a file that was written safe from a crash; return its bytes."""

    @abstractmethod
    def reader(self, name: str, shown: str) -> Any:
        """Return a file of pyarrow to read by.

        Raises:
            RiverError: CORRUPT, for a link, or what is outside of the folder.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def in_doubt(self) -> bool:
        """Return whether what ``create`` did not write may yet appear."""
        return False

    # What is staged

    @abstractmethod
    def last_written(self, name: str) -> float:
        """Return when a folder, or something in it, was written to, in seconds since 1970."""

    @abstractmethod
    def take(self, name: str, marker: str) -> str | None:
        """Have nobody find a folder by its marker any more; return what it is called then.

        ``None`` if it is not there.
        """

    @abstractmethod
    def taken(self, name: str) -> list[str]:
        """Return what was taken in a folder, and is there yet."""

    @abstractmethod
    def remove_all(self, name: str) -> bool:
        """Remove a folder and what is in it; return whether all is gone."""

    # Upkeep

    @abstractmethod
    def set_aside(self, name: str, folder: str) -> str:
        """Move a file to a folder, under a new name; return that."""

    @abstractmethod
    def sync(self, names: Iterable[str]) -> None:
        """Make files that others have written, or folders, safe from a crash."""

    @abstractmethod
    def tidy(self, name: str, before: float) -> None:
        """Remove from a folder what ``create`` was cut short at before a time."""

    @abstractmethod
    def remove_empty(self, folders: Iterable[str] | None = None) -> None:
        """Remove folders of partitions that nothing is in, and those around them; all by default.

        Whoever is about to write there has to make the folder again if it went between the two.
        """

    @abstractmethod
    def lock(self, name: str, shown: str, timeout: float) -> Lock:
        """Return a lock; ``timeout``: seconds that may pass until it is had."""


class LocalFolder(Folder):
    """Keep files in a directory; no link is followed.

    Args:
        sync: whether to make sure that what is safe survives a crash of the machine.
    """

    locks = True
    far = False
    open_files = 32

    def __init__(self, path: Path, *, sync: bool) -> None:
        self.path = path
        self.address = str(path)
        self._sync = sync

    def below(self, name: str) -> LocalFolder:
        return LocalFolder(self.path / name, sync=self._sync)

    def identity(self, shown: str) -> object | None:
        if not real_directory(self.path, shown):
            return None
        status = self.path.lstat()
        return status.st_dev, status.st_ino

    def is_folder(self, name: str, shown: str) -> bool:
        return real_directory(self.path / name, shown)

    def make(self, name: str = "", *, safe: bool = False) -> None:
        (self.path / name).mkdir(exist_ok=True)
        if safe and self._sync:
            sync_path(self.path)
            sync_path(self.path.parent)

    def make_partition(self, name: str, shown: str) -> None:
        path = self.path
        for part in name.split("/"):
            above, path, shown = path, path / part, f"{shown}/{part}"
            if not real_directory(path, shown):  # and no link
                path.mkdir(exist_ok=True)
            if self._sync:
                sync_path(above)

    def names(self, name: str = "") -> list[str]:
        return os.listdir(self.path / name)

    def mark(self, name: str) -> Mark | None:
        try:
            found = os.lstat(f"{self.address}/{name}")
        except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: no name of a file
            return None
        return Mark(found.st_ino, found.st_mtime_ns, found.st_size)

    def size(self, name: str, shown: str) -> int:
        return checked_path(self.path, name, shown).lstat().st_size

    def read(self, name: str) -> tuple[bytes, Mark]:
        path = f"{self.address}/{name}"  # a Path takes longer than all else, and logs are long
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{os.path.basename(path)} is not a file of the store")
        with open(path, "rb", buffering=0) as file:
            return file.readall(), Mark(found.st_ino, found.st_mtime_ns, found.st_size)

    def read_object(self, name: str, shown: str) -> dict[str, Any] | None:
        return read_object(self.path / name, shown)

    def put(self, name: str, data: bytes, *, safe: bool = True, beside: str | None = None) -> None:
        path, safe = self.path / name, safe and self._sync
        if beside is None:
            path.parent.mkdir(parents=True)
        hidden = path.with_name(f".{uuid.uuid4().hex}")
        write_new(hidden, data, sync=safe)
        os.rename(hidden, path)
        if safe:
            sync_path(path.parent)
        if safe and beside is None:
            sync_path(path.parent.parent)

    def touch(self, name: str) -> None:
        write_new(self.path / name, b"", sync=False)

    def create(self, name: str, data: bytes) -> bool:
        # Written under a name that nobody looks at, and linked to its own name, which the system
        # does once.
        path = self.path / name
        hidden = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            write_new(hidden, data, sync=self._sync)
            os.link(hidden, path)
        except FileExistsError:
            return False
        finally:
            hidden.unlink(missing_ok=True)
        if self._sync:
            sync_path(path.parent)
        return True

    def writer(self, name: str) -> Any:
        return pa.OSFile(str(self.path / name), "wb")

    def seal(self, name: str) -> int:
        path = self.path / name
        if self._sync:
            sync_path(path)
            sync_path(path.parent)
        return path.stat().st_size

    def reader(self, name: str, shown: str) -> Any:
        return pa.OSFile(str(checked_path(self.path, name, shown)))

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def last_written(self, name: str) -> float:
        path = self.path / name
        times = [each.stat(follow_symlinks=False).st_mtime for each in os.scandir(path)]
        return max([path.stat().st_mtime, *times])

    def take(self, name: str, marker: str) -> str | None:
        path = self.path / name
        trash = path.with_name(f".{uuid.uuid4().hex}")
        try:
            os.rename(path, trash)  # at once, so that nobody finds half of it
        except FileNotFoundError:
            return None
        return str(trash.relative_to(self.path))

    def taken(self, name: str) -> list[str]:
        with os.scandir(self.path / name) as found:
            return [
                f"{name}/{each.name}"
                for each in found
                if each.name.startswith(".") and each.is_dir(follow_symlinks=False)
            ]

    def remove_all(self, name: str) -> bool:
        path = self.path / name
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()

    def set_aside(self, name: str, folder: str) -> str:
        path, aside = self.path / name, self.path / folder
        aside.mkdir(parents=True, exist_ok=True)
        target = aside / f"{path.name}.{uuid.uuid4().hex[:8]}"
        os.rename(path, target)
        if self._sync:
            sync_path(aside)
            sync_path(path.parent)
        return str(target.relative_to(self.path))

    def sync(self, names: Iterable[str]) -> None:
        if self._sync:
            for name in names:
                sync_path(self.path / name)

    def tidy(self, name: str, before: float) -> None:
        with os.scandir(self.path / name) as found:
            for each in found:
                own = each.name.startswith(".") and each.name.endswith(".tmp")
                if own and each.stat(follow_symlinks=False).st_mtime < before:
                    Path(each.path).unlink(missing_ok=True)

    def remove_empty(self, folders: Iterable[str] | None = None) -> None:
        if folders is None:
            folders = self._partitions()
        for folder in sorted(set(folders), reverse=True):
            inner = self.path
            found = []
            for name in PurePosixPath(folder).parts:
                inner = inner / name
                if "=" not in name or not inner.is_dir() or inner.is_symlink():
                    break
                found.append(inner)
            else:
                with contextlib.suppress(OSError):  # something is in it, or it is gone
                    for each in reversed(found):
                        each.rmdir()

    def _partitions(self) -> list[str]:
        found: list[str] = []
        for folder, inner, _ in os.walk(self.path):
            inner[:] = [name for name in inner if "=" in name]
            found.append(os.path.relpath(folder, self.path))
        return found

    def lock(self, name: str, shown: str, timeout: float) -> FileLock:
        return FileLock(self.path / name, shown, timeout)
