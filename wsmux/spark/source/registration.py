"""Register the data source with a session, without importing PySpark before."""

from __future__ import annotations

from typing import Any

__all__ = ["register"]


def register(spark: Any) -> None:
    """Register ``format("wsmux")`` with a session that does not find it.

    Sessions find it if the package is installed for Spark's Python. Clusters that get it by
    ``ship`` need this call.

    Args:
        spark: a session, also of Spark Connect.
    """
    from .datasource import DefaultSource

    spark.dataSource.register(DefaultSource)
