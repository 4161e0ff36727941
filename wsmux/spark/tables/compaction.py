"""Join the small files of a table into larger ones, while others read it and write to it.

delta-rs can do so too, but makes neither the files that it writes nor its entry safe from a crash,
while the entry says that the files they replace may go; and it puts the rows of joined files behind
all others. Here they stay where they were among files that are joined, and among those that are
not, unless a large one stood between them.

Files are read and written without the lock of the table. An entry is added under it, if everything
that it replaces is still there; what was replaced meanwhile is planned anew.
"""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from ...config import MIB
from ...exceptions import NoThreadError
from ...rpc import RiverError
from ...runtime.lazy_imports import pa
from ...runtime.logs import logger
from ...runtime.threads import daemon_thread, start_thread
from ..protocol import Code, refusal
from ..source.ranges import without_large_first
from ..store.base import READ_BYTES, Optimized
from ..store.schemas import first_line
from .actions import (
    Action,
    DataFile,
    TableState,
    add_action,
    commit_info,
    remove_action,
    told_metrics,
)
from .data_files import read_file
from .staging import OWN, Staged, part_number
from .table import ENGINE, DeltaDirectory
from .types import arrow_of

__all__ = ["AUTO_OPTIMIZE", "TARGET_SIZE", "AutoOptimizer", "bins", "check_writable", "optimize"]

# Bytes of a file: few enough to be read again when a reading was cut, many enough that a terabyte
# has few files.
TARGET_SIZE = 128 * MIB

# Small files at which they are joined in the background: a reader takes about a millisecond for
# each. Joining rarely costs less for each file, since fewer bytes are written more than once.
AUTO_OPTIMIZE = 250

# Times that it is planned, while others replace what was planned.
ATTEMPTS = 5

# Batches that are put together before they are written, since each takes memory of its own.
GATHERED = 256

_log = logger("wsmux.spark")


class Stopped(Exception):
    """Optimizing was asked to stop; nothing was changed."""


class Joined(NamedTuple):
    """A file that was written, and what it is to replace."""

    sources: Sequence[DataFile]
    staged: Staged


class _Plan(NamedTuple):
    version: int
    ident: str
    schema: Any
    partitioned: Sequence[str]
    bins: list[list[DataFile]]


def is_small(file: DataFile, target: int) -> bool:
    """Return whether a file should be joined: any two such files fit into one."""
    return 2 * file.size <= target


def bins(files: Iterable[DataFile], target: int, *, thrifty: bool = False) -> list[list[DataFile]]:
    """Return which files to join, each list in the order of rows and of one partition.

    Args:
        files: in the order of rows. target: bytes that each list has at most.
        thrifty: leave out a first file that is larger than all behind it together.
    """
    full: list[list[DataFile]] = []
    filling: dict[tuple[tuple[str, str | None], ...], tuple[list[DataFile], int]] = {}
    for file in files:
        if not is_small(file, target):
            continue
        partition = tuple(sorted(file.partition.items()))
        held, size = filling.get(partition, ([], 0))
        if size + file.size > target:
            full.append(held)
            held, size = [], 0
        held.append(file)
        filling[partition] = held, size + file.size
    full += [held for held, _ in filling.values()]
    if thrifty:
        full = [without_large_first(held, attrgetter("size")) for held in full]
    return [held for held in full if len(held) > 1]


def check_writable(table: DeltaDirectory, state: TableState | None) -> TableState:
    """Return the state of a table that may be changed here.

    Raises:
        RiverError: NO_DATASET, or WRONG_SCHEMA.
    """
    if state is None:
        raise refusal(Code.NO_DATASET, f"there is no dataset {table.name}")
    why = state.why_read_only("append")
    if why is not None:
        raise refusal(Code.WRONG_SCHEMA, f"dataset {table.name} can only be read here: {why}")
    return state


def optimize(
    table: DeltaDirectory,
    target: int = TARGET_SIZE,
    *,
    timeout: float,
    thrifty: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Optimized:
    """Join the small files of a table, in one transaction that changes no rows.

    It takes the memory of a few row groups. Blocks until all is written.

    Args:
        target: bytes that a file should have; those of at most half as many are joined.
        timeout: seconds to wait for another one at work on this table.
        thrifty: see ``bins``. stop: asked often whether to give up.

    Raises:
        RiverError: NO_DATASET, WRONG_SCHEMA, BUSY, CORRUPT, STORE_FAILED; nothing was changed.
        OSError: what the system says. Stopped: as asked.
    """
    with table.view() as state:
        check_writable(table, state)
    with table.locked():
        pass  # its folder is there
    lock = table.folder.lock(f"{OWN}/optimize", f"{table.shown}/{OWN}/optimize", timeout)
    with lock.held():
        return _Optimizer(table, target, thrifty, stop).run()


class _Optimizer:
    """Plan, write and commit; what was written is kept until it is committed or in vain."""

    def __init__(
        self, table: DeltaDirectory, target: int, thrifty: bool, stop: Callable[[], bool]
    ) -> None:
        self._table = table
        self._target = target
        self._thrifty = thrifty
        self._stop = stop
        self._key = uuid.uuid4().hex
        self._begun = False
        self._written = 0
        self._joined: list[Joined] = []

    def run(self) -> Optimized:
        try:
            for _ in range(ATTEMPTS):
                plan = self._plan()
                if not plan.bins and not self._joined:
                    return Optimized(plan.version, 0, 0, 0, 0)
                if self._write(plan) and (done := self._commit(plan.ident)) is not None:
                    return done
        finally:
            if self._begun:
                self._table.clear(self._key)
        text = f"others have replaced files of {self._table.shown} that were to be joined"
        raise refusal(Code.BUSY, f"{text}, {ATTEMPTS} times: nothing was changed; ask again")

    def _plan(self) -> _Plan:
        """Plan what is left to be joined, and let go of what was joined in vain."""
        with self._table.view() as found:
            state = check_writable(self._table, found)
            self._joined = [each for each in self._joined if _is_there(state, each.sources)]
            done = {file.path for each in self._joined for file in each.sources}
            files = [f for f in state.snapshot(state.version) if f.path not in done]
            schema = arrow_of(state.schema(state.version))
            plan = _Plan(state.version, state.ident, schema, state.partition_columns, [])
        plan.bins.extend(bins(files, self._target, thrifty=self._thrifty))
        return plan

    def _write(self, plan: _Plan) -> bool:
        """Write what was planned; false if some of it was replaced, and removed, meanwhile."""
        for files in plan.bins:
            if not self._begun:
                self._table.staging.begin(self._key, {"operation": "OPTIMIZE"})
                self._begun = True
            try:
                self._joined.append(self._join(files, plan))
            except FileNotFoundError as error:
                with self._table.view() as state:
                    lost = state is not None and _is_there(state, files)
                if lost and state is not None and state.ident == plan.ident:
                    raise refusal(Code.CORRUPT, f"{error} is missing") from error
                return False
        return True

    def _join(self, files: Sequence[DataFile], plan: _Plan) -> Joined:
        number = part_number(files[-1].path)  # behind parts before it of the same commit
        self._written += 1
        part = self._table.staging.new_part(
            self._key, number, self._written, plan.schema, plan.partitioned
        )
        try:
            for batch in self._batches(files, plan.schema):
                part.write(batch)
            receipt = part.finish(0, 0)
        finally:
            part.discard()  # nothing once it was finished
        finished = self._table.staging.part(self._key, receipt.file)
        if finished is None:
            raise self._swept()
        (staged,) = finished.files  # all rows are of one partition
        return Joined(files, staged)

    def _swept(self) -> RiverError:
        return self._table.busy("has lost what was joined to a sweep of another process")

    def _batches(self, files: Sequence[DataFile], schema: Any) -> Iterator[Any]:
        """Yield the rows of files, small batches put together."""
        gathered: list[Any] = []
        size = 0
        for file in files:
            rows, shown = self._table.rows_of(file), f"{self._table.shown}/{file.path}"
            span = range(rows)
            for batch in read_file(self._table.folder, file, schema, schema.names, span, shown):
                if self._stop():
                    raise Stopped
                gathered.append(batch)
                size += batch.nbytes
                if len(gathered) >= GATHERED or size >= READ_BYTES:
                    yield from _together(gathered, schema)
                    gathered, size = [], 0
        if gathered:
            yield from _together(gathered, schema)

    def _commit(self, ident: str) -> Optimized | None:
        """Replace files, all at once; ``None`` if some are not there any more.

        Another program may add an entry at any moment, so that it is tried again, but not forever.

        Raises:
            RiverError: BUSY, if what was written is gone, too.
        """
        with self._table.locked():
            for _ in range(ATTEMPTS):
                with self._table.view() as found:
                    state = check_writable(self._table, found)
                    sources = [file for each in self._joined for file in each.sources]
                    if state.ident != ident or not _is_there(state, sources):
                        return None
                    version = state.version
                if not self._table.is_open(state, self._key):
                    raise self._swept()
                if self._table.add_entry(version, ident, lambda _: self._actions()):
                    return Optimized(
                        version + 1,
                        len(sources),
                        len(self._joined),
                        sum(file.size for file in sources),
                        sum(each.staged.size for each in self._joined),
                    )
        return None

    def _actions(self) -> list[Action]:
        now = time.time_ns() // 1_000_000
        sources = [file for each in self._joined for file in each.sources]
        metrics = {
            "numRemovedFiles": len(sources),
            "numRemovedBytes": sum(file.size for file in sources),
            "numAddedFiles": len(self._joined),
            "numAddedBytes": sum(each.staged.size for each in self._joined),
        }
        # By its key a sweep knows that it was committed. All its names are new ones.
        own = {"txn": self._key, "rows": 0, "bytes": 0, "new_names": True}
        actions = [commit_info("OPTIMIZE", "", now, ENGINE, **own)]
        actions[0]["commitInfo"]["operationParameters"] = {"targetSize": str(self._target)}
        actions[0]["commitInfo"]["operationMetrics"] = told_metrics(metrics)
        for file in sources:
            gone = remove_action(file, now)
            gone["remove"]["dataChange"] = False
            actions.append(gone)
        for files, staged in self._joined:
            # Its rows stand where those of the last file stood.
            modified = files[-1].modified
            added = add_action(staged.path, staged.size, modified, staged.stats, staged.partition)
            added["add"]["dataChange"] = False
            actions.append(added)
        return actions


def _together(batches: Sequence[Any], schema: Any) -> Iterator[Any]:
    """Yield the rows of batches in as few as can be, copied."""
    yield from pa.Table.from_batches(batches, schema).combine_chunks().to_batches()


def _is_there(state: TableState, files: Iterable[DataFile]) -> bool:
    """Return whether files are still what they were in the newest version."""
    found = ((file, state.live.get(file.path)) for file in files)
    return all(now is not None and now.added == file.added for file, now in found)


class AutoOptimizer:
    """Join the small files of tables in the background, one table at a time.

    What is looked at for each commit is a number, not the files.

    Args:
        threshold: how many small files make it worth while, beside those that the last time left.
    """

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._mutex = threading.Lock()
        # Files added since the last look, unknown at first.
        self._added: weakref.WeakKeyDictionary[DeltaDirectory, int] = weakref.WeakKeyDictionary()
        self._left: weakref.WeakKeyDictionary[DeltaDirectory, int] = weakref.WeakKeyDictionary()
        self._running = False

    def note(self, table: DeltaDirectory, added: int | None = None) -> None:
        """Note that files were added; begin to join them in a thread, if there are so many.

        It never waits for that, and raises nothing: the files are there, whatever becomes of this.
        Without a number it looks whatever was noted: other programs may have added some.
        """
        with self._mutex:
            before = self._added.get(table, self._threshold)
            self._added[table] = self._threshold if added is None else before + added
            if self._running or self._added[table] < self._threshold:
                return
        small = _count_small(table)  # which may take its time, and others need not wait for it
        if small is None:
            return  # the next one looks
        with self._mutex:
            self._left[table] = min(small, self._left.get(table, 0))
            self._added[table] = small - self._left[table]
            if self._running or self._added[table] < self._threshold:
                return
            self._running = True
        try:
            thread = daemon_thread(self._run, name="wsmux-delta-optimize", args=(table,))
            # The interpreter waits for it, and it ends with the main thread: Arrow and Rust do
            # not survive being cut off at the exit.
            thread.daemon = False
            start_thread(thread)
        except NoThreadError as error:  # nobody waits for it; it is tried again
            self._running = False
            _log.warning("%s was not optimized: %s", table.shown, error)
        except BaseException:
            self._running = False
            raise

    def _run(self, table: DeltaDirectory) -> None:
        try:
            done = optimize(table, timeout=0, thrifty=True, stop=_is_exiting)
            text = "%s: %d small files were joined into %d"
            _log.debug(text, table.shown, done.files_removed, done.files_added)
            table.keep_up()
        except Stopped:
            pass  # the next process does it
        except Exception as error:  # the table is whole without; told, and tried again
            _log.warning("%s was not optimized: %s", table.shown, first_line(error))
        finally:
            self._end(table)

    def _end(self, table: DeltaDirectory) -> None:
        left = _count_small(table) or 0
        with self._mutex:
            self._left[table], self._added[table] = left, 0
            self._running = False


def _count_small(table: DeltaDirectory) -> int | None:
    """Return how many small files there are, none in a table that can only be read here.

    ``None`` if it cannot be looked at, which is logged.
    """
    try:
        with table.view() as state:
            if state is None or state.why_read_only("append") is not None:
                return 0
            return sum(is_small(file, TARGET_SIZE) for file in state.live.values())
    except (RiverError, OSError) as error:
        _log.warning("%s cannot be looked at: %s", table.shown, first_line(error))
        return None


def _is_exiting() -> bool:
    """Return whether the interpreter only waits for the threads that are no daemons."""
    return not threading.main_thread().is_alive()
