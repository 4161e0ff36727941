"""Read, enrich and write with PySpark over multiplexed connections.

Rows of a DataFrame through a River procedure, in one line::

    enriched = rpc(connection(url), "geo.lookup").columns("ip", into="geo").on(df)

Recipes and procedures pickle, so that Spark can ship them, and connect where they run. What they
connect to may be any River server, or ``serve_data``, which keeps datasets and topics. The names
below are imported when they are used, since Spark starts many processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..naming import lazy_names

if TYPE_CHECKING:
    from .batches import Deduplicator, arrow_batches, batched
    from .calls import Procedure, rpc
    from .dataserver import DataServer, serve_data
    from .directory_store import DirectoryDatasets, DirectoryTopics
    from .errors import SparkError, error_from
    from .link import Link
    from .memory_store import MemoryDatasets, MemoryTopics
    from .recipe import Recipe, connection
    from .registering import register
    from .shipping import ship
    from .store import DatasetStore, Retention, TopicStore
    from .streams import NamedStream

__all__ = [
    "DataServer",
    "DatasetStore",
    "Deduplicator",
    "DirectoryDatasets",
    "DirectoryTopics",
    "Link",
    "MemoryDatasets",
    "MemoryTopics",
    "NamedStream",
    "Procedure",
    "Recipe",
    "Retention",
    "SparkError",
    "TopicStore",
    "arrow_batches",
    "batched",
    "connection",
    "error_from",
    "register",
    "rpc",
    "serve_data",
    "ship",
]

__getattr__ = lazy_names(
    __name__,
    {
        "batches": ("Deduplicator", "arrow_batches", "batched"),
        "calls": ("Procedure", "rpc"),
        "dataserver": ("DataServer", "serve_data"),
        "directory_store": ("DirectoryDatasets", "DirectoryTopics"),
        "errors": ("SparkError", "error_from"),
        "link": ("Link",),
        "memory_store": ("MemoryDatasets", "MemoryTopics"),
        "recipe": ("Recipe", "connection"),
        "registering": ("register",),
        "shipping": ("ship",),
        "store": ("DatasetStore", "Retention", "TopicStore"),
        "streams": ("NamedStream",),
    },
)
