"""Offer stores in memory."""

from __future__ import annotations

import time
from collections.abc import Callable

from .dataset_state import DatasetState
from .datasets import HomeDatasets
from .memory_home import MemoryHomes
from .store import DAY, Retention
from .topic_state import TopicState
from .topics import HomeTopics

__all__ = ["MemoryDatasets", "MemoryTopics"]


class MemoryDatasets(HomeDatasets):
    """Keep datasets in memory; see ``HomeDatasets``."""

    def __init__(self, *, ttl: float = DAY, clock: Callable[[], float] = time.time) -> None:
        super().__init__(MemoryHomes(DatasetState), ttl=ttl, clock=clock)


class MemoryTopics(HomeTopics):
    """Keep topics in memory; see ``HomeTopics``."""

    def __init__(
        self,
        *,
        ttl: float = DAY,
        retention: Retention | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(MemoryHomes(TopicState), ttl=ttl, retention=retention, clock=clock)
