"""Know what a Delta table holds: the entries of its log, added up. Pure.

An entry is the text of one version, an action on each line. What this package commits says so in
``commitInfo.wsmux``: the transaction's key, its rows and bytes, and how many actions there are, by
which an entry that a power cut has cut between two lines is told from a whole one.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from ..store.base import Committed

__all__ = [
    "REMOVED_AGE",
    "DataFile",
    "Done",
    "TableState",
    "Torn",
    "add_action",
    "check_readable",
    "commit_info",
    "entry_text",
    "holder",
    "names_are_new",
    "parse_entry",
    "protocol_for",
    "remove_action",
    "rows_of",
    "told_metrics",
]

# What may be asked of a reader or writer here. The rest changes what files mean.
READER_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
WRITER_FEATURES = READER_FEATURES | {"appendOnly", "invariants", "domainMetadata"}

# The property of a table that tells how long removed files are kept, and Delta's default.
REMOVED_AGE = "delta.deletedFileRetentionDuration"
WEEK = 7 * 86_400.0

# Of which types the values of partition columns are written here, as Delta calls them.
PARTITION_TYPES = {
    "string",
    "byte",
    "short",
    "integer",
    "long",
    "boolean",
    "decimal",
    "date",
    "timestamp",
    "timestamp_ntz",
}

# What the metadata of a column may ask of writers.
COLUMN_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity")
_INNER = ("type", "elementType", "keyType", "valueType")

_INTERVAL = re.compile(r"(?:interval )?([0-9]+) (second|minute|hour|day|week)s?")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}

# The tag of a removed file that tells where its rows stood.
MODIFIED = "wsmux.modified"

Action = dict[str, Any]

# ``json.loads`` looks at each line for what it is encoded in.
_decoded = json.JSONDecoder().decode


class Torn(ValueError):
    """An entry that is not whole."""


def parse_entry(data: bytes) -> list[Action]:
    """Return the actions of an entry.

    Raises:
        Torn: it is not whole. ValueError: it is none.
    """
    try:
        lines = [line for line in data.splitlines() if line.strip()]
        actions = [_decoded(line.decode("utf-8", "surrogatepass")) for line in lines]
    except (ValueError, RecursionError) as error:
        raise Torn(f"it is not whole: {error}") from error
    if not actions or not all(isinstance(each, dict) for each in actions):
        raise Torn("it is not whole: there are no actions in it")
    told = _own(actions).get("actions")
    if isinstance(told, int) and told != len(actions):
        raise Torn(f"it is not whole: it has {len(actions)} of {told} actions")
    return actions


def _own(actions: Iterable[Action]) -> Mapping[str, Any]:
    """Return what this package has told in an entry."""
    for action in actions:
        info = action.get("commitInfo")
        if isinstance(info, dict) and isinstance(info.get("wsmux"), dict):
            own: Mapping[str, Any] = info["wsmux"]
            return own
    return {}


def names_are_new(actions: Iterable[Action]) -> bool:
    """Return whether none of the files that an entry adds was in the table before."""
    return _own(actions).get("new_names") is True


def entry_text(actions: Iterable[Action]) -> bytes:
    """Return the text of an entry; ``commit_info`` comes first in it and is completed."""
    made = list(actions)
    made[0]["commitInfo"]["wsmux"]["actions"] = len(made)
    return b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in made)


def commit_info(operation: str, mode: str, now: int, engine: str, **own: Any) -> Action:
    """Return the first action of an entry; ``now`` in milliseconds since 1970."""
    return {
        "commitInfo": {
            "timestamp": now,
            "operation": operation,
            "operationParameters": {"mode": mode},
            "isBlindAppend": mode == "Append",
            "engineInfo": engine,
            "wsmux": own,
        }
    }


def told_metrics(metrics: Mapping[str, int]) -> dict[str, str]:
    """Return the metrics of an operation as Delta tells them: numbers as text."""
    return {name: str(number) for name, number in metrics.items()}


def add_action(
    path: str,
    size: int,
    modified: int,
    stats: str,
    partition: Mapping[str, str | None] | None = None,
) -> Action:
    """Return the action that adds a file."""
    return {
        "add": {
            "path": quote(path, safe="/="),  # as others have the folders of partitions
            "partitionValues": dict(partition or {}),
            "size": size,
            "modificationTime": modified,
            "dataChange": True,
            "stats": stats,
        }
    }


def remove_action(file: DataFile, now: int) -> Action:
    """Return the action that removes a file."""
    return {
        "remove": {
            "path": file.raw or quote(file.path),
            "deletionTimestamp": now,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": dict(file.partition),
            "size": file.size,
            # For who opens the table when the entry that added the file has gone.
            "tags": {MODIFIED: str(file.modified)},
        }
    }


def protocol_for(naive_timestamps: bool, held: Mapping[str, Any] | None = None) -> Action | None:
    """Return the protocol that a table needs, ``None`` if the one it has will do."""
    if held is None:
        if not naive_timestamps:
            return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
        return {"protocol": _with_features([], [])}
    readers, writers = held.get("readerFeatures") or [], held.get("writerFeatures") or []
    if not naive_timestamps or "timestampNtz" in readers:
        return None
    if held["minWriterVersion"] < 7:
        writers = ["appendOnly", "invariants"]  # what the version stood for
    return {"protocol": _with_features(readers, writers)}


def _with_features(readers: Iterable[str], writers: Iterable[str]) -> Action:
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted({*readers, "timestampNtz"}),
        "writerFeatures": sorted({*writers, "timestampNtz"}),
    }


@dataclass(slots=True)
class DataFile:
    """One file of a table: those of a version were added by then, and not yet removed."""

    path: str
    """Below the table's folder."""
    size: int
    modified: int
    rows: int | None
    stats: str | None
    partition: Mapping[str, str | None]
    added: int
    removed: int | None = None
    removed_at: float = 0.0
    raw: str | None = None
    """The path as the log has it, by whose letters others tell files apart."""

    @property
    def order(self) -> tuple[int, str]:
        """Where its rows stand among those of other files, whoever has read which log."""
        return self.modified, self.path


class Done(NamedTuple):
    """What a transaction made, and when (seconds since 1970)."""

    made: Committed
    time: float


@dataclass(slots=True)
class TableState:
    """Add up entries.

    Attributes:
        ident: tells the table from a later one of its name.
        version: the newest; oldest: what is below can be read no more.
        schemas: ``(version, schema)``, the schema from that version on, in JSON.
        live, gone: files of the newest version by path, and those of older ones only.
        gone_paths: of what is gone.
        txns: by the keys of transactions of this package. apps: ``(version, key)`` by app.
        refused: when transactions of this package were aborted, by their keys.
        ingested: by ingest client its rows, the session that wrote the last one, and when.
    """

    version: int = -1
    oldest: int = 0
    ident: str = ""
    schemas: list[tuple[int, str]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    live: dict[str, DataFile] = field(default_factory=dict)
    gone: list[DataFile] = field(default_factory=list)
    gone_paths: set[str] = field(default_factory=set)
    txns: dict[str, Done] = field(default_factory=dict)
    apps: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)
    ingested: dict[str, tuple[int, str, float]] = field(default_factory=dict)
    modified: int = 0
    times: list[float] = field(default_factory=list)  # of the newest versions, rising

    def apply(self, version: int, actions: Iterable[Action], written: float = 0.0) -> None:
        """Add an entry; ``written``: when its file was, for one that does not tell its time.

        Raises:
            KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError: it is
                none, or uses a feature that is not known here.
        """
        listed = list(actions)
        own = _own(listed)
        key = own.get("txn")
        for action in listed:
            for name, value in action.items():
                self._apply(version, name, value, key)
        self.version = version
        now = _seconds(listed) or written
        self.times.append(max([now, *self.times[-1:]]))  # clocks may have gone back
        if key is not None:
            made = Committed(version, int(own["rows"]), int(own["bytes"]))
            self.txns[str(key)] = Done(made, now)
        for refused in own.get("refused") or ():
            self.refused[str(refused)] = now
        for client, (rows, session) in (own.get("ingested") or {}).items():
            self.ingested[str(client)] = int(rows), str(session), now

    def _apply(self, version: int, name: str, value: Any, key: str | None) -> None:
        if name == "add":
            self._add(version, value)
        elif name == "remove":
            self._remove(version, value)
        elif name == "metaData":
            self.ident = str(value["id"])
            self.metadata = dict(value)
            schema = str(value["schemaString"])
            if not self.schemas or self.schemas[-1][1] != schema:
                self.schemas.append((version, schema))
        elif name == "protocol":
            self.protocol = dict(value)
            check_readable(self.protocol)
        elif name == "txn":
            self.apps[str(value["appId"])] = int(value["version"]), key

    def _add(self, version: int, value: Mapping[str, Any]) -> None:
        if value.get("deletionVector"):
            raise ValueError("it has deletion vectors, which are not read here")
        path, stats = unquote(value["path"]), value.get("stats")
        before = self.live.get(path)
        self.live[path] = DataFile(
            path,
            int(value["size"]),
            int(value["modificationTime"]),
            rows_of(stats),
            stats,
            dict(value.get("partitionValues") or {}),
            version if before is None else before.added,
            raw=value["path"],
        )
        self.modified = max(self.modified, int(value["modificationTime"]))

    def _remove(self, version: int, value: Mapping[str, Any]) -> None:
        path = unquote(value["path"])
        file = self.live.pop(path, None)
        if file is None:
            modified = (value.get("tags") or {}).get(MODIFIED)
            if modified is None:  # where its rows stood is not known any more
                self.oldest = max(self.oldest, version)
                return
            partition = dict(value.get("partitionValues") or {})
            size, raw = int(value["size"]), value["path"]
            file = DataFile(path, size, int(modified), None, None, partition, -1, raw=raw)
        file.removed = version
        file.removed_at = (value.get("deletionTimestamp") or 0) / 1000
        self.gone.append(file)
        self.gone_paths.add(path)

    # Asking

    @property
    def partition_columns(self) -> list[str]:
        """The columns that are told by the log and are in no file."""
        return list(self.metadata.get("partitionColumns") or [])

    @property
    def removed_age(self) -> float:
        """Seconds that removed files are kept for at least, for ever if it is not understood."""
        told = (self.metadata.get("configuration") or {}).get(REMOVED_AGE)
        if told is None:
            return WEEK
        found = _INTERVAL.fullmatch(str(told).strip().lower())
        return math.inf if found is None else float(int(found[1]) * _SECONDS[found[2]])

    def schema(self, version: int) -> str:
        """Return the schema of a version that is not below the oldest."""
        return [schema for since, schema in self.schemas if since <= version][-1]

    @property
    def first_time(self) -> float:
        """When the oldest version was committed whose time is known."""
        return self.times[0]

    def version_at(self, time: float) -> int | None:
        """Return the version that was the newest at a time, ``None`` if it is not known."""
        after = bisect_right(self.times, time)
        return self.version - len(self.times) + after if after else None

    def snapshot(self, version: int) -> list[DataFile]:
        """Return the files of a version that is not below the oldest, in the order of rows."""
        files = [file for file in self.live.values() if file.added <= version]
        files += [f for f in self.gone if f.added <= version < (f.removed or 0)]
        return sorted(files, key=lambda file: file.order)

    def holds(self, path: str) -> bool:
        """Return whether some version that can be read has a file."""
        return path in self.live or path in self.gone_paths

    def why_read_only(self, mode: str) -> str | None:
        """Return why something cannot be written here, ``None`` if it can."""
        configuration = self.metadata.get("configuration") or {}
        if mode == "overwrite" and configuration.get("delta.appendOnly") == "true":
            return "it is append-only"
        odd = self._odd_partition()
        if odd is not None:
            return f"it is partitioned by {odd}"
        asked = set(self.protocol.get("writerFeatures") or [])
        if not asked and self.protocol.get("minWriterVersion", 0) > 2:
            return f"it asks for writer version {self.protocol['minWriterVersion']}"
        if asked - WRITER_FEATURES:
            return f"it asks for the features {', '.join(sorted(asked - WRITER_FEATURES))}"
        told = _column_rules(str(self.metadata.get("schemaString")))
        return None if told is None else f"a column has {told}"

    def _odd_partition(self) -> str | None:
        """Return a partition column, and its type, of which no values are written here."""
        columns = self.partition_columns
        fields = json.loads(self.metadata["schemaString"])["fields"] if columns else ()
        types = {field["name"]: str(field["type"]) for field in fields}
        for name in columns:
            kind = types.get(name, "no type")
            if kind.partition("(")[0] not in PARTITION_TYPES:
                return f"{name} of type {kind:.80}"
        return None

    # Letting go

    def needed(self, before: float) -> set[str]:
        """Return the files of the newest version, and those that were not removed by a time."""
        return {*self.live, *(file.path for file in self.gone if file.removed_at >= before)}

    def forget(self, before: float, clients: Container[str] = ()) -> list[str]:
        """Let go of what was removed before a time; return the paths that nothing holds any more.

        Transactions as old are forgotten too, but for the last one of each app, and so are ingest
        clients that were last heard of then, but for some.
        """
        old = [file for file in self.gone if file.removed_at < before]
        self.drop_gone(old)
        lasts = {key for _, key in self.apps.values()}
        past = min(bisect_left(self.times, before), len(self.times) - 1)
        self.times = self.times[max(0, past) :]
        self.txns = {
            key: done for key, done in self.txns.items() if done.time >= before or key in lasts
        }
        self.refused = {key: time for key, time in self.refused.items() if time >= before}
        self.ingested = {
            client: last
            for client, last in self.ingested.items()
            if last[2] >= before or client in clients
        }
        return [file.path for file in old if not self.holds(file.path)]

    def drop_gone(self, files: Iterable[DataFile]) -> None:
        """Let go of removed files, and with them of the versions that need them."""
        dropped = list(files)
        which = set(map(id, dropped))  # one path may have gone twice
        self.gone = [file for file in self.gone if id(file) not in which]
        self.gone_paths = {file.path for file in self.gone}
        self.oldest = max([self.oldest, *(file.removed or 0 for file in dropped)])
        current = [each for each in self.schemas if each[0] <= self.oldest][-1:]
        self.schemas = current + [each for each in self.schemas if each[0] > self.oldest]


def holder(state: TableState | None) -> Callable[[str], bool]:
    """Return what tells whether some version that can be read has a file."""
    return (lambda path: False) if state is None else state.holds


def check_readable(protocol: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a protocol that asks more of a reader than is known here."""
    asked = set(protocol.get("readerFeatures") or [])
    odd = asked - READER_FEATURES
    if odd or (not asked and int(protocol["minReaderVersion"]) > 1):
        what = ", ".join(sorted(odd)) or f"reader version {protocol['minReaderVersion']}"
        raise ValueError(f"it asks for {what}, which is not known here")


def _column_rules(schema: str) -> str | None:
    """Return what the metadata of a column, however deep, asks of writers that is not done here."""
    if not any(name in schema for name in COLUMN_RULES):
        return None  # so that most schemas are not parsed each time
    try:
        left: list[Any] = [json.loads(schema)]
    except (ValueError, RecursionError):
        return "metadata that cannot be read"
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            found = [key for key in each.get("metadata") or () if key.startswith(COLUMN_RULES)]
            if found:
                return str(found[0])
            left += [each.get(inner) for inner in ("fields", *_INNER)]
    return None


def rows_of(stats: str | None) -> int | None:
    """Return how many rows statistics tell of."""
    rows = json.loads(stats).get("numRecords") if stats else None
    return None if rows is None else int(rows)


def _seconds(actions: Iterable[Action]) -> float:
    """Return when an entry was made as it tells it, 0 if it does not."""
    for action in actions:
        if "commitInfo" in action:
            return float(action["commitInfo"].get("timestamp") or 0) / 1000
    return 0.0
