"""Look inside stores, the data server, and what holds its connections in a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wsmux.spark import connection_settings

if TYPE_CHECKING:
    from wsmux.spark.server.data_server import DataServer
    from wsmux.spark.store.datasets import DeltaDatasets
    from wsmux.spark.store.memory import MemoryTopics
    from wsmux.spark.tables.table import DeltaDirectory

__all__ = ["home_of", "links_held", "stores_of", "table_of"]


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
