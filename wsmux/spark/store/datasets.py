"""Keep each dataset as a Delta table: what begin, commit, abort and read mean for one.

::

    DIRECTORY/datasets/NAME/    a Delta table, which anything that knows Delta may read; see
                                ``tables.staging`` for what is not of Delta in it

A transaction is remembered by the entry of the log that it made, and an app by what Delta calls an
application transaction.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import time
import uuid
from builtins import list as List
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ...rpc import RiverError
from ...runtime.arguments import check_seconds
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ..protocol import Code, RangeToken, Receipt, TxnId, check_name, is_name, refusal
from ..source.ranges import cut, overlaps
from ..tables.actions import DataFile, TableState, holder
from ..tables.compaction import (
    AUTO_OPTIMIZE,
    TARGET_SIZE,
    AutoOptimizer,
    check_writable,
    optimize,
)
from ..tables.conditions import parse_condition
from ..tables.data_files import groups_of, read_file
from ..tables.folder import Folder, LocalFolder
from ..tables.group_commit import append_group, ingested
from ..tables.history import HISTORY, MAX_HISTORY, history
from ..tables.object_folder import MIN_TTL, open_objects
from ..tables.partitions import check_partitions, matching
from ..tables.replacing import Replacer, check_rows
from ..tables.staging import Staged
from ..tables.statistics import may_match
from ..tables.stored_files import pass_file
from ..tables.table import Commit, DeltaDirectory
from ..tables.types import aligned, arrow_of, delta_schema, fitted, kept_schema, merged
from ..tables.vacuum import vacuum
from .base import (
    DAY,
    LOCK_TIMEOUT,
    Begun,
    Committed,
    DatasetInfo,
    DatasetStore,
    Description,
    IngestTarget,
    Optimized,
    Part,
    Range,
    Span,
    Table,
    Vacuumed,
    VersionInfo,
    no_txn,
)
from .directory import is_address, open_directory, temporary_directory
from .filters import Filter, Matcher, matcher
from .schemas import bound_columns, schema_from_text, schema_text, stored_schema, takes

__all__ = ["MODES", "DeltaDatasets"]

# Characters of the name of an app: each is kept for good.
MAX_APP = 1000

MODES = ("append", "overwrite", "create")

# Times that files are rewritten, while others replace them or add such ones.
ATTEMPTS = 5

_log = logger("wsmux.spark")


class DeltaDatasets(DatasetStore):
    """Keep each dataset as a Delta table in a directory, or in S3.

    Any number of processes of a host may share the directory, and of any hosts what is in S3, and
    be killed at any time. Programs that know Delta may read the tables meanwhile, and write to
    them: their commits and those made here exclude each other as Delta says.

    Args:
        directory: where; it may hold topics too. A temporary one by default, which goes with the
            store. Or ``s3://BUCKET/PREFIX``, of a store that does conditional puts.
        storage_options: for S3, as delta-rs has them; environment variables such as
            ``AWS_ACCESS_KEY_ID`` count too.
        ttl: seconds that a transaction may stay without a write, that what it made is remembered
            by its name, and that a version can be read after it was overwritten.
        sync: false does without making sure that what was committed survives a crash of the
            machine, as a temporary directory does.
        lock_timeout: seconds that a change waits for those of others before it fails with BUSY.
        auto_optimize: small files of a dataset, of at most 64 MiB, that are joined in the
            background once there are so many; ``None`` never does so.

    Raises:
        ValueError: an argument is invalid. OSError: the directory cannot be used. RiverError:
            CORRUPT, if something else is there; STORE_FAILED, if S3 cannot be used.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
        ttl: float = DAY,
        sync: bool = True,
        lock_timeout: float = LOCK_TIMEOUT,
        auto_optimize: int | None = AUTO_OPTIMIZE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not 0 < ttl < math.inf:
            raise ValueError(f"ttl must be above 0 and finite, not {ttl!r}")
        check_seconds(lock_timeout=lock_timeout)
        if auto_optimize is not None and auto_optimize < 2:
            text = "auto_optimize must be 2 files or more, or None for never"
            raise ValueError(f"{text}, not {auto_optimize!r}")
        if directory is None:
            directory = temporary_directory(self, "datasets")
            sync = False
        if is_address(directory):
            if not ttl >= max(MIN_TTL, 2 * lock_timeout):
                least = max(MIN_TTL, 2 * lock_timeout)
                text = f"ttl must be at least {least:g} s in S3, not {ttl!r}: what servers that"
                raise ValueError(f"{text} cannot be heard any more have staged is found by its age")
            self._folder: Folder = open_objects(os.fspath(directory), storage_options)
        else:
            if storage_options:
                raise ValueError(f"storage_options are for s3://BUCKET/PREFIX, not {directory!r}")
            self._folder = LocalFolder(open_directory(directory) / "datasets", sync=sync)
        self._ttl = ttl
        self._lock_timeout = lock_timeout
        self._optimizer = None if auto_optimize is None else AutoOptimizer(auto_optimize)
        self._clock = clock
        self._mutex = threading.Lock()
        self._known: dict[str, tuple[object, DeltaDirectory]] = {}

    # Tables

    def _find(self, name: str, *, make: bool = False) -> DeltaDirectory | None:
        with self._mutex:
            known = self._known.get(name)
        folder = self._folder.below(name) if known is None else known[1].folder
        shown = f"datasets/{name}"
        identity = folder.identity(shown)
        if identity is None and make:
            folder.make()
            identity = folder.identity(shown)
        if identity is None:
            return None
        with self._mutex:
            known = self._known.get(name)
            if known is None or known[0] != identity:  # another one under the same name
                table = DeltaDirectory(
                    folder, shown, lock_timeout=self._lock_timeout, ttl=self._ttl
                )
                known = self._known[name] = (identity, table)
            return known[1]

    def _made(self, name: str) -> DeltaDirectory:
        """Return the table of a name; make its directory if there is none."""
        found = self._find(name, make=True)
        if found is None:
            raise refusal(Code.STORE_FAILED, f"datasets/{name} cannot be made")
        return found

    def _table(self, name: str) -> DeltaDirectory:
        found = self._find(check_name(name, "dataset"))
        if found is None:
            raise _no_dataset(name)
        return found

    def _names(self) -> List[str]:
        return sorted(name for name in self._folder.names() if is_name(name))

    # Telling

    def describe(
        self,
        dataset: str,
        partitions: int | None = None,
        columns: Sequence[str] | None = None,
        filters: Sequence[Filter] = (),
        *,
        version: int | None = None,
        timestamp: float | None = None,
    ) -> Description:
        table = self._table(dataset)
        with table.view() as state:
            if state is None:
                raise _no_dataset(dataset)
            if version is None:
                version = _version_at(state, dataset, timestamp)
            if version > state.version:
                text = f"dataset {dataset} has no version {version}; the newest is {state.version}"
                raise refusal(Code.BAD_REQUEST, text)
            _check_kept(state, dataset, version)
            ident, files, schema = _short(state), state.snapshot(version), _schema(state, version)
        matcher(filters, schema)
        rows, size = sum(map(table.rows_of, files)), sum(file.size for file in files)
        groups = (group for file in files for group in groups_of(file))
        ranges = [
            Range(str(RangeToken(dataset, ident, version, start, end)), end - start, length)
            for start, end, length in cut(groups, partitions)
        ]
        return Description(bound_columns(columns, schema), version, ranges, rows, size)

    def list(self) -> List[DatasetInfo]:
        return [info for name in self._names() if (info := self._info(name)) is not None]

    def _info(self, name: str) -> DatasetInfo | None:
        try:
            table = self._find(name)
            if table is None:
                return None
            with table.view() as state:
                if state is None:
                    return None
                files, version = [*state.live.values()], state.version
            rows = sum(map(table.rows_of, files))
        except RiverError as error:
            return DatasetInfo(name, 0, 0, 0, error.message)
        return DatasetInfo(name, version, rows, sum(file.size for file in files))

    # Writing

    def begin(
        self,
        dataset: str,
        mode: str,
        schema: Any,
        app: str | None = None,
        app_version: int | None = None,
        *,
        merge_schema: bool = False,
        overwrite_schema: bool = False,
        partition_by: Sequence[str] | None = None,
        replace_where: str | None = None,
    ) -> Begun:
        check_name(dataset, "dataset")
        if mode not in MODES:
            raise refusal(Code.BAD_REQUEST, f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        if (app is None) != (app_version is None):
            raise refusal(Code.BAD_REQUEST, "app and app_version go together")
        if app is not None and not 0 < len(app) <= MAX_APP:
            raise refusal(Code.BAD_REQUEST, f"an app name must have 1 to {MAX_APP} characters")
        if app is not None and not _is_text(app):
            raise refusal(Code.BAD_REQUEST, "an app name must be text that UTF-8 can tell")
        if app_version is not None and not -(2**63) <= app_version < 2**63:
            raise refusal(Code.BAD_REQUEST, "app_version must fit into 64 bits")
        if overwrite_schema and (mode != "overwrite" or merge_schema):
            text = "overwriteSchema belongs to the mode overwrite, without mergeSchema"
            raise refusal(Code.BAD_REQUEST, f"{text}; the mode is {mode}")
        if replace_where is not None and (mode != "overwrite" or overwrite_schema):
            text = "replaceWhere belongs to the mode overwrite, without overwriteSchema"
            raise refusal(Code.BAD_REQUEST, f"{text}; the mode is {mode}")
        given = _kept(schema)
        wanted = None if partition_by is None else list(partition_by)
        asked = _Asked(mode, given, wanted, merge_schema, overwrite_schema)
        layout = _Layout(given, wanted or [])
        table = self._made(dataset)
        with table.view() as state:
            if state is not None:
                if app is not None and app_version is not None:
                    written = _written(table, state, app, app_version)
                    if written is not None:
                        return Begun(str(TxnId("d", dataset, written)), True)
                layout = _allowed(asked, dataset, state)
        check_partitions(layout.partition_by, layout.schema)
        if replace_where is not None:
            matcher(parse_condition(replace_where, layout.schema), layout.schema)
        info = {
            "mode": mode,
            "schema": schema_text(layout.schema),
            "app": app,
            "app_version": app_version,
            "partition_by": layout.partition_by,
            "overwrite_schema": overwrite_schema,
        }
        if merge_schema:
            info["given"] = schema_text(given)
        if replace_where is not None:
            info["replace_where"] = replace_where
        txn = TxnId("d", dataset, uuid.uuid4().hex)
        table.staging.begin(txn.key, info)
        return Begun(str(txn), False)

    def _txn(self, text: str) -> tuple[TxnId, DeltaDirectory | None]:
        txn = TxnId.parse(text, "d")
        return txn, self._find(txn.name)

    def check_open(self, txn: str) -> None:
        self._open_txn(txn)

    def _open_txn(self, txn: str) -> tuple[TxnId, DeltaDirectory, dict[str, Any]]:
        ident, table = self._txn(txn)
        if table is None:
            raise no_txn(txn)
        with table.view() as state:
            done = _done(state, ident.key)
        info = table.staging.info(ident.key)
        if info is None or done is not None:
            raise no_txn(txn, done)
        return ident, table, info

    def open_part(self, txn: str, partition: int, attempt: int, schema: Any) -> Part:
        ident, table, info = self._open_txn(txn)
        kept = schema_from_text(info["schema"])
        given = schema_from_text(info["given"]) if "given" in info else kept
        takes(given, _kept(schema), "the transaction")
        columns = info.get("partition_by") or []
        part = table.staging.new_part(ident.key, partition, attempt, kept, columns)
        return _FitPart(part, given, kept, info.get("replace_where"))

    def commit(self, txn: str, receipts: Sequence[Receipt]) -> Committed:
        ident, table = self._txn(txn)
        if table is None:
            raise no_txn(txn)
        replacer = Replacer(table, ident.key)
        for _ in range(ATTEMPTS):
            done = self._committed(txn, ident, table, receipts, replacer)
            if done is not None:
                self._keep_up(table, len(receipts))
                return done
            replacer.rewrite()
        text = f"others add files to datasets/{table.name} of which some rows are to be replaced"
        raise refusal(Code.BUSY, f"{text}, {ATTEMPTS} times: nothing was changed; ask again")

    def _committed(
        self,
        txn: str,
        ident: TxnId,
        table: DeltaDirectory,
        receipts: Sequence[Receipt],
        replacer: Replacer,
    ) -> Committed | None:
        """Return what was committed, ``None`` if files have to be rewritten first."""
        deadline = Deadline(self._lock_timeout)
        with table.locked():
            for state in table.attempts(deadline):
                # Looked at first: other threads bring the state up to date meanwhile.
                version = -1 if state is None else state.version
                done = _done(state, ident.key)
                info = {} if done else table.staging.info(ident.key)
                if info is None or (state is not None and ident.key in state.refused):
                    raise no_txn(txn)
                done = done or self._superseded(table, state, info)
                if done is not None:
                    table.clear(ident.key)
                    return done
                planned = self._planned(table, state, version, ident, info, receipts)
                where = info.get("replace_where")
                if state is not None and where is not None:
                    with table.view() as newest:
                        live = {} if newest is None else dict(newest.live)
                    filters = parse_condition(where, planned.schema)
                    removed = replacer.plan(live, planned.schema, planned.partition_by, filters)
                    if removed is None:
                        return None
                    planned = planned._replace(where=where, removed=removed)
                if table.commit(planned):
                    table.clear(ident.key)
                    return Committed(version + 1, planned.rows, planned.bytes)
        raise table.busy()

    # Ingest

    def ingest_target(self, dataset: str, client: str) -> IngestTarget:
        table = self._table(dataset)
        with table.view() as found:
            state = check_writable(table, found)
            schema = _schema(state, state.version)
            known = ingested(table, state, client)
            target = IngestTarget(schema, state.partition_columns, *known)
            table.remember(client, target)
            return target

    def ingest(
        self, dataset: str, schema: Any, batches: Sequence[Any], spans: Mapping[str, Span]
    ) -> List[str]:
        table = self._table(dataset)
        stale = append_group(table, schema, batches, spans, timeout=self._lock_timeout)
        if not stale:
            self._keep_up(table, 1)
        return stale

    def _keep_up(self, table: DeltaDirectory, added: int | None) -> None:
        """Do in the background what has become due; ``added``: files, if it is known."""
        table.keep_up()
        if self._optimizer is not None:
            self._optimizer.note(table, added)

    def _superseded(
        self, table: DeltaDirectory, state: TableState | None, info: dict[str, Any]
    ) -> Committed | None:
        """Return what another transaction made that has written the same for an app."""
        if state is None or info["app"] is None:
            return None
        key = _written(table, state, info["app"], info["app_version"])
        if key is None:
            return None
        return _done(state, key) or Committed(state.version, 0, 0)

    def _planned(
        self,
        table: DeltaDirectory,
        state: TableState | None,
        version: int,
        ident: TxnId,
        info: dict[str, Any],
        receipts: Sequence[Receipt],
    ) -> Commit:
        mode, columns = info["mode"], info.get("partition_by") or []
        layout = _Layout(schema_from_text(info["schema"]), columns)
        merges, overwrites = "given" in info, bool(info.get("overwrite_schema"))
        if state is not None:
            asked = _Asked(mode, layout.schema, columns, merges, overwrites)
            layout = _allowed(asked, ident.name, state)
        parts: list[Staged] = []
        rows = size = 0
        for receipt in receipts:
            finished = table.staging.part(ident.key, receipt.file)
            receipt.check(None if finished is None else finished.receipt)
            if finished is not None and receipt.rows:
                for staged in finished.files:
                    _check_staged(table, staged)
                parts += finished.files
                rows, size = rows + receipt.rows, size + receipt.bytes
        return Commit(
            version,
            "" if state is None else state.ident,
            ident.key,
            mode,
            layout.schema,
            layout.partition_by,
            merges or overwrites,
            info["app"],
            info["app_version"],
            rows,
            size,
            parts,
        )

    def abort(self, txn: str) -> bool:
        ident, table = self._txn(txn)
        if table is None:
            return False
        with table.locked() as state:
            if _done(state, ident.key) is not None:
                return True
            if not table.folder.locks and table.staging.info(ident.key) is None:
                return False
            state = table.refuse([ident.key])
            if _done(state, ident.key) is not None:
                return True
            if state is None and not table.folder.locks:
                # Another server may be making the table of it: its files go when they are old.
                table.staging.end(ident.key)
            else:
                table.staging.drop(ident.key, holder(state))
        return False

    # Reading

    def read(
        self,
        token: str,
        skip_rows: int = 0,
        columns: Sequence[str] | None = None,
        filters: Sequence[Filter] = (),
    ) -> Table:
        wanted = RangeToken.parse(token)
        table = self._table(wanted.name)
        with table.view() as state:
            kept = _checked(state, wanted)
            files, schema = kept.snapshot(wanted.version), _schema(kept, wanted.version)
        if wanted.end > sum(map(table.rows_of, files)):
            raise refusal(Code.BAD_TOKEN, f"version {wanted.version} has no rows {token}")
        told, matches = bound_columns(columns, schema), matcher(filters, schema)
        found = list(overlaps([file.rows or 0 for file in files], wanted.start, wanted.end))
        spans = [(files[at], range(start, end)) for at, start, end in found]
        if filters:
            keep = may_match(filters, schema, [file.stats for file, _ in spans])
            sure = matching(filters, schema, [file for file, _ in spans])
            verdicts = zip(spans, keep, sure, strict=True)
            spans = [span for span, may, match in verdicts if may and match is not False]
        scan = functools.partial(_scan, table, spans, schema, told.names, matches, skip_rows)
        batches = self._watched(scan(read_file), table, wanted)
        # Rows that do not match are left out here.
        stored = None if filters else self._watched(scan(pass_file), table, wanted)
        return Table(told, batches, stored)

    def _watched(
        self, batches: Iterator[Any], table: DeltaDirectory, wanted: RangeToken
    ) -> Iterator[Any]:
        """Pass batches on; say so if their version went away meanwhile."""
        try:
            yield from batches
        except FileNotFoundError as error:
            with table.view() as state:
                kept = _checked(state, wanted)
                lost = [f for f in kept.gone if table.folder.mark(f.path) is None]
                kept.drop_gone(lost)  # removed by another process
                _checked(state, wanted)
            raise refusal(Code.CORRUPT, f"{error} is missing") from error

    # Cleaning up

    def expire(self, now: float) -> None:
        for name in self._names():
            try:
                table = self._find(name)
                if table is not None:
                    self._sweep(table, now)
            except Exception as error:  # others are swept, whatever is wrong with this one
                _log.warning("dataset %s cannot be swept: %s", name, error)

    def _sweep(self, table: DeltaDirectory, now: float) -> None:
        before = now - self._ttl
        with table.locked() as state:
            known = table.staging.transactions()
            over = {key for key in known if _done(state, key) is not None}
            stale = [k for k in known if k not in over and table.staging.last_used(k) < before]
            if stale:
                state = table.refuse(stale)
            held = holder(state)
            for key in [*over, *stale]:
                table.staging.drop(key, held)
            table.staging.tidy(held)
            table.vacuum(now)
            table.tidy(before)
        self._keep_up(table, None)

    # The care of tables

    def optimize(self, dataset: str, target_size: int | None = None) -> Optimized:
        table, target = self._table(dataset), TARGET_SIZE if target_size is None else target_size
        if not 0 < target < 2**63:
            text = f"target_size must be above 0 bytes and fit into 64 bits, not {target!r}"
            raise refusal(Code.BAD_REQUEST, text)
        done = optimize(table, target, timeout=self._lock_timeout)
        table.keep_up()
        return done

    def vacuum(
        self, dataset: str, retention: float | None = None, *, dry_run: bool = False
    ) -> Vacuumed:
        table, now = self._table(dataset), self._clock()
        if not dry_run:
            self._sweep(table, now)  # what was staged, and nobody will commit
        return vacuum(table, now, retention, dry_run=dry_run)

    def history(self, dataset: str, limit: int | None = None) -> List[VersionInfo]:
        wanted = HISTORY if limit is None else limit
        if not 0 < wanted <= MAX_HISTORY:
            text = f"limit must be 1 to {MAX_HISTORY} versions, not {wanted!r}"
            raise refusal(Code.BAD_REQUEST, text)
        return history(self._table(dataset), wanted)


class _FitPart(Part):
    """Bring batches into the form that is kept before they are staged."""

    def __init__(self, part: Part, given: Any, kept: Any, where: str | None) -> None:
        self._part = part
        self._given = given
        self._kept = kept
        self._where = where
        if where is not None:
            self._filters = parse_condition(where, kept)
            self._matches = matcher(self._filters, kept)

    def write(self, batch: Any) -> None:
        if not batch.num_rows:
            return
        batch = fitted(batch, self._given)
        for piece in aligned(batch, self._kept):
            if self._where is not None:
                check_rows(piece, self._filters, self._matches, self._where)
            self._part.write(piece)

    def finish(self, size: int, crc: int) -> Receipt:
        return self._part.finish(size, crc)

    def discard(self) -> None:
        self._part.discard()


def _scan(
    table: DeltaDirectory,
    spans: Sequence[tuple[DataFile, range]],
    schema: Any,
    columns: Sequence[str],
    matches: Matcher,
    skip: int,
    read: Callable[..., Iterator[Any]],
) -> Iterator[Any]:
    """Yield the rows of spans that match, less the first ``skip``, some columns of them.

    Of rows that do not match there is an empty batch, so that who reads hears of a long scan.

    Args:
        read: ``read_file``, or ``pass_file`` if all rows match.
    """
    needed = list(dict.fromkeys([*columns, *matches.columns]))
    for file, rows in spans:
        if skip and not matches:
            rows, skip = rows[skip:], max(0, skip - len(rows))
        if not rows:
            continue
        shown = f"datasets/{table.name}/{file.path}"
        for batch in read(table.folder, file, schema, needed, rows, shown):
            if matches:
                batch = matches.apply(batch)
                if skip:
                    batch, skip = batch.slice(skip), max(0, skip - batch.num_rows)
                batch = batch.select(list(columns))
            yield batch


def _is_text(text: str) -> bool:
    """Return whether text can be encoded: it has no half of a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_dataset(name: str) -> RiverError:
    return refusal(Code.NO_DATASET, f"there is no dataset {name}")


def _kept(schema: Any) -> Any:
    """Return a schema as a table keeps and tells it."""
    return arrow_of(delta_schema(kept_schema(stored_schema(schema))))


def _schema(state: TableState, version: int) -> Any:
    return arrow_of(state.schema(version))


def _short(state: TableState) -> str:
    """Return what tells a table from a later one of its name, as it stands in tokens."""
    return uuid.uuid5(uuid.NAMESPACE_OID, state.ident).hex[:8]


def _done(state: TableState | None, key: str) -> Committed | None:
    """Return what a transaction made, if it was committed."""
    found = None if state is None else state.txns.get(key)
    return None if found is None else found.made


def _written(table: DeltaDirectory, state: TableState, app: str, app_version: int) -> str | None:
    """Return the key of what an app wrote last, if its version is not below the one asked for."""
    last = table.app_version(state, app)
    if last is None or last < app_version:
        return None
    key = state.apps.get(app, (last, None))[1]
    # Written by another program, or so long ago that the log tells the version only.
    return key or uuid.uuid5(uuid.NAMESPACE_OID, app).hex


class _Layout(NamedTuple):
    """The schema and the partition columns of a dataset."""

    schema: Any
    partition_by: Sequence[str]


class _Asked(NamedTuple):
    """What a transaction wants of a dataset; ``partition_by`` is ``None`` for what it has."""

    mode: str
    schema: Any
    partition_by: Sequence[str] | None
    merges: bool
    overwrites_schema: bool


def _allowed(asked: _Asked, dataset: str, state: TableState) -> _Layout:
    """Return the layout that the dataset has when this is written.

    Raises:
        RiverError: EXISTS or WRONG_SCHEMA.
    """
    if asked.mode == "create":
        raise refusal(Code.EXISTS, f"there is already a dataset {dataset}")
    why = state.why_read_only(asked.mode)
    if why is not None:
        text = f"dataset {dataset} can only be read here: {why}"
        raise refusal(Code.WRONG_SCHEMA, text)
    if asked.overwrites_schema:
        return _Layout(asked.schema, asked.partition_by or [])
    current, columns = _schema(state, state.version), state.partition_columns
    if asked.partition_by is not None and list(asked.partition_by) != columns:
        text = f"dataset {dataset} is partitioned by {', '.join(columns) or 'no column'}, and not"
        text = f"{text} by {', '.join(asked.partition_by) or 'none'}: leave out partitionBy, or"
        raise refusal(Code.WRONG_SCHEMA, f"{text} overwrite it with overwriteSchema"[:4000])
    if asked.merges:
        return _Layout(_kept(merged(current, asked.schema, f"dataset {dataset}")), columns)
    try:
        takes(current, asked.schema, f"dataset {dataset}")
    except RiverError as error:
        if asked.mode == "append":
            raise
        text = f"{error.message}; set overwriteSchema to replace the schema with the rows"
        raise refusal(Code.WRONG_SCHEMA, text) from error
    return _Layout(current, columns)


def _version_at(state: TableState, dataset: str, timestamp: float | None) -> int:
    """Return the version that was the newest at a time, or is.

    Raises:
        RiverError: VERSION_GONE, for a time before the oldest.
    """
    if timestamp is None:
        return state.version
    found = state.version_at(timestamp)
    if found is None:
        then, first = (datetime.fromtimestamp(each, UTC) for each in (timestamp, state.first_time))
        text = f"dataset {dataset} has no version of {then}; the oldest known is of {first}"
        raise refusal(Code.VERSION_GONE, text)
    return found


def _check_kept(state: TableState, dataset: str, version: int) -> None:
    if version < state.oldest:
        text = f"version {version} of dataset {dataset} is no longer kept; the oldest is"
        raise refusal(Code.VERSION_GONE, f"{text} {state.oldest}, the newest {state.version}")


def _checked(state: TableState | None, wanted: RangeToken) -> TableState:
    """Return the state if it still has the version of a token.

    Raises:
        RiverError: VERSION_GONE, BAD_TOKEN or NO_DATASET.
    """
    what = f"version {wanted.version} of dataset {wanted.name}"
    if state is None:
        raise _no_dataset(wanted.name)
    if _short(state) != wanted.home:
        text = f"{what} is gone: the dataset was removed, and made again"
        raise refusal(Code.VERSION_GONE, text)
    _check_kept(state, wanted.name, wanted.version)
    if wanted.version > state.version:
        raise refusal(Code.BAD_TOKEN, f"{what} is not there; the newest is {state.version}")
    return state


def _check_staged(table: DeltaDirectory, staged: Staged) -> None:
    """Raise CORRUPT if the file of a finished part is not what it was: it may be lost."""
    shown = f"datasets/{table.name}/{staged.path}"
    try:
        size = table.folder.size(staged.path, shown)
    except FileNotFoundError as error:
        raise refusal(Code.CORRUPT, f"{shown} is missing: write it again") from error
    if size != staged.size:
        text = f"{shown} has {size} bytes, and was written with {staged.size}: write it again"
        raise refusal(Code.CORRUPT, text)
