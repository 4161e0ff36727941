"""Register the data source with a session, and import PySpark no sooner."""

from __future__ import annotations

from typing import Any

__all__ = ["register"]


def register(spark: Any) -> None:
    """Register ``format("wsmux")`` with a session that does not find it by itself.

    It finds it where the package is installed for Spark's Python. A cluster that gets it by
    ``ship`` needs this.

    Args:
        spark: a session, of Spark Connect too.
    """
    from .datasource import DefaultSource

    spark.dataSource.register(DefaultSource)
