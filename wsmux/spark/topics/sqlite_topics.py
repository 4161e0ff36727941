"""Implement the store of topics with SQLite and Arrow files.

::

    DIRECTORY/topics.sqlite       the state of all topics; see ``database``
    DIRECTORY/topics/NAME/        the files of a topic, staged ones among them; see ``segments``

A part is written where it stays; only a row of the database makes it visible. So a commit moves no
files, and a crash leaves nothing half done. To remove a topic, remove its folder.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...rpc import RiverError
from ...runtime.arguments import check_seconds
from ...runtime.files import sync_path
from ...runtime.lazy_imports import pa, pc
from ...runtime.logs import logger
from ..protocol import Code, Receipt, TxnId, check_name, refusal
from ..store.base import (
    DAY,
    LOCK_TIMEOUT,
    Begun,
    Committed,
    Heads,
    Part,
    Retention,
    Table,
    TopicDescription,
    TopicStore,
    no_txn,
)
from ..store.directory import open_directory, real_directory, temporary_directory
from ..store.metadata import METADATA, TIMESTAMP, add_metadata, milliseconds, with_metadata
from ..store.schemas import (
    bound_columns,
    schema_from_text,
    schema_text,
    stored_schema,
    takes,
)
from .change_watch import POLL, ChangeWatch
from .database import Database, Topic, find_topic
from .rules import (
    Key,
    check_home,
    check_offsets,
    check_partitions,
    check_query,
    check_released,
    check_same,
    key_of,
    no_topic,
    parsed,
    short,
)
from .segments import COLUMNS, Segment, check_schema, read_segment
from .staging import NOTES, Staging
from .upkeep import Upkeep, remove_files

__all__ = ["SqliteTopics"]

# Segments that a reader looks up at a time.
AHEAD = 64

_log = logger("wsmux.spark")


class SqliteTopics(TopicStore):
    """Keep topics in a directory, shared by processes of one host; each may be killed at any time.

    Args:
        directory: it may hold datasets too; by default a temporary one, removed with the store.
        ttl: seconds after its last write until a transaction expires, and for which one without a
            query is remembered. retention: what is kept; everything by default.
        sync: whether what was committed survives a crash of the machine. Without, such a crash may
            leave nothing usable; for a temporary directory it is always off.
        lock_timeout: seconds that a change waits for those of others before it fails with BUSY.

    Raises:
        ValueError: an argument is invalid. RiverError: CORRUPT, STORE_FAILED or BUSY.
        OSError: the directory cannot be used.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        ttl: float = DAY,
        retention: Retention | None = None,
        sync: bool = True,
        lock_timeout: float = LOCK_TIMEOUT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_seconds(ttl=ttl, lock_timeout=lock_timeout)
        poll: float | None = POLL
        if directory is None:
            directory, sync, poll = temporary_directory(self, "topics"), False, None
        root = open_directory(directory)
        self._path = root / "topics"
        self._sync = sync
        self._ttl = ttl
        self._clock = clock
        self._watch = ChangeWatch(poll)
        self._database = Database(
            root / "topics.sqlite", "topics.sqlite", sync=sync, timeout=lock_timeout
        )
        self._staging = Staging(self._database, self._path, ttl, clock, sync=sync)
        self._upkeep = Upkeep(self._database, self._path, retention or Retention(), ttl, sync=sync)

    # Topics

    def _find(self, db: sqlite3.Connection, name: str) -> Topic | None:
        """Return a topic, ``None`` if there is none, or if its folder was removed.

        Raises:
            RiverError: CORRUPT; something else is in its place.
        """
        found = find_topic(db, check_name(name, "topic"))
        there = real_directory(self._path / name, f"topics/{name}")
        if found is None and there and (self._path / name / "_log").exists():
            text = f"topics/{name} was written before topics were kept in SQLite: read it with the"
            raise refusal(Code.CORRUPT, f"{text} version that wrote it, and write it again")
        return found if there else None

    def _topic(self, db: sqlite3.Connection, name: str) -> Topic:
        found = self._find(db, name)
        if found is None:
            raise no_topic(name)
        return found

    def create(self, topic: str, schema: Any, partitions: int | None = None) -> bool:
        check_name(topic, "topic")
        wanted = check_partitions(partitions)
        stored = stored_schema(schema)
        check_schema(stored)
        with self._database.write() as db:
            found = self._find(db, topic)
            if found is None:
                self._make(db, topic, schema_text(stored), wanted)
                return True
            count = len(_heads(db, found).latest)
        check_same(topic, found.schema, count, stored, partitions)
        return False

    def _make(self, db: sqlite3.Connection, name: str, schema: str, partitions: int) -> None:
        (self._path / name).mkdir(exist_ok=True)
        if self._sync:
            sync_path(self._path)
        db.execute("DELETE FROM topics WHERE name = ?", (name,))  # whose folder was removed
        made = db.execute(
            "INSERT INTO topics (name, schema, version, home) VALUES (?, ?, 0, ?)",
            (name, schema, uuid.uuid4().hex[:16]),
        )
        db.executemany(
            "INSERT INTO partitions VALUES (?, ?, 0, 0, 0, 0)",
            ((made.lastrowid, place) for place in range(partitions)),
        )

    def describe(self, topic: str) -> TopicDescription:
        with self._database.read() as db:
            found = self._topic(db, topic)
            heads = _heads(db, found)
        return TopicDescription(schema_from_text(found.schema), len(heads.latest), heads)

    def heads(self, topic: str) -> Heads:
        """Return what a topic holds."""
        with self._database.read() as db:
            return _heads(db, self._topic(db, topic))

    def wait_heads(self, topic: str, seen: Heads | None, timeout: float) -> Heads:
        check_name(topic, "topic")
        return self._watch.wait(topic, lambda: self.heads(topic), seen, timeout)

    # Writing

    def begin(self, topic: str, query: str | None, batch: int | None, schema: Any) -> Begun:
        key, now = key_of(query, batch), self._clock()
        with self._database.read() as db:
            found = self._topic(db, topic)
            done, txn = _done(db, found, key), _txn(db, found, key)
        begun = Begun(str(TxnId("t", topic, str(key))), done is not None)
        if done is None:
            takes(schema_from_text(found.schema), stored_schema(schema), f"topic {topic}")
            if txn is None or txn.used < now - self._ttl / NOTES:  # each task of a batch begins it
                with self._database.write() as db:
                    db.execute(
                        "INSERT INTO txns (topic, query, batch, used) VALUES (?, ?, ?, ?)"
                        " ON CONFLICT (topic, query, batch) DO UPDATE SET used = excluded.used",
                        (self._topic(db, topic).id, *key, now),
                    )
        return begun

    def check_open(self, txn: str) -> None:
        self._open_txn(txn)

    def _open_txn(self, txn: str) -> tuple[Topic, int]:
        """Return the topic of a transaction that takes parts, and its id."""
        name, key = parsed(txn)
        with self._database.read() as db:
            topic = self._find(db, name)
            done = None if topic is None else _done(db, topic, key)
            found = None if topic is None else _txn(db, topic, key)
        if topic is None or found is None or done is not None:
            raise no_txn(txn, done)
        return topic, found.id

    def open_part(self, txn: str, partition: int, attempt: int, schema: Any) -> Part:
        topic, ident = self._open_txn(txn)
        stored = schema_from_text(topic.schema)
        takes(stored, stored_schema(schema), f"topic {topic.name}")
        return self._staging.new_part(topic.name, ident, partition, attempt, stored)

    def commit(self, txn: str, receipts: Sequence[Receipt]) -> Committed:
        name, key = parsed(txn)
        with self._database.write() as db:
            topic = self._find(db, name)
            if topic is None:
                raise no_txn(txn)
            done = _done(db, topic, key)
            if done is not None:
                return done
            found = _txn(db, topic, key)
            if found is None:
                raise no_txn(txn)
            done, left = self._commit(db, topic, key, found.id, receipts)
        remove_files(self._path / name, left)
        self._watch.tell(name)
        return done

    def _commit(
        self,
        db: sqlite3.Connection,
        topic: Topic,
        key: Key,
        txn: int,
        receipts: Sequence[Receipt],
    ) -> tuple[Committed, list[str]]:
        """Apply a commit; return its result, and the files that nothing names any more."""
        staged = _parts(db, txn)
        for receipt in receipts:
            receipt.check(staged[receipt.file].receipt if receipt.file in staged else None)
        version, now = topic.version + 1, self._clock()
        kept = [receipt for receipt in receipts if receipt.rows]
        (count,) = db.execute(
            "SELECT count(*) FROM partitions WHERE topic = ?", (topic.id,)
        ).fetchone()
        for receipt in kept:
            place = topic.id, receipt.partition % count
            query = "SELECT latest FROM partitions WHERE topic = ? AND partition = ?"
            (start,) = db.execute(query, place).fetchone()
            groups = staged[receipt.file].groups
            added = start, receipt.rows, receipt.bytes, receipt.file, groups, version, now, now
            db.execute(
                "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*place, *added)
            )
            db.execute(
                "UPDATE partitions SET latest = latest + ?, bytes = bytes + ?, loose = loose + 1"
                " WHERE topic = ? AND partition = ?",
                (receipt.rows, receipt.bytes, *place),
            )
        db.execute("UPDATE topics SET version = ? WHERE id = ?", (version, topic.id))
        rows, size = sum(each.rows for each in kept), sum(each.bytes for each in kept)
        forgotten = now if key.batch < 0 else None
        db.execute(
            "INSERT OR REPLACE INTO queries VALUES (?, ?, ?, ?, ?, ?, ?)",
            (topic.id, *key, version, rows, size, forgotten),
        )
        # And the earlier batches of the query: they are done now, whatever they were.
        over = topic.id, *key
        query = (
            "SELECT file FROM parts JOIN txns ON txns.id = parts.txn"
            " WHERE topic = ? AND query = ? AND batch <= ?"
        )
        files = {file for (file,) in db.execute(query, over)} - {each.file for each in kept}
        db.execute("DELETE FROM txns WHERE topic = ? AND query = ? AND batch <= ?", over)
        return Committed(version, rows, size), sorted(files)

    def abort(self, txn: str) -> bool:
        name, key = parsed(txn)
        with self._database.write() as db:
            topic = self._find(db, name)
            if topic is None:
                return False
            if _done(db, topic, key) is not None:
                return True
            found = _txn(db, topic, key)
            files = [] if found is None else [*_parts(db, found.id)]
            if found is not None:
                db.execute("DELETE FROM txns WHERE id = ?", (found.id,))
        remove_files(self._path / name, files)
        return False

    # Reading

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str] | None = None,
        metadata: bool = False,
        home: str | None = None,
    ) -> Table:
        with self._database.read() as db:
            found = self._topic(db, topic)
            check_home(topic, home, found.home)
            check_offsets(topic, _heads(db, found), partition, start, end)
        schema = schema_from_text(found.schema)
        told = bound_columns(columns, with_metadata(schema) if metadata else schema)
        return Table(told, self._rows(found, schema, told, metadata, partition, start, end))

    def _rows(
        self,
        topic: Topic,
        schema: Any,
        told: Any,
        metadata: bool,
        partition: int,
        start: int,
        end: int,
    ) -> Iterator[Any]:
        """Yield rows; go on in the joined file if one has replaced those that were looked up."""
        names = [name for name in told.names if not (metadata and name in METADATA)]
        time = TIMESTAMP if metadata else None
        lost = ""
        while start < end:
            with self._database.read() as db:
                segments = _segments(db, topic, partition, start, end)
                # Behind the look: a topic that was made anew may have the id of the former one.
                check_home(topic.name, topic.home, self._topic(db, topic.name).home)
                if not segments or segments[0].file == lost:
                    check_offsets(topic.name, _heads(db, topic), partition, start, end)
                    where = f"what holds offset {start} of partition {partition}"
                    missing = f"topics/{topic.name}/{lost}" if segments else where
                    raise refusal(Code.CORRUPT, f"{missing} is missing")
            for segment in segments:
                span = range(start - segment.start, min(end, segment.end) - segment.start)
                shown = f"topics/{topic.name}/{segment.file}"
                root = self._path / topic.name
                try:
                    for batch in read_segment(root, segment, schema, names, span, shown, time):
                        yield add_metadata(batch, told, partition, start) if metadata else batch
                        start += batch.num_rows
                except FileNotFoundError:
                    lost = segment.file
                    break

    def offsets_at(self, topic: str, timestamp: int) -> list[int | None]:
        partitions = len(self.heads(topic).latest)
        return [self._offset_at(topic, place, timestamp) for place in range(partitions)]

    def _offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        while True:
            with self._database.read() as db:
                # Rounded as in ``milliseconds``; ``since`` and ``time`` are the range of a file.
                row = db.execute(
                    f"SELECT {COLUMNS} FROM segments WHERE topic = ? AND partition = ?"
                    " AND time * 1000 + 0.5 >= ? ORDER BY start LIMIT 1",
                    (self._topic(db, topic).id, partition, timestamp),
                ).fetchone()
            if row is None:
                return None
            segment = Segment(*row)
            if milliseconds(segment.since) >= timestamp:
                return segment.start
            try:
                return self._offset_in(topic, partition, segment, timestamp)
            except RiverError as error:
                if error.code != Code.OFFSETS_GONE:
                    raise
                # Retention has dropped it meanwhile; it was among the last ones that are due.

    def _offset_in(self, topic: str, partition: int, segment: Segment, timestamp: int) -> int:
        """Return the first offset of a file whose row came at a time or later."""
        least = pa.scalar(timestamp * 1000, pa.timestamp("us", "UTC"))
        start = segment.start
        times = self.read(topic, partition, start, segment.end, [TIMESTAMP], True)
        for batch in times.batches:
            place = pc.index(pc.greater_equal(batch.column(0), least), True).as_py()
            if place >= 0:
                return start + int(place)
            start += batch.num_rows
        text = f"topics/{topic}/{segment.file} has no row as late as topics.sqlite tells"
        raise refusal(Code.CORRUPT, f"{text}: put copies of both in their place")

    def release(
        self, topic: str, query: str, offsets: Sequence[int], replaces: str | None = None
    ) -> None:
        check_query(query)
        if replaces is not None:
            check_query(replaces)
        with self._database.write() as db:
            found = self._topic(db, topic)
            latest = _heads(db, found).latest
            check_released(topic, latest, offsets)
            reader = found.id, short(query)
            row = db.execute(
                "SELECT offsets FROM readers WHERE topic = ? AND query = ?", reader
            ).fetchone()
            before = [0] * len(latest) if row is None else json.loads(row[0])
            after = [max(pair) for pair in zip(before, offsets, strict=True)]
            db.execute(
                "INSERT OR REPLACE INTO readers VALUES (?, ?, ?)", (*reader, json.dumps(after))
            )
            if replaces is not None and replaces != query:
                left = found.id, short(replaces)
                db.execute("DELETE FROM readers WHERE topic = ? AND query = ?", left)

    # Cleaning up

    def close(self) -> None:
        self._upkeep.stopping = True  # an exit in the middle of Arrow's work would crash
        self._database.close()

    def expire(self, now: float) -> None:
        self._upkeep.stopping = False
        for name in self._upkeep.names():
            try:
                self._upkeep.sweep(name, now)
            except (RiverError, OSError) as error:  # the others are swept all the same
                _log.warning("topic %s cannot be swept: %s", name, error)
            self._watch.tell(name)


# Rows


class _Txn(NamedTuple):
    id: int
    used: float


class _Staged(NamedTuple):
    receipt: Receipt
    groups: str


def _heads(db: sqlite3.Connection, topic: Topic) -> Heads:
    query = "SELECT earliest, latest, bytes FROM partitions WHERE topic = ? ORDER BY partition"
    rows = db.execute(query, (topic.id,)).fetchall()
    earliest, latest, sizes = ([row[place] for row in rows] for place in range(3))
    return Heads(earliest, latest, sizes, topic.home)


def _done(db: sqlite3.Connection, topic: Topic, key: Key) -> Committed | None:
    """Return what a transaction made, if it was committed, or a later one of its query.

    Only the last one of a query is known exactly; of others it is told that nothing came.
    """
    query = "SELECT batch, version, rows, bytes FROM queries WHERE topic = ? AND query = ?"
    row = db.execute(query, (topic.id, key.query)).fetchone()
    if row is None or key.batch > row[0]:
        return None
    return Committed(*row[1:]) if key.batch == row[0] else Committed(topic.version, 0, 0)


def _txn(db: sqlite3.Connection, topic: Topic, key: Key) -> _Txn | None:
    query = "SELECT id, used FROM txns WHERE topic = ? AND query = ? AND batch = ?"
    row = db.execute(query, (topic.id, *key)).fetchone()
    return None if row is None else _Txn(*row)


def _parts(db: sqlite3.Connection, txn: int) -> dict[str, _Staged]:
    """Return the finished parts of a transaction by their files."""
    query = "SELECT groups, partition, attempt, rows, bytes, crc, file FROM parts WHERE txn = ?"
    found = db.execute(query, (txn,)).fetchall()
    return {row[-1]: _Staged(Receipt(*row[1:]), row[0]) for row in found}


def _segments(
    db: sqlite3.Connection, topic: Topic, partition: int, start: int, end: int
) -> list[Segment]:
    """Return the first files that hold rows from an offset up to another one."""
    place = topic.id, partition
    rows = db.execute(
        f"SELECT {COLUMNS} FROM segments WHERE topic = ? AND partition = ? AND start < ?"
        " AND start >= (SELECT max(start) FROM segments"
        " WHERE topic = ? AND partition = ? AND start <= ?)"
        f" ORDER BY start LIMIT {AHEAD}",
        (*place, end, *place, start),
    ).fetchall()
    found = [Segment(*row) for row in rows]
    return found if found and found[0].end > start else []
