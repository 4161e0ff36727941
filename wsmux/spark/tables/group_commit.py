"""Add what many ingest clients have sent to a table in one commit, and remember how far each is.

The entry of the log that makes the rows visible tells how many rows of each client there are with
them, so both are there or neither is. It does so in ``commitInfo``, which is forgotten with the
transactions of that time. For a client with an id of its own, which does not begin with ``~``,
there is an application transaction of Delta too, ``ingest:ID``, which the log holds for good.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...rpc import RiverError
from ...runtime.deadline import Deadline
from ..protocol import TEMPORARY, Code, refusal
from ..store.base import Span
from .actions import Action, TableState, add_action, commit_info, told_metrics
from .compaction import check_writable
from .staging import Finished
from .table import ENGINE, DeltaDirectory
from .types import aligned, arrow_of, fitted, merged

__all__ = ["append_group", "ingested"]


def ingested(table: DeltaDirectory, state: TableState, client: str) -> tuple[int, str]:
    """Return how many rows of a client are in the table, or were, and the session of the last one.

    Raises:
        RiverError: CORRUPT.
    """
    rows, session, _ = state.ingested.get(client, (0, "", 0.0))
    if not rows and not client.startswith(TEMPORARY):
        rows = table.app_version(state, f"ingest:{client}") or 0
    return rows, session


def append_group(
    table: DeltaDirectory,
    schema: Any,
    batches: Iterable[Any],
    spans: Mapping[str, Span],
    *,
    timeout: float,
) -> list[str]:
    """Add rows in one commit, unless one of the clients is not where its span begins.

    Args:
        schema: of the batches, as the table had it some time. timeout: seconds to try for while
            other programs commit.

    Returns:
        The clients of which the table has other rows than those before their spans; then nothing
        was committed. None otherwise.

    Raises:
        RiverError: NO_DATASET, WRONG_SCHEMA, BAD_ARROW, TOO_LARGE, BUSY, CORRUPT, STORE_FAILED.
        OSError: what the system says; the commit may be there all the same.
    """
    with table.view() as found:
        state = check_writable(table, found)
        ident, declared = state.ident, _declared(state)
        kept, columns = arrow_of(state.schema(state.version)), state.partition_columns
    _check_schema(kept, schema, f"dataset {table.name}")
    with _unswept(table):
        part = table.staging.common_part(kept, columns, state.refused)
        added = False
        try:
            for batch in batches:
                batch = fitted(batch, schema)
                for piece in aligned(batch, kept):
                    part.write(piece)
            finished = part.end()
            made = partial(_actions, finished, spans)
            deadline = Deadline(timeout)
            with table.locked():
                for found in table.attempts(deadline):
                    state = check_writable(table, found)
                    version = state.version  # first: other threads bring it up to date meanwhile
                    if state.ident != ident or _declared(state) != declared:
                        raise table.busy("has another schema since this was written")
                    stale = [
                        client
                        for client, span in spans.items()
                        if ingested(table, state, client)[0] != span.before
                    ]
                    if stale:
                        return stale
                    if not table.is_open(state, part.key):
                        raise refusal(Code.NO_TXN, "what was staged has been removed")
                    if table.add_entry(version, ident, made):
                        added = True
                        return []
            raise table.busy()
        finally:
            part.discard()
            table.settle(part, added=added)


@contextmanager
def _unswept(table: DeltaDirectory) -> Iterator[None]:
    """Raise BUSY for NO_TXN: a sweep took for old what was staged a moment ago, and removed it."""
    try:
        yield
    except RiverError as error:
        if error.code != Code.NO_TXN:
            raise
        text = "was swept while this was staged (do the clocks of its servers agree?)"
        raise table.busy(text) from error


def _declared(state: TableState) -> tuple[Any, ...]:
    return state.metadata.get("schemaString"), *state.partition_columns


def _check_schema(kept: Any, schema: Any, what: str) -> None:
    """Raise WRONG_SCHEMA unless rows of an earlier schema of a table still fit it."""
    if not schema.equals(kept):
        gone = [name for name in schema.names if name not in kept.names]
        if gone:
            text = f"{what} has no column {gone[0]!r} any more: open it for ingest again"
            raise refusal(Code.WRONG_SCHEMA, text)
        merged(kept, schema, what)


def _actions(
    finished: Finished, spans: Mapping[str, Span], state: TableState | None
) -> list[Action]:
    now = time.time_ns() // 1_000_000
    # The order of rows is that of these times, so no two commits have the same.
    modified = max(now, 0 if state is None else state.modified + 1)
    rows, size = finished.receipt.rows, sum(each.size for each in finished.files)
    told = {client: [span.after, span.session] for client, span in spans.items()}
    info = commit_info("WRITE", "Append", now, ENGINE, rows=rows, bytes=size, ingested=told)
    metrics = {"numFiles": len(finished.files), "numOutputRows": rows, "numOutputBytes": size}
    info["commitInfo"]["operationMetrics"] = told_metrics(metrics)
    txns = [
        {"txn": {"appId": f"ingest:{client}", "version": span.after, "lastUpdated": now}}
        for client, span in spans.items()
        if not client.startswith(TEMPORARY)
    ]
    files = [
        add_action(path, length, modified, stats, partition)
        for path, length, stats, partition in finished.files
    ]
    return [info, *txns, *files]
