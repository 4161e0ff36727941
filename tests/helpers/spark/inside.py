"""Look inside stores, the data server, and what holds its connections in a process."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from wsmux.runtime import fork
from wsmux.spark import connection_settings
from wsmux.spark.server.ingest_stream import IngestStream

if TYPE_CHECKING:
    from wsmux import Stream
    from wsmux.spark import IngestClient
    from wsmux.spark.server.data_server import DataServer
    from wsmux.spark.store.datasets import DeltaDatasets
    from wsmux.spark.tables.table import DeltaDirectory
    from wsmux.spark.topics.database import Database
    from wsmux.spark.topics.sqlite_topics import SqliteTopics

__all__ = [
    "IngestHeld",
    "close_databases",
    "database_of",
    "ingest_clients",
    "ingest_held",
    "join_soon",
    "links_held",
    "queue_of",
    "ready_on",
    "released_of",
    "stores_of",
    "stream_of",
    "table_of",
    "wait_of",
]


class IngestHeld(NamedTuple):
    """What a server holds of ingest clients: batches that wait, and bytes of all in memory."""

    batches: int
    bytes: int


def links_held() -> dict[Any, Any]:
    """Return what this process holds of recipes."""
    return connection_settings._links._held


def stores_of(server: DataServer) -> list[Any]:
    """Return the stores that a data server offers."""
    return list(server._stores)


def close_databases() -> None:
    """Close what stores of topics have open, whoever still holds these."""
    module = sys.modules.get("wsmux.spark.topics.database")
    for each in list(fork._known) if module is not None else ():
        if isinstance(each, module.Database):
            each.close()


def database_of(topics: SqliteTopics) -> Database:
    """Return what a store of topics knows, to be looked at and changed."""
    return topics._database


def join_soon(topics: SqliteTopics, after: int, rows: float) -> None:
    """Have so few small files joined, to files of at most so many rows."""
    upkeep = topics._upkeep
    upkeep._join_after, upkeep._bounds = after, upkeep._bounds._replace(rows=rows)


def released_of(topics: SqliteTopics) -> list[Any]:
    """Return the offsets that queries have released."""
    with database_of(topics).read() as db:
        return [json.loads(text) for (text,) in db.execute("SELECT offsets FROM readers")]


def table_of(datasets: DeltaDatasets, dataset: str) -> DeltaDirectory:
    """Return the table of a dataset."""
    return datasets._table(dataset)


def ingest_held(server: DataServer) -> IngestHeld:
    """Return what a server holds of ingest clients of all datasets."""
    streams = server._own["ingest"]
    assert isinstance(streams, IngestStream)
    groups = [*streams._groups.values()]
    return IngestHeld(sum(len(each._queue) for each in groups), sum(each._held for each in groups))


def ingest_clients(server: DataServer) -> list[str]:
    """Return the ingest clients of all datasets that a server holds something of."""
    streams = server._own["ingest"]
    assert isinstance(streams, IngestStream)
    return [client for each in [*streams._groups.values()] for client in each._sessions]


def stream_of(client: IngestClient) -> Stream:
    """Return the stream by which an ingest client writes."""
    stream = client._outbox._channel._stream
    assert stream is not None
    return stream


def ready_on(client: IngestClient) -> Stream | None:
    """Return the stream that takes rows of an ingest client now, if one does."""
    return client._outbox._channel._stream if client._outbox._ready else None


def queue_of(client: IngestClient) -> tuple[object, str]:
    """Return what an ingest client hands rows to that it keeps: an object, and its method."""
    return client._outbox._channel, "queue_locked"


def wait_of(client: IngestClient) -> tuple[object, str]:
    """Return what an ingest client waits by: an object, and the name of its method."""
    return client._outbox, "_wait_locked"
