"""Know what a dataset holds: its log, added up. Pure.

The log has one entry for each commit, and some for cleaning up. An entry is an object:

- ``init``: the first one; names the dataset's ``id``.
- ``commit``: ``txn``, ``mode``, ``files``, ``time``, ``app``, ``app_version``, and ``schema``
  unless it is the one before.
- ``vacuum``: versions below ``oldest`` can be read no more; transactions committed before
  ``time`` are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from .base import Committed

__all__ = ["DatasetState", "StoredFile", "init_entry"]

# Transactions past their time that are worth an entry of their own to forget.
MANY_TXNS = 256


@dataclass(slots=True)
class StoredFile:
    """One file of a dataset: those of a version were added by then, and not yet removed."""

    file: str
    """The transaction's key, a slash and the name."""
    rows: int
    bytes: int
    groups: list[int]
    """Rows of what can be read apart in it."""
    added: int
    removed: int | None = None
    removed_at: float = 0.0


@dataclass(slots=True)
class _Txn:
    version: int
    rows: int
    bytes: int
    time: float


@dataclass(slots=True)
class _App:
    app_version: int
    txn: str
    version: int
    rows: int
    bytes: int


def init_entry(home: str) -> dict[str, Any]:
    """Return the first entry of a log."""
    return {"kind": "init", "id": home}


class DatasetState:
    """Add up entries.

    Attributes:
        id: tells the dataset from a later one of its name. Empty before the first entry.
        version: the newest; 0 while nothing is committed.
        oldest: what is below can be read no more.
        schemas: ``(version, schema)``, the schema from that version on, in text.
        files: in the order of their rows.
    """

    def __init__(self) -> None:
        self.id = ""
        self.version = 0
        self.oldest = 1
        self.schemas: list[tuple[int, str]] = []
        self.files: list[StoredFile] = []
        self._txns: dict[str, _Txn] = {}
        self._apps: dict[str, _App] = {}
        self._held: dict[str, Committed] = {}  # transactions that files are of

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Add an entry.

        Raises:
            KeyError, TypeError, ValueError, IndexError: it is none.
        """
        kind = entry["kind"]
        if (kind == "init") == bool(self.id):
            raise ValueError("a log begins with one entry that says so")
        if kind == "init":
            self.id = str(entry["id"])
        elif kind == "commit":
            self._commit(entry)
        elif kind == "vacuum":
            self._vacuum(entry)
        else:
            raise ValueError(f"{kind!r} is no kind of entry")

    def _commit(self, entry: Mapping[str, Any]) -> None:
        version, now = self.version + 1, float(entry["time"])
        added = [StoredFile(**file, added=version) for file in entry["files"]]
        done = Committed(
            version, sum(file.rows for file in added), sum(file.bytes for file in added)
        )
        txn = str(entry["txn"])
        schema = str(entry["schema"]) if "schema" in entry else self.schemas[-1][1]
        if entry["mode"] == "overwrite":
            for file in self.files:
                if file.removed is None:
                    file.removed, file.removed_at = version, now
        if entry.get("app") is not None:
            self._apps[entry["app"]] = _App(int(entry["app_version"]), txn, *done)
        self.version = version
        self._hold(added)
        self._txns[txn] = _Txn(*done, now)
        if not self.schemas or self.schemas[-1][1] != schema:
            self.schemas.append((version, schema))

    def _hold(self, files: Iterable[StoredFile]) -> None:
        for file in files:
            self.files.append(file)
            txn = file.file.partition("/")[0]
            _, rows, size = self._held.get(txn, (0, 0, 0))
            self._held[txn] = Committed(file.added, rows + file.rows, size + file.bytes)

    def _vacuum(self, entry: Mapping[str, Any]) -> None:
        self.oldest = int(entry["oldest"])
        before = float(entry["time"])
        kept = [f for f in self.files if f.removed is None or f.removed > self.oldest]
        self.files, self._held = [], {}
        self._hold(kept)
        self._txns = {key: txn for key, txn in self._txns.items() if txn.time >= before}
        current = [each for each in self.schemas if each[0] <= self.oldest][-1:]
        self.schemas = current + [each for each in self.schemas if each[0] > self.oldest]

    # Asking

    def schema(self, version: int) -> str:
        """Return the schema of a version."""
        return [schema for since, schema in self.schemas if since <= version][-1]

    def snapshot(self, version: int) -> list[StoredFile]:
        """Return the files of a version that is not below the oldest."""
        return [
            file
            for file in self.files
            if file.added <= version and (file.removed is None or file.removed > version)
        ]

    def committed(self, txn: str) -> Committed | None:
        """Return what a transaction made, if it was committed."""
        found = self._txns.get(txn)
        if found is not None:
            return Committed(found.version, found.rows, found.bytes)
        for app in self._apps.values():
            if app.txn == txn:
                return Committed(app.version, app.rows, app.bytes)
        return self._held.get(txn)

    def written(self, app: str, app_version: int) -> tuple[str, Committed] | None:
        """Return the last transaction of an app, if its version is not below the one asked for."""
        last = self._apps.get(app)
        if last is None or last.app_version < app_version:
            return None
        return last.txn, Committed(last.version, last.rows, last.bytes)

    def files_of(self) -> dict[str, set[str]]:
        """Return the names of all files by their transactions' keys."""
        found: dict[str, set[str]] = {}
        for file in self.files:
            txn, _, name = file.file.partition("/")
            found.setdefault(txn, set()).add(name)
        return found

    # Entries

    def vacuum_entry(self, before: float) -> dict[str, Any] | None:
        """Return the entry that lets go of what was replaced before a time, if there is much."""
        gone = [f.removed for f in self.files if f.removed is not None and f.removed_at < before]
        old = sum(txn.time < before for txn in self._txns.values())
        if not gone and old < MANY_TXNS:
            return None
        return {"kind": "vacuum", "oldest": max([self.oldest, *gone]), "time": before}

    # Checkpoints

    def to_json(self) -> dict[str, Any]:
        """Return everything, as what ``from_json`` takes."""
        return {
            "id": self.id,
            "version": self.version,
            "oldest": self.oldest,
            "schemas": self.schemas,
            "files": [asdict(file) for file in self.files],
            "txns": {key: asdict(txn) for key, txn in self._txns.items()},
            "apps": {key: asdict(app) for key, app in self._apps.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return what a checkpoint holds.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        state = cls()
        state.id = str(values["id"])
        state.version, state.oldest = int(values["version"]), int(values["oldest"])
        state.schemas = [(int(since), str(schema)) for since, schema in values["schemas"]]
        state._hold(StoredFile(**file) for file in _list(values["files"]))
        state._txns = {key: _Txn(**txn) for key, txn in values["txns"].items()}
        state._apps = {key: _App(**app) for key, app in values["apps"].items()}
        return state


def _list(value: Any) -> Iterable[Any]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value
