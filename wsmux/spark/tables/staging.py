"""Stage what transactions write to a table: Parquet files that no entry of its log names yet.

::

    TABLE/part-...parquet               where a file is written, and stays
    TABLE/_wsmux/staged/KEY/txn.json    what a transaction was begun with
    TABLE/_wsmux/staged/KEY/FILE.json   what is known of a file: nothing, until it is finished

Nothing is moved in a commit. What a transaction has left is found by what is known of its files,
without a look at all files of the table.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...rpc import RiverError
from ...runtime.lazy_imports import pa
from ...runtime.logs import logger
from ..protocol import Code, Receipt, refusal
from ..store.base import Part
from ..store.commit_log import read_object, write_new
from ..store.directory import real_directory
from ..store.schemas import first_line
from .data_files import NewFile, sync_path

__all__ = ["OWN", "Staged", "Staging"]

# The folder of this package in a table; readers of Delta pass over its name.
OWN = "_wsmux"

TXN = "txn.json"
_KEY = re.compile(r"[0-9a-f]{32}(-[0-9]{1,19})?")
_FILE = re.compile(r"p([0-9]{1,19})-([0-9]{1,19})-([0-9a-f]{16})\.parquet")

Held = Callable[[str], bool]

_log = logger("wsmux.spark")


class Staged(NamedTuple):
    """A finished part: its receipt, and what the log is told of its file."""

    receipt: Receipt
    path: str
    size: int
    stats: str


class Staging:
    """Keep what is staged for one table.

    Args:
        root: the folder of the table. shown: what to call it in errors. sync: whether to make
            sure that what is finished survives a crash of the machine.
    """

    def __init__(self, root: Path, shown: str, *, sync: bool) -> None:
        self._root = root
        self._path = root / OWN / "staged"
        self._shown = f"{shown}/{OWN}/staged"
        self._table = shown
        self._sync = sync

    def _txn(self, key: str) -> Path:
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"{key!r} is no key")
        return self._path / key

    def begin(self, key: str, info: Mapping[str, Any]) -> None:
        """Begin a transaction."""
        path = self._txn(key)
        if real_directory(self._root / OWN, f"{self._table}/{OWN}"):  # and no link
            real_directory(self._path, self._shown)
        path.mkdir(parents=True)
        hidden = path / f".{uuid.uuid4().hex}"
        write_new(hidden, json.dumps(info).encode(), sync=self._sync)
        os.rename(hidden, path / TXN)
        if self._sync:
            sync_path(path)
            sync_path(path.parent)

    def info(self, key: str) -> dict[str, Any] | None:
        """Return what a transaction was begun with.

        Raises:
            RiverError: CORRUPT.
        """
        path, shown = self._txn(key), f"{self._shown}/{key}"
        if not real_directory(path, shown):
            return None
        return read_object(path / TXN, f"{shown}/{TXN}")

    def transactions(self) -> list[str]:
        """Return the keys of all transactions that have something staged."""
        if not real_directory(self._path, self._shown):
            return []
        return sorted(name for name in os.listdir(self._path) if _KEY.fullmatch(name))

    def files(self) -> set[str]:
        """Return the files below the table of all transactions, finished or not."""
        found: set[str] = set()
        for key in self.transactions():
            with contextlib.suppress(FileNotFoundError):  # dropped meanwhile, with its files
                found.update(_files_of(self._txn(key)))
        return found

    def last_used(self, key: str) -> float:
        """Return when a transaction was last written to, in seconds since 1970."""
        path = self._txn(key)
        try:
            times = [each.stat(follow_symlinks=False).st_mtime for each in os.scandir(path)]
            times += [
                self._root.joinpath(name).stat().st_mtime
                for name in _files_of(path)
                if (self._root / name).exists()
            ]
            return max([path.stat().st_mtime, *times])
        except FileNotFoundError:
            return 0.0

    def new_part(self, key: str, partition: int, attempt: int, schema: Any) -> Part:
        """Begin a part of a transaction.

        Raises:
            RiverError: NO_TXN, or STORE_FAILED.
        """
        name = f"p{partition}-{attempt}-{uuid.uuid4().hex[:16]}.parquet"
        return _NewPart(self._root, self._txn(key) / name, self._table, schema, sync=self._sync)

    def part(self, key: str, file: str) -> Staged | None:
        """Return a finished part of a transaction.

        Raises:
            RiverError: CORRUPT.
        """
        if _FILE.fullmatch(file) is None:
            return None
        path, shown = self._txn(key) / f"{file}.json", f"{self._shown}/{key}/{file}.json"
        try:
            if not path.lstat().st_size:
                return None  # not finished
        except FileNotFoundError:
            return None
        values = read_object(path, shown)
        if values is None:
            return None
        try:
            receipt = Receipt.of(values["receipt"])
            return Staged(receipt, _path_of(file), int(values["size"]), str(values["stats"]))
        except (KeyError, TypeError, ValueError, RiverError) as error:
            raise refusal(Code.CORRUPT, f"{shown} is damaged: {error!r:.200}") from error

    def drop(self, key: str, held: Held) -> None:
        """Forget a transaction, and remove its files but for those that are held."""
        path = self._txn(key)
        trash = path.parent / f".{uuid.uuid4().hex}"
        try:
            os.rename(path, trash)  # at once, so that nobody finds half of it
        except FileNotFoundError:
            return
        self._remove(trash, held)

    def tidy(self, held: Held) -> None:
        """Remove what was being dropped by processes that are no more."""
        if not real_directory(self._path, self._shown):
            return
        with os.scandir(self._path) as found:
            for each in found:
                if each.name.startswith(".") and each.is_dir(follow_symlinks=False):
                    self._remove(Path(each.path), held)

    def _remove(self, trash: Path, held: Held) -> None:
        for name in _files_of(trash):
            if not held(name):
                (self._root / name).unlink(missing_ok=True)
        shutil.rmtree(trash, ignore_errors=True)
        if trash.exists():
            _log.warning("%s cannot be removed", trash)


def _files_of(path: Path) -> Iterator[str]:
    """Yield the files of a transaction, finished or not."""
    for name in os.listdir(path):
        file = name.removesuffix(".json")
        if file != name and _FILE.fullmatch(file):
            yield _path_of(file)


def _path_of(file: str) -> str:
    """Return the name below the table of a part's file."""
    found = _FILE.fullmatch(file)
    assert found is not None
    return f"part-{int(found[1]):05d}-{found[2]}-{found[3]}.snappy.parquet"


class _NewPart(Part):
    """Write one part. ``note`` is known while the transaction is not dropped."""

    def __init__(self, root: Path, note: Path, table: str, schema: Any, *, sync: bool) -> None:
        self._note = note.with_name(f"{note.name}.json")
        self._name = note.name
        self._path = root / _path_of(note.name)
        self._shown = f"{table}/{self._path.name}"
        self._sync = sync
        self._open = False
        try:
            write_new(self._note, b"", sync=False)
            self._file = NewFile(self._path, schema, sync=sync)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        self._open = True

    def write(self, batch: Any) -> None:
        try:
            self._file.write(batch)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error

    def finish(self, size: int, crc: int) -> Receipt:
        found = _FILE.fullmatch(self._name)
        assert found is not None
        hidden = self._note.with_name(f".{uuid.uuid4().hex}")
        try:
            written = self._file.close()
            receipt = Receipt(int(found[1]), int(found[2]), written.rows, size, crc, self._name)
            values = {
                "receipt": receipt.to_json(),
                "size": written.size,
                "stats": written.stats,
            }
            write_new(hidden, json.dumps(values).encode(), sync=self._sync)
            os.rename(hidden, self._note)
            if self._sync:
                sync_path(self._note.parent)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        self._open = False
        return receipt

    def discard(self) -> None:
        if self._open:
            self._open = False
            self._file.abandon()
            self._note.unlink(missing_ok=True)

    def _failed(self, error: Exception) -> RiverError:
        """Return the error for what the system or pyarrow said."""
        if isinstance(error, FileNotFoundError) or not self._note.parent.exists():
            text = "the transaction was aborted, or has expired, while it was written"
            return refusal(Code.NO_TXN, text)
        if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
            return refusal(Code.STORE_FAILED, f"{self._shown}: {error.strerror or error}")
        return refusal(Code.BAD_ARROW, f"{self._shown} cannot be written: {first_line(error)}")
