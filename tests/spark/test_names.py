"""Pin the names of ``wsmux.spark``; adding or losing one is a decision, not an accident."""

from __future__ import annotations

import pytest

import wsmux.spark
from wsmux.runtime.lazy_imports import lazy_names

CALLS = {
    "Deduplicator",
    "Link",
    "Procedure",
    "Recipe",
    "SparkError",
    "arrow_batches",
    "batched",
    "connection",
    "error_from",
    "register",
    "rpc",
    "ship",
}

SERVER = {
    "DataServer",
    "DatasetStore",
    "DirectoryDatasets",
    "DirectoryTopics",
    "MemoryDatasets",
    "MemoryTopics",
    "NamedStream",
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


def test_a_lazy_name_is_loaded_once() -> None:
    assert lazy_names("wsmux", {"config": ["Config"]})("Config") is wsmux.Config
    assert "Config" in vars(wsmux)
