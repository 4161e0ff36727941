"""Fill topics, follow them by queries of Spark's, and look at what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from wsmux.spark.store.base import TopicStore
from wsmux.spark.topics.sqlite_topics import SqliteTopics

from .arrow_data import SCHEMA, ids, rows
from .format_servers import opts

__all__ = ["Sink", "add", "add_each", "follow", "held", "option_list", "started"]


def add(topics: TopicStore, topic: str, batch: int, *counts: int, first: int = 0) -> int:
    """Commit rows, so many for each partition; return the id behind the last one."""
    txn = topics.begin(topic, "generator", batch, SCHEMA).txn
    receipts = []
    for place, count in enumerate(counts):
        if count:
            part = topics.open_part(txn, place, 0, SCHEMA)
            part.write(rows(first, count))
            receipts.append(part.finish(100, 0))
            first += count
    topics.commit(txn, receipts)
    return first


def add_each(directory: str, topic: str, query: str, count: int | str) -> None:
    """Commit the rows from 0 up, one at a time, through a store of its own."""
    topics = SqliteTopics(directory, sync=False)
    for number in range(int(count)):
        txn = topics.begin(topic, query, number, SCHEMA).txn
        part = topics.open_part(txn, 0, 0, SCHEMA)
        part.write(rows(number, 1))
        topics.commit(txn, [part.finish(100, 0)])


def held(topics: TopicStore, topic: str) -> list[int]:
    """Return the ids that a topic holds."""
    heads = topics.describe(topic).heads
    spans = enumerate(zip(heads.earliest, heads.latest, strict=True))
    return [each for at, span in spans for each in ids(topics.read(topic, at, *span).batches)]


def option_list(url: str, topic: str, **options: Any) -> dict[str, str]:
    """Return options of a topic, with short times."""
    return opts(url, dataset=None, topic=topic, **options)


class Sink:
    """Gather the ids of each batch that ``foreachBatch`` passes, in this process."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.numbers: list[int] = []

    def __call__(self, frame: Any, number: int) -> None:
        self.batches.append(sorted(row.id for row in frame.select("id").collect()))
        self.numbers.append(number)

    def ids(self) -> list[int]:
        return [each for batch in self.batches for each in batch]


def follow(spark: Any, options: dict[str, str]) -> Any:
    return spark.readStream.format("wsmux").options(**options).load()


@contextmanager
def started(writer: Any) -> Iterator[Any]:
    """Run a query, and stop it at the end."""
    query = writer.start()
    try:
        yield query
    finally:
        query.stop()
