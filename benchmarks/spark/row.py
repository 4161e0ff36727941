"""Say what a figure of the table is: who takes it, at which distances, and what it is held to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ..interpreters import missing_module

__all__ = ["DELAYS", "NEAR", "ROW", "Place", "Ratio", "Row"]

# Milliseconds of a round trip; the first is that of the loopback itself.
NEAR, DELAYS = 0, (0, 1, 5)

# What a row of data is: 100 bytes, of which the first is what the raw echo wants to see.
ROW = "E" + "x" * 99


class Place(NamedTuple):
    """Where a figure is taken."""

    addresses: Mapping[str, str]
    """Those of the servers at this distance, by their names: ``river`` and ``raw``, and for bulk
    ``data`` and ``flight``."""
    spark: Any
    """The session, for rows that are measured within Spark."""


class Row(ABC):
    """One row of the table; a module in ``rows/`` lists its own in ``ROWS``.

    Attributes:
        name: one word, for the command line and the results.
        title: what it is, in a few words.
        unit: of its figures.
        within_spark: it is measured by the process that has a Spark session.
        bulk: it wants the servers of bulk, which hold much in memory.
        needs: modules that must be installed.
        delays: the distances at which it is measured.
    """

    name: str
    title: str
    unit: ClassVar[str] = "rows/s"
    within_spark: ClassVar[bool] = False
    bulk: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("msgpack",)
    delays: tuple[int, ...] = DELAYS

    def lacks(self, python: str) -> str | None:
        """Return why it cannot be measured here; ``None`` when it can."""
        missing = missing_module(python, self.needs)
        return missing and f"{missing} is not installed"

    @abstractmethod
    def measure(self, place: Place, seconds: float) -> float:
        """Return one figure, taken in about so many seconds."""


@dataclass(frozen=True)
class Ratio:
    """Hold one row to another; a module in ``rows/`` lists its own in ``RATIOS``.

    ``limits`` and ``goals`` are by distance; a ratio without any is only shown.
    """

    row: str
    base: str
    limits: Mapping[int, float]
    goals: Mapping[int, float]
