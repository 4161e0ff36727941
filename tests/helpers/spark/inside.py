"""Look inside stores, the data server, and what holds its connections in a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from wsmux.spark import connection_settings
from wsmux.spark.server.ingest_stream import IngestStream

if TYPE_CHECKING:
    from wsmux import Stream
    from wsmux.spark import IngestClient
    from wsmux.spark.server.data_server import DataServer
    from wsmux.spark.store.datasets import DeltaDatasets
    from wsmux.spark.store.memory import MemoryTopics
    from wsmux.spark.tables.table import DeltaDirectory

__all__ = [
    "IngestHeld",
    "home_of",
    "ingest_held",
    "links_held",
    "stores_of",
    "stream_of",
    "table_of",
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


def home_of(topics: MemoryTopics, topic: str) -> Any:
    """Return where a topic is kept, to be looked at and changed while it is locked."""
    return topics._home(topic)


def table_of(datasets: DeltaDatasets, dataset: str) -> DeltaDirectory:
    """Return the table of a dataset."""
    return datasets._table(dataset)


def ingest_held(server: DataServer) -> IngestHeld:
    """Return what a server holds of ingest clients of all datasets."""
    streams = server._own["ingest"]
    assert isinstance(streams, IngestStream)
    groups = [*streams._groups.values()]
    return IngestHeld(sum(len(each._queue) for each in groups), sum(each._held for each in groups))


def stream_of(client: IngestClient) -> Stream:
    """Return the stream of an ingest client."""
    assert client._stream is not None
    return client._stream
