"""Stage what transactions write to a table: Parquet files that no entry of its log names yet.

::

    TABLE/part-...parquet               where a file is written, and stays
    TABLE/day=2024-02-29/part-...       the same, in a table with partition columns
    TABLE/_wsmux/staged/KEY/txn.json    what a transaction was begun with
    TABLE/_wsmux/staged/KEY/FILE.json   what is known of a part: nothing, until it is finished; of
                                        a part in several files each has one, with its folder

Nothing is moved in a commit. What a transaction has left is found by what is known of its files,
without a look at all files of the table.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import uuid
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ...config import MIB
from ...rpc import RiverError
from ...runtime.lazy_imports import pa
from ...runtime.logs import logger
from ..protocol import Code, Receipt, refusal
from ..store.base import Part
from ..store.schemas import first_line
from .data_files import NewFile
from .folder import Folder
from .partitions import Piece, split

__all__ = ["OWN", "Finished", "Staged", "StagedPart", "Staging", "part_number"]

# The folder of this package in a table; readers of Delta pass over its name.
OWN = "_wsmux"

STAGED = f"{OWN}/staged"
TXN = "txn.json"

# Files that one part has at most: each costs a line of the log for good. The bytes of rows that all
# that are open hold in memory.
MAX_FILES = 1024
HELD_BYTES = 32 * MIB

# Times that a folder is made again which sweeps remove before a file is in it.
FOLDER_ATTEMPTS = 10

_KEY = re.compile(r"[0-9a-f]{32}(-[0-9]{1,19})?")
_FILE = re.compile(r"p([0-9]{1,19})-([0-9]{1,19})-([0-9a-f]{16})\.parquet")
_PART = re.compile(r"part-([0-9]{1,19})-")

Held = Callable[[str], bool]

_log = logger("wsmux.spark")


class Staged(NamedTuple):
    """What the log is told of a file of a finished part."""

    path: str
    size: int
    stats: str
    partition: Mapping[str, str | None] = {}


class Finished(NamedTuple):
    """A finished part: its receipt and its files, one unless the table has partition columns."""

    receipt: Receipt
    files: Sequence[Staged]


class Staging:
    """Keep what is staged for one table.

    Args:
        folder: of the table. shown: what to call it in errors.
    """

    def __init__(self, folder: Folder, shown: str) -> None:
        self._folder = folder
        self._shown = f"{shown}/{STAGED}"
        self._table = shown
        self._common = ""

    def _txn(self, key: str) -> str:
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"{key!r} is no key")
        return f"{STAGED}/{key}"

    def begin(self, key: str, info: Mapping[str, Any], *, safe: bool = True) -> None:
        """Begin a transaction; ``safe``: it is to outlive a crash of the machine."""
        path = self._txn(key)
        if self._folder.is_folder(OWN, f"{self._table}/{OWN}"):  # and no link
            self._folder.is_folder(STAGED, self._shown)
        self._folder.put(f"{path}/{TXN}", json.dumps(info).encode(), safe=safe)

    def info(self, key: str) -> dict[str, Any] | None:
        """Return what a transaction was begun with.

        Raises:
            RiverError: CORRUPT.
        """
        path, shown = self._txn(key), f"{self._shown}/{key}"
        if not self._folder.is_folder(path, shown):
            return None
        return self._folder.read_object(f"{path}/{TXN}", f"{shown}/{TXN}")

    def transactions(self) -> list[str]:
        """Return the keys of all transactions that have something staged."""
        if not self._folder.is_folder(STAGED, self._shown):
            return []
        return sorted(name for name in self._folder.names(STAGED) if _KEY.fullmatch(name))

    def files(self) -> set[str]:
        """Return the files below the table of all transactions, finished or not."""
        found: set[str] = set()
        for key in self.transactions():
            with contextlib.suppress(FileNotFoundError):  # dropped meanwhile, with its files
                found.update(self._files_of(self._txn(key)))
        return found

    def last_used(self, key: str) -> float:
        """Return when a transaction was last written to, in seconds since 1970."""
        path = self._txn(key)
        try:
            marks = [self._folder.mark(name) for name in self._files_of(path)]
            times = [mark.time for mark in marks if mark is not None]
            return max([self._folder.last_written(path), *times])
        except FileNotFoundError:
            return 0.0

    def new_part(
        self,
        key: str,
        partition: int,
        attempt: int,
        schema: Any,
        partition_by: Sequence[str] = (),
    ) -> StagedPart:
        """Begin a part of a transaction, for a table with these partition columns.

        Raises:
            RiverError: NO_TXN, or STORE_FAILED.
        """
        at, name = self._txn(key), _new_name(partition, attempt)
        if partition_by:
            return _PartitionedPart(self._folder, at, name, self._table, schema, partition_by)
        return _NewPart(self._folder, at, name, self._table, schema)

    def is_open(self, key: str) -> bool:
        """Return whether a transaction was begun, and has not been dropped."""
        return self._folder.mark(f"{self._txn(key)}/{TXN}") is not None

    def common_part(
        self, schema: Any, partition_by: Sequence[str], refused: Container[str]
    ) -> StagedPart:
        """Begin a part for a commit that comes at once.

        All such parts of this process belong to one transaction, which is begun anew when it was
        swept away: so a part costs one note, and no folder.

        Args:
            refused: the transactions that cannot be committed any more, though they may be there.

        Raises:
            RiverError: STORE_FAILED, or NO_TXN, if it is swept away just now.
        """
        if not self._common or self._common in refused or not self.is_open(self._common):
            key = uuid.uuid4().hex
            self.begin(key, {"operation": "INGEST"}, safe=False)
            self._common = key
        return self.new_part(self._common, 0, 0, schema, partition_by)

    def part(self, key: str, file: str) -> Finished | None:
        """Return a finished part of a transaction.

        Raises:
            RiverError: CORRUPT.
        """
        if _FILE.fullmatch(file) is None:
            return None
        path, shown = f"{self._txn(key)}/{file}.json", f"{self._shown}/{key}/{file}.json"
        mark = self._folder.mark(path)
        if mark is None or not mark.size:
            return None  # not finished
        values = self._folder.read_object(path, shown)
        if values is None or "folder" in values:  # of a file, not of a part
            return None
        try:
            return _finished(file, Receipt.of(values["receipt"]), values)
        except (KeyError, TypeError, ValueError, RiverError) as error:
            raise refusal(Code.CORRUPT, f"{shown} is damaged: {error!r:.200}") from error

    def drop(self, key: str, held: Held) -> None:
        """Forget a transaction, and remove its files but for those that are held."""
        trash = self._folder.take(self._txn(key), TXN)
        if trash is not None:
            self._remove(trash, held)

    def end(self, key: str) -> None:
        """Forget a transaction, and leave its files until they are old."""
        self._folder.take(self._txn(key), TXN)

    def tidy(self, held: Held) -> None:
        """Remove what was being dropped by processes that are no more."""
        if self._folder.is_folder(STAGED, self._shown):
            for trash in self._folder.taken(STAGED):
                self._remove(trash, held)

    def _remove(self, trash: str, held: Held) -> None:
        folders: set[str] = set()
        for name in self._files_of(trash):
            if not held(name):
                self._folder.remove(name)
                folders.add(str(PurePosixPath(name).parent))
        self._folder.remove_empty(folders)
        if not self._folder.remove_all(trash):
            _log.warning("%s/%s cannot be removed", self._table, trash)

    def _files_of(self, path: str) -> Iterator[str]:
        """Yield the files of a transaction, finished or not."""
        for name in self._folder.names(path):
            file = name.removesuffix(".json")
            if file != name and _FILE.fullmatch(file):
                yield _path_of(file, self._folder_in(f"{path}/{name}"))

    def _folder_in(self, note: str) -> str:
        """Return the folder that is told of a file, nothing if none is."""
        try:
            values = json.loads(self._folder.read(note)[0] or b"{}")
            folder = str(values.get("folder") or "")
        except (FileNotFoundError, ValueError, AttributeError):
            return ""
        # What is removed by it has to be below the table, in a folder of partitions.
        parts = folder.split("/") if folder else []
        return folder if all("=" in part and part not in (".", "..") for part in parts) else ""


def _finished(file: str, receipt: Receipt, told: Mapping[str, Any]) -> Finished:
    """Return a finished part by what is known of it.

    Raises:
        KeyError, TypeError, ValueError: something else is.
    """
    if "files" in told:
        return Finished(receipt, [Staged(**each) for each in told["files"]])
    return Finished(receipt, [Staged(_path_of(file), int(told["size"]), str(told["stats"]))])


def _path_of(file: str, folder: str = "") -> str:
    """Return the name below the table of a part's file."""
    found = _FILE.fullmatch(file)
    assert found is not None
    name = f"part-{int(found[1]):05d}-{found[2]}-{found[3]}.snappy.parquet"
    return f"{folder}/{name}" if folder else name


def part_number(path: str) -> int:
    """Return the number of the part in the name of a table's file, 0 in one of another program."""
    found = _PART.match(PurePosixPath(path).name)
    return int(found[1]) if found else 0


def _new_name(partition: int, attempt: int) -> str:
    return f"p{partition}-{attempt}-{uuid.uuid4().hex[:16]}.parquet"


class StagedPart(Part):
    """What the two kinds of parts share; ``txn`` is the folder of the transaction.

    Attributes:
        key: of the transaction.
    """

    def __init__(self, folder: Folder, txn: str, name: str, table: str) -> None:
        found = _FILE.fullmatch(name)
        assert found is not None
        self._partition, self._attempt = int(found[1]), int(found[2])
        self.key = PurePosixPath(txn).name
        self._folder = folder
        self._txn = txn
        self._note = f"{txn}/{name}.json"
        self._name = name
        self._table = table
        self._shown = f"{table}/{_path_of(name)}"
        self._open = False

    def finish(self, size: int, crc: int) -> Receipt:
        with self._guarded():
            rows, told = self._ended()
            receipt = Receipt(self._partition, self._attempt, rows, size, crc, self._name)
            self._tell(self._note, {"receipt": receipt.to_json(), **told})
        self._open = False
        return receipt

    def end(self) -> Finished:
        """End it for a commit that comes at once: no process but this one can commit it.

        Raises:
            RiverError: NO_TXN, STORE_FAILED or BAD_ARROW.
        """
        with self._guarded():
            rows, told = self._ended()
        self._open = False
        receipt = Receipt(self._partition, self._attempt, rows, 0, 0, self._name)
        return _finished(self._name, receipt, told)

    def forget(self, held: Held) -> None:
        """Remove what is noted of a part that ``end`` has ended, and its files that are not held.

        Raises:
            RiverError: STORE_FAILED. OSError: what the system says.
        """
        written = self._written()
        for _, path in written:
            if not held(path):
                self._folder.remove(path)
                self._folder.remove_empty([str(PurePosixPath(path).parent)])
        for note in dict.fromkeys([*(note for note, _ in written), self._note]):
            self._folder.remove(note)

    def _written(self) -> list[tuple[str, str]]:
        """Return the note and the path of each file."""
        raise NotImplementedError

    def _ended(self) -> tuple[int, dict[str, Any]]:
        """End what is written; return its rows, and what is to be known of it."""
        raise NotImplementedError

    def _tell(self, note: str, values: Mapping[str, Any]) -> None:
        self._folder.put(note, json.dumps(values).encode(), beside=f"{self._txn}/{TXN}")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Raise the error for what the system or pyarrow says.

        Raises:
            RiverError: NO_TXN, STORE_FAILED or BAD_ARROW.
        """
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> RiverError:
        there = self._folder.mark(f"{self._txn}/{TXN}") is not None
        if isinstance(error, FileNotFoundError) or not there:
            text = "the transaction was aborted, or has expired, while it was written"
            return refusal(Code.NO_TXN, text)
        if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
            return refusal(Code.STORE_FAILED, f"{self._shown}: {error.strerror or error}")
        return refusal(Code.BAD_ARROW, f"{self._shown} cannot be written: {first_line(error)}")


class _NewPart(StagedPart):
    """Write one part as one file."""

    def __init__(self, folder: Folder, txn: str, name: str, table: str, schema: Any) -> None:
        super().__init__(folder, txn, name, table)
        with self._guarded():
            folder.touch(self._note)
            self._file = NewFile(folder, _path_of(name), schema)
        self._open = True

    def write(self, batch: Any) -> None:
        with self._guarded():
            self._file.write(batch)

    def _ended(self) -> tuple[int, dict[str, Any]]:
        written = self._file.close()
        return written.rows, {"size": written.size, "stats": written.stats}

    def _written(self) -> list[tuple[str, str]]:
        return [(self._note, _path_of(self._name))]

    def discard(self) -> None:
        if self._open:
            self._open = False
            self._file.abandon()
            self._folder.remove(self._note)


class _OpenFile(NamedTuple):
    """A file that is written to, what is known of it, and its partition values."""

    file: NewFile
    path: str
    note: str
    values: Mapping[str, str | None]


class _PartitionedPart(StagedPart):
    """Write one part as a file or more for each combination of partition values.

    At most ``Folder.open_files`` are open at once. When another value comes, the file that was not
    written to for longest is ended, and later rows of its value begin another one: data that are
    sorted make the fewest files. About ``HELD_BYTES`` are in memory, whatever comes.
    """

    def __init__(
        self,
        folder: Folder,
        txn: str,
        name: str,
        table: str,
        schema: Any,
        partition_by: Sequence[str],
    ) -> None:
        super().__init__(folder, txn, name, table)
        self._partition_by = partition_by
        self._schema = pa.schema([each for each in schema if each.name not in partition_by])
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()  # by folder; the oldest first
        self._ready: list[tuple[str, Staged]] = []
        self._rows = self._held = 0
        with self._guarded():
            folder.touch(self._note)
        self._open = True

    def write(self, batch: Any) -> None:
        for piece in split(batch, self._partition_by):
            with self._guarded():
                file = self._file_of(piece).file
                before = file.held
                file.write(piece.batch)
                self._held += file.held - before
                if self._held > HELD_BYTES:
                    self._flush()

    def _flush(self) -> None:
        """Write the fullest files' rows, until half of what may be in memory is left."""
        for each in sorted(
            (each.file for each in self._files.values()), key=attrgetter("held"), reverse=True
        ):
            if self._held <= HELD_BYTES // 2:
                break
            self._held -= each.held
            each.flush()

    def _file_of(self, piece: Piece) -> _OpenFile:
        """Return the file for the rows of a piece.

        Raises:
            RiverError: TOO_LARGE, for too many files; CORRUPT, if a folder is none.
        """
        found = self._files.get(piece.folder)
        if found is not None:
            self._files.move_to_end(piece.folder)
            return found
        if len(self._files) + len(self._ready) >= MAX_FILES:
            by = ", ".join(self._partition_by)
            quoted = ", ".join(f"'{each}'" for each in self._partition_by)
            text = (
                f"one task writes more than {MAX_FILES} files of a table partitioned by {by}: sort "
                "its rows by these columns, or partition by fewer values; in Spark "
                f"df.repartition({quoted}).sortWithinPartitions({quoted})"
            )
            raise refusal(Code.TOO_LARGE, text)
        if len(self._files) >= self._folder.open_files:
            self._end(next(iter(self._files)))
        name = _new_name(self._partition, self._attempt)
        note = f"{self._txn}/{name}.json"
        path = _path_of(name, piece.folder)
        self._tell(note, {"folder": piece.folder})
        file = self._new_file(piece.folder, path)
        self._files[piece.folder] = made = _OpenFile(file, path, note, piece.values)
        return made

    def _new_file(self, folder: str, path: str) -> NewFile:
        for _ in range(FOLDER_ATTEMPTS):
            # A sweep may remove a folder between the two, while it is empty.
            with contextlib.suppress(FileNotFoundError):
                self._folder.make_partition(folder, self._table)
                return NewFile(self._folder, path, self._schema)
        raise OSError(errno.EBUSY, "others remove this folder all the time", folder)

    def _end(self, folder: str) -> None:
        made = self._files[folder]
        self._held -= made.file.held
        written = made.file.close()
        del self._files[folder]
        self._rows += written.rows
        staged = Staged(made.path, written.size, written.stats, made.values)
        self._ready.append((made.note, staged))

    def _ended(self) -> tuple[int, dict[str, Any]]:
        while self._files:
            self._end(next(iter(self._files)))
        return self._rows, {"files": [staged._asdict() for _, staged in self._ready]}

    def _written(self) -> list[tuple[str, str]]:
        return [(note, staged.path) for note, staged in self._ready]

    def discard(self) -> None:
        if not self._open:
            return
        self._open = False
        for made in self._files.values():
            made.file.abandon()
            self._folder.remove(made.note)
        for note, staged in self._ready:
            self._folder.remove(staged.path)
            self._folder.remove(note)
        self._folder.remove(self._note)
        paths = [*(made.path for made in self._files.values())]
        paths += [staged.path for _, staged in self._ready]
        self._folder.remove_empty(str(PurePosixPath(each).parent) for each in paths)
