"""Keep datasets in homes: what begin, commit, abort and read mean, whatever holds the bytes."""

from __future__ import annotations

import time
import uuid
from builtins import list as List
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...rpc import RiverError
from ...runtime.logs import logger
from ..protocol import Code, RangeToken, Receipt, TxnId, check_name, refusal
from ..source.ranges import Group, cut, overlaps
from .backend import Home, Homes, checked_parts
from .base import DAY, Begun, Committed, DatasetInfo, DatasetStore, Description, Part, Range, Table
from .dataset_state import DatasetState, StoredFile, init_entry
from .filters import Filter, matcher
from .schemas import bound_columns, stored_schema, takes
from .transactions import (
    FitPart,
    Span,
    clear,
    homes_of,
    ledger_schema,
    no_txn,
    scan,
    schema_text,
    sweep,
)

__all__ = ["MODES", "HomeDatasets"]

# Characters of the name of an app: each is kept for good.
MAX_APP = 1000

MODES = ("append", "overwrite", "create")

_log = logger("wsmux.spark")


class HomeDatasets(DatasetStore):
    """Keep each dataset in a home.

    Args:
        ttl: seconds that a transaction may stay without a write, that what it made is remembered
            by its name, and that a version can be read after it was overwritten.
    """

    def __init__(
        self,
        homes: Homes[DatasetState],
        *,
        ttl: float = DAY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not ttl > 0:
            raise ValueError(f"ttl must be above 0, not {ttl!r}")
        self._homes = homes
        self._ttl = ttl
        self._clock = clock
        self._settled: dict[str, set[str]] = {}

    def _home(self, name: str) -> Home[DatasetState]:
        return self._homes.get(check_name(name, "dataset"), "dataset", Code.NO_DATASET)

    # Telling

    def describe(
        self,
        dataset: str,
        partitions: int | None = None,
        columns: Sequence[str] | None = None,
        filters: Sequence[Filter] = (),
    ) -> Description:
        home = self._home(dataset)
        with home.view() as state:
            if not state.version:
                raise refusal(
                    Code.NO_DATASET, f"nothing has been committed to dataset {dataset} yet"
                )
            version, ident = state.version, state.id
            files, text = state.snapshot(version), state.schema(version)
        schema = ledger_schema(text)
        matcher(filters, schema)
        cuts = cut(_groups(files), partitions)
        ranges = [
            Range(str(RangeToken(dataset, ident, version, each.start, each.end)), *_size(each))
            for each in cuts
        ]
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        return Description(bound_columns(columns, schema), version, ranges, rows, size)

    def list(self) -> List[DatasetInfo]:
        return [info for name in self._homes.names() if (info := self._info(name)) is not None]

    def _info(self, name: str) -> DatasetInfo | None:
        try:
            home = self._homes.find(name)
            if home is None:
                return None
            with home.view() as state:
                files, version = state.snapshot(state.version), state.version
        except RiverError as error:
            return DatasetInfo(name, 0, 0, 0, error.message)
        if not version:
            return None
        return DatasetInfo(name, version, sum(f.rows for f in files), sum(f.bytes for f in files))

    # Writing

    def begin(
        self,
        dataset: str,
        mode: str,
        schema: Any,
        app: str | None = None,
        app_version: int | None = None,
    ) -> Begun:
        check_name(dataset, "dataset")
        if mode not in MODES:
            raise refusal(Code.BAD_REQUEST, f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        if (app is None) != (app_version is None):
            raise refusal(Code.BAD_REQUEST, "app and app_version go together")
        if app is not None and not 0 < len(app) <= MAX_APP:
            raise refusal(Code.BAD_REQUEST, f"an app name must have 1 to {MAX_APP} characters")
        stored = stored_schema(schema)
        self._homes.check_schema(stored)
        home = self._homes.find(dataset)
        if home is None:
            home = self._homes.make(dataset, init_entry(uuid.uuid4().hex[:8]))
        with home.view() as state:
            if app is not None and app_version is not None:
                written = state.written(app, app_version)
                if written is not None:
                    return Begun(str(TxnId("d", dataset, written[0])), True)
            current = _current(state)
        stored = _allowed(mode, dataset, current, stored)
        info = {"mode": mode, "schema": schema_text(stored), "app": app, "app_version": app_version}
        txn = TxnId("d", dataset, uuid.uuid4().hex)
        home.stage(txn.key, info)
        return Begun(str(txn), False)

    def _txn(self, text: str) -> tuple[TxnId, Home[DatasetState] | None]:
        txn = TxnId.parse(text, "d")
        return txn, self._homes.find(txn.name)

    def check_open(self, txn: str) -> None:
        self._open_txn(txn)

    def _open_txn(self, txn: str) -> tuple[TxnId, Home[DatasetState], dict[str, Any]]:
        ident, home = self._txn(txn)
        if home is None:
            raise no_txn(txn)
        with home.view() as state:
            done = state.committed(ident.key)
        info = home.staged(ident.key)
        if info is None or done is not None:
            raise no_txn(txn, done)
        return ident, home, info

    def open_part(self, txn: str, partition: int, attempt: int, schema: Any) -> Part:
        ident, home, info = self._open_txn(txn)
        stored = ledger_schema(info["schema"])
        takes(stored, stored_schema(schema), "the transaction")
        return FitPart(home.new_part(ident.key, partition, attempt, stored), stored)

    def commit(self, txn: str, receipts: Sequence[Receipt]) -> Committed:
        ident, home = self._txn(txn)
        if home is None:
            raise no_txn(txn)
        with home.locked() as state:
            done = state.committed(ident.key)
            if done is not None:
                return done
            info = home.staged(ident.key)
            if info is None:
                raise no_txn(txn)
            if info["app"] is not None:
                written = state.written(info["app"], info["app_version"])
                if written is not None:  # another one was faster; asked again, the answer is this
                    clear(home, ident.key, set())
                    return written[1]
            stored, current = ledger_schema(info["schema"]), _current(state)
            kept = _allowed(info["mode"], ident.name, current, stored)
            parts = checked_parts(home, ident.key, receipts)
            files = [
                {
                    "file": f"{ident.key}/{receipt.file}",
                    "rows": receipt.rows,
                    "bytes": receipt.bytes,
                    "groups": groups,
                }
                for receipt, groups in parts
            ]
            entry = {"kind": "commit", "txn": ident.key, "time": self._clock(), "files": files}
            entry |= {name: info[name] for name in ("mode", "app", "app_version")}
            if kept is not current:
                entry["schema"] = info["schema"]
            home.append(entry)
            with home.view() as state:
                made = state.committed(ident.key)
            clear(home, ident.key, {receipt.file for receipt, _ in parts})
        assert made is not None
        return made

    def abort(self, txn: str) -> bool:
        ident, home = self._txn(txn)
        if home is None:
            return False
        with home.locked() as state:
            if state.committed(ident.key) is not None:
                return True
            home.drop(ident.key)
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
        home = self._home(wanted.name)
        with home.view() as state:
            _check_kept(state, wanted)
            files, text = state.snapshot(wanted.version), state.schema(wanted.version)
        if wanted.end > sum(file.rows for file in files):
            raise refusal(Code.BAD_TOKEN, f"version {wanted.version} has no rows {token}")
        schema = ledger_schema(text)
        told, matches = bound_columns(columns, schema), matcher(filters, schema)
        found = overlaps([file.rows for file in files], wanted.start, wanted.end)
        spans = [Span(files[at].file, files[at].groups, range(*rows)) for at, *rows in found]
        batches = scan(home, spans, schema, told.names, matches, skip_rows)
        return Table(told, self._kept(batches, home, wanted))

    def _kept(
        self, batches: Iterator[Any], home: Home[DatasetState], wanted: RangeToken
    ) -> Iterator[Any]:
        """Pass batches on; say so if their version went away meanwhile."""
        try:
            yield from batches
        except FileNotFoundError as error:
            with home.view() as state:
                _check_kept(state, wanted)
            raise refusal(Code.CORRUPT, f"{error} is missing") from error

    # Cleaning up

    def expire(self, now: float) -> None:
        before = now - self._ttl
        for home in homes_of(self._homes, "dataset"):
            try:
                settled = self._settled.setdefault(home.name, set())
                sweep(home, before, lambda state: state.vacuum_entry(before), settled)
            except (RiverError, OSError) as error:
                _log.warning("dataset %s cannot be swept: %s", home.name, error)
        self._homes.tidy(before)


def _current(state: DatasetState) -> Any:
    return ledger_schema(state.schema(state.version)) if state.version else None


def _allowed(mode: str, dataset: str, current: Any, stored: Any) -> Any:
    """Return the schema that the dataset has when this is written.

    Raises:
        RiverError: EXISTS or WRONG_SCHEMA.
    """
    if current is None or mode == "overwrite":
        return stored
    if mode == "create":
        raise refusal(Code.EXISTS, f"there is already a dataset {dataset}")
    takes(current, stored, f"dataset {dataset}")
    return current


def _check_kept(state: DatasetState, wanted: RangeToken) -> None:
    what = f"version {wanted.version} of dataset {wanted.name}"
    if state.id != wanted.home:
        text = f"{what} is gone: the dataset was removed, and made again"
        raise refusal(Code.VERSION_GONE, text)
    if wanted.version < state.oldest:
        text = f"{what} is no longer kept; the oldest is {state.oldest}, the newest {state.version}"
        raise refusal(Code.VERSION_GONE, text)
    if wanted.version > state.version:
        raise refusal(Code.BAD_TOKEN, f"{what} is not there; the newest is {state.version}")


def _groups(files: Sequence[StoredFile]) -> Iterator[Group]:
    for file in files:
        for rows in file.groups:
            yield Group(rows, file.bytes * rows / file.rows)


def _size(each: Any) -> tuple[int, int]:
    return each.end - each.start, each.bytes
