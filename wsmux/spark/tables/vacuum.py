"""Remove the files of a table that no version within a time needs."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import PurePosixPath
from urllib.parse import unquote

from ...rpc import RiverError
from ..protocol import Code, refusal
from ..store.base import Vacuumed
from .compaction import check_writable
from .table import DeltaDirectory

__all__ = ["RETENTION", "vacuum"]

# Hours, as Delta has them.
RETENTION = 168.0


def vacuum(
    table: DeltaDirectory, now: float, retention: float | None = None, *, dry_run: bool = False
) -> Vacuumed:
    """Remove the files that no version within a time needs; return them.

    delta-rs tells which they are; it does not remove them, since it would add entries that a crash
    of the machine can tear, and does not know of what is being written here. Only Parquet files go
    that are no part of an open transaction.

    Args:
        now: seconds since 1970. retention: hours; 168 by default, or as long as replaced files of
            the table are kept in any case, if that is longer. dry_run: only tell.

    Raises:
        RiverError: NO_DATASET, WRONG_SCHEMA, BAD_REQUEST, BUSY or CORRUPT. OSError: what the
            system says.
    """
    with table.view() as state:
        known = check_writable(table, state)
        least, version = table.kept_age(known) / 3600, known.version
    hours = max(RETENTION, least) if retention is None else retention
    if not hours >= least or math.isinf(hours):
        raise refusal(Code.BAD_REQUEST, _too_short(table, retention, least))
    # Looks at all files: not under the lock.
    listed = table.unknown_to_delta(version, math.ceil(hours))
    staged = table.staging.files()  # first: what is committed meanwhile is in the log then
    with table.locked() as state:
        before = now - math.ceil(hours) * 3600
        held = staged | check_writable(table, state).needed(before)
        found = {path: size for path in listed if (size := _size(table, path, held)) is not None}
        if not dry_run:
            table.forget(before)
            table.remove(found)
            table.folder.remove_empty()
    return Vacuumed(sorted(found), sum(found.values()))


def _too_short(table: DeltaDirectory, retention: float | None, least: float) -> str:
    if math.isinf(least):
        text = "says for how long removed files are kept in a way that is not understood"
        return f"dataset {table.name} {text}: nothing can be removed here"
    text = f"retention of dataset {table.name} must be finite, and at least {least:g} hours"
    return f"{text}, for which replaced versions can be read, not {retention!r}"


def _size(table: DeltaDirectory, path: str, held: Collection[str]) -> int | None:
    """Return the bytes of a file that may go, ``None`` if it may not or is none of the table."""
    if not path.endswith(".parquet") or path in held or unquote(path) in held:
        return None
    if str(PurePosixPath(path)) != path or PurePosixPath(path).parts[0].startswith(("_", ".")):
        return None
    try:
        return table.folder.size(path, f"{table.shown}/{path}")
    except (RiverError, FileNotFoundError, NotADirectoryError):
        return None  # a link, or gone meanwhile
