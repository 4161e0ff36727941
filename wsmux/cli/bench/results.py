"""Make medians, ratios, verdicts and tables of the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..terminal import Table
from .peer import Peer
from .rpc_measures import EVERY_MEASURE

__all__ = ["Figures", "Pass", "Target", "Verdict", "judge", "pass_as_json", "pass_table"]

# Measure, variant, one figure a repetition; ``None`` for one that failed.
Figures = dict[str, dict[str, list[float | None]]]


@dataclass(frozen=True)
class Pass:
    """Hold one run over everything."""

    pinned: bool
    figures: Figures
    failures: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Say how the processes ran."""
        where = "each process on a core of its own" if self.pinned else "processes not pinned"
        return f"{where}; {self._repetitions()} repetitions"

    def _repetitions(self) -> int:
        return max(len(values) for row in self.figures.values() for values in row.values())

    def taken(self, measure: str, variant: str) -> list[float]:
        """Return the figures that did not fail."""
        values = self.figures.get(measure, {}).get(variant, [])
        return [value for value in values if value is not None]

    def ratios(self, measure: str, variant: str, base: str) -> list[float]:
        """Return the ratios to another variant, one a repetition in which neither failed."""
        row = self.figures.get(measure, {})
        if variant not in row or base not in row or variant == base:
            return []
        pairs = zip(row[variant], row[base], strict=True)
        return [one / other for one, other in pairs if one is not None and other is not None]


@dataclass(frozen=True)
class Target:
    """Name a lower limit, of a rate, or of a ratio to the variant ``base``; or an upper one."""

    measure: str
    variant: str
    limit: float
    base: str | None = "raw"
    upper: bool = False


TARGETS = (
    Target("upload", "wsmux", 5.0),
    Target("upload", "wsmux-python", 1.0),
    Target("download", "wsmux", 0.9),
    Target("ping-1k", "wsmux", 1.0),
    Target("opens", "wsmux", 500.0, base=None),
    *(
        Target(measure, variant, 0.8, base="wsmux")
        for variant in ("wsmux-yamux", "wsmux-bymux")
        for measure in ("upload", "download", "ping-1k")
    ),
    *(
        Target(measure, "wsmux-yamux", 3.0, base="libp2p-yamux")
        for measure in ("upload", "download", "ping-1k")
    ),
    Target("rpc-1", "river", 0.4, base="raw-calls"),
    *(
        Target(measure, "river", 1.0, base="replit-river")
        for measure in ("rpc-1", "rpc-32", "stream", "subscription", "echo-64k")
    ),
    *(
        Target(measure, "river", 64.0, base=None, upper=True)
        for measure in ("idle-server", "idle-client")
    ),
)


@dataclass(frozen=True)
class Verdict:
    """Tell how one target fared in one pass; there is no figure where a measurement failed."""

    target: Target
    pinned: bool
    figure: float | None

    @property
    def met(self) -> bool:
        """Whether the median is on the right side of the limit."""
        if self.figure is None:
            return False
        limit = self.target.limit
        return self.figure <= limit if self.target.upper else self.figure >= limit

    def __str__(self) -> str:
        target, what = self.target, EVERY_MEASURE[self.target.measure]
        unit = f" x {target.base}" if target.base else f" {what.unit}"
        figure = "failed"
        if self.figure is not None:
            figure = f"{self.figure:.2f}" if target.base else f"{self.figure:,.0f}"
        verdict = "met   " if self.met else "MISSED"
        pinned = "pinned" if self.pinned else "not pinned"
        return (
            f"{verdict}  {target.variant}, {what.title}, {pinned}: "
            f"{figure}{unit}, wanted {'at most ' if target.upper else ''}{target.limit:g}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the same for machines."""
        target, unit = self.target, EVERY_MEASURE[self.target.measure].unit
        return {
            "measure": target.measure,
            "variant": target.variant,
            "pinned": self.pinned,
            "kind": f"ratio to {target.base}" if target.base else unit,
            "limit": target.limit,
            "upper": target.upper,
            "figure": self.figure,
            "met": self.met,
        }


def judge(passes: Sequence[Pass]) -> list[Verdict]:
    """Return the verdicts on every target that was measured.

    Targets are for the pinned pass, where client and server do not compete for a core; the other
    is judged only when it was the only one. A failure of the variant itself misses its target; of
    its base, the repetitions that are left are judged.
    """
    verdicts = []
    pinned = [run for run in passes if run.pinned]
    for run in pinned or passes:
        for target in TARGETS:
            if target.base:
                values = run.ratios(target.measure, target.variant, target.base)
            else:
                values = run.taken(target.measure, target.variant)
            failed = None in run.figures.get(target.measure, {}).get(target.variant, [])
            if values or failed:
                figure = None if failed else median(values)
                verdicts.append(Verdict(target, run.pinned, figure))
    return verdicts


def pass_table(run: Pass, peers: Sequence[Peer]) -> Table:
    """Return a row for each measure: median, (lowest-highest), and the ratio to the base."""
    rows = []
    for measure in run.figures:
        cells = [f"{EVERY_MEASURE[measure].title}, {EVERY_MEASURE[measure].unit}"]
        for peer in peers:
            cells.append(_cell(run, measure, peer.name))
            if peer.name != peer.base:
                cells.append(_ratio(run.ratios(measure, peer.name, peer.base)))
        rows.append(cells)
    columns = [""]
    for peer in peers:
        columns += [peer.name] if peer.name == peer.base else [peer.name, f"x {peer.base}"]
    notes = [f"{peer.name}: {peer.about}" for peer in peers]
    notes += [f"failed: {failure}" for failure in run.failures]
    return Table(run.title, columns, rows, notes)


def _cell(run: Pass, measure: str, variant: str) -> str:
    if variant not in run.figures[measure]:
        return "-"
    values = run.taken(measure, variant)
    failed = len(run.figures[measure][variant]) - len(values)
    if not values:
        return "failed"
    text = f"{median(values):,.0f} ({min(values):,.0f}-{max(values):,.0f})"
    return f"{text}, {failed} failed" if failed else text


def _ratio(ratios: list[float]) -> str:
    return f"{median(ratios):.2f}" if ratios else "-"


def pass_as_json(run: Pass, peers: Sequence[Peer]) -> dict[str, Any]:
    """Return everything that was measured in a pass."""
    measures = {}
    for measure, row in run.figures.items():
        variants: dict[str, Any] = {}
        for peer in peers:
            if peer.name not in row:
                continue
            values = run.taken(measure, peer.name)
            ratios = run.ratios(measure, peer.name, peer.base)
            variants[peer.name] = {
                "values": row[peer.name],
                "median": median(values) if values else None,
                "min": min(values, default=None),
                "max": max(values, default=None),
                "base": peer.base,
                "ratios": ratios,
                "ratio": median(ratios) if ratios else None,
            }
        measures[measure] = {"unit": EVERY_MEASURE[measure].unit, "variants": variants}
    return {"pinned": run.pinned, "measures": measures, "failures": list(run.failures)}
