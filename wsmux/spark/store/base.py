"""Say what a store of datasets, and one of topics, must do; the data server works with any.

A write is staged first, each attempt at each partition for itself, and nothing of it can be seen.
A commit names the receipts that count, and makes all of them visible at once; done twice, it
answers the same. An abort never undoes a commit.

Every method may be called from any thread, and raises ``RiverError`` with a ``Code``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from builtins import list as List
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from ...config import MIB
from ...rpc import RiverError
from ..protocol import Code, Receipt, refusal
from .filters import Filter

__all__ = [
    "DAY",
    "LOCK_TIMEOUT",
    "READ_BYTES",
    "READ_ROWS",
    "Begun",
    "Committed",
    "DatasetInfo",
    "DatasetStore",
    "Description",
    "Heads",
    "IngestTarget",
    "Optimized",
    "Part",
    "Range",
    "Retention",
    "Span",
    "Table",
    "TopicDescription",
    "TopicStore",
    "Vacuumed",
    "VersionInfo",
    "no_txn",
]

# Seconds that things are kept for by default: longer than a job takes, retries included.
DAY = 86_400.0

# Seconds that a change waits for those before it, each of which takes milliseconds. It is half of
# what a client gives its call, so that the client learns of the lock and not of its own clock.
LOCK_TIMEOUT = 30.0

# Bytes and rows of a batch that is read: many of the former cost memory, few the time per batch.
READ_BYTES = 2 * MIB
READ_ROWS = 64 * 1024


class Table(NamedTuple):
    """Hold an Arrow schema, and record batches of it as they are asked for.

    Close ``batches`` (a generator) when not all of them are taken.
    """

    schema: Any
    batches: Iterator[Any]
    stored: Iterator[Any] | None = None
    """The same rows for those who read files of tables as they are stored; see
    ``tables.stored_files``. A store need not have it; who takes from it takes no batches."""


class Begun(NamedTuple):
    """A transaction; ``done`` means that what it would write was committed before."""

    txn: str
    done: bool


class Committed(NamedTuple):
    """What a commit made: the version, and the rows and bytes that came with it."""

    version: int
    rows: int
    bytes: int


class Range(NamedTuple):
    """Name some rows of a version, by a token to read them with."""

    token: str
    rows: int
    bytes: int


class Description(NamedTuple):
    """A version of a dataset, as ranges to be read apart from each other."""

    schema: Any
    version: int
    ranges: list[Range]
    rows: int
    bytes: int


class Optimized(NamedTuple):
    """What joining small files made: the newest version, and what it replaced by what."""

    version: int
    files_removed: int
    files_added: int
    bytes_removed: int
    bytes_added: int


class Vacuumed(NamedTuple):
    """Files that nothing needs, below the table, and their bytes altogether."""

    files: list[str]
    bytes: int


class VersionInfo(NamedTuple):
    """What made a version, and when, in seconds since 1970; all as its writer told it.

    ``metrics`` are numbers as text, as Delta has them; ``operation`` is empty if it was not told.
    """

    version: int
    time: float
    operation: str
    parameters: dict[str, Any]
    metrics: dict[str, Any]


class Span(NamedTuple):
    """The rows of an ingest client that a commit adds: those after ``before``, up to ``after``."""

    before: int
    after: int
    session: str = ""
    """Tells the client from another one with its name."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class IngestTarget:
    """What ingest writes to, and how many rows of the client it has, the last from which session.

    The session is empty if nothing is known of it any more. As long as this object lives, the store
    does not forget the client.
    """

    schema: Any
    partition_by: Sequence[str]
    rows: int
    session: str


class DatasetInfo(NamedTuple):
    """A dataset in a list; ``error`` says why nothing else is known."""

    name: str
    version: int
    rows: int
    bytes: int
    error: str | None = None


class Heads(NamedTuple):
    """The offsets that a topic holds, by partition: rows from ``earliest`` up to ``latest``.

    ``bytes`` are those of the rows that are held. ``home`` is a random text that tells the topic
    from a later one of its name, empty if the store has none.
    """

    earliest: list[int]
    latest: list[int]
    bytes: list[int]
    home: str = ""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Return what a server tells of a topic."""
        return cls(told["earliest"], told["latest"], told["bytes"], told.get("home", ""))


class TopicDescription(NamedTuple):
    """What a topic is."""

    schema: Any
    partitions: int
    heads: Heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Say how much a topic keeps, all its partitions together; ``None`` is no limit.

    What is not among the newest ``rows`` or ``bytes``, or is older than ``age`` seconds, goes, but
    not what a known query has still to release. The ``hard`` limits wait for nobody: no more than
    so much stays. Whole files go, the oldest first; the newest commit stays whatever its size, and
    small commits that were joined to a file, of up to a tenth of each limit, go together.
    """

    rows: int | None = None
    bytes: int | None = None
    age: float | None = None
    hard_rows: int | None = None
    hard_bytes: int | None = None
    hard_age: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"Retention.{name} must be above 0, not {value!r}")


def no_txn(txn: str, done: Committed | None = None) -> RiverError:
    """Return the error for a transaction that takes nothing any more."""
    why = "was never begun, was aborted, or has expired"
    if done is not None:
        why = f"was committed before, as version {done.version}"
    return refusal(Code.NO_TXN, f"the transaction {txn} {why}")


class Part(ABC):
    """Take what one attempt writes of one partition."""

    @abstractmethod
    def write(self, batch: Any) -> None:
        """Add a record batch, which was validated."""

    @abstractmethod
    def finish(self, size: int, crc: int) -> Receipt:
        """Keep it, safe from a crash, until it is committed; return the receipt.

        Args:
            size, crc: of the Arrow stream that it came as.
        """

    @abstractmethod
    def discard(self) -> None:
        """Forget it, unless it was finished."""


class DatasetStore(ABC):
    """Keep datasets: tables in versions."""

    @abstractmethod
    def describe(
        self,
        dataset: str,
        partitions: int | None = None,
        columns: Sequence[str] | None = None,
        filters: Sequence[Filter] = (),
        *,
        version: int | None = None,
        timestamp: float | None = None,
    ) -> Description:
        """Return a version, in as many ranges as asked for if it has so many rows.

        Columns and filters are checked, and change the schema only: ranges count all rows.

        Args:
            version: the one asked for, the newest by default. timestamp: the one that was the
                newest then, in seconds since 1970.
        """

    @abstractmethod
    def list(self) -> list[DatasetInfo]:
        """Return all datasets, by their names."""

    @abstractmethod
    def begin(
        self,
        dataset: str,
        mode: str,
        schema: Any,
        app: str | None = None,
        app_version: int | None = None,
        *,
        merge_schema: bool = False,
        overwrite_schema: bool = False,
        partition_by: Sequence[str] | None = None,
        replace_where: str | None = None,
    ) -> Begun:
        """Begin to write.

        Args:
            mode: ``append``, which creates it if need be, ``overwrite`` or ``create``.
            app, app_version: the writer, and a number that rises with everything it writes: what
                has one that is not above the last committed is ``done``.
            merge_schema: let columns be added, be missing or in another order; see
                ``tables.types.merged``.
            overwrite_schema: let an overwrite replace schema and partition columns too.
            partition_by: the partition columns of a new table, or of one whose schema is replaced;
                otherwise those that the table has, if any are given.
            replace_where: let an overwrite replace only rows that match a condition, as
                ``tables.conditions`` has them, which all rows written have to match too.
        """

    @abstractmethod
    def check_open(self, txn: str) -> None:
        """Raise NO_TXN unless parts of a transaction can be staged."""

    @abstractmethod
    def open_part(self, txn: str, partition: int, attempt: int, schema: Any) -> Part:
        """Begin to stage what an attempt writes of a partition."""

    @abstractmethod
    def commit(self, txn: str, receipts: Sequence[Receipt]) -> Committed:
        """Make what the receipts name visible, all at once, as the next version."""

    @abstractmethod
    def abort(self, txn: str) -> bool:
        """Drop what is staged, unless it was committed; tell whether it was."""

    @abstractmethod
    def read(
        self,
        token: str,
        skip_rows: int = 0,
        columns: Sequence[str] | None = None,
        filters: Sequence[Filter] = (),
    ) -> Table:
        """Return the rows of a range that match, less the first ``skip_rows`` of those.

        The order is always the same, so that a reading that was cut can be resumed. Where rows that
        match are far between, batches without rows let whoever waits hear of it.
        """

    @abstractmethod
    def expire(self, now: float) -> None:
        """Drop what is older than its time to live; ``now`` in seconds since 1970."""

    # The care of tables, which a store need not have.

    def optimize(self, dataset: str, target_size: int | None = None) -> Optimized:
        """Join small files into larger ones; no rows change, and older versions stay readable.

        Args:
            target_size: bytes that a file should have; a default of the store.
        """
        raise self._without("optimize")

    def vacuum(
        self, dataset: str, retention: float | None = None, *, dry_run: bool = False
    ) -> Vacuumed:
        """Remove the files that no version within a time needs, and tell which.

        Args:
            retention: hours; a default of the store. dry_run: only tell.
        """
        raise self._without("vacuum")

    def history(self, dataset: str, limit: int | None = None) -> List[VersionInfo]:
        """Return the newest versions, the newest first, as far as the log goes back.

        Args:
            limit: how many, at most; a default of the store.
        """
        raise self._without("history")

    # What ingest clients need, which a store need not have.

    def ingest_target(self, dataset: str, client: str) -> IngestTarget:
        """Return what rows to ingest have to be, and how many of a client's are there."""
        raise self._without("ingest")

    def ingest(
        self, dataset: str, schema: Any, batches: Sequence[Any], spans: Mapping[str, Span]
    ) -> List[str]:
        """Add rows of several clients in one commit, and note how far each client is.

        Args:
            schema: of the batches, that of an ``IngestTarget``. spans: the rows of each client.

        Returns:
            The clients that are not where their spans begin: if there is one, nothing was added.
        """
        raise self._without("ingest")

    def _without(self, operation: str) -> RiverError:
        text = f"{type(self).__name__} keeps datasets in a way that has no {operation}"
        return refusal(Code.BAD_REQUEST, text)


class TopicStore(Protocol):
    """What keeps topics: partitions of rows, to which rows are added."""

    def create(self, topic: str, schema: Any, partitions: int | None = None) -> bool:
        """Make a topic, of one partition by default; false if there is one just like it."""

    def describe(self, topic: str) -> TopicDescription:
        """Return what a topic is and holds."""

    def wait_heads(self, topic: str, seen: Heads | None, timeout: float) -> Heads:
        """Return what a topic holds as soon as that is not what was ``seen``, or time is up."""

    def begin(self, topic: str, query: str | None, batch: int | None, schema: Any) -> Begun:
        """Begin to write a batch of a query; the transaction of the two is always the same one.

        A batch that is not above the last one committed of that query is ``done``. Without query
        and batch it is a transaction of its own, which is known for a time only.
        """

    def check_open(self, txn: str) -> None:
        """Raise NO_TXN unless parts of a transaction can be staged."""

    def open_part(self, txn: str, partition: int, attempt: int, schema: Any) -> Part:
        """Begin to stage; the writer's partitions are spread over the topic's."""

    def commit(self, txn: str, receipts: Sequence[Receipt]) -> Committed:
        """Add what the receipts name, all at once."""

    def abort(self, txn: str) -> bool:
        """Drop what is staged, unless it was committed; tell whether it was."""

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
        """Return the rows of a partition from offset ``start`` up to ``end``.

        Args:
            metadata: whether there are the columns of ``metadata`` too, in the place of those of
                the topic that have their names.
            home: that of ``Heads``; those of another topic of the name are OFFSETS_GONE.
        """

    def offsets_at(self, topic: str, timestamp: int) -> List[int | None]:
        """Return by partition the first offset whose row came at a time or later, if one did.

        Args:
            timestamp: in ms since 1970.
        """

    def release(
        self, topic: str, query: str, offsets: Sequence[int], replaces: str | None = None
    ) -> None:
        """Note that a query needs nothing below some offsets any more, and is there to wait for.

        Args:
            replaces: another name of the same query, to wait for no longer.
        """

    def expire(self, now: float) -> None:
        """Drop what retention and time to live allow; ``now`` in seconds since 1970."""

    def close(self) -> None:
        """End ``expire`` soon, let go of connections; who comes later opens them again."""
