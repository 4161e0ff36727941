"""Open a Delta table in a folder, follow its log, and commit to it.

delta-rs reads what a log adds up to when a table is opened, checkpoints included, and makes the
checkpoints. Entries are written here, since delta-rs makes none of what it writes safe from a crash
and lists the whole log twice for each: ``Folder.create`` writes an entry whole or not at all, and
for one of all who try, whoever else writes to the table. So a commit costs the same however long
the log is.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote
from weakref import WeakValueDictionary

from ...exceptions import NoThreadError
from ...rpc import RiverError
from ...runtime.backoff import Backoff
from ...runtime.clock import monotonic
from ...runtime.deadline import Deadline
from ...runtime.lazy_imports import delta, pa, pq
from ...runtime.logs import logger
from ...runtime.threads import daemon_thread, start_thread
from ..protocol import Code, refusal
from ..store.schemas import first_line
from .actions import (
    REMOVED_AGE,
    Action,
    DataFile,
    TableState,
    Torn,
    add_action,
    check_readable,
    commit_info,
    entry_text,
    holder,
    names_are_new,
    parse_entry,
    protocol_for,
    remove_action,
    rows_of,
    told_metrics,
)
from .data_files import rows_in
from .file_lock import FIRST_PAUSE, LONGEST_PAUSE
from .folder import Folder, Mark
from .partitions import value_text
from .staging import OWN, Staged, StagedPart, Staging
from .types import delta_schema, has_naive_timestamps

__all__ = ["ENGINE", "Commit", "DeltaDirectory", "Removed"]

_LOG = "_delta_log"
_ENTRY = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint.*\.parquet")

# Entries from one checkpoint to the next, at least; more where a log is long, whose cost to read
# is then shared by more commits.
BETWEEN_CHECKPOINTS = 100
LOG_SHARE = 8

# Seconds for which a table that is far is not looked at again to see that it is still the same one
# and not another of its name; it is, before each commit.
TRUSTED = 1.0

# Seconds that an entry stays where it is which is not whole.
TORN_AGE = 10.0

ENGINE = "wsmux"

_log = logger("wsmux.spark")

# What entries raise that are none.
_UNUSABLE = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
)


class Removed(NamedTuple):
    """The files that an overwrite with a condition removes, and what is left of some of them."""

    files: Sequence[DataFile]
    left: Sequence[tuple[DataFile, Staged]]


class Commit(NamedTuple):
    """What is to be committed, and what to tell of it.

    Attributes:
        version: the newest one when this was planned, -1 without a table. ident: what told that
            table from others of its name, empty without one.
        redefines: whether schema and partition columns take the place of those of the table.
        where, removed: the condition of rows that are overwritten, and what that means for files;
            all of them without.
    """

    version: int
    ident: str
    key: str
    mode: str
    schema: Any
    partition_by: Sequence[str]
    redefines: bool
    app: str | None
    app_version: int | None
    rows: int
    bytes: int
    parts: Sequence[Staged]
    where: str | None = None
    removed: Removed | None = None


class DeltaDirectory:
    """One Delta table in a folder, or what is staged for one that is not there yet.

    Attributes:
        name, shown: what it is called, and in errors. staging: what transactions have written.

    Args:
        folder: where. shown: what to call it in errors; ends with its name. lock_timeout: seconds
            that a change may wait for those of others on this host. ttl: seconds that replaced
            versions are kept for, at least; the log of a new table tells others to do so too.
    """

    def __init__(self, folder: Folder, shown: str, *, lock_timeout: float, ttl: float) -> None:
        self.name = PurePosixPath(shown).name
        self.folder = folder
        self.staging = Staging(folder, shown)
        self.shown = shown
        self._ttl = ttl
        self._lock_timeout = lock_timeout
        self._lock = folder.lock(f"{OWN}/lock", f"{shown}/{OWN}/lock", lock_timeout)
        self._mutex = threading.Lock()
        self._state: TableState | None = None
        self._mark: Mark | None = None  # of the newest entry's file
        self._compared = 0.0  # when that was looked at
        self._old_app: Callable[[str], int | None] = lambda app: None
        self._first = 0  # the oldest entry, at the last look
        self._checkpoint = 0
        self._upkeep = threading.Lock()
        self._clients: WeakValueDictionary[str, object] = WeakValueDictionary()

    # The state

    @contextmanager
    def locked(self) -> Iterator[TableState | None]:
        """Keep other servers of this host from changing it; give the newest state.

        Raises:
            RiverError: BUSY or CORRUPT.
        """
        self.folder.make(OWN)
        self.folder.is_folder(OWN, f"{self.shown}/{OWN}")  # and no link
        with self._lock.held():
            with self.view() as state:
                pass  # only writers that are no servers change it now
            yield state

    @contextmanager
    def view(self) -> Iterator[TableState | None]:
        """Give the newest state, to be looked at only, and briefly; ``None`` without a table.

        Raises:
            RiverError: BUSY or CORRUPT.
        """
        with self._looking():
            yield self._refresh_locked(trusting=self.folder.far)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Keep other threads from the state; a store that is far may take its time to answer."""
        if not self._mutex.acquire(timeout=Deadline(self._lock_timeout).park_seconds()):
            raise self.busy("is looked at by others")
        try:
            yield
        finally:
            self._mutex.release()

    def app_version(self, state: TableState, app: str) -> int | None:
        """Return the version that an app has written, ``None`` if it has none.

        Raises:
            RiverError: CORRUPT.
        """
        found = state.apps.get(app)
        if found is not None:
            return found[0]
        try:
            with self._asking():
                return self._old_app(app)
        except ValueError:  # it reads what may have been removed since the table was opened
            pass
        try:
            with self._asking():
                self._old_app = self._by_delta(state.version).transaction_version
                return self._old_app(app)
        except ValueError as error:
            raise self._unusable(error) from error

    def remember(self, client: str, holder: object) -> None:
        """Forget how many rows an ingest client has only when an object is gone; in a ``view``."""
        self._clients[client] = holder

    def _mark_of(self, version: int) -> Mark | None:
        return self.folder.mark(_entry(version))

    def _refresh_locked(self, *, trusting: bool = False) -> TableState | None:
        """Return the newest state; ``trusting``: of the table that it was a moment ago."""
        state, now = self._state, monotonic()
        if state is None:
            return self._open_locked()
        if not trusting or now - self._compared > TRUSTED:
            if self._mark != self._mark_of(state.version):
                return self._open_locked()  # removed and made again since the last look
            self._compared = now
        while self._follow_locked(state, state.version + 1):
            pass
        return state

    def _follow_locked(self, state: TableState, version: int) -> bool:
        try:
            data, mark = self.folder.read(_entry(version))
            state.apply(version, parse_entry(data), mark.time)
        except Torn as error:
            if self._mark_of(version + 1) is None:
                return False  # a crash has torn it, or another writer is at it
            self._state = None
            raise self._corrupt(version, error) from error
        except (FileNotFoundError, NotADirectoryError):
            return False  # not there yet; or set aside, or removed with its table
        except _UNUSABLE as error:
            self._state = None  # it may be half applied
            raise self._corrupt(version, error) from error
        self._mark = mark
        return True

    def entry(self, version: int) -> tuple[list[Action], float]:
        """Return the actions of a version, and when its file was written (seconds since 1970).

        Raises:
            RiverError: CORRUPT. FileNotFoundError: it was cleaned up.
        """
        try:
            data, mark = self.folder.read(_entry(version))
            return parse_entry(data), mark.time
        except ValueError as error:
            raise self._corrupt(version, error) from error

    def _corrupt(self, version: int, error: Exception) -> RiverError:
        text = f"{self.shown}/{_entry(version)} cannot be used: {first_line(error)}"
        return refusal(Code.CORRUPT, text)

    def _unusable(self, error: Exception) -> RiverError:
        return refusal(Code.CORRUPT, f"{self.shown} cannot be used: {first_line(error)}")

    def _open_locked(self) -> TableState | None:
        self._state = None
        self._old_app = lambda app: None
        if not self.folder.is_folder(_LOG, f"{self.shown}/{_LOG}"):
            if self.folder.is_folder("_log", f"{self.shown}/_log"):
                text = f"{self.shown} was written before datasets were Delta tables: read it with"
                raise refusal(Code.CORRUPT, f"{text} the version that wrote it, and write it again")
            return None
        names = self.folder.names(_LOG)
        numbers = _numbers(names)
        if numbers and self._torn(numbers[-1]) is not None:
            numbers = numbers[:-1]  # nobody was told of it
        if not numbers:
            if any(_of_checkpoint(name) for name in names):
                text = "the entries of its log are gone, and what they add up to is still there"
                raise self._unusable(ValueError(text))
            return None
        try:
            state = self._loaded(numbers)
        except FileNotFoundError:  # another process has just removed the oldest entries
            return self._open_locked()
        except _UNUSABLE as error:
            raise self._unusable(error) from error
        self._mark = self._mark_of(state.version)
        self._state = state
        while self._follow_locked(state, state.version + 1):
            pass
        return state

    def _torn(self, version: int) -> Torn | None:
        """Return why an entry is not whole, ``None`` if it is, or is not there."""
        try:
            parse_entry(self.folder.read(_entry(version))[0])
        except Torn as error:
            return error
        except (FileNotFoundError, ValueError):
            pass  # told with the rest
        return None

    def _set_aside(self, version: int, error: Torn) -> bool:
        """Set aside an entry that a crash of the machine has torn: nobody was told of it.

        With the lock held, before an entry takes its place. Return false if it is so new that
        another program may be writing or copying it.
        """
        mark = self._mark_of(version)
        if mark is None or abs(time.time() - mark.time) < TORN_AGE:
            return False
        _log.warning(
            "%s/%s was torn by a crash (%s); it is now %s, and its transaction is not committed",
            self.shown,
            _entry(version),
            error,
            self.folder.set_aside(_entry(version), f"{OWN}/torn"),
        )
        return True

    def _loaded(self, numbers: Sequence[int]) -> TableState:
        """Return what the entries add up to, and what delta-rs reads where the first are gone.

        Raises:
            ValueError and others that ``TableState.apply`` raises.
        """
        first = numbers[0]
        found = self.folder.read_all([_entry(number) for number in numbers])
        entries: Iterable[tuple[int, list[Action], float]] = (
            (number, parse_entry(data), mark.time)
            for number, (data, mark) in zip(numbers, found, strict=True)
        )
        state = TableState()
        if first:  # else one after the other: a long log takes much memory, and time to collect
            entries = list(entries)
            state = self._base(first, [(number, actions) for number, actions, _ in entries])
        for number, actions, written in entries:
            state.apply(number, actions, written)
        if not state.ident or not state.protocol:
            raise ValueError("its log does not tell its schema and protocol")
        if first and state.schemas[0][0] > first:  # what it was before is not known
            state.oldest = max(state.oldest, state.schemas[0][0])
        check_readable(state.protocol)
        self._count_rows(state)
        self._first, self._checkpoint = first, self._last_checkpoint()
        return state

    def _base(self, first: int, entries: Sequence[tuple[int, list[Action]]]) -> TableState:
        """Return what a checkpoint tells that the entries do not."""
        with self._asking():
            # As of the last entry that is read here: others may have written since.
            table = self._by_delta(entries[-1][0])
            adds = pa.table(table.get_add_actions()).to_pylist()
            metadata, protocol = table.metadata(), table.protocol()
            schema = str(table.schema().to_json())
        self._old_app = table.transaction_version
        state = TableState(version=first - 1, oldest=first, ident=str(metadata.id))
        told = [action for _, actions in entries for action in actions]
        since: set[str] = set()
        for number, actions in entries:
            for add in (action["add"] for action in actions if "add" in action):
                old = add.get("dataChange") is False and not names_are_new(actions)
                if unquote(add["path"]) not in since and old:
                    # It may have been there before, and if so, since when is not known.
                    state.oldest = max(state.oldest, number)
                since.add(unquote(add["path"]))
        files = [_base_file(add) for add in adds]
        state.live = {file.path: file for file in files if file.path not in since}
        state.modified = max((file.modified for file in files), default=0)
        state.protocol = _told_protocol(protocol)
        state.metadata = {
            "id": state.ident,
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": list(metadata.partition_columns),
            "configuration": dict(metadata.configuration),
            "createdTime": metadata.created_time,
        }
        if not any("metaData" in action for action in told):
            state.schemas = [(first, schema)]
        return state

    def _by_delta(self, version: int) -> Any:
        """Return a version that is there as delta-rs has it.

        Not the newest: who lists a log while others add to it may see an entry and not the one
        before it, and delta-rs takes that for damage.
        """
        try:
            return delta.DeltaTable(
                self.folder.address,
                version=version,
                storage_options=None if self.folder.options is None else dict(self.folder.options),
            )
        except Exception:  # of its own
            if not self._set_aside_checkpoint():
                raise
        return self._by_delta(version)

    def _set_aside_checkpoint(self) -> bool:
        """Set aside the newest checkpoint if a crash of the machine has torn it.

        delta-rs makes none safe. The one before it was made so, and with the entries since it tells
        the same. Return false if they are not there, or the newest one is whole.
        """
        names = self.folder.names(_LOG)
        found = sorted(name for name in names if _CHECKPOINT.fullmatch(name))
        newest = [name for name in found if name[:20] == found[-1][:20]]
        older = found[: -len(newest)] if self.folder.locks else []
        entries = _numbers(names)
        if not older or not entries or entries[0] > int(older[-1][:20]) + 1:
            return False
        if all(map(self._is_whole, newest)):
            return False
        for name in ("_last_checkpoint", *newest):
            with suppress(FileNotFoundError):  # another process has done so
                self.folder.set_aside(f"{_LOG}/{name}", f"{OWN}/torn")
        text = "%s/%s was torn by a crash; it is in %s now, and the one before it is read"
        _log.warning(text, f"{self.shown}/{_LOG}", newest[0], f"{OWN}/torn")
        return True

    def _is_whole(self, name: str) -> bool:
        """Return whether a checkpoint can be read, or is so new that another may be writing it.

        Raises:
            OSError: what the system says.
        """
        path = f"{_LOG}/{name}"
        mark = self.folder.mark(path)
        if mark is None or abs(time.time() - mark.time) < TORN_AGE:
            return True
        try:
            with self.folder.reader(path, f"{self.shown}/{path}") as source:
                pq.ParquetFile(source).read()
        except (MemoryError, NotImplementedError):  # neither says what is in the file
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the system, and not of what is in the file
            return False
        return True

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Raise a ``ValueError`` for what delta-rs raises."""
        try:
            yield
        except BaseException as error:  # it raises plain ones, and panics are no Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            text = first_line(error).replace(self.folder.address, self.shown)
            raise ValueError(f"it is no readable Delta table: {text}") from error

    def _count_rows(self, state: TableState) -> None:
        """Look into files without statistics, and whether those that were removed are there yet."""
        lost = []
        for file in state.gone:
            try:
                if file.rows is None:
                    file.rows = rows_in(self.folder, file.path, f"{self.shown}/{file.path}")
                elif self.folder.mark(file.path) is None:
                    lost.append(file)
            except (FileNotFoundError, RiverError):  # the newest version does without it
                lost.append(file)
        state.drop_gone(lost)

    def rows_of(self, file: DataFile) -> int:
        """Return how many rows a file has; one of another writer may have to be looked into.

        Raises:
            RiverError: CORRUPT.
        """
        if file.rows is None:
            shown = f"{self.shown}/{file.path}"
            try:
                file.rows = rows_in(self.folder, file.path, shown)
            except FileNotFoundError as error:
                raise refusal(Code.CORRUPT, f"{shown} is missing") from error
        return file.rows

    # Changing

    def is_open(self, state: TableState, key: str) -> bool:
        """Return whether a transaction may be committed behind a state, with the lock held.

        It may not when a sweep or an abort has ended it, and removed its files. Ask this for each
        attempt: where the lock excludes no other servers, they say in the log that they do so, and
        the entry that was to be behind this state is not added.
        """
        return key not in state.refused and self.staging.is_open(key)

    def attempts(self, deadline: Deadline) -> Iterator[TableState | None]:
        """Give the newest state, again until a commit is made or time is up; with the lock held."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            with self.view() as state:
                pass
            yield state
            if deadline.expired():
                return
            time.sleep(min(backoff.next(), deadline.remaining() or 0.0))

    def busy(self, why: str = "is written to by others all the time") -> RiverError:
        """Return the error for a commit that was not made."""
        return refusal(Code.BUSY, f"{self.shown} {why}: nothing was changed; ask again")

    def commit(self, commit: Commit) -> bool:
        """Add an entry, with the lock held; false if another writer was faster.

        Look at the state again then, since it may forbid what it has allowed.
        """
        return self.add_entry(
            commit.version, commit.ident, lambda state: self._actions(state, commit)
        )

    def add_entry(
        self, planned: int, ident: str, actions: Callable[[TableState | None], list[Action]]
    ) -> bool:
        """Add an entry after a version of a table, with the lock held; false if it is not that.

        Once the entry is there nothing is raised: who planned it would take it for not made.

        Args:
            planned, ident: the newest version that this was planned for, and of which table.
            actions: makes the entry, ``commit_info`` or the like first.

        Raises:
            RiverError: CORRUPT. OSError: what the system says.
        """
        with self._looking():
            state = self._refresh_locked()
            if state is not None and self._last_checkpoint() > state.version:
                # What seemed the end of the log is where another process removes its entries.
                state = self._open_locked()
            version = 0 if state is None else state.version + 1
            if version != planned + 1 or ident != ("" if state is None else state.ident):
                return False
            torn = self._torn(version)
            if torn is not None and not self._set_aside(version, torn):
                return False
            made = actions(state)
            if state is None:
                self.folder.make(_LOG, safe=True)  # the table may be new there
            if not self.folder.create(_entry(version), entry_text(made)):
                return False
            try:
                mark = self._mark_of(version)
                if state is None or mark is None:
                    self._refresh_locked()
                else:  # as if it had been read
                    state.apply(version, made, mark.time)
                    self._mark = mark
            except (RiverError, OSError) as error:
                self._state = None  # the next look opens it
                text = "%s: version %d was added, and cannot be looked at: %s"
                _log.warning(text, self.shown, version, first_line(error))
        return True

    def _actions(self, state: TableState | None, commit: Commit) -> list[Action]:
        now = time.time_ns() // 1_000_000
        # The order of rows is that of these times, so no two commits have the same.
        modified = max(now, 0 if state is None else state.modified + 1)
        own = {"txn": commit.key, "rows": commit.rows, "bytes": commit.bytes}
        mode = "Overwrite" if commit.mode == "overwrite" else "Append"
        operation = "CREATE TABLE AS SELECT" if state is None else "WRITE"
        metrics = {
            "numFiles": len(commit.parts),
            "numOutputRows": commit.rows,
            "numOutputBytes": sum(each.size for each in commit.parts),
        }
        removed = commit.removed or Removed([], [])
        if state is not None and commit.mode == "overwrite" and commit.where is None:
            removed = Removed([*state.live.values()], [])
        actions = [commit_info(operation, mode, now, ENGINE, **own)]
        info = actions[0]["commitInfo"]
        if commit.where is not None:
            info["operationParameters"]["predicate"] = commit.where
            metrics["numRemovedFiles"] = len(removed.files)
            metrics["numCopiedRows"] = sum(rows_of(staged.stats) or 0 for _, staged in removed.left)
        info["operationMetrics"] = told_metrics(metrics)
        if state is None or commit.redefines:
            actions += _declared(state, commit.schema, commit.partition_by, now, self._ttl)
        if commit.app is not None:
            txn = {"appId": commit.app, "version": commit.app_version, "lastUpdated": now}
            actions.append({"txn": txn})
        actions += [remove_action(file, now) for file in removed.files]
        for file, (path, size, stats, partition) in removed.left:
            # Its rows stand where they stood.
            actions.append(add_action(path, size, file.modified, stats, partition))
        for path, size, stats, partition in commit.parts:
            actions.append(add_action(path, size, modified, stats, partition))
        return actions

    def refuse(self, keys: Sequence[str]) -> TableState | None:
        """See that nobody commits some transactions any more; return the state as it is then.

        With the lock held. Where that does not exclude other servers, an entry of the log tells
        them so: their entry comes before it, and is in the state, or not at all. Without a table
        there is no log to tell it in.

        Raises:
            RiverError: BUSY, STORE_FAILED or CORRUPT.
        """
        for state in self.attempts(Deadline(self._lock_timeout)):
            if self.folder.locks or state is None or state.why_read_only("append") is not None:
                return state
            version = state.version
            left = [key for key in keys if key not in state.txns and key not in state.refused]
            now = time.time_ns() // 1_000_000
            made = [commit_info("ABORT", "Append", now, ENGINE, refused=left)]
            if not left or self.add_entry(version, state.ident, partial(_same, made)):
                with self.view() as newest:
                    return newest
        raise self.busy()

    # Cleaning up

    def vacuum(self, now: float) -> None:
        """Remove the files of versions replaced too long ago, with the lock held."""
        with self._mutex:
            state = self._refresh_locked()
            paths: list[str] = []
            # What is not understood here may need files that seem to be no version's.
            if state is not None and state.why_read_only("append") is None:
                paths = state.forget(now - self.kept_age(state), self._clients)
        self.remove(paths)

    def kept_age(self, state: TableState) -> float:
        """Return for how many seconds a file is kept, at least, after it was replaced."""
        return max(self._ttl, state.removed_age)

    def forget(self, before: float) -> None:
        """Let go of what was replaced before a time, whose files are to be removed."""
        with self._mutex:
            state = self._refresh_locked()
            if state is not None:
                state.forget(before, self._clients)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files of the table, as far as they are its own and still there.

        Folders of partitions go with the last file in them.
        """
        folders: set[str] = set()
        for path in paths:
            if str(PurePosixPath(path)) != path or path.startswith(("_delta_log", OWN)):
                continue  # no name that a file of a table has
            try:
                self.folder.size(path, f"{self.shown}/{path}")
            except (RiverError, FileNotFoundError, NotADirectoryError):
                continue  # of a table that shares files with another one, or gone
            self.folder.remove(path)
            folders.add(str(PurePosixPath(path).parent))
        self.folder.remove_empty(folders)

    def clear(self, key: str) -> None:
        """Remove what a transaction has staged and no version holds; the next sweep may do so."""
        if self.folder.in_doubt():
            return  # its entry may be there in a moment, whatever is there now
        try:
            with self.view() as state:
                held = holder(state)
            self.staging.drop(key, held)
        except (RiverError, OSError) as error:
            _log.warning("what %s left in %s is not removed: %s", key, self.shown, error)

    def settle(self, part: StagedPart, *, added: bool) -> None:
        """Forget a part that ``end`` has ended, or remove it; the next sweep may do so.

        Args:
            added: whether a version holds it for certain; else that is looked for.
        """
        if self.folder.in_doubt():
            return  # its entry may be there in a moment, whatever is there now
        try:
            if added:
                part.forget(lambda path: True)
            else:
                with self.view() as state:
                    held = holder(state)
                part.forget(held)
        except (RiverError, OSError) as error:
            _log.warning("what was staged in %s is not removed: %s", self.shown, error)

    def unknown_to_delta(self, version: int, hours: int) -> list[str]:
        """Return the files that delta-rs would vacuum: what no version of these hours names.

        Args:
            version: the newest one known; files that were added since are young.

        Raises:
            RiverError: CORRUPT.
        """
        try:
            with self._asking():
                found = self._by_delta(version).vacuum(
                    hours, dry_run=True, enforce_retention_duration=False, full=True
                )
        except ValueError as error:
            raise self._unusable(error) from error
        return [str(path) for path in found]

    def tidy(self, before: float) -> None:
        """Remove entries whose making was cut short before a time."""
        if self.folder.is_folder(_LOG, f"{self.shown}/{_LOG}"):
            self.folder.tidy(_LOG, before)

    def checkpoint_is_due(self) -> bool:
        """Return whether a checkpoint is worth its cost."""
        state = self._state
        if state is None or state.why_read_only("append") is not None:
            return False
        length = state.version - self._first
        return state.version - self._checkpoint >= max(BETWEEN_CHECKPOINTS, length // LOG_SHARE)

    def keep_up(self) -> None:
        """Begin to make a checkpoint in a thread of its own, if one is due and none is made."""
        if self.checkpoint_is_due() and self._upkeep.acquire(blocking=False):
            try:
                thread = daemon_thread(self._make_checkpoint, name="wsmux-delta-checkpoint")
                # The interpreter waits for it: Rust does not survive being cut off at the exit.
                thread.daemon = False
                start_thread(thread)
            except NoThreadError as error:  # nobody waits for it; it is tried again
                self._upkeep.release()
                _log.warning("%s: a checkpoint was not made: %s", self.shown, error)
            except BaseException:
                self._upkeep.release()
                raise

    def _make_checkpoint(self) -> None:
        try:
            with self._mutex:  # another process may have made one
                newest = self._last_checkpoint()
                self._checkpoint = max(self._checkpoint, newest)
            if self.checkpoint_is_due():
                self.checkpoint()
        except Exception as error:  # the table is whole without; told, and tried again
            _log.warning("%s: a checkpoint was not made: %s", self.shown, first_line(error))
        finally:
            self._upkeep.release()

    def checkpoint(self) -> None:
        """Make a checkpoint, safe from a crash, and remove entries past their age before it.

        Raises:
            ValueError: what delta-rs says. OSError: what the system says.
        """
        with self.view() as state:
            version = -1 if state is None else state.version
        with self._asking():
            table = self._by_delta(version)
            cleans = table.metadata().configuration.get("delta.enableExpiredLogCleanup")
            table.create_checkpoint()
        made = [
            f"{_LOG}/{name}"
            for name in self.folder.names(_LOG)
            if _CHECKPOINT.fullmatch(name) and int(name[:20]) == version
        ]
        # Before the entries go that it stands for.
        self.folder.sync([*made, f"{_LOG}/_last_checkpoint", _LOG])
        if str(cleans).lower() != "false":
            with self._asking():
                table.cleanup_metadata()
        numbers = _numbers(self.folder.names(_LOG))
        with self._mutex:
            self._checkpoint = version
            self._first = numbers[0] if numbers else version

    def _last_checkpoint(self) -> int:
        """Return the version of the newest checkpoint, 0 without one."""
        try:
            data, _ = self.folder.read(f"{_LOG}/_last_checkpoint")
            return int(json.loads(data)["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0


def _same(actions: list[Action], state: TableState | None) -> list[Action]:
    return actions


def _entry(version: int) -> str:
    return f"{_LOG}/{version:020d}.json"


def _numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of all entries, without those below a gap."""
    found = sorted(int(m[1]) for name in names if (m := _ENTRY.fullmatch(name)))
    for place in range(len(found) - 1, 0, -1):
        if found[place - 1] != found[place] - 1:
            return found[place:]
    return found


def _of_checkpoint(name: str) -> bool:
    return name == "_last_checkpoint" or ".checkpoint" in name


def _base_file(add: Mapping[str, Any]) -> DataFile:
    """Return a file that delta-rs tells of."""
    rows = add.get("num_records")
    partition = add.get("partition") or add.get("partition_values") or {}
    told = {name: value_text(value) for name, value in partition.items()}
    stats = _stats_of(add)
    modified = add["modification_time"]
    modified = modified if isinstance(modified, int) else int(modified.timestamp() * 1000)
    known = None if rows is None else int(rows)
    raw, size = add["path"], int(add["size_bytes"])
    return DataFile(unquote(raw), size, modified, known, stats, told, -1, raw=raw)


def _stats_of(add: Mapping[str, Any]) -> str | None:
    """Return the statistics that delta-rs gives in columns, as JSON."""
    if add.get("num_records") is None:
        return None

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, int | float | str | bool):
            return value
        return value.isoformat() if hasattr(value, "isoformat") else None

    named = {"min": "minValues", "max": "maxValues", "null_count": "nullCount"}
    told: dict[str, Any] = {"numRecords": add["num_records"]}
    for name, key in named.items():
        found = add.get(name) or {}
        told[key] = {column: plain(value) for column, value in found.items()}
    return json.dumps(told)


def _told_protocol(protocol: Any) -> dict[str, Any]:
    return {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": protocol.reader_features,
        "writerFeatures": protocol.writer_features,
    }


def _declared(
    state: TableState | None, kept: Any, partition_by: Sequence[str], now: int, ttl: float
) -> Iterator[Action]:
    """Yield the protocol and metadata of a table whose schema is to be this one."""
    schema, held = delta_schema(kept), None if state is None else state.protocol
    protocol = protocol_for(has_naive_timestamps(kept), held)
    if protocol is not None:
        yield protocol
    if state is None:
        seconds = math.ceil(ttl)
        configuration = {
            REMOVED_AGE: f"interval {seconds} seconds",
            # One hour more, for what sweeps have to remove before the log forgets it.
            "delta.logRetentionDuration": f"interval {seconds + 3600} seconds",
        }
        metadata: dict[str, Any] = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "partitionColumns": list(partition_by),
            "configuration": configuration,
            "createdTime": now,
        }
        yield {"metaData": {**metadata, "schemaString": schema}}
    elif state.schema(state.version) != schema or state.partition_columns != list(partition_by):
        told = {"schemaString": schema, "partitionColumns": list(partition_by)}
        yield {"metaData": {**state.metadata, **told}}
