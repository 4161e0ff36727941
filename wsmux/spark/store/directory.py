"""Let a topic live in a directory that several processes may share.

::

    NAME/_lock              locked by whoever changes something; see ``file_lock``
    NAME/_log/              see ``commit_log``
    NAME/parts/KEY/         one transaction: txn.json, and FILE with FILE.json for each part
    NAME/queries/KEY.json   what a query has released

A part is there when its second file is. Names come from this package only, and no link is followed,
so nothing outside of the directory is read or written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...rpc import RiverError
from ...runtime.lazy_imports import pa
from ...runtime.logs import logger
from ..protocol import Code, Receipt, is_name, refusal
from .backend import Home, Homes, S, Staged
from .base import Part
from .commit_log import CommitLog, read_object, remove_file, sync_directory, write_new
from .file_lock import FileLock
from .files import FORMATS, FileFormat
from .schemas import first_line

__all__ = ["DirectoryHome", "DirectoryHomes", "DirectoryPart", "read_staged", "real_directory"]


class DirectoryPart(Part):
    """Write one part into the directory of its transaction."""

    def __init__(
        self,
        path: Path,
        shown: str,
        partition: int,
        attempt: int,
        file_format: FileFormat,
        schema: Any,
        *,
        sync: bool,
    ) -> None:
        self._path = path
        self._shown = shown
        self._partition = partition
        self._attempt = attempt
        self._sync = sync
        self._rows = 0
        try:
            self._writer = file_format.create(path, schema)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        self._open = True

    def write(self, batch: Any) -> None:
        try:
            self._writer.write(batch)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        self._rows += batch.num_rows

    def finish(self, size: int, crc: int) -> Receipt:
        name = self._path.name
        receipt = Receipt(self._partition, self._attempt, self._rows, size, crc, name)
        hidden = self._path.parent / f".{uuid.uuid4().hex}"
        try:
            groups = self._writer.close()
            self._open = False
            if self._sync:
                _sync_file(self._path)
            values = {**receipt.to_json(), "groups": groups}
            write_new(hidden, json.dumps(values).encode(), sync=self._sync)
            os.rename(hidden, f"{self._path}.json")
            if self._sync:
                sync_directory(self._path.parent)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        return receipt

    def discard(self) -> None:
        if self._open:
            self._open = False
            self._writer.abandon()
            remove_file(self._path)

    def _failed(self, error: Exception) -> RiverError:
        """Return the error for what the system or pyarrow said."""
        if isinstance(error, FileNotFoundError) or not self._path.parent.exists():
            text = "the transaction was aborted, or has expired, while it was written"
            return refusal(Code.NO_TXN, text)
        if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
            return refusal(Code.STORE_FAILED, f"{self._shown}: {error.strerror or error}")
        return refusal(Code.BAD_ARROW, f"{self._shown} cannot be written: {first_line(error)}")


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_staged(values: Mapping[str, Any], shown: str) -> Staged:
    """Return what a part's second file holds.

    Raises:
        RiverError: CORRUPT.
    """
    groups = values.get("groups")
    if not isinstance(groups, list) or not all(type(rows) is int for rows in groups):
        raise refusal(Code.CORRUPT, f"{shown} is damaged: it lists no groups")
    try:
        return Staged(Receipt.of({k: v for k, v in values.items() if k != "groups"}), groups)
    except RiverError as error:
        raise refusal(Code.CORRUPT, f"{shown} is damaged: {error.message}") from error


TXN = "txn.json"
_KEY = re.compile(r"[0-9a-f]{32}(-[0-9]{1,19})?")
_FILE = re.compile(rf"{_KEY.pattern}/p[0-9]{{1,19}}-[0-9]{{1,19}}-[0-9a-f]{{16}}\.[a-z]{{1,16}}")
_HIDDEN = re.compile(r"~[0-9a-f]{32}")
_QUERY = re.compile(r"([0-9a-f]{32})\.json")

_log = logger("wsmux.spark")


def _check_file(file: str) -> None:
    """Raise ``ValueError`` for a name that no file of this store has."""
    if _FILE.fullmatch(file) is None:
        raise ValueError(f"there is no file {file[:200]!r}")


def real_directory(path: Path, shown: str) -> bool:
    """Return whether a directory is there.

    Raises:
        RiverError: CORRUPT, if something else is.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "a file"
        raise refusal(Code.CORRUPT, f"{shown} is {kind}, not a directory")
    return True


class DirectoryHome(Home[S]):
    """One home in a directory.

    Args:
        path: the directory. shown: what to call it in errors.
        lock_timeout: seconds that a change may wait for those of others.
    """

    def __init__(
        self,
        path: Path,
        shown: str,
        state: type[S],
        file_format: FileFormat,
        *,
        sync: bool,
        lock_timeout: float,
    ) -> None:
        self.name = path.name
        self.path = path
        self._shown = shown
        self._kind = state
        self._format = file_format
        self._sync = sync
        self._log = CommitLog(path / "_log", f"{shown}/_log", sync=sync)
        self._lock = FileLock(path / "_lock", f"{shown}/_lock", lock_timeout)
        self._mutex = threading.Lock()
        self._state: S | None = None
        self._number = -1

    # The state

    @contextmanager
    def locked(self) -> Iterator[S]:
        with self._lock.held():
            with self.view() as state:
                pass  # nobody changes it now but the holder
            yield state

    @contextmanager
    def view(self) -> Iterator[S]:
        with self._mutex:
            yield self._refresh_locked()

    def _refresh_locked(self) -> S:
        state = self._state
        if state is None:
            return self._load_locked()
        while (entry := self._log.entry(self._number + 1)) is not None:
            if entry.get("home") != state.id:  # removed and made again since the last look
                return self._load_locked()
            self._apply_locked(state, self._number + 1, entry)
        if not self._log.holds(self._number):  # kept states have overtaken this one
            return self._load_locked()
        return state

    def _load_locked(self) -> S:
        self._state = None
        for name in ("_log", "parts"):
            if not real_directory(self.path / name, f"{self._shown}/{name}"):
                raise refusal(Code.CORRUPT, f"{self._shown}/{name} is missing")
        start = self._log.start()
        state = self._kind()
        if start.state is not None:
            try:
                state = self._kind.from_json(start.state)
                for key, names in state.files_of().items():
                    for name in names:
                        _check_file(f"{key}/{name}")
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                name = f"{start.number:020d}.state.json"
                raise self._log.corrupt(name, f"is damaged: {error!r}") from error
        self._number = start.number
        while (entry := self._log.entry(self._number + 1)) is not None:
            self._apply_locked(state, self._number + 1, entry)
        if self._number < start.highest or self._number < 0:
            if self._log.start().number > start.number:  # a state was kept meanwhile
                return self._load_locked()
            raise self._log.corrupt(f"{self._number + 1:020d}.json", "is missing")
        self._state = state
        return state

    def _apply_locked(self, state: S, number: int, entry: Mapping[str, Any]) -> None:
        try:
            if state.id and entry["home"] != state.id:
                raise ValueError(f"it is of home {entry['home']}, not {state.id}")
            for file in entry.get("files", ()):
                _check_file(file["file"])
            state.apply(entry)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            self._state = None  # it may be half applied
            raise self._log.corrupt(f"{number:020d}.json", f"is damaged: {error!r}") from error
        self._number = number

    def append(self, entry: Mapping[str, Any]) -> None:
        with self._mutex:
            state = self._refresh_locked()
            written = {**entry, "home": state.id}
            if not self._log.append(self._number + 1, written):
                text = f"{self._shown}/_log was written to by somebody without the lock"
                raise refusal(Code.CORRUPT, text)
            self._apply_locked(state, self._number + 1, written)
            self._log.keep_state(self._number, state.to_json)

    # Transactions

    def _txn(self, key: str) -> Path:
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"{key!r} is no key")
        return self.path / "parts" / key

    def stage(self, key: str, info: Mapping[str, Any]) -> None:
        path, data = self._txn(key), json.dumps(info).encode()
        while not (real_directory(path, f"{self._shown}/parts/{key}") and (path / TXN).exists()):
            path.mkdir(exist_ok=True)
            hidden = path / f".{uuid.uuid4().hex}"
            try:
                write_new(hidden, data, sync=self._sync)
                os.rename(hidden, path / TXN)
                if self._sync:
                    sync_directory(path)
                    sync_directory(path.parent)
            except FileNotFoundError:
                continue  # somebody has dropped it just now

    def staged(self, key: str) -> dict[str, Any] | None:
        path, shown = self._txn(key), f"{self._shown}/parts/{key}"
        if not real_directory(path, shown):
            return None
        return read_object(path / TXN, f"{shown}/{TXN}")

    def transactions(self) -> list[str]:
        return sorted(name for name in os.listdir(self.path / "parts") if _KEY.fullmatch(name))

    def drop(self, key: str, before: float | None = None) -> None:
        path = self._txn(key)
        if not real_directory(path, f"{self._shown}/parts/{key}"):
            return
        if before is not None and _last_used(path) >= before:
            return
        trash = path.parent / f".{uuid.uuid4().hex}"
        os.rename(path, trash)  # at once, so that nobody finds half of it
        remove_tree(trash)

    def prune(self, key: str, keep: set[str], before: float | None = None) -> bool:
        path = self._txn(key)
        if not real_directory(path, f"{self._shown}/parts/{key}"):
            return True
        kept = keep | {f"{name}.json" for name in keep} | {TXN}
        clean = True
        with os.scandir(path) as found:
            for each in found:
                if each.name in kept or not each.is_file(follow_symlinks=False):
                    continue
                if before is None or each.stat(follow_symlinks=False).st_mtime < before:
                    remove_file(Path(each.path))
                else:
                    clean = False
        return clean

    def tidy(self, before: float) -> None:
        remove_hidden(self.path / "_log", before)
        if real_directory(self.path / "queries", f"{self._shown}/queries"):
            remove_hidden(self.path / "queries", before)
        with os.scandir(self.path / "parts") as found:
            for each in found:
                if each.name.startswith(".") and each.is_dir(follow_symlinks=False):
                    remove_tree(Path(each.path))

    # Parts

    def new_part(self, key: str, partition: int, attempt: int, schema: Any) -> Part:
        path = self._txn(key)
        name = f"p{partition}-{attempt}-{uuid.uuid4().hex[:16]}.{self._format.name}"
        shown = f"{self._shown}/parts/{key}/{name}"
        return DirectoryPart(
            path / name, shown, partition, attempt, self._format, schema, sync=self._sync
        )

    def part(self, key: str, file: str) -> Staged | None:
        shown = f"{self._shown}/parts/{key}/{file}"
        values = read_object(self._txn(key) / f"{file}.json", f"{shown}.json")
        return None if values is None else read_staged(values, f"{shown}.json")

    def read(
        self, file: str, schema: Any, columns: Sequence[int], groups: Sequence[int], span: range
    ) -> Iterator[Any]:
        shown = f"{self._shown}/parts/{file}"
        key, _, name = file.partition("/")
        file_format = FORMATS.get(name.rpartition(".")[2])
        if file_format is None:
            raise refusal(Code.CORRUPT, f"{shown} is of no format known here")
        path = self._txn(key) / name
        try:
            kinds = stat.S_ISDIR(path.parent.lstat().st_mode), stat.S_ISREG(path.lstat().st_mode)
            if kinds != (True, True):
                raise refusal(Code.CORRUPT, f"{shown} is not a file of the store")
            yield from file_format.read(path, schema, columns, groups, span)
        except FileNotFoundError as error:
            raise FileNotFoundError(shown) from error
        except (pa.ArrowException, OSError, ValueError, EOFError) as error:
            raise refusal(Code.CORRUPT, f"{shown} is damaged: {first_line(error)}") from error

    # Consumers

    def released(self) -> dict[str, list[int]]:
        path, shown = self.path / "queries", f"{self._shown}/queries"
        if not real_directory(path, shown):
            return {}
        found = {}
        for name in os.listdir(path):
            query = _QUERY.fullmatch(name)
            values = read_object(path / name, f"{shown}/{name}") if query else None
            if query and values is not None:
                found[query[1]] = _offsets(values, f"{shown}/{name}")
        return found

    def release(self, query: str, offsets: Sequence[int]) -> None:
        path = self.path / "queries"
        if not real_directory(path, f"{self._shown}/queries"):
            path.mkdir()
        hidden = path / f".{uuid.uuid4().hex}"
        # Not made safe from a crash of the machine: an older one only keeps rows for longer.
        write_new(hidden, json.dumps({"offsets": list(offsets)}).encode(), sync=False)
        os.rename(hidden, path / f"{query}.json")


def _offsets(values: Mapping[str, Any], shown: str) -> list[int]:
    offsets = values.get("offsets")
    if isinstance(offsets, list) and all(type(each) is int for each in offsets):
        return offsets
    raise refusal(Code.CORRUPT, f"{shown} is damaged: it holds no offsets")


def _last_used(path: Path) -> float:
    """Return when something in a directory was last written."""
    with os.scandir(path) as found:
        times = [each.stat(follow_symlinks=False).st_mtime for each in found]
    return max([path.stat().st_mtime, *times])


def remove_tree(path: Path) -> None:
    """Remove a directory; what cannot be removed is left for the next time."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        _log.warning("%s cannot be removed", path)


def remove_hidden(path: Path, before: float) -> None:
    """Remove what was being written in a directory by processes that are no more."""
    with os.scandir(path) as found:
        for each in found:
            old = each.name.startswith(".") and each.is_file(follow_symlinks=False)
            if old and each.stat(follow_symlinks=False).st_mtime < before:
                remove_file(Path(each.path))


class DirectoryHomes(Homes[S]):
    """Find homes under a directory, and make them there."""

    def __init__(
        self,
        path: Path,
        shown: str,
        state: type[S],
        file_format: FileFormat,
        *,
        sync: bool,
        lock_timeout: float,
    ) -> None:
        self._path = path
        self._shown = shown
        self._kind = state
        self._format = file_format
        self._sync = sync
        self._lock_timeout = lock_timeout
        self._mutex = threading.Lock()
        self._known: dict[str, tuple[tuple[int, int], DirectoryHome[S]]] = {}

    def find(self, name: str) -> DirectoryHome[S] | None:
        path, shown = self._path / name, f"{self._shown}/{name}"
        if not real_directory(path, shown):
            return None
        status = path.lstat()
        inode = (status.st_dev, status.st_ino)
        with self._mutex:
            known = self._known.get(name)
            if known is None or known[0] != inode:  # another one under the same name
                home = DirectoryHome(
                    path,
                    shown,
                    self._kind,
                    self._format,
                    sync=self._sync,
                    lock_timeout=self._lock_timeout,
                )
                known = self._known[name] = (inode, home)
            return known[1]

    def make(self, name: str, entry: Mapping[str, Any]) -> DirectoryHome[S]:
        home = self.find(name)
        if home is not None:
            return home
        hidden = self._path / f"~{uuid.uuid4().hex}"  # what nobody can be called
        for inner in ("_log", "parts"):
            (hidden / inner).mkdir(parents=True)
        CommitLog(hidden / "_log", "", sync=self._sync).append(0, entry)
        if self._sync:
            sync_directory(hidden)
        try:
            os.rename(hidden, self._path / name)
        except OSError:  # somebody was faster
            remove_tree(hidden)
        if self._sync:
            sync_directory(self._path)
        home = self.find(name)
        if home is None:
            raise refusal(Code.STORE_FAILED, f"{self._shown}/{name} cannot be made")
        return home

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self._path) if is_name(name))

    def tidy(self, before: float) -> None:
        """Remove homes whose making was cut short."""
        with os.scandir(self._path) as found:
            for each in found:
                made = _HIDDEN.fullmatch(each.name) and each.is_dir(follow_symlinks=False)
                if made and each.stat(follow_symlinks=False).st_mtime < before:
                    remove_tree(Path(each.path))

    def check_schema(self, schema: Any) -> None:
        try:
            self._format.check(schema)
        except pa.ArrowException as error:
            text = f"this schema cannot be kept as {self._format.name}: {first_line(error)}"
            raise refusal(Code.WRONG_SCHEMA, text) from error
