"""Know what a topic holds: its log, added up. Pure.

An entry of the log is an object:

- ``init``: the first one; names the topic's ``id``, its ``schema`` and how many ``partitions``.
- ``commit``: ``key`` of the transaction, ``query``, ``batch``, ``files``, ``time``.
- ``trim``: offsets below ``earliest`` are gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from .base import Committed, Heads, Retention

__all__ = ["Segment", "TopicState", "init_entry", "query_key", "split_key", "txn_key"]


@dataclass(slots=True)
class Segment:
    """One file of a topic: rows of one partition from offset ``start`` on."""

    file: str
    partition: int
    start: int
    rows: int
    bytes: int
    groups: list[int]
    version: int
    time: float

    @property
    def end(self) -> int:
        """The offset after the last row."""
        return self.start + self.rows


@dataclass(slots=True)
class _Query:
    query: str
    batch: int
    version: int
    rows: int
    bytes: int


def init_entry(home: str, schema: str, partitions: int) -> dict[str, Any]:
    """Return the first entry of a log."""
    return {"kind": "init", "id": home, "schema": schema, "partitions": partitions}


def query_key(query: str) -> str:
    """Return what stands for a query in names."""
    return hashlib.sha256(query.encode()).hexdigest()[:32]


def txn_key(query: str, batch: int) -> str:
    """Return the key of the one transaction that a batch of a query has, whoever asks."""
    return f"{query_key(query)}-{batch}"


def split_key(key: str) -> tuple[str, int] | None:
    """Return the key of the query and the batch that a transaction's key is made of."""
    query, _, batch = key.partition("-")
    return (query, int(batch)) if batch else None


class TopicState:
    """Add up entries.

    Attributes:
        id: tells the topic from a later one of its name. Empty before the first entry.
        version: how many commits there were.
        schema: in text.
        earliest, latest: offsets by partition.
        segments: what is held, the oldest first.
    """

    def __init__(self) -> None:
        self.id = ""
        self.version = 0
        self.schema = ""
        self.earliest: list[int] = []
        self.latest: list[int] = []
        self.segments: list[Segment] = []
        self._bytes: list[int] = []
        self._queries: dict[str, _Query] = {}

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Add an entry.

        Raises:
            KeyError, TypeError, ValueError, IndexError: it is none.
        """
        kind = entry["kind"]
        if (kind == "init") == bool(self.id):
            raise ValueError("a log begins with one entry that says so")
        if kind == "init":
            self.id, self.schema = str(entry["id"]), str(entry["schema"])
            self.earliest = [0] * int(entry["partitions"])
            self.latest = [0] * int(entry["partitions"])
            self._count()
        elif kind == "commit":
            self._commit(entry)
        elif kind == "trim":
            self.earliest = [int(offset) for offset in entry["earliest"]]
            self.segments = [s for s in self.segments if s.end > self.earliest[s.partition]]
            self._count()
        else:
            raise ValueError(f"{kind!r} is no kind of entry")

    def _count(self) -> None:
        self._bytes = [0] * len(self.latest)
        for segment in self.segments:
            self._bytes[segment.partition] += segment.bytes

    def _commit(self, entry: Mapping[str, Any]) -> None:
        self.version += 1
        rows = size = 0
        for file in entry["files"]:
            place = int(file["partition"])
            added = Segment(
                **file, start=self.latest[place], version=self.version, time=float(entry["time"])
            )
            self.latest[place] = added.end
            self.segments.append(added)
            self._bytes[place] += added.bytes
            rows, size = rows + added.rows, size + added.bytes
        key, query, batch = str(entry["key"]), str(entry["query"]), int(entry["batch"])
        self._queries[key.partition("-")[0]] = _Query(query, batch, self.version, rows, size)

    # Asking

    def heads(self) -> Heads:
        """Return the offsets that are held."""
        return Heads(list(self.earliest), list(self.latest), list(self._bytes))

    def committed(self, key: str) -> Committed | None:
        """Return what a transaction made, if it was committed, or a later one of its query.

        Only the last one of a query is known exactly; of others it is told that nothing came.
        """
        parts = split_key(key)
        last = None if parts is None else self._queries.get(parts[0])
        if parts is None or last is None or parts[1] > last.batch:
            return None
        if parts[1] == last.batch:
            return Committed(last.version, last.rows, last.bytes)
        return Committed(self.version, 0, 0)

    def segments_of(self, partition: int) -> list[Segment]:
        """Return what is held of a partition."""
        return [segment for segment in self.segments if segment.partition == partition]

    def files_of(self) -> dict[str, set[str]]:
        """Return the names of all files by their transactions' keys."""
        found: dict[str, set[str]] = {}
        for segment in self.segments:
            txn, _, name = segment.file.partition("/")
            found.setdefault(txn, set()).add(name)
        return found

    # Entries

    def trim_entry(
        self, retention: Retention, released: Sequence[Sequence[int]], now: float
    ) -> dict[str, Any] | None:
        """Return the entry that drops what need not be kept, if there is something.

        Args:
            released: of each known query, the offsets below which it needs nothing.
        """
        floors = [
            min((offsets[place] for offsets in released), default=latest)
            for place, latest in enumerate(self.latest)
        ]
        rows, size = sum(s.rows for s in self.segments), sum(s.bytes for s in self.segments)
        earliest, blocked = list(self.earliest), set[int]()
        for segment in self.segments:
            place, age = segment.partition, now - segment.time
            newest = segment.version == self.version
            hard = _above(retention.hard_age, age) or (
                not newest
                and (_above(retention.hard_rows, rows) or _above(retention.hard_bytes, size))
            )
            soft = _above(retention.age, age) or (
                not newest
                and (
                    _above(retention.rows, rows - segment.rows + 1)
                    or _above(retention.bytes, size - segment.bytes + 1)
                )
            )
            if place in blocked or not (hard or (soft and segment.end <= floors[place])):
                blocked.add(place)
                continue
            rows, size = rows - segment.rows, size - segment.bytes
            earliest[place] = segment.end
        if earliest == self.earliest:
            return None
        return {"kind": "trim", "earliest": earliest}

    # Checkpoints

    def to_json(self) -> dict[str, Any]:
        """Return everything, as what ``from_json`` takes."""
        return {
            "id": self.id,
            "version": self.version,
            "schema": self.schema,
            "earliest": self.earliest,
            "latest": self.latest,
            "segments": [asdict(segment) for segment in self.segments],
            "queries": {key: asdict(query) for key, query in self._queries.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return what a checkpoint holds.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        state = cls()
        state.id, state.version = str(values["id"]), int(values["version"])
        state.schema = str(values["schema"])
        state.earliest = [int(offset) for offset in values["earliest"]]
        state.latest = [int(offset) for offset in values["latest"]]
        state.segments = [Segment(**segment) for segment in values["segments"]]
        state._count()
        state._queries = {key: _Query(**query) for key, query in values["queries"].items()}
        return state


def _above(limit: float | None, value: float) -> bool:
    return limit is not None and value > limit
