"""Make medians, ratios, verdicts and tables of the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..terminal import Table
from .measures import MEASURES
from .peer import Peer
from .peers import BASE

__all__ = ["Figures", "Pass", "Verdict", "judge", "pass_as_json", "pass_table"]

# Measure, variant, one figure a repetition.
Figures = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Pass:
    """Hold one run over everything."""

    pinned: bool
    figures: Figures

    @property
    def title(self) -> str:
        """Say how the processes ran."""
        where = "each process on a core of its own" if self.pinned else "processes not pinned"
        return f"{where}; {self._repetitions()} repetitions"

    def _repetitions(self) -> int:
        return max(len(values) for row in self.figures.values() for values in row.values())

    def ratios(self, measure: str, variant: str) -> list[float]:
        """Return the ratios to the base, one a repetition; none without a base."""
        row = self.figures.get(measure, {})
        if variant not in row or BASE not in row or variant == BASE:
            return []
        return [ours / raw for ours, raw in zip(row[variant], row[BASE], strict=True)]


@dataclass(frozen=True)
class Target:
    """Name a lower limit, of a ratio to the base or of a rate."""

    measure: str
    variant: str
    limit: float
    ratio: bool = True


TARGETS = (
    Target("upload", "wsmux", 5.0),
    Target("upload", "wsmux-python", 1.0),
    Target("download", "wsmux", 0.9),
    Target("ping-1k", "wsmux", 1.0),
    Target("opens", "wsmux", 500.0, ratio=False),
)


@dataclass(frozen=True)
class Verdict:
    """Tell how one target fared in one pass."""

    target: Target
    pinned: bool
    figure: float

    @property
    def met(self) -> bool:
        """Whether the median reaches the limit."""
        return self.figure >= self.target.limit

    def __str__(self) -> str:
        target, what = self.target, MEASURES[self.target.measure]
        unit = f" x {BASE}" if target.ratio else f" {what.unit}"
        figure = f"{self.figure:.2f}" if target.ratio else f"{self.figure:,.0f}"
        verdict = "met   " if self.met else "MISSED"
        pinned = "pinned" if self.pinned else "not pinned"
        return (
            f"{verdict}  {target.variant}, {what.title}, {pinned}: "
            f"{figure}{unit}, wanted {target.limit:g}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the same for machines."""
        target = self.target
        return {
            "measure": target.measure,
            "variant": target.variant,
            "pinned": self.pinned,
            "kind": f"ratio to {BASE}" if target.ratio else MEASURES[target.measure].unit,
            "limit": target.limit,
            "figure": self.figure,
            "met": self.met,
        }


def judge(passes: Sequence[Pass]) -> list[Verdict]:
    """Return the verdicts on every target that was measured.

    Targets are for the pinned pass, where client and server do not compete for a core; the other
    is judged only when it was the only one.
    """
    verdicts = []
    pinned = [run for run in passes if run.pinned]
    for run in pinned or passes:
        for target in TARGETS:
            if target.ratio:
                values = run.ratios(target.measure, target.variant)
            else:
                values = run.figures.get(target.measure, {}).get(target.variant, [])
            if values:
                verdicts.append(Verdict(target, run.pinned, median(values)))
    return verdicts


def pass_table(run: Pass, peers: Sequence[Peer]) -> Table:
    """Return a row for each measure: median, (lowest-highest), and the ratio to the base."""
    rows = []
    for measure, row in run.figures.items():
        cells = [f"{MEASURES[measure].title}, {MEASURES[measure].unit}"]
        for peer in peers:
            cells.append(_cell(row[peer.name]))
            if peer.name != BASE:
                ratios = run.ratios(measure, peer.name)
                cells.append(f"{median(ratios):.2f}" if ratios else "-")
        rows.append(cells)
    columns = [""]
    for peer in peers:
        columns += [peer.name] if peer.name == BASE else [peer.name, f"x {BASE}"]
    notes = [f"{peer.name}: {peer.about}" for peer in peers]
    return Table(run.title, columns, rows, notes)


def _cell(values: list[float]) -> str:
    return f"{median(values):,.0f} ({min(values):,.0f}-{max(values):,.0f})"


def pass_as_json(run: Pass) -> dict[str, Any]:
    """Return everything that was measured in a pass."""
    measures = {}
    for measure, row in run.figures.items():
        variants: dict[str, Any] = {}
        for variant, values in row.items():
            ratios = run.ratios(measure, variant)
            variants[variant] = {
                "values": values,
                "median": median(values),
                "min": min(values),
                "max": max(values),
                "ratios": ratios,
                "ratio": median(ratios) if ratios else None,
            }
        measures[measure] = {"unit": MEASURES[measure].unit, "variants": variants}
    return {"pinned": run.pinned, "measures": measures}
