"""Implement the store of topics with Redis, which servers of several hosts share.

Each partition is a stream of Redis with an entry for each part of a commit; see ``redis_scripts``.
A part is staged in a list, in chunks; a commit is one script that puts entries into the streams,
with the data of small parts in them, and remembers the batch of its query. So a commit is there
whole or not at all, and made twice, by whomever, it adds nothing.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...config import MIB
from ...rpc import RiverError
from ...runtime import fork
from ...runtime.arguments import check_seconds
from ...runtime.lazy_imports import pa
from ..protocol import Code, Receipt, check_name, is_name, refusal
from ..source.ranges import overlaps
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
from ..store.metadata import METADATA, TIMESTAMP, add_metadata, moments, with_metadata
from ..store.schemas import (
    bound_columns,
    first_line,
    relaxed,
    restamp,
    schema_from_text,
    schema_text,
    stored_schema,
    takes,
)
from .change_watch import ChangeWatch
from .redis_scripts import (
    ABORT,
    ADD,
    COMMIT,
    CREATE,
    DROP,
    EXPIRE,
    KEEP,
    LOOK,
    OFFSET_AT,
    OPEN,
    RELEASE,
    TOUCH,
)
from .redis_store import LOOK_AGAIN, Bell, RedisStore
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
from .segments import PieceWriter, check_schema
from .staging import NOTES, StagedPart, new_receipt, over

__all__ = ["RedisTopics"]

# Bytes that one call moves at most, but for the entries of streams.
CHUNK = MIB

# Bytes of a part that stands in the stream itself, and of all such parts of one commit: the commit
# moves them while Redis does nothing else. Entries that are read at a time.
INLINE = 16 * 1024
INLINE_ALL = MIB
AHEAD = 64

# Entries or transactions that one script drops, and partitions that are asked together.
AT_ONCE = 100


class RedisTopics(TopicStore):
    """Keep topics in one Redis, shared by the data servers of any number of hosts.

    What was committed survives a kill of any server, one of Redis, and a crash of its machine, if
    Redis has ``appendonly yes`` and ``appendfsync always``. That is checked at the start, since
    otherwise a batch may be lost that Spark has noted as written. A replica that takes over may
    lack the last commits, whatever is set: replication does not wait.

    Args:
        url: ``redis://host:port/number``, ``rediss://...`` or ``unix://path``; a single server.
        namespace: keeps the topics of several services in one Redis apart.
        ttl, retention: see ``SqliteTopics``.
        sync: false accepts a Redis that may lose what was committed.
        timeout: seconds for which Redis is asked again while it does not answer; what it is asked
            may be repeated. Then it is STORE_FAILED.
        clock: returns the seconds since 1970; by default the clock of Redis tells when rows came.

    Attributes:
        ttl: as given.

    Raises:
        ValueError: an argument is invalid. ImportError: the client of Redis is not installed.
        RiverError: STORE_FAILED, if Redis does not answer or cannot keep topics; CORRUPT.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        ttl: float = DAY,
        retention: Retention | None = None,
        sync: bool = True,
        timeout: float = LOCK_TIMEOUT,
        clock: Callable[[], float] | None = None,
    ) -> None:
        check_seconds(ttl=ttl, timeout=timeout)
        if not is_name(namespace):
            text = f"namespace must be 1 to 128 of A-Z a-z 0-9 . _ -, not {namespace!r:.160}"
            raise ValueError(text)
        self._prefix = f"wsmux:data:{namespace}"
        self.ttl = ttl
        self._retention = retention or Retention()
        self._clock = clock
        self._stopping = False
        self._store = RedisStore(url, timeout)
        self._watch = ChangeWatch(LOOK_AGAIN)
        self._bell = Bell(self._store.client, f"{self._prefix}:bell", self._heard)
        try:
            self._store.check(f"{self._prefix}:layout", sync=sync)
        except BaseException:
            self._store.client.close()
            raise
        fork.register(self)

    def forked(self) -> None:
        """Listen anew in a child; the client's pool sees to itself."""
        self._watch = ChangeWatch(LOOK_AGAIN)
        self._bell.forked()

    def _heard(self, name: str | None) -> None:
        if name is None:
            self._watch.tell_all()
        else:
            self._watch.tell(name)

    def _run(self, script: str, topic: str, *arguments: Any, beside: str = "bell") -> Any:
        keys = f"{self._prefix}:{topic}", f"{self._prefix}:{beside}"
        return self._store.script(script, keys, *arguments)

    def step(self, script: str, topic: str, key: str, *arguments: Any) -> bool:
        """Run a script that stages; return whether the transaction takes parts."""
        return bool(self._run(script, topic, key, self._time(), *arguments))

    def _time(self) -> str:
        """Return what scripts are told as the time, empty for the clock of Redis."""
        return "" if self._clock is None else repr(self._clock())

    # Topics

    def create(self, topic: str, schema: Any, partitions: int | None = None) -> bool:
        check_name(topic, "topic")
        wanted, stored = check_partitions(partitions), stored_schema(schema)
        check_schema(stored)
        text = schema_text(stored)
        there = self._run(CREATE, topic, topic, text, wanted, _new_home(), beside="names")
        if there and not (there[0].decode() == text and int(there[1]) == wanted):
            check_same(topic, there[0].decode(), int(there[1]), stored, partitions)
        return not there

    def _told(self, topic: str) -> dict[bytes, bytes]:
        check_name(topic, "topic")
        told: dict[bytes, bytes]
        (told,) = self._store.run(("HGETALL", f"{self._prefix}:{topic}:topic"))
        if b"schema" not in told:
            raise no_topic(topic)
        return told

    def describe(self, topic: str) -> TopicDescription:
        told = self._told(topic)
        heads = _heads(told)
        return TopicDescription(_schema(told[b"schema"]), len(heads.latest), heads)

    def heads(self, topic: str) -> Heads:
        """Return what a topic holds."""
        return _heads(self._told(topic))

    def wait_heads(self, topic: str, seen: Heads | None, timeout: float) -> Heads:
        check_name(topic, "topic")
        self._bell.listen()
        return self._watch.wait(topic, lambda: self.heads(topic), seen, timeout)

    # Writing

    def _look(self, topic: str, key: Key) -> _Look | None:
        """Return what is known of a transaction, ``None`` without the topic."""
        told = self._run(LOOK, topic, _text(key), key.query, _batch(key))
        if not told:
            return None
        schema, done, used = told
        made = None if done is None else Committed(*(int(each) for each in done))
        return _Look(_schema(schema), made, None if used is None else float(used))

    def begin(self, topic: str, query: str | None, batch: int | None, schema: Any) -> Begun:
        check_name(topic, "topic")
        key = key_of(query, batch)
        found = self._look(topic, key)
        if found is None:
            raise no_topic(topic)
        done = found.done is not None
        if not done:
            takes(found.schema, stored_schema(schema), f"topic {topic}")
            if found.used is None or found.used < self.now() - self.ttl / NOTES:
                told = _text(key), key.query, _batch(key), self._time()
                opened = self._run(OPEN, topic, *told)
                if not opened:
                    raise no_topic(topic)
                done = opened == 2
        return Begun(f"t:{topic}:{key}", done)

    def now(self) -> float:
        """Return the time of this host, or of ``clock``."""
        return (self._clock or time.time)()

    def check_open(self, txn: str) -> None:
        self._open_txn(txn)

    def _open_txn(self, txn: str) -> tuple[str, Key, Any]:
        """Return the topic of a transaction that takes parts, its key, and the schema."""
        name, key = parsed(txn)
        found = self._look(name, key)
        if found is None or found.used is None or found.done is not None:
            raise no_txn(txn, None if found is None else found.done)
        return name, key, found.schema

    def open_part(self, txn: str, partition: int, attempt: int, schema: Any) -> Part:
        name, key, stored = self._open_txn(txn)
        takes(stored, stored_schema(schema), f"topic {name}")
        begun = new_receipt(partition, attempt)
        staging = _Staging(self, _text(key), name, begun.file, stored)
        return StagedPart(staging, _text(key), begun, name, stored)

    def commit(self, txn: str, receipts: Sequence[Receipt]) -> Committed:
        name, key = parsed(txn)
        named = [part for each in receipts for part in (each.file, _receipt_text(each))]
        limits = INLINE, INLINE_ALL
        word, *told = self._run(
            COMMIT, name, name, _text(key), key.query, _batch(key), self._time(), *limits, *named
        )
        if word == b"gone":
            raise no_txn(txn)
        if word == b"wrong":
            file, staged = (each.decode() for each in told)
            there = None
            if staged:
                partition, attempt, count, size, crc = (int(each) for each in staged.split())
                there = Receipt(partition, attempt, count, size, crc, file)
            for each in receipts:
                if each.file == file:
                    each.check(there)
        self._watch.tell(name)
        return Committed(*(int(each) for each in told))

    def abort(self, txn: str) -> bool:
        name, key = parsed(txn)
        return bool(self._run(ABORT, name, _text(key), key.query, _batch(key)))

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
        told = self._told(topic)
        home = home or told.get(b"home", b"").decode()
        check_home(topic, home, _heads(told).home)
        check_offsets(topic, _heads(told), partition, start, end)
        schema = _schema(told[b"schema"])
        wanted = bound_columns(columns, with_metadata(schema) if metadata else schema)
        rows = self._rows(topic, home, schema, wanted, metadata, partition, start, end)
        return Table(wanted, rows)

    def _rows(
        self,
        topic: str,
        home: str,
        schema: Any,
        told: Any,
        metadata: bool,
        partition: int,
        start: int,
        end: int,
    ) -> Iterator[Any]:
        names = [name for name in told.names if not (metadata and name in METADATA)]
        key = f"{self._prefix}:{topic}:rows:{partition}"
        while start < end:
            look = "XRANGE", key, f"{start + 1}-0", "+", "COUNT", AHEAD
            found, there = self._store.run(look, ("HGET", f"{self._prefix}:{topic}:topic", "home"))
            check_home(topic, home, (there or b"").decode())
            entries = [_Entry.of(*each) for each in found]
            if not entries or entries[0].start > start:
                raise self._missing(topic, home, partition, start, end)
            for entry in entries:
                if entry.start >= end:
                    return
                span = range(start - entry.start, min(end, entry.end) - entry.start)
                for piece in self._pieces(topic, entry, schema, span):
                    if piece is None:
                        raise self._missing(topic, home, partition, start, end)
                    batch = piece.select(names)
                    if metadata:
                        times = moments(entry.time, batch.num_rows)
                        batch = batch.append_column(pa.field(TIMESTAMP, times.type, False), times)
                        batch = add_metadata(batch, told, partition, start)
                    yield batch
                    start += batch.num_rows

    def _pieces(self, topic: str, entry: _Entry, schema: Any, span: range) -> Iterator[Any]:
        """Yield the rows of a range of an entry, or ``None`` when its data are gone."""
        rows = [each[0] for each in entry.groups]
        for place, begin, end in overlaps(rows, span.start, span.stop):
            data = entry.data
            if data is None:
                key = f"{self._prefix}:{topic}:part:{entry.file}"
                first = sum(each[1] for each in entry.groups[:place])
                chunks = [
                    self._store.run(("LINDEX", key, first + number))[0]
                    for number in range(entry.groups[place][1])
                ]
                if None in chunks:
                    yield None
                    return
                data = b"".join(chunks)
            try:
                raw = pa.decompress(data, entry.groups[place][2], "lz4")
                batch = pa.ipc.read_record_batch(raw, relaxed(schema))
                if batch.num_rows != rows[place]:
                    raise pa.ArrowInvalid(f"it has {batch.num_rows} rows, not {rows[place]}")
                batch.validate(full=True)  # damaged data must not crash the process
            except (pa.ArrowException, OSError, ValueError, EOFError) as error:
                text = f"rows of topic {topic} before offset {entry.end} are damaged in Redis"
                raise refusal(Code.CORRUPT, f"{text}: {first_line(error)}") from error
            yield restamp(batch.slice(begin, end - begin), schema)

    def _missing(self, topic: str, home: str, partition: int, start: int, end: int) -> RiverError:
        """Return the error for rows that are not there: those that retention has dropped are told.

        Raises:
            RiverError: OFFSETS_GONE, BAD_OFFSETS or NO_TOPIC.
        """
        heads = self.heads(topic)
        check_home(topic, home, heads.home)
        check_offsets(topic, heads, partition, start, end)
        text = f"what holds offset {start} of partition {partition} of topic {topic} is missing"
        return refusal(Code.CORRUPT, f"{text} in Redis")

    def offsets_at(self, topic: str, timestamp: int) -> list[int | None]:
        partitions = range(len(self.heads(topic).latest))
        key, found = f"{self._prefix}:{topic}", []
        for begin in range(0, len(partitions), AT_ONCE):
            some = partitions[begin : begin + AT_ONCE]
            found += self._store.run(*(("EVAL", OFFSET_AT, 1, key, n, timestamp) for n in some))
        return [None if each is None else int(each) for each in found]

    def release(
        self, topic: str, query: str, offsets: Sequence[int], replaces: str | None = None
    ) -> None:
        check_query(query)
        if replaces is not None:
            check_query(replaces)
        check_released(topic, self.heads(topic).latest, offsets)
        left = "" if replaces is None or replaces == query else short(replaces)
        if not self._run(RELEASE, topic, short(query), left, *offsets):
            raise no_topic(topic)

    # Cleaning up

    def close(self) -> None:
        self._stopping = True
        self._bell.close()
        self._store.client.close()

    def expire(self, now: float) -> None:
        self._stopping = False
        (names,) = self._store.run(("SMEMBERS", f"{self._prefix}:names"))
        keep = self._retention
        limits = keep.rows, keep.bytes, keep.age, keep.hard_rows, keep.hard_bytes, keep.hard_age
        told = ["" if each is None else repr(each) for each in limits]
        for name in sorted(each.decode() for each in names):
            before = repr(now - self.ttl)
            while not self._stopping:
                due = before, AT_ONCE, _new_home()
                if self._run(EXPIRE, name, name, *due, beside="names") < AT_ONCE:
                    break
            while not self._stopping and any(told):
                if not self._run(DROP, name, name, repr(now), AT_ONCE, *told):
                    break
            self._watch.tell(name)


class _Look(NamedTuple):
    """A topic's schema, what a batch made if it is done, and when it was last written to."""

    schema: Any
    done: Committed | None
    used: float | None


class _Entry(NamedTuple):
    """An entry of a partition: rows from ``start`` to ``end``, in pieces.

    Attributes:
        groups: of each piece, the rows, the chunks, and the bytes before compression. data: the
            only piece, or ``None``. file: the part that has the pieces otherwise.
    """

    start: int
    end: int
    time: float
    groups: list[list[int]]
    data: bytes | None
    file: str

    @classmethod
    def of(cls, ident: bytes, fields: dict[bytes, bytes]) -> _Entry:
        """Return what Redis tells of an entry."""
        end, file = int(ident.partition(b"-")[0]), fields.get(b"f", b"").decode()
        groups = json.loads(fields[b"g"])
        return cls(int(fields[b"s"]), end, float(fields[b"t"]), groups, fields.get(b"d"), file)


class _Staging(PieceWriter):
    """Stage one part in a list of Redis; it is both ``Staging`` and ``SegmentWriter``."""

    def __init__(self, topics: RedisTopics, key: str, topic: str, file: str, schema: Any) -> None:
        super().__init__(relaxed(schema))
        self._topics = topics
        self._key = key
        self._topic = topic
        self._file = file
        self._chunks = self._bytes = 0
        self._groups: list[tuple[int, int, int]] = []

    def _run(self, script: str, *arguments: Any) -> None:
        if not self._topics.step(script, self._topic, self._key, *arguments):
            raise over()

    def _put(self, piece: Any) -> None:
        raw = piece.serialize()
        data = memoryview(pa.compress(raw, "lz4", asbytes=True))
        starts = range(0, len(data), CHUNK)
        for start in starts:
            self._run(ADD, self._file, self._chunks, data[start : start + CHUNK])
            self._chunks += 1
        self._bytes += len(data)
        self._groups.append((piece.num_rows, len(starts), raw.size))

    def close(self) -> str:
        self._flush()
        return json.dumps(self._groups, separators=(",", ":"))

    def abandon(self) -> None:
        """Drop what was not sent yet; the rest goes with the transaction."""
        self._gathered = []

    def writer(self, topic: str, file: str, schema: Any) -> _Staging:
        return self

    def note(self, txn: str, noted: float) -> float:
        now = self.now()
        if abs(now - noted) <= self._topics.ttl / NOTES:
            return noted
        self._run(TOUCH)
        return now

    def keep(self, txn: str, receipt: Receipt, groups: str) -> None:
        told = f"{_receipt_text(receipt)}|{self._chunks} {self._bytes}|{groups}"
        self._run(KEEP, self._file, self._chunks, told)

    def now(self) -> float:
        return self._topics.now()


def _text(key: Key) -> str:
    """Return what names a transaction in Redis: in the order of batches, those of a query."""
    return key.query if key.batch < 0 else f"{key.query}-{_batch(key)}"


def _batch(key: Key) -> str:
    return "" if key.batch < 0 else f"{key.batch:019}"


def _receipt_text(each: Receipt) -> str:
    return f"{each.partition} {each.attempt} {each.rows} {each.bytes} {each.crc}"


@lru_cache(64)
def _schema(text: bytes) -> Any:
    return schema_from_text(text.decode())


def _heads(told: dict[bytes, bytes]) -> Heads:
    partitions = range(int(told[b"partitions"]))
    earliest, latest, sizes = (
        [int(told.get(b"%s:%d" % (kind, n), 0)) for n in partitions] for kind in _KINDS
    )
    return Heads(earliest, latest, sizes, told.get(b"home", b"").decode())


def _new_home() -> str:
    return uuid.uuid4().hex[:16]


# The fields of a topic that tell of its partitions.
_KINDS = b"e", b"l", b"b"
