"""Hold what stores of datasets and of topics have in common, whatever their homes are."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...rpc import RiverError
from ...runtime.logs import logger
from ..protocol import Code, Receipt, refusal
from .backend import Home, Homes, S
from .base import Committed, Part
from .filters import Matcher
from .schemas import conform, schema_bytes, schema_of

__all__ = [
    "FitPart",
    "Span",
    "clear",
    "homes_of",
    "ledger_schema",
    "no_txn",
    "scan",
    "schema_text",
    "sweep",
]

_log = logger("wsmux.spark")


def schema_text(schema: Any) -> str:
    """Return a schema as it stands in a log."""
    return base64.b64encode(schema_bytes(schema)).decode()


def ledger_schema(text: str) -> Any:
    """Return a schema that stands in a log.

    Raises:
        RiverError: CORRUPT.
    """
    try:
        return schema_of(base64.b64decode(text, validate=True))
    except (ValueError, RiverError) as error:
        raise refusal(Code.CORRUPT, f"the log holds a damaged schema: {error}") from error


class FitPart(Part):
    """Bring batches into the stored schema before they are staged."""

    def __init__(self, part: Part, schema: Any) -> None:
        self._part = part
        self._schema = schema

    def write(self, batch: Any) -> None:
        if batch.num_rows:
            self._part.write(conform(batch, self._schema))

    def finish(self, size: int, crc: int) -> Receipt:
        return self._part.finish(size, crc)

    def discard(self) -> None:
        self._part.discard()


class Span(NamedTuple):
    """Rows of one file."""

    file: str
    groups: list[int]
    rows: range


def scan(
    home: Home[Any],
    spans: Iterable[Span],
    schema: Any,
    columns: Sequence[str],
    matches: Matcher,
    skip: int,
) -> Iterator[Any]:
    """Yield the rows of spans that match, less the first ``skip``, some columns of them."""
    needed = {schema.get_field_index(name) for name in (*columns, *matches.columns)}
    for span in spans:
        rows = span.rows
        if skip and not matches:
            rows, skip = rows[skip:], max(0, skip - len(rows))
        if not rows:
            continue
        for batch in home.read(span.file, schema, sorted(needed), span.groups, rows):
            batch = matches.apply(batch)
            if skip and matches:
                batch, skip = batch.slice(skip), max(0, skip - batch.num_rows)
            if batch.num_rows:
                yield batch.select(list(columns))


def sweep(
    home: Home[S],
    before: float,
    make: Callable[[S], Mapping[str, Any] | None],
    settled: set[str],
) -> None:
    """Add the entry that drops something, if any, then remove what no entry holds any more.

    Args:
        before: transactions and parts that are not held and were last used then are removed.
        settled: keys of transactions that have nothing to remove; kept from sweep to sweep.
    """
    with home.locked() as state:
        held = state.files_of()
        entry = make(state)
        if entry is not None:
            home.append(entry)
        with home.view() as state:
            holds = state.files_of()
        for key in home.transactions():
            if key not in holds:
                home.drop(key, None if key in held else before)
                settled.discard(key)
            elif holds[key] != held[key]:
                home.prune(key, holds[key])
            elif key not in settled and home.prune(key, holds[key], before):
                settled.add(key)
        home.tidy(before)


def clear(home: Home[Any], key: str, keep: set[str]) -> None:
    """Remove what a commit did not name; the commit is done, whatever comes of this."""
    try:
        home.prune(key, keep)
    except (RiverError, OSError) as error:
        _log.warning("what %s left in %s is not removed: %s", key, home.name, error)


def no_txn(txn: str, done: Committed | None = None) -> RiverError:
    """Return the error for a transaction that takes nothing any more."""
    why = "was never begun, was aborted, or has expired"
    if done is not None:
        why = f"was committed before, as version {done.version}"
    return refusal(Code.NO_TXN, f"the transaction {txn} {why}")


def homes_of(homes: Homes[S], what: str) -> Iterator[Home[S]]:
    """Yield every home; one that cannot be looked into is logged."""
    for name in homes.names():
        try:
            home = homes.find(name)
        except RiverError as error:
            _log.warning("%s %s: %s", what, name, error)
            continue
        if home is not None:
            yield home
