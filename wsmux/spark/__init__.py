"""Read, enrich and write with PySpark over multiplexed connections.

Rows of a DataFrame through a River procedure, in one line::

    enriched = rpc(connection(url), "geo.lookup").columns("ip", into="geo").on(df)

Everything here pickles, so that Spark can ship it, and connects where it runs. The names below are
imported when they are used, since Spark starts many processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..naming import lazy_names

if TYPE_CHECKING:
    from .batches import Deduplicator, arrow_batches, batched
    from .calls import Procedure, rpc
    from .errors import SparkError, error_from
    from .link import Link
    from .recipe import Recipe, connection
    from .shipping import ship

__all__ = [
    "Deduplicator",
    "Link",
    "Procedure",
    "Recipe",
    "SparkError",
    "arrow_batches",
    "batched",
    "connection",
    "error_from",
    "rpc",
    "ship",
]

__getattr__ = lazy_names(
    __name__,
    {
        "batches": ("Deduplicator", "arrow_batches", "batched"),
        "calls": ("Procedure", "rpc"),
        "errors": ("SparkError", "error_from"),
        "link": ("Link",),
        "recipe": ("Recipe", "connection"),
        "shipping": ("ship",),
    },
)
