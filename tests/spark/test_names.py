"""Pin the names of ``wsmux.spark``; adding or losing one is a decision, not an accident."""

from __future__ import annotations

import pytest

import wsmux.spark

CALLS = {
    "IngestClient",
    "ingest",
    "Deduplicator",
    "Link",
    "Procedure",
    "Recipe",
    "SparkError",
    "SqliteTopics",
    "arrow_batches",
    "batched",
    "connection",
    "error_from",
    "register",
    "rpc",
    "ship",
    "upload_bytes",
}

SERVER = {
    "DataServer",
    "DatasetStore",
    "DeltaDatasets",
    "GroupCommit",
    "NamedStream",
    "RedisTopics",
    "Retention",
    "TopicStore",
    "serve_data",
}


def test_the_package_offers_what_it_promises() -> None:
    assert set(wsmux.spark.__all__) >= CALLS | SERVER
    assert all(hasattr(wsmux.spark, name) for name in wsmux.spark.__all__)


def test_another_name_is_none() -> None:
    with pytest.raises(AttributeError, match=r"module 'wsmux.spark' has no attribute 'other'"):
        _ = wsmux.spark.other
