"""Remove the rows of a table that match a condition, as part of a transaction that writes others.

A file whose rows all match, by its partition values or statistics, is removed, and one in which
none do stays; any other is written anew without the rows that match. That is done without the lock
of the table, and a file that was written is of use as long as the one that it stands for is there:
what others add or replace meanwhile is planned anew. A row for which the condition is null stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...rpc import RiverError
from ...runtime.lazy_imports import pc
from ..protocol import Code, refusal
from ..store.base import Part
from ..store.filters import Filter, Matcher, matcher
from .actions import DataFile
from .data_files import read_file
from .partitions import matching
from .staging import Staged, part_number
from .statistics import may_match, must_match
from .table import DeltaDirectory, Removed

__all__ = ["Replacer", "check_rows"]


class _Rewritten(NamedTuple):
    """What is left of a file: ``None`` if nothing is; ``whole``: it stays as it is."""

    file: DataFile
    left: Staged | None
    whole: bool


class Replacer:
    """Find and rewrite the files of one transaction; no two threads may use it at once."""

    def __init__(self, table: DeltaDirectory, key: str) -> None:
        self._table = table
        self._key = key
        self._done: dict[str, _Rewritten] = {}
        self._attempts = 0
        self._todo: list[DataFile] = []
        self._filters: Sequence[Filter] = ()
        self._schema: Any = None
        self._partitioned: Sequence[str] = ()

    def plan(
        self,
        live: Mapping[str, DataFile],
        schema: Any,
        partitioned: Sequence[str],
        filters: Sequence[Filter],
    ) -> Removed | None:
        """Return which files go, and what takes their place; ``None``: ``rewrite`` comes first.

        Args:
            live: the files of the newest version, by path. schema, partitioned: the schema that the
                table is to have, and its partition columns. filters: the condition.
        """
        files = [*live.values()]
        self._done = {
            path: each for path, each in self._done.items() if _is_same(live.get(path), each.file)
        }
        self._filters, self._schema, self._partitioned = filters, schema, partitioned
        verdicts = _verdicts(filters, schema, files)
        gone = [file for file, verdict in zip(files, verdicts, strict=True) if verdict]
        unsure = [f for f, verdict in zip(files, verdicts, strict=True) if verdict is None]
        self._todo = [file for file in unsure if file.path not in self._done]
        if self._todo:
            return None
        known = [self._done[file.path] for file in unsure]
        gone += [each.file for each in known if not each.whole]
        left = [(each.file, each.left) for each in known if each.left is not None]
        return Removed(gone, left)

    def rewrite(self) -> None:
        """Write anew what ``plan`` has found, without the lock; blocks until all is written.

        What another thread or process has replaced meanwhile, or the transaction with it, is left
        out: ``plan`` tells what follows from that.

        Raises:
            RiverError: CORRUPT or STORE_FAILED. OSError: what the system says.
        """
        for file in self._todo:
            try:
                self._done[file.path] = self._rewritten(file)
            except FileNotFoundError as error:
                with self._table.view() as state:
                    there = state is not None and _is_same(state.live.get(file.path), file)
                if there:
                    raise refusal(Code.CORRUPT, f"{error} is missing") from error
            except RiverError as error:
                if error.code != Code.NO_TXN.value:
                    raise
                return  # a repeated commit may have made it, or an abort ended it

    def _rewritten(self, file: DataFile) -> _Rewritten:
        rows, left = self._table.rows_of(file), 0
        part: Part | None = None
        matches = matcher(self._filters, self._schema)
        try:
            for batch in self._batches(file, rows):
                mask = pc.fill_null(matches.mask(batch), False)
                kept = batch.filter(pc.invert(mask))
                left += kept.num_rows
                if not kept.num_rows:
                    continue
                if part is None:
                    part = self._new_part(file)
                part.write(kept)
            if left == rows:
                return _Rewritten(file, None, True)
            if part is None:
                return _Rewritten(file, None, False)
            receipt = part.finish(0, 0)
        finally:
            if part is not None:
                part.discard()  # nothing once it was finished
        finished = self._table.staging.part(self._key, receipt.file)
        if finished is None:
            raise refusal(Code.NO_TXN, f"{self._table.shown}: what was rewritten is gone again")
        (staged,) = finished.files  # all rows are of one partition
        return _Rewritten(file, staged, False)

    def _batches(self, file: DataFile, rows: int) -> Iterator[Any]:
        table, schema, shown = self._table, self._schema, f"{self._table.shown}/{file.path}"
        return read_file(table.folder, file, schema, schema.names, range(rows), shown)

    def _new_part(self, file: DataFile) -> Part:
        number = part_number(file.path)  # its rows stay where they stood in their commit
        self._attempts += 1
        return self._table.staging.new_part(
            self._key, number, self._attempts, self._schema, self._partitioned
        )


def _is_same(now: DataFile | None, file: DataFile) -> bool:
    return now is not None and now.added == file.added


def _verdicts(
    filters: Sequence[Filter], schema: Any, files: Sequence[DataFile]
) -> Sequence[bool | None]:
    """Return of each file whether all rows match, or none, ``None`` if that has to be looked at."""
    told = [file.stats for file in files]
    may = may_match(filters, schema, told)
    found: list[bool | None] = [True] * len(files)
    for one in filters:
        must = must_match(one, schema, told)
        by_value = matching([one], schema, files)
        for place, file in enumerate(files):
            # What a file holds of a partition column counts for nothing.
            sure = by_value[place] if one.column in file.partition else must[place] or None
            if sure is False:
                found[place] = False
            elif sure is None and found[place]:
                found[place] = None
    return [verdict if possible else False for verdict, possible in zip(found, may, strict=True)]


def check_rows(batch: Any, filters: Sequence[Filter], matches: Matcher, condition: str) -> None:
    """Raise an error for the first row of a batch that does not match a condition.

    Args:
        filters, matches: the condition; as text, ``condition``.

    Raises:
        RiverError: REPLACE_WHERE_MISMATCH.
    """
    mask = pc.fill_null(matches.mask(batch), False)
    place = pc.index(mask, False).as_py()
    if place < 0:
        return
    row = batch.slice(place, 1)
    failing = next(
        each for each in filters if not matcher([each], batch.schema).apply(row).num_rows
    )
    value = row.column(failing.column)[0].as_py()
    shown = "NULL" if value is None else repr(value) if isinstance(value, str) else str(value)
    text = f"a row has {failing.column} = {shown:.100}, which replaceWhere does not match"
    fix = f'write only rows that match, as df.where("{condition:.300}"), or a wider condition'
    raise refusal(Code.REPLACE_WHERE_MISMATCH, f"{text}: {condition:.300}; {fix}")
