"""Keep topics small: drop what retention allows, join small files, and sweep what nobody needs.

All of it is done in the background, in steps of a bounded size, each a short transaction: a writer
waits for one at most. Files are read and written outside of transactions.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from ...config import MIB
from ...runtime.logs import logger
from ..source.ranges import without_large_first
from ..store.base import Retention
from ..store.directory import real_directory
from ..store.schemas import schema_from_text
from .database import GIVE_HOMES, Database, Topic, find_topic
from .segments import COLUMNS, Segment, SegmentWriter, read_segment, timed

__all__ = ["Upkeep", "remove_files"]

# Segments that one transaction drops.
AT_ONCE = 1000

# Segments that were added to a partition at which small ones are joined, and how many of those
# before them are looked at. Twice the rows of a joined file, or more, fit one at most.
JOIN_AFTER = 16
OLDER = 64

# Bytes and files that are joined to one at most: what one step reads and writes.
JOINED_BYTES = 32 * MIB
JOINED_FILES = 1000

# A file that is joined holds at most so large a part of what is kept, since files go as a whole.
SHARE = 10

# Seconds between two looks at all files of a topic for those that nobody needs: a process that was
# killed leaves them, and they harm nobody.
BETWEEN_LOOKS = 3600.0

# The names that files of topics have.
_FILE = re.compile(r"(p[0-9]{1,19}-[0-9]{1,19}-[0-9a-f]{16}|j-[0-9a-f]{32})\.arrow")

_log = logger("wsmux.spark")


class Bounds(NamedTuple):
    """What a joined file may hold at most; ``age`` is between its first and last rows, in s."""

    rows: float
    bytes: float
    age: float


def bounds(retention: Retention) -> Bounds:
    """Return the bounds of joined files."""

    def share(*limits: float | None) -> float:
        return min((limit / SHARE for limit in limits if limit is not None), default=float("inf"))

    rows = share(retention.rows, retention.hard_rows)
    size = share(retention.bytes, retention.hard_bytes)
    age = share(retention.age, retention.hard_age)
    return Bounds(rows, min(JOINED_BYTES, size), age)


def runs(segments: Iterable[Segment], most: Bounds) -> list[list[Segment]]:
    """Return which files to join, each list in the order of rows and without a gap.

    A file that is larger than all behind it in its list is left out.
    """
    found: list[list[Segment]] = [[]]
    for each in segments:
        held = found[-1]
        rows, size = sum(s.rows for s in held) + each.rows, sum(s.bytes for s in held) + each.bytes
        full = rows > most.rows or size > most.bytes or len(held) >= JOINED_FILES
        if held and (full or each.time - held[0].since > most.age):
            found.append([])
        if 2 * each.rows > most.rows or 2 * each.bytes > most.bytes:
            found.append([])  # large enough
        else:
            found[-1].append(each)
    joined = (without_large_first(held, attrgetter("bytes")) for held in found)
    return [run for run in joined if len(run) > 1]


class Upkeep:
    """Apply the retention of topics, join their small files, and remove orphans.

    Attributes:
        stopping: whether to leave the rest for another time.

    Args:
        path: the folder that holds a folder for each topic. ttl: see ``SqliteTopics``.
    """

    def __init__(
        self, database: Database, path: Path, retention: Retention, ttl: float, *, sync: bool
    ) -> None:
        self._database = database
        self._path = path
        self._retention = retention
        self._bounds = bounds(retention)
        self._ttl = ttl
        self._sync = sync
        self._join_after = JOIN_AFTER
        self.stopping = False
        self._looked: dict[int, float] = {}

    def names(self) -> list[str]:
        """Return all topics."""
        with self._database.read() as db:
            return [name for (name,) in db.execute("SELECT name FROM topics").fetchall()]

    def sweep(self, name: str, now: float) -> None:
        """Do what is due for a topic; ``now`` in seconds since 1970.

        Raises:
            RiverError: BUSY, CORRUPT or STORE_FAILED. OSError: what the system says.
        """
        with self._database.read() as db:
            topic = find_topic(db, name)
        if topic is None:
            return
        if not real_directory(self._path / name, f"topics/{name}"):
            with self._database.write() as db:  # somebody has removed it
                # And may have made another one since, which may have its id.
                gone = "DELETE FROM topics WHERE id = ? AND home = ?"
                db.execute(gone, (topic.id, topic.home))
            return
        if not topic.home:
            with self._database.write() as db:
                db.execute(GIVE_HOMES)
        self._expire(topic, now - self._ttl)
        while self._drop(topic, now) == AT_ONCE:
            pass
        if now - self._looked.get(topic.id, float("-inf")) >= min(self._ttl, BETWEEN_LOOKS):
            self._looked[topic.id] = now
            self._remove_orphans(topic, now - self._ttl)
        self._join(topic)

    # Transactions

    def _expire(self, topic: Topic, before: float) -> None:
        """Forget the transactions that were last written to before a time."""
        old = topic.id, before
        queries = "FROM queries WHERE topic = ? AND time < ?"
        txns = "FROM txns WHERE topic = ? AND used < ?"
        with self._database.read() as db:
            due = f"SELECT EXISTS (SELECT 1 {queries}) OR EXISTS (SELECT 1 {txns})"
            if not db.execute(due, (*old, *old)).fetchone()[0]:
                return
        with self._database.write() as db:
            select = f"SELECT file FROM parts WHERE txn IN (SELECT id {txns})"
            files = [file for (file,) in db.execute(select, old)]
            db.execute(f"DELETE {txns}", old)
            db.execute(f"DELETE {queries}", old)
        remove_files(self._path / topic.name, files)

    # Retention

    def _drop(self, topic: Topic, now: float) -> int:
        """Drop files that retention does not keep; return how many."""
        if self._retention == Retention():
            return 0
        with self._database.read() as db:
            if not self._outdated(db, topic, now):
                return 0
        with self._database.write() as db:
            found = self._outdated(db, topic, now)
            for partition, segment in found:
                place = topic.id, partition
                db.execute(
                    "DELETE FROM segments WHERE topic = ? AND partition = ? AND start = ?",
                    (*place, segment.start),
                )
                db.execute(
                    "UPDATE partitions SET earliest = ?, bytes = bytes - ?"
                    " WHERE topic = ? AND partition = ?",
                    (segment.end, segment.bytes, *place),
                )
        remove_files(self._path / topic.name, [segment.file for _, segment in found])
        return len(found)

    def _outdated(
        self, db: sqlite3.Connection, topic: Topic, now: float
    ) -> list[tuple[int, Segment]]:
        """Return partition and segment of what retention does not keep, at most ``AT_ONCE``."""
        keep = self._retention
        current = find_topic(db, topic.name)
        if current is None or current.id != topic.id:
            return []
        query = "SELECT earliest, latest, bytes FROM partitions WHERE topic = ? ORDER BY partition"
        held = db.execute(query, (topic.id,)).fetchall()
        told = db.execute("SELECT offsets FROM readers WHERE topic = ?", (topic.id,)).fetchall()
        released = [json.loads(offsets) for (offsets,) in told]
        floors = [
            min((each[place] for each in released), default=latest)
            for place, (_, latest, _) in enumerate(held)
        ]
        earliest = [each[0] for each in held]
        rows, size = sum(each[1] - each[0] for each in held), sum(each[2] for each in held)
        found: list[tuple[int, Segment]] = []
        query = f"SELECT partition, {COLUMNS} FROM segments WHERE topic = ? ORDER BY since, start"
        for partition, *values in db.execute(query, (topic.id,)):
            segment = Segment(*values)
            newest = segment.version == current.version
            hard = _above(keep.hard_age, now - segment.since) or (
                not newest and (_above(keep.hard_rows, rows) or _above(keep.hard_bytes, size))
            )
            soft = _above(keep.age, now - segment.time) or (
                not newest
                and (
                    _above(keep.rows, rows - segment.rows + 1)
                    or _above(keep.bytes, size - segment.bytes + 1)
                )
            )
            if len(found) == AT_ONCE or not (hard or soft):
                break  # nor is what came later
            # Not what stands behind rows that stay: offsets have no gaps.
            if segment.start == earliest[partition] and (hard or segment.end <= floors[partition]):
                rows, size = rows - segment.rows, size - segment.bytes
                earliest[partition] = segment.end
                found.append((partition, segment))
        return found

    # Joining

    def _join(self, topic: Topic) -> None:
        """Join small files of the partitions to which many were added."""
        query = "SELECT partition, loose FROM partitions WHERE topic = ? AND loose >= ?"
        with self._database.read() as db:
            due = db.execute(query, (topic.id, self._join_after)).fetchall()
        for partition, loose in due:
            if self.stopping:
                return
            place = topic.id, partition
            with self._database.read() as db:
                # Not the newest commit, which retention keeps whatever it is.
                rows = db.execute(
                    f"SELECT {COLUMNS} FROM segments WHERE topic = ? AND partition = ? AND version"
                    " < (SELECT version FROM topics WHERE id = ?) ORDER BY start DESC LIMIT ?",
                    (*place, topic.id, loose + OLDER),
                ).fetchall()
            segments = [Segment(*row) for row in reversed(rows)]
            if all(self._join_run(topic, partition, run) for run in runs(segments, self._bounds)):
                with self._database.write() as db:
                    db.execute(
                        "UPDATE partitions SET loose = max(0, loose - ?)"
                        " WHERE topic = ? AND partition = ?",
                        (loose, *place),
                    )

    def _join_run(self, topic: Topic, partition: int, run: Sequence[Segment]) -> bool:
        """Replace several files by one; return false if some are gone, or it was stopped."""
        root, schema = self._path / topic.name, schema_from_text(topic.schema)
        written = timed(schema)
        writer = SegmentWriter(root / f"j-{uuid.uuid4().hex}.arrow", written, sync=self._sync)
        try:
            for each in run:
                span, shown = range(each.rows), f"topics/{topic.name}/{each.file}"
                time = written.names[-1]
                for batch in read_segment(root, each, schema, schema.names, span, shown, time):
                    writer.write(batch)
                if self.stopping:
                    writer.abandon()
                    return False
            groups = writer.close()
        except FileNotFoundError:
            writer.abandon()
            return False
        except BaseException:
            writer.abandon()
            raise
        first, last = run[0], run[-1]
        joined = Segment(
            first.start,
            last.end - first.start,
            sum(each.bytes for each in run),
            writer.path.name,
            groups,
            first.version,
            first.since,
            last.time,
        )
        where = "WHERE topic = ? AND partition = ? AND start >= ? AND start < ?"
        span_of = topic.id, partition, first.start, last.end
        with self._database.write() as db:
            there = db.execute(f"SELECT file FROM segments {where} ORDER BY start", span_of)
            same = [file for (file,) in there] == [each.file for each in run]
            if same:
                db.execute(f"DELETE FROM segments {where}", span_of)
                row = topic.id, partition, *joined
                db.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        remove_files(root, [each.file for each in run] if same else [joined.file])
        return same

    # Orphans

    def _remove_orphans(self, topic: Topic, before: float) -> None:
        """Remove the files that no row names and nobody has written to since a time."""
        root = self._path / topic.name
        with os.scandir(root) as entries:
            own = [each for each in entries if _FILE.fullmatch(each.name)]
            found = {each.name: each.stat(follow_symlinks=False).st_mtime for each in own}
        with self._database.read() as db:  # behind the look, so that what is added is known
            query = (
                "SELECT file FROM segments WHERE topic = ? UNION ALL"
                " SELECT file FROM parts JOIN txns ON txns.id = parts.txn WHERE topic = ?"
            )
            known = {file for (file,) in db.execute(query, (topic.id, topic.id))}
        remove_files(
            root, [name for name, used in found.items() if used < before and name not in known]
        )


def _above(limit: float | None, value: float) -> bool:
    return limit is not None and value > limit


def remove_files(root: Path, files: Iterable[str]) -> None:
    """Remove files that no row names any more; what is left of them is an orphan, and harmless."""
    for file in files:
        if _FILE.fullmatch(file) is None:
            _log.warning("%r is no file of topic %s, and is left alone", file, root.name)
            continue
        try:
            (root / file).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s of topic %s is not removed: %s", file, root.name, error)
