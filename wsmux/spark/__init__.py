"""Read, enrich and write with PySpark over multiplexed connections.

Send the rows of a DataFrame through a River procedure:

    enriched = rpc(connection(url), "geo.lookup").columns("ip", into="geo").on(df)

Connection settings and procedures are picklable, so Spark can ship them; they connect where they
run. The server may be any River server, or ``serve_data``, which stores datasets and topics. The
names below are imported on first use, since Spark starts many processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from .calls.batches import Deduplicator, arrow_batches, batched
    from .calls.byte_upload import upload_bytes
    from .calls.procedure import Procedure, rpc
    from .connection_settings import Link, Recipe, connection
    from .errors import SparkError, error_from
    from .ingest_client import IngestClient, ingest
    from .server.data_server import DataServer, serve_data
    from .server.ingest_stream import GroupCommit
    from .server.named_streams import NamedStream
    from .shipping import ship
    from .source.registration import register
    from .store.base import DatasetStore, Retention, TopicStore
    from .store.datasets import DeltaDatasets
    from .topics.redis_topics import RedisTopics
    from .topics.sqlite_topics import SqliteTopics

__all__ = [
    "DataServer",
    "DatasetStore",
    "Deduplicator",
    "DeltaDatasets",
    "GroupCommit",
    "IngestClient",
    "Link",
    "NamedStream",
    "Procedure",
    "Recipe",
    "RedisTopics",
    "Retention",
    "SparkError",
    "SqliteTopics",
    "TopicStore",
    "arrow_batches",
    "batched",
    "connection",
    "error_from",
    "ingest",
    "register",
    "rpc",
    "serve_data",
    "ship",
    "upload_bytes",
]

__getattr__ = lazy_names(
    __name__,
    {
        "calls.batches": ("Deduplicator", "arrow_batches", "batched"),
        "calls.byte_upload": ("upload_bytes",),
        "calls.procedure": ("Procedure", "rpc"),
        "connection_settings": ("Link", "Recipe", "connection"),
        "errors": ("SparkError", "error_from"),
        "ingest_client": ("IngestClient", "ingest"),
        "server.data_server": ("DataServer", "serve_data"),
        "server.ingest_stream": ("GroupCommit",),
        "server.named_streams": ("NamedStream",),
        "shipping": ("ship",),
        "source.registration": ("register",),
        "store.base": ("DatasetStore", "Retention", "TopicStore"),
        "store.datasets": ("DeltaDatasets",),
        "topics.redis_topics": ("RedisTopics",),
        "topics.sqlite_topics": ("SqliteTopics",),
    },
)
