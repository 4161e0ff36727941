"""Keep the state of a topic store in one SQLite database, which processes of a host share.

Every change is one transaction: a commit adds segments, moves offsets, remembers the batch of its
query and forgets what was staged, or does none of it. A file (``segments``) is on disk before the
transaction that names it, and is removed after the one that no longer does. One that no row names
is an orphan, and is swept.

SQLite serializes the writers of several processes (``BEGIN IMMEDIATE``, and a busy timeout), and a
lock those of one. Readers never wait: a database in WAL mode shows them what was committed before
they began.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ...rpc import RiverError
from ...runtime import fork
from ...runtime.backoff import Backoff
from ...runtime.deadline import Deadline
from ..protocol import Code, refusal

__all__ = ["GIVE_HOMES", "Database", "Topic", "find_topic"]

# The layout of the tables, stored as ``user_version``; a new database has 0.
LAYOUT = 1

SCHEMA = (
    # A topic: its schema (``schemas.schema_text``), and how many commits there were. ``home`` tells
    # it from others of its name; earlier versions, which may use the database too, leave it to a
    # sweep of this one.
    """CREATE TABLE topics (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
        schema TEXT NOT NULL, version INTEGER NOT NULL, home TEXT NOT NULL DEFAULT ''
    )""",
    # The offsets that are held. ``loose`` counts segments that were added since some were joined.
    """CREATE TABLE partitions (
        topic INTEGER NOT NULL REFERENCES topics ON DELETE CASCADE, partition INTEGER NOT NULL,
        earliest INTEGER NOT NULL, latest INTEGER NOT NULL, bytes INTEGER NOT NULL,
        loose INTEGER NOT NULL,
        PRIMARY KEY (topic, partition)
    ) WITHOUT ROWID""",
    # The files of a partition: see ``segments.Segment``.
    """CREATE TABLE segments (
        topic INTEGER NOT NULL REFERENCES topics ON DELETE CASCADE, partition INTEGER NOT NULL,
        start INTEGER NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL, file TEXT NOT NULL,
        groups TEXT NOT NULL, version INTEGER NOT NULL, since REAL NOT NULL, time REAL NOT NULL,
        PRIMARY KEY (topic, partition, start)
    ) WITHOUT ROWID""",
    # The last batch of each query, and what it made: by this a batch counts once. One of no query
    # has the key of its transaction, and is forgotten some time after ``time``.
    """CREATE TABLE queries (
        topic INTEGER NOT NULL REFERENCES topics ON DELETE CASCADE, query TEXT NOT NULL,
        batch INTEGER NOT NULL, version INTEGER NOT NULL, rows INTEGER NOT NULL,
        bytes INTEGER NOT NULL, time REAL,
        PRIMARY KEY (topic, query)
    ) WITHOUT ROWID""",
    # Transactions that were begun and are not over, and when they were last written to.
    """CREATE TABLE txns (
        id INTEGER PRIMARY KEY, topic INTEGER NOT NULL REFERENCES topics ON DELETE CASCADE,
        query TEXT NOT NULL, batch INTEGER NOT NULL, used REAL NOT NULL,
        UNIQUE (topic, query, batch)
    )""",
    # Their finished parts: the receipt, and the rows of each record batch in the file.
    """CREATE TABLE parts (
        txn INTEGER NOT NULL REFERENCES txns ON DELETE CASCADE, file TEXT NOT NULL,
        partition INTEGER NOT NULL, attempt INTEGER NOT NULL, rows INTEGER NOT NULL,
        bytes INTEGER NOT NULL, crc INTEGER NOT NULL, groups TEXT NOT NULL,
        PRIMARY KEY (txn, file)
    ) WITHOUT ROWID""",
    # The offsets that each query that reads has released, as a JSON list.
    """CREATE TABLE readers (
        topic INTEGER NOT NULL REFERENCES topics ON DELETE CASCADE, query TEXT NOT NULL,
        offsets TEXT NOT NULL,
        PRIMARY KEY (topic, query)
    ) WITHOUT ROWID""",
)

# For a database of an earlier version, and for topics that such a one has made.
ADD_HOMES = "ALTER TABLE topics ADD COLUMN home TEXT NOT NULL DEFAULT ''"
GIVE_HOMES = "UPDATE topics SET home = lower(hex(randomblob(8))) WHERE home = ''"

# Bytes of a page: a commit changes a few rows in each of some tables, and writes their pages whole.
PAGE = 1024

# Pages of the write-ahead log after which it is copied into the database, and the bytes that are
# left of it then.
CHECKPOINT = 32
LOG_BYTES = 32 * 1024

# Seconds between two attempts at a lock that SQLite does not wait for itself: at first, at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.02

# PROTOCOL is that of the locks: many processes that open the log at once, or a file system that
# locks badly.
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
# Only what SQLite itself calls damaged: whoever puts a copy in its place loses what came later.
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_NOTADB}
_REFUSED = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


class Topic(NamedTuple):
    """A row of ``topics``."""

    id: int
    name: str
    schema: str
    version: int
    home: str


class _Slot:
    """A connection, and the lock of who uses it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: sqlite3.Connection | None = None
        self.inode: tuple[int, int] | None = None

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


class Database:
    """Provide connections to one database, for any thread, also in a forked process.

    Args:
        path: the file, made if it is not there. shown: what to call it in errors.
        sync: whether what was committed has to survive a crash of the machine.
        timeout: seconds that a change waits at most for others to end.

    Raises:
        RiverError: CORRUPT, STORE_FAILED or BUSY; so does everything else here.
    """

    def __init__(self, path: Path, shown: str, *, sync: bool, timeout: float) -> None:
        self._path = path
        self._shown = shown
        self._sync = sync
        self._timeout = timeout
        self.forked()
        fork.register(self)
        with self.read():
            pass  # it can be opened

    def forked(self) -> None:
        """Begin with no connections: SQLite forbids to use, or to close, those of a parent."""
        self._reading, self._writing = _Slot(), _Slot()
        weakref.finalize(self, _close, (self._reading, self._writing), os.getpid())

    def close(self) -> None:
        """Close the connections that are not in use; later calls open new ones."""
        for slot in (self._reading, self._writing):
            if slot.lock.acquire(blocking=False):
                try:
                    slot.close()
                finally:
                    slot.lock.release()

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for short reads; each statement sees one consistent state."""
        with self._held(self._reading, Deadline(self._timeout)) as db:
            yield db

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction, which is committed unless the block raises."""
        deadline = Deadline(self._timeout)
        with self._held(self._writing, deadline) as db:
            left = deadline.remaining() or 0.0
            db.execute(f"PRAGMA busy_timeout = {max(1, int(left * 1000))}")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    @contextmanager
    def _held(self, slot: _Slot, deadline: Deadline) -> Iterator[sqlite3.Connection]:
        if not slot.lock.acquire(timeout=deadline.park_seconds()):
            raise self._busy("another thread")
        try:
            if slot.connection is None or slot.inode != _inode(self._path):
                slot.close()  # that of a file that was removed
                slot.connection = self._connect()
                slot.inode = _inode(self._path)
            yield slot.connection
        except sqlite3.Error as error:
            raise self._refusal(error) from error
        finally:
            slot.lock.release()

    def _connect(self) -> sqlite3.Connection:
        if self._path.is_symlink():
            raise refusal(Code.CORRUPT, f"{self._shown} is a symbolic link, not a file")
        db = sqlite3.connect(
            self._path, timeout=self._timeout, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute(f"PRAGMA page_size = {PAGE}")
            self._use_wal(db)
            db.execute(f"PRAGMA synchronous = {'FULL' if self._sync else 'OFF'}")
            db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")
            db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            db.execute("PRAGMA foreign_keys = ON")
            self._check_layout(db)
        except BaseException:
            db.close()
            raise
        return db

    def _check_layout(self, db: sqlite3.Connection) -> None:
        """Create the tables of a new database; refuse one of another layout."""
        if not _layout(db):
            db.execute("BEGIN IMMEDIATE")
            if not _layout(db):  # no other process was faster
                for statement in SCHEMA:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {LAYOUT}")
            db.execute("COMMIT")
        layout = _layout(db)
        if layout != LAYOUT:
            text = f"{self._shown} has the layout {layout}, and this version knows {LAYOUT} only"
            raise refusal(Code.CORRUPT, f"{text}: use the version of wsmux that wrote it")
        if not _has_homes(db):
            db.execute("BEGIN IMMEDIATE")
            if not _has_homes(db):
                db.execute(ADD_HOMES)
                db.execute(GIVE_HOMES)
            db.execute("COMMIT")

    def _use_wal(self, db: sqlite3.Connection) -> None:
        """Turn on the write-ahead log; SQLite does not wait for others that do the same."""
        deadline, backoff = Deadline(self._timeout), Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=0.5)
        while True:
            try:
                (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                if _code(error) not in _BUSY or deadline.expired():
                    raise
            time.sleep(min(backoff.next(), deadline.remaining() or 0.0))
        if mode != "wal":
            text = f"{self._shown} cannot have a write-ahead log, but {mode}: keep topics on a"
            raise refusal(Code.STORE_FAILED, f"{text} file system of this host")

    def _refusal(self, error: sqlite3.Error) -> RiverError:
        code = _code(error)
        if code in _BUSY:
            return self._busy("another process")
        if code in _DAMAGED:
            text = f"{self._shown} is damaged: {error}: put a copy of it in its place"
            return refusal(Code.CORRUPT, text)
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        text = f"{self._shown} cannot be used: {error} ({name})"
        if code in _REFUSED:
            text = f"{text}: see that its folder can be written to, and that there is room on its"
            return refusal(Code.STORE_FAILED, f"{text} disk")
        text = f"{text}: SQLite does not call it damaged, so leave it in its place"
        return refusal(Code.STORE_FAILED, text)

    def _busy(self, holder: str) -> RiverError:
        text = f"{self._shown} was held by {holder} for {self._timeout:g} s: nothing was changed,"
        return refusal(Code.BUSY, f"{text} and asking again is safe; lock_timeout sets the time")


def find_topic(db: sqlite3.Connection, name: str) -> Topic | None:
    """Return a topic, or ``None``."""
    query = "SELECT id, name, schema, version, home FROM topics WHERE name = ?"
    row = db.execute(query, (name,)).fetchone()
    return None if row is None else Topic(*row)


def _code(error: sqlite3.Error) -> int:
    """Return the primary error code, without its extension."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _layout(db: sqlite3.Connection) -> int:
    (layout,) = db.execute("PRAGMA user_version").fetchone()
    return int(layout)


def _has_homes(db: sqlite3.Connection) -> bool:
    return any(row[1] == "home" for row in db.execute("PRAGMA table_info(topics)").fetchall())


def _inode(path: Path) -> tuple[int, int] | None:
    """Return what identifies a file apart from its name."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _close(slots: Iterable[_Slot], process: int) -> None:
    """Close connections, but not in a forked process, which may not touch them."""
    if os.getpid() == process:
        for slot in slots:
            slot.close()
