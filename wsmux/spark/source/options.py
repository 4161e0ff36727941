"""Parse the options of ``format("wsmux")``.

==================  ============================================================  =================
option              meaning                                                       default
==================  ============================================================  =================
url                 ``ws://`` or ``wss://``                                       required
token               sent as ``Authorization: Bearer``                             none
header.NAME         a further header of the connections                           none
dataset, topic      the dataset or topic to read or write: one of the two         required
columns             read only these, ``a,b`` or ``["a", "b"]``                    all
pushdown            apply filters on the server (batch read of a dataset)         false
versionAsOf         version of a dataset to read                                  the newest
timestampAsOf       read what was the newest then: ISO 8601, in UTC without zone  now
minPartitions       minimum number of partitions of a read                        the server's
numPartitions       exact number of partitions, if there are enough rows          the server's
startingOffsets     ``earliest``, ``latest`` or ``{"t": {"0": 17}}``, of topic t  see below
endingOffsets       the same for the end of a batch read of a topic               latest
startingTimestamp   begin with the first row that came then or later              none
endingTimestamp     end a batch read of a topic before such a row                 none
includeMetadata     add the columns partition, offset and timestamp of a topic    false
maxRowsPerTrigger   maximum rows of a streaming batch                             no limit
maxBytesPerTrigger  approximate maximum bytes of a streaming batch                no limit
failOnDataLoss      fail if offsets are gone, instead of skipping them            true
txnAppId            id of the writer, so that a rerun writes nothing              none
mergeSchema         let a dataset have further columns; some may be missing       false
overwriteSchema     let an overwrite replace the schema and partition columns     false
replaceWhere        let an overwrite replace only rows that match a condition     all rows
partitionBy         partition columns of a new dataset, ``a,b`` or ``["a"]``      none
txnVersion          a number that increases with each write of that id            none
batchRows           maximum rows of a record batch                                no limit
window              receive window of a stream in bytes, 16 KiB or more           4 MiB
connectTimeout      seconds to wait for a connection, at each attempt             10
callTimeout         seconds per call, and for a stream without data               60
retries             repetitions after transient errors                            3
retryBackoff        seconds before them, doubled each time to 30, with jitter     0.2
==================  ============================================================  =================

A batch read of a topic starts at ``earliest``, a streaming query at ``latest``. Offsets are spelt
as by the Kafka connector, or shorter, ``{"0": 17}``; -2 is earliest, -1 latest. Timestamps are its
milliseconds since 1970, or ISO 8601. ``startingOffsetsByTimestampStrategy`` says what a
partition begins with that has no row so late: ``error`` (the default) or ``latest``. Spark passes
names in any case, and all values as text.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from ...config import KIB
from ..connection_settings import Recipe, connection
from ..errors import SparkError, shown_url
from ..protocol import MAX_WHOLE, is_name

__all__ = ["BAD_OPTION", "Action", "Offsets", "Options", "bad_option", "parse_options"]

BAD_OPTION = "BAD_OPTION"


# Starting and ending offsets: a word, or an offset per named partition.
Offsets = str | dict[int, int]

EARLIEST, LATEST = "earliest", "latest"

# Kafka's numbers for the two words, in JSON.
WORDS = {-2: EARLIEST, -1: LATEST}


class Action(Enum):
    """Name the operation that options are for; ``SCHEMA`` precedes either kind of read."""

    SCHEMA = "a read"
    READ = "a batch read"
    WRITE = "a batch write"
    STREAM_READ = "a stream read"
    STREAM_WRITE = "a stream write"


_READS = frozenset({Action.SCHEMA, Action.READ, Action.STREAM_READ})
_BATCH_READ = frozenset({Action.SCHEMA, Action.READ})
_STREAM_READ = frozenset({Action.SCHEMA, Action.STREAM_READ})
_WRITE = frozenset({Action.WRITE})
_WRITES = frozenset({Action.WRITE, Action.STREAM_WRITE})
_ALL = frozenset(Action)

# Spark's own option, which it passes along.
_SPARKS = frozenset({"checkpointlocation"})

# Passed only by CREATE TABLE, whose options Spark does not keep for readers.
_TABLES = frozenset({"provider"})

_HEADER = "header."


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Options:
    """Hold the validated options of one read or write; made by ``parse_options``."""

    action: Action
    url: str
    token: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    dataset: str | None = None
    topic: str | None = None
    columns: tuple[str, ...] | None = None
    pushdown: bool = False
    version: int | None = None
    timestamp: int | None = None
    min_partitions: int | None = None
    num_partitions: int | None = None
    starting_offsets: Offsets | None = None
    ending_offsets: Offsets | None = None
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    timestamp_strategy: str = "error"
    include_metadata: bool = False
    max_rows: int | None = None
    max_bytes: int | None = None
    fail_on_data_loss: bool = True
    merge_schema: bool = False
    overwrite_schema: bool = False
    partition_by: tuple[str, ...] | None = None
    replace_where: str | None = None
    app: str | None = None
    app_version: int | None = None
    batch_rows: int | None = None
    window: int = 4096 * KIB  # about a row group as it is stored
    connect_timeout: float = 10.0
    call_timeout: float = 60.0
    retries: int = 3
    retry_backoff: float = 0.2

    def __repr__(self) -> str:
        return f"<Options of {self.action.value}: {self.target} at {shown_url(self.url)}>"

    @property
    def target(self) -> str:
        """The name of the dataset or topic, for messages."""
        return f"dataset {self.dataset}" if self.dataset else f"topic {self.topic}"

    def recipe(self) -> Recipe:
        """Return the connection settings; equal options make equal ones.

        Raises:
            SparkError: BAD_OPTION.
        """
        try:
            return connection(
                self.url,
                token=self.token,
                headers=self.headers,
                window=self.window,
                connect_timeout=self.connect_timeout,
                call_timeout=self.call_timeout,
                retries=self.retries,
                retry_backoff=self.retry_backoff,
            )
        except ValueError as error:
            raise bad_option(str(error)) from None


def parse_options(values: Mapping[str, str], action: Action) -> Options:
    """Parse and check options.

    Args:
        values: the options by name, in any case.
        action: the operation that they are for.

    Raises:
        SparkError: BAD_OPTION, with the option and what is expected.

    >>> parse_options({"url": "ws://localhost:8765", "dataset": "orders"}, Action.READ)
    <Options of a batch read: dataset orders at ws://localhost:8765>
    """
    found: dict[str, Any] = {}
    headers: dict[str, str] = {}
    if any(name.lower() in _TABLES for name in values):
        text = "Spark forgets the options of CREATE TABLE; use CREATE TEMPORARY VIEW"
        raise bad_option(f"{text} name USING wsmux OPTIONS (...)")
    for name, value in values.items():
        if name.lower().startswith(_HEADER):
            headers[name[len(_HEADER) :]] = value
        elif name.lower() not in _SPARKS:
            option = _known(name)
            if action not in option.actions:
                raise bad_option(f"the option {option.name} does not belong to {action.value}")
            found[option.field] = option.parse(option.name, value)
    for name in ("startingOffsets", "endingOffsets"):
        field_name = _BY_NAME[name.lower()].field
        if isinstance(found.get(field_name), dict) and "topic" in found:
            found[field_name] = _of_topic(name, found[field_name], found["topic"])
    options = Options(action=action, url=found.pop("url", ""), headers=headers, **found)
    _check(options, {option.name for option in _OPTIONS if option.field in found})
    options.recipe()
    return options


def _check(options: Options, given: set[str]) -> None:
    """Check the combination of options."""
    if not options.url:
        raise bad_option("the option url is missing; it must be a ws:// or wss:// address")
    topics = {Action.STREAM_READ, Action.STREAM_WRITE}
    if options.action in topics and options.topic is None:
        raise bad_option(f"{options.action.value} needs the option topic")
    if not options.dataset and not options.topic:
        raise bad_option(f"{options.action.value} needs the option dataset or the option topic")
    for one, other in (
        ("dataset", "topic"),
        ("minPartitions", "numPartitions"),
        ("versionAsOf", "timestampAsOf"),
        ("startingOffsets", "startingTimestamp"),
        ("endingOffsets", "endingTimestamp"),
    ):
        if {one, other} <= given:
            raise bad_option(f"the options {one} and {other} exclude each other")
    for one, other in (
        ("txnAppId", "txnVersion"),
        ("txnVersion", "txnAppId"),
        ("startingOffsetsByTimestampStrategy", "startingTimestamp"),
    ):
        if one in given and other not in given:
            raise bad_option(f"the option {one} needs the option {other}")
    foreign = _OF_TOPICS if options.dataset else _OF_DATASETS
    for name in foreign:
        if name in given:
            needed = "topic" if options.dataset else "dataset"
            raise bad_option(f"the option {name} can only be used with the option {needed}")


_OF_TOPICS = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "includeMetadata",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "failOnDataLoss",
)
_OF_DATASETS = (
    "pushdown",
    "numPartitions",
    "versionAsOf",
    "timestampAsOf",
    "mergeSchema",
    "overwriteSchema",
    "partitionBy",
    "replaceWhere",
)


def bad_option(text: str) -> SparkError:
    """Return the error for invalid options."""
    return SparkError(BAD_OPTION, text, 'format("wsmux")')


# Values


class _Option(NamedTuple):
    """Describe one option."""

    name: str
    field: str
    parse: Callable[[str, str], Any]
    actions: frozenset[Action] = _ALL


def _known(name: str) -> _Option:
    option = _BY_NAME.get(name.lower())
    if option is not None:
        return option
    near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
    hint = _BY_NAME[near[0]].name if near else ", ".join(each.name for each in _OPTIONS)
    meant = f"did you mean {hint}?" if near else f"there are {hint}"
    raise bad_option(f"there is no option {name!r:.80}; {meant}")


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise _wrong(name, value, "a non-empty string")
    return value


def _secret(name: str, value: str) -> str:
    if not value or not value.isprintable():
        raise bad_option(f"the option {name} must be a text without line breaks")
    return value


def _name(name: str, value: str) -> str:
    if not is_name(value):
        raise _wrong(name, value, "1 to 128 of A-Z a-z 0-9 . _ -, but not . or ..")
    return value


def _truth(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise _wrong(name, value, "true or false")
    return value.lower() == "true"


def _whole(least: int, most: int = MAX_WHOLE) -> Callable[[str, str], int]:
    wanted = f"a whole number from {least} " + ("up" if most == MAX_WHOLE else f"to {most}")

    def parse(name: str, value: str) -> int:
        text = value.strip()
        if not (text.isascii() and text.isdigit() and least <= int(text[:20]) <= most):
            raise _wrong(name, value, wanted)
        return int(text)

    return parse


def _seconds(zero: bool) -> Callable[[str, str], float]:
    wanted = "a number of seconds, 0 or more" if zero else "a number of seconds above 0"

    def parse(name: str, value: str) -> float:
        try:
            seconds = float(value)
        except ValueError:
            raise _wrong(name, value, wanted) from None
        if not 0 <= seconds <= MAX_SECONDS or not (seconds or zero):
            raise _wrong(name, value, wanted)
        return seconds

    return parse


def _timestamp(name: str, value: str) -> int:
    """Parse milliseconds since 1970, as the Kafka connector has them, or a time."""
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) != 8:  # 20261127 is a date of ISO 8601
        return _whole(0)(name, text)
    return _moment(name, value)


def _strategy(name: str, value: str) -> str:
    if value.strip().lower() not in ("error", LATEST):
        raise _wrong(name, value, "error or latest")
    return value.strip().lower()


def _moment(name: str, value: str) -> int:
    """Parse a time into milliseconds since 1970."""
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        wanted = "a time such as 2026-11-27, 2026-11-27T08:30:00 (UTC) or 2026-11-27 09:30+01:00"
        raise _wrong(name, value, wanted) from None
    known = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = (known - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if since < 0:
        raise _wrong(name, value, "a time since 1970")
    return since


# Longer than any job, and short enough for the timeout of a lock.
MAX_SECONDS = 1e6


def _columns(name: str, value: str) -> tuple[str, ...]:
    wanted = "names separated by commas, or a JSON list of them, each once"
    names: Any = [each.strip() for each in value.split(",")]
    if value.lstrip().startswith("["):
        names = _json(name, value, wanted)
    if not all(isinstance(each, str) and each for each in names) or len(set(names)) < len(names):
        raise _wrong(name, value, wanted)
    if not names:
        raise _wrong(name, value, wanted)
    return tuple(names)


_OFFSETS = 'earliest, latest or JSON such as {"0": 17, "1": -2}, where -2 is earliest, -1 latest'


def _offsets(name: str, value: str) -> Offsets:
    """Parse a word, or JSON, which ``_of_topic`` checks."""
    if value.strip().lower() in (EARLIEST, LATEST):
        return value.strip().lower()
    offsets = _json(name, value, _OFFSETS)
    if not isinstance(offsets, dict) or not offsets:
        raise _wrong(name, value, _OFFSETS)
    return offsets


def _of_topic(name: str, offsets: dict[str, Any], topic: str) -> dict[int, int]:
    """Return the offsets in JSON, by partition, or by topic and partition as Kafka has them."""
    value = json.dumps(offsets)
    if any(isinstance(each, dict) for each in offsets.values()):
        if [*offsets] != [topic]:
            raise _wrong(name, value, f"offsets of the topic {topic} only")
        offsets = offsets[topic]
    if not offsets:
        raise _wrong(name, value, _OFFSETS)
    for partition, offset in offsets.items():
        is_whole = isinstance(offset, int) and not isinstance(offset, bool)
        if not (partition.isascii() and partition.isdigit() and len(partition) < 19):
            raise _wrong(name, value, _OFFSETS)
        if not is_whole or not min(WORDS) <= offset <= MAX_WHOLE:
            raise _wrong(name, value, _OFFSETS)
    return {int(partition): offset for partition, offset in offsets.items()}


def _json(name: str, value: str, wanted: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise _wrong(name, value, wanted) from None


def _wrong(name: str, value: str, wanted: str) -> SparkError:
    shown = repr(value) if len(repr(value)) <= 120 else f"{repr(value)[:110]}..."
    return bad_option(f"the option {name} must be {wanted}, not {shown}")


_OPTIONS = (
    _Option("url", "url", _text),
    _Option("token", "token", _secret),
    _Option("dataset", "dataset", _name),
    _Option("topic", "topic", _name),
    _Option("columns", "columns", _columns, _READS),
    _Option("pushdown", "pushdown", _truth, _BATCH_READ),
    _Option("versionAsOf", "version", _whole(0), _BATCH_READ),
    _Option("timestampAsOf", "timestamp", _moment, _BATCH_READ),
    _Option("minPartitions", "min_partitions", _whole(1, 100_000), _READS),
    _Option("numPartitions", "num_partitions", _whole(1, 100_000), _BATCH_READ),
    _Option("startingOffsets", "starting_offsets", _offsets, _READS),
    _Option("endingOffsets", "ending_offsets", _offsets, _BATCH_READ),
    _Option("startingTimestamp", "starting_timestamp", _timestamp, _READS),
    _Option("endingTimestamp", "ending_timestamp", _timestamp, _BATCH_READ),
    _Option("startingOffsetsByTimestampStrategy", "timestamp_strategy", _strategy, _READS),
    _Option("includeMetadata", "include_metadata", _truth, _READS),
    _Option("maxRowsPerTrigger", "max_rows", _whole(1), _STREAM_READ),
    _Option("maxBytesPerTrigger", "max_bytes", _whole(1), _STREAM_READ),
    _Option("failOnDataLoss", "fail_on_data_loss", _truth, _READS),
    _Option("mergeSchema", "merge_schema", _truth, _WRITE),
    _Option("overwriteSchema", "overwrite_schema", _truth, _WRITE),
    _Option("partitionBy", "partition_by", _columns, _WRITE),
    _Option("replaceWhere", "replace_where", _text, _WRITE),
    _Option("txnAppId", "app", _text, _WRITE),
    _Option("txnVersion", "app_version", _whole(0), _WRITE),
    _Option("batchRows", "batch_rows", _whole(1, 2**24)),
    _Option("window", "window", _whole(16 * KIB, 2**31)),
    _Option("connectTimeout", "connect_timeout", _seconds(zero=False)),
    _Option("callTimeout", "call_timeout", _seconds(zero=False)),
    _Option("retries", "retries", _whole(0, 1000)),
    _Option("retryBackoff", "retry_backoff", _seconds(zero=True)),
)
_BY_NAME = {option.name.lower(): option for option in _OPTIONS}
