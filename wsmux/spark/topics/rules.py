"""Hold what all stores of topics ask of names, keys and offsets, whatever they keep them in."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...rpc import RiverError
from ..protocol import MAX_WHOLE, Code, TxnId, refusal
from ..store.base import Heads, no_txn
from ..store.schemas import schema_from_text, takes

__all__ = [
    "Key",
    "check_home",
    "check_offsets",
    "check_partitions",
    "check_query",
    "check_released",
    "check_same",
    "key_of",
    "no_topic",
    "parsed",
    "short",
]

# Every message about a topic has some numbers for each partition.
MAX_PARTITIONS = 10_000

# Characters of the id of a query; Spark's have 36.
MAX_QUERY = 1000

_KEY = re.compile(r"([0-9a-f]{32})(?:-([0-9]{1,19}))?")


class Key(NamedTuple):
    """What stands for a query in a store, and the number of its batch.

    A transaction of no query has a key of its own, and the number -1.
    """

    query: str
    batch: int

    def __str__(self) -> str:
        return self.query if self.batch < 0 else f"{self.query}-{self.batch}"


def short(query: str) -> str:
    """Return what stands for a query in a store."""
    return hashlib.sha256(query.encode()).hexdigest()[:32]


def key_of(query: str | None, batch: int | None) -> Key:
    """Return the key of the one transaction that a batch of a query has, whoever asks.

    Raises:
        RiverError: BAD_REQUEST.
    """
    if query is None and batch is None:
        return Key(uuid.uuid4().hex, -1)
    if query is None or batch is None or not 0 < len(query) <= MAX_QUERY:
        text = f"a batch is of a query of 1 to {MAX_QUERY} characters; leave out both or none"
        raise refusal(Code.BAD_REQUEST, text)
    if not 0 <= batch <= MAX_WHOLE:
        raise refusal(Code.BAD_REQUEST, f"a batch is a number from 0 up, not {batch}")
    return Key(short(query), batch)


def parsed(text: str) -> tuple[str, Key]:
    """Return the topic of a transaction, and its key.

    Raises:
        RiverError: NO_TXN; it is none of a topic.
    """
    txn = TxnId.parse(text, "t")
    found = _KEY.fullmatch(txn.key)
    batch = -1 if found is None or found[2] is None else int(found[2])
    if found is None or batch > MAX_WHOLE:
        raise no_txn(text)
    return txn.name, Key(found[1], batch)


def no_topic(name: str) -> RiverError:
    """Return the error for a topic that there is not."""
    return refusal(Code.NO_TOPIC, f"there is no topic {name}")


def check_partitions(partitions: int | None) -> int:
    """Return the number of partitions of a new topic.

    Raises:
        RiverError: BAD_REQUEST.
    """
    wanted = 1 if partitions is None else partitions
    if not 1 <= wanted <= MAX_PARTITIONS:
        text = f"a topic has 1 to {MAX_PARTITIONS} partitions, not {wanted}"
        raise refusal(Code.BAD_REQUEST, text)
    return wanted


def check_same(topic: str, schema: str, count: int, stored: Any, partitions: int | None) -> None:
    """Check that a topic that is there is the one that was to be made.

    Args:
        schema, count: of the one that is there. stored, partitions: what was asked for.

    Raises:
        RiverError: WRONG_SCHEMA or EXISTS.
    """
    takes(schema_from_text(schema), stored, f"topic {topic}")
    if partitions is not None and partitions != count:
        text = f"there is a topic {topic} already, of {count} partitions, not {partitions}"
        raise refusal(Code.EXISTS, text)


def check_offsets(topic: str, heads: Heads, partition: int, start: int, end: int) -> None:
    """Check that rows are held.

    Raises:
        RiverError: BAD_OFFSETS or OFFSETS_GONE.
    """
    if partition >= len(heads.latest):
        text = f"topic {topic} has {len(heads.latest)} partitions, so none is {partition}"
        raise refusal(Code.BAD_OFFSETS, text)
    earliest, latest = heads.earliest[partition], heads.latest[partition]
    place = f"partition {partition} of topic {topic}"
    if start > end or end > latest:
        text = f"{place} has no offsets {start} to {end}; the latest is {latest}"
        raise refusal(Code.BAD_OFFSETS, text)
    if start < earliest and start < end:
        text = f"offset {start} of {place} is gone; the earliest is {earliest}"
        raise refusal(Code.OFFSETS_GONE, text)


def check_home(topic: str, wanted: str | None, home: str) -> None:
    """Check that a topic is the one whose rows are wanted, as far as both are known.

    Raises:
        RiverError: OFFSETS_GONE.
    """
    if wanted and home and wanted != home:
        text = f"topic {topic} was removed and made anew, and the rows of the former one are gone"
        raise refusal(Code.OFFSETS_GONE, text)


def check_query(query: str) -> None:
    """Check the id of a query that reads.

    Raises:
        RiverError: BAD_REQUEST.
    """
    if not 0 < len(query) <= MAX_QUERY:
        text = f"the id of a query has 1 to {MAX_QUERY} characters"
        raise refusal(Code.BAD_REQUEST, text)


def check_released(topic: str, latest: Sequence[int], offsets: Sequence[int]) -> None:
    """Check offsets that a query releases.

    Raises:
        RiverError: BAD_OFFSETS.
    """
    if len(offsets) != len(latest):
        text = f"topic {topic} has {len(latest)} partitions, not {len(offsets)}"
        raise refusal(Code.BAD_OFFSETS, text)
    for place, (offset, top) in enumerate(zip(offsets, latest, strict=True)):
        if offset > top:
            text = f"partition {place} of topic {topic} ends at {top}, before {offset}"
            raise refusal(Code.BAD_OFFSETS, text)
