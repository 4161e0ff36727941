"""Make medians, ratios, verdicts and a table of the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from wsmux.cli.terminal import Table

from .row import Ratio, Row

__all__ = ["Figures", "Verdict", "as_json", "judge", "table"]

# Row, distance, one figure a repetition; ``None`` for one that failed.
Figures = Mapping[str, Mapping[int, Sequence[float | None]]]


@dataclass(frozen=True)
class Verdict:
    """How a ratio fared at one distance: the median of those of the repetitions."""

    ratio: Ratio
    delay: int
    figure: float | None
    """``None`` if the row failed."""

    @property
    def limit(self) -> float | None:
        """What must be reached, if anything must."""
        return self.ratio.limits.get(self.delay)

    @property
    def goal(self) -> float | None:
        """What is hoped for."""
        return self.ratio.goals.get(self.delay)

    @property
    def met(self) -> bool:
        """Whether what must be reached is."""
        return self.limit is None or (self.figure is not None and self.figure >= self.limit)

    def __str__(self) -> str:
        figure = "failed" if self.figure is None else _short(self.figure)
        words = "met   " if self.met else "MISSED"
        if self.limit is None:
            words = "      "
        wanted = [] if self.limit is None else [f"wanted {self.limit:g}"]
        wanted += [] if self.goal is None else [f"goal {self.goal:g}"]
        ratio = self.ratio
        return f"{words}  {ratio.row} / {ratio.base}, RTT {self.delay} ms: {figure}" + (
            f", {', '.join(wanted)}" if wanted else ""
        )

    def as_json(self) -> dict[str, Any]:
        """Return the same for machines."""
        return {
            "row": self.ratio.row,
            "base": self.ratio.base,
            "delay": self.delay,
            "limit": self.limit,
            "goal": self.goal,
            "figure": self.figure,
            "met": self.met,
        }


def judge(figures: Figures, ratios: Sequence[Ratio]) -> list[Verdict]:
    """Return the verdicts on every ratio both of whose rows were measured."""
    verdicts = []
    for ratio in ratios:
        if ratio.row not in figures or ratio.base not in figures:
            continue
        for delay, values in figures[ratio.row].items():
            # A row that is measured near only is what rows at any distance are held to.
            bases = figures[ratio.base]
            base = bases[delay] if delay in bases else next(iter(bases.values()))
            found = [a / b for a, b in zip(values, base, strict=True) if a and b]
            figure = median(found) if found and None not in values else None
            verdicts.append(Verdict(ratio, delay, figure))
    return verdicts


def table(figures: Figures, rows: Mapping[str, Row], notes: Sequence[str]) -> Table:
    """Return a line for each row, a column for each distance: median (lowest-highest)."""
    delays = sorted({delay for each in figures.values() for delay in each})
    repetitions = max(len(v) for each in figures.values() for v in each.values())
    lines = [
        [f"{rows[name].title}, {rows[name].unit}"]
        + [_cell(figures[name].get(delay)) for delay in delays]
        for name in figures
    ]
    columns = ["", *(f"RTT {delay} ms" for delay in delays)]
    title = f"rows of 100 bytes, bulk of 64; {repetitions} repetitions"
    return Table(title, columns, lines, notes)


def _cell(values: Sequence[float | None] | None) -> str:
    if values is None:
        return "-"
    taken = [value for value in values if value is not None]
    if not taken:
        return "failed"
    text = f"{median(taken):,.0f} ({min(taken):,.0f}-{max(taken):,.0f})"
    failed = len(values) - len(taken)
    return f"{text}, {failed} failed" if failed else text


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"


def as_json(
    figures: Figures, rows: Mapping[str, Row], verdicts: Sequence[Verdict], notes: Sequence[str]
) -> dict[str, Any]:
    """Return everything that was measured."""
    return {
        "rows": {
            name: {
                "title": rows[name].title,
                "unit": rows[name].unit,
                "delays": {str(delay): list(values) for delay, values in each.items()},
            }
            for name, each in figures.items()
        },
        "targets": [verdict.as_json() for verdict in verdicts],
        "notes": list(notes),
    }
