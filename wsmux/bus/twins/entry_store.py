"""Keep the entries of a signed directory in SQLite."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

from .entries import Entry
from .records import Twin

__all__ = ["EntryStore", "StaleEntry", "StoreFull"]

# Twins that register, about 300 bytes each.
MAX_TWINS = 1_000_000

_TABLE = """
CREATE TABLE IF NOT EXISTS twins (
    id INTEGER PRIMARY KEY, account BLOB NOT NULL UNIQUE, relays TEXT NOT NULL, pk BLOB,
    serial INTEGER NOT NULL, signature BLOB NOT NULL
)
"""

# One statement, so that of two processes with an entry of one account the later serial stays.
_PUT = """
INSERT INTO twins (account, relays, pk, serial, signature) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (account) DO UPDATE SET relays = excluded.relays, pk = excluded.pk,
    serial = excluded.serial, signature = excluded.signature
WHERE excluded.serial > serial
RETURNING id
"""

_GET = "SELECT id, account, relays, pk, serial, signature FROM twins WHERE"


class StaleEntry(Exception):
    """Report an entry that is not later than the one on record."""


class StoreFull(Exception):
    """Report that no more twins can register."""


class EntryStore:
    """Keep entries; any thread may use it.

    Args:
        path: the database, made if it does not exist; ``":memory:"`` for none on disk.
        max_twins: the maximum number of twins.

    Raises:
        sqlite3.Error: the database cannot be used.
    """

    def __init__(self, path: Path | str, max_twins: int = MAX_TWINS) -> None:
        self._max_twins = max_twins
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, check_same_thread=False)
        with self._database:
            self._database.execute(_TABLE)

    def get(self, number: int) -> Entry | None:
        """Return the entry of a twin, or ``None``."""
        return self._one("id = ?", number)

    def find(self, account: bytes) -> Entry | None:
        """Return the entry of an account, or ``None``."""
        return self._one("account = ?", account)

    def put(self, entry: Entry) -> int:
        """Store an entry whose signature was checked, and return the number of its twin.

        An account that is new gets the next free number.

        Raises:
            StaleEntry: the serial is not above that on record.
            StoreFull: the account is new, and there is no room.
        """
        twin = entry.twin
        values = (twin.account, json.dumps(twin.relays), twin.pk, entry.serial, entry.signature)
        if self.find(twin.account) is None and self._count() >= self._max_twins:
            raise StoreFull(f"{self._max_twins} twins are registered, which is the maximum")
        with self._lock, self._database:
            found = self._database.execute(_PUT, values).fetchone()
        if found is None:
            raise StaleEntry("the serial is not above that of the entry on record")
        number: int = found[0]
        return number

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    def _count(self) -> int:
        with self._lock:
            # None is ever removed.
            text = "SELECT coalesce(max(id), 0) FROM twins"
            count: int = self._database.execute(text).fetchone()[0]
        return count

    def _one(self, where: str, value: Any) -> Entry | None:
        with self._lock:
            found = self._database.execute(f"{_GET} {where}", (value,)).fetchone()
        if found is None:
            return None
        number, account, relays, pk, serial, signature = found
        return Entry(Twin(number, account, tuple(json.loads(relays)), pk), serial, signature)
