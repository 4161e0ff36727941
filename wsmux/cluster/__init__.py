"""Reach the connections of many processes and hosts by name; see ``Cluster``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from .cluster import Cluster
    from .errors import ClusterError, NotConnected, TopicGap, Unreachable
    from .positions import Position, Retention, TopicMessage
    from .records import Presence
    from .status import ClusterCounts, ClusterStatus, NodeStatus
    from .subscription import Subscription

__all__ = [
    "Cluster",
    "ClusterCounts",
    "ClusterError",
    "ClusterStatus",
    "NodeStatus",
    "NotConnected",
    "Position",
    "Presence",
    "Retention",
    "Subscription",
    "TopicGap",
    "TopicMessage",
    "Unreachable",
]

__getattr__ = lazy_names(
    __name__,
    {
        "cluster": ("Cluster",),
        "errors": ("ClusterError", "NotConnected", "TopicGap", "Unreachable"),
        "positions": ("Position", "Retention", "TopicMessage"),
        "records": ("Presence",),
        "status": ("ClusterCounts", "ClusterStatus", "NodeStatus"),
        "subscription": ("Subscription",),
    },
)
