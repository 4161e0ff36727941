"""Keep topics in homes: what begin, commit, read and release mean, whatever holds the bytes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...rpc import RiverError
from ...runtime.logs import logger
from ..protocol import MAX_WHOLE, Code, Receipt, TxnId, check_name, refusal
from ..source.ranges import overlaps
from .backend import Home, Homes, checked_parts
from .base import DAY, Begun, Committed, Heads, Part, Retention, Table, TopicDescription, TopicStore
from .change_watch import ChangeWatch
from .filters import Matcher
from .schemas import bound_columns, stored_schema, takes
from .topic_state import TopicState, init_entry, query_key, txn_key
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

__all__ = ["HomeTopics"]

# A partition is some numbers in every message about the topic.
MAX_PARTITIONS = 10_000

# Characters of the id of a query; Spark's have 36.
MAX_QUERY = 1000

_log = logger("wsmux.spark")


class HomeTopics(TopicStore):
    """Keep each topic in a home.

    Args:
        ttl: seconds that a transaction may stay without a write. retention: what is kept.
        poll: seconds between looks at what other processes do, ``None`` if there are none.
    """

    def __init__(
        self,
        homes: Homes[TopicState],
        *,
        ttl: float = DAY,
        retention: Retention | None = None,
        poll: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not ttl > 0:
            raise ValueError(f"ttl must be above 0, not {ttl!r}")
        self._homes = homes
        self._ttl = ttl
        self._retention = retention or Retention()
        self._watch = ChangeWatch(poll)
        self._clock = clock
        self._settled: dict[str, set[str]] = {}

    def _home(self, name: str) -> Home[TopicState]:
        return self._homes.get(check_name(name, "topic"), "topic", Code.NO_TOPIC)

    # Telling

    def create(self, topic: str, schema: Any, partitions: int | None = None) -> bool:
        check_name(topic, "topic")
        wanted = 1 if partitions is None else partitions
        if not 1 <= wanted <= MAX_PARTITIONS:
            text = f"a topic has 1 to {MAX_PARTITIONS} partitions, not {wanted}"
            raise refusal(Code.BAD_REQUEST, text)
        stored = stored_schema(schema)
        self._homes.check_schema(stored)
        ident = uuid.uuid4().hex[:8]
        home = self._homes.find(topic)
        if home is None:
            home = self._homes.make(topic, init_entry(ident, schema_text(stored), wanted))
        with home.view() as state:
            made, count, text = state.id == ident, len(state.latest), state.schema
        takes(ledger_schema(text), stored, f"topic {topic}")
        if partitions is not None and partitions != count:
            text = f"there is a topic {topic} already, of {count} partitions, not {partitions}"
            raise refusal(Code.EXISTS, text)
        return made

    def describe(self, topic: str) -> TopicDescription:
        with self._home(topic).view() as state:
            text, heads = state.schema, state.heads()
        return TopicDescription(ledger_schema(text), len(heads.latest), heads)

    def heads(self, topic: str) -> Heads:
        with self._home(topic).view() as state:
            return state.heads()

    def wait_heads(self, topic: str, seen: Heads | None, timeout: float) -> Heads:
        check_name(topic, "topic")
        return self._watch.wait(topic, lambda: self.heads(topic), seen, timeout)

    # Writing

    def begin(self, topic: str, query: str, batch: int, schema: Any) -> Begun:
        home = self._home(topic)
        if not 0 < len(query) <= MAX_QUERY or not 0 <= batch <= MAX_WHOLE:
            text = f"a batch is a number from 0 up, of a query of 1 to {MAX_QUERY} characters"
            raise refusal(Code.BAD_REQUEST, text)
        txn = TxnId("t", topic, txn_key(query, batch))
        with home.view() as state:
            done, text = state.committed(txn.key), state.schema
        if done is None:
            takes(ledger_schema(text), stored_schema(schema), f"topic {topic}")
            home.stage(txn.key, {"query": query, "batch": batch})
        return Begun(str(txn), done is not None)

    def _txn(self, text: str) -> tuple[TxnId, Home[TopicState] | None]:
        txn = TxnId.parse(text, "t")
        return txn, self._homes.find(txn.name)

    def check_open(self, txn: str) -> None:
        self._open_txn(txn)

    def _open_txn(self, txn: str) -> tuple[TxnId, Home[TopicState], Any]:
        ident, home = self._txn(txn)
        if home is None:
            raise no_txn(txn)
        with home.view() as state:
            done, text = state.committed(ident.key), state.schema
        if home.staged(ident.key) is None or done is not None:
            raise no_txn(txn, done)
        return ident, home, ledger_schema(text)

    def open_part(self, txn: str, partition: int, attempt: int, schema: Any) -> Part:
        ident, home, stored = self._open_txn(txn)
        takes(stored, stored_schema(schema), f"topic {ident.name}")
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
            count = len(state.latest)
            parts = checked_parts(home, ident.key, receipts)
            files = [
                {
                    "file": f"{ident.key}/{receipt.file}",
                    "partition": receipt.partition % count,
                    "rows": receipt.rows,
                    "bytes": receipt.bytes,
                    "groups": groups,
                }
                for receipt, groups in parts
            ]
            head = {"kind": "commit", "key": ident.key, "time": self._clock()}
            home.append({**head, **info, "files": files})
            with home.view() as state:
                made = state.committed(ident.key)
            clear(home, ident.key, {receipt.file for receipt, _ in parts})
        self._watch.tell(ident.name)
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
        topic: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str] | None = None,
    ) -> Table:
        home = self._home(topic)
        with home.view() as state:
            _check_offsets(topic, state, partition, start, end)
            segments, text = state.segments_of(partition), state.schema
        schema = ledger_schema(text)
        told = bound_columns(columns, schema)
        first = segments[0].start if segments else start
        found = overlaps([each.rows for each in segments], start - first, end - first)
        spans = [Span(segments[at].file, segments[at].groups, range(*rows)) for at, *rows in found]
        batches = scan(home, spans, schema, told.names, Matcher([]), 0)
        return Table(told, self._kept(batches, home, partition, start, end))

    def _kept(
        self, batches: Iterator[Any], home: Home[TopicState], partition: int, start: int, end: int
    ) -> Iterator[Any]:
        """Pass batches on; say so if retention has overtaken the reader."""
        try:
            yield from batches
        except FileNotFoundError as error:
            with home.view() as state:
                _check_offsets(home.name, state, partition, start, end)
            raise refusal(Code.CORRUPT, f"{error} is missing") from error

    def release(self, topic: str, query: str, offsets: Sequence[int]) -> None:
        home = self._home(topic)
        if not 0 < len(query) <= MAX_QUERY:
            text = f"the id of a query has 1 to {MAX_QUERY} characters"
            raise refusal(Code.BAD_REQUEST, text)
        key = query_key(query)
        with home.locked() as state:
            latest = state.latest
            if len(offsets) != len(latest):
                text = f"topic {topic} has {len(latest)} partitions, not {len(offsets)}"
                raise refusal(Code.BAD_OFFSETS, text)
            for place, (offset, top) in enumerate(zip(offsets, latest, strict=True)):
                if offset > top:
                    text = f"partition {place} of topic {topic} ends at {top}, before {offset}"
                    raise refusal(Code.BAD_OFFSETS, text)
            before = home.released().get(key, [0] * len(latest))
            if len(before) == len(latest):
                after = [max(pair) for pair in zip(before, offsets, strict=True)]
                home.release(key, after)

    # Cleaning up

    def expire(self, now: float) -> None:
        before = now - self._ttl
        for home in homes_of(self._homes, "topic"):
            settled = self._settled.setdefault(home.name, set())

            def trim(state: TopicState, home: Home[TopicState] = home) -> dict[str, Any] | None:
                known = list(home.released().values())
                return state.trim_entry(self._retention, known, now)

            try:
                sweep(home, before, trim, settled)
            except (RiverError, OSError) as error:
                _log.warning("topic %s cannot be swept: %s", home.name, error)
            self._watch.tell(home.name)
        self._homes.tidy(before)


def _check_offsets(topic: str, state: TopicState, partition: int, start: int, end: int) -> None:
    """Check that rows are held.

    Raises:
        RiverError: BAD_OFFSETS or OFFSETS_GONE.
    """
    if partition >= len(state.latest):
        text = f"topic {topic} has {len(state.latest)} partitions, so none is {partition}"
        raise refusal(Code.BAD_OFFSETS, text)
    earliest, latest = state.earliest[partition], state.latest[partition]
    place = f"partition {partition} of topic {topic}"
    if start > end or end > latest:
        text = f"{place} has no offsets {start} to {end}; the latest is {latest}"
        raise refusal(Code.BAD_OFFSETS, text)
    if start < earliest and start < end:
        text = f"offset {start} of {place} is gone; the earliest is {earliest}"
        raise refusal(Code.OFFSETS_GONE, text)
