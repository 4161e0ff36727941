"""Hold what was measured, with its ratios, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from wsmux.cli.terminal import Table

from .measures import EVERY_MEASURE
from .peer import Peer

# Measure, variant, one figure a repetition; ``None`` for one that failed.
Figures = dict[str, dict[str, list[float | None]]]


@dataclass(frozen=True)
class Pass:
    """Hold one run over everything of one kind."""

    pinned: bool
    figures: Figures
    failures: tuple[str, ...] = ()
    kind: str = "streams"

    def taken(self, measure: str, variant: str) -> list[float]:
        """Return the figures that did not fail."""
        values = self.figures.get(measure, {}).get(variant, [])
        return [value for value in values if value is not None]

    def ratios(self, measure: str, variant: str, base: str, over: str | None = None) -> list[float]:
        """Return the ratios to another variant, one a repetition in which neither failed.

        Args:
            over: another measure to take the other variant's figures of, or its own.
        """
        row, other_row = (self.figures.get(each, {}) for each in (measure, over or measure))
        if variant not in row or base not in other_row or (variant == base and over is None):
            return []
        pairs = zip(row[variant], other_row[base], strict=over is None)
        return [one / other for one, other in pairs if one is not None and other]

    def described(self, measure: str, peer: Peer) -> dict[str, Any]:
        """Return everything about one figure of a variant."""
        values, ratios = self.taken(measure, peer.name), self.ratios(measure, peer.name, peer.base)
        return {
            "values": self.figures[measure][peer.name],
            "median": median(values) if values else None,
            "min": min(values, default=None),
            "max": max(values, default=None),
            "base": peer.base,
            "ratios": ratios,
            "ratio": median(ratios) if ratios else None,
        }


def pass_table(run: Pass, peers: Sequence[Peer]) -> Table:
    """Return a row for each measure: median, (lowest-highest), and the ratio to the base."""
    columns = [""]
    for peer in peers:
        columns += [peer.name] if peer.name == peer.base else [peer.name, f"x {peer.base}"]
    rows = []
    for measure, row in run.figures.items():
        cells = [f"{EVERY_MEASURE[measure].title}, {EVERY_MEASURE[measure].unit}"]
        for peer in peers:
            figures = run.described(measure, peer) if peer.name in row else None
            cells.append(_cell(figures))
            if peer.name != peer.base:
                cells.append(f"{figures['ratio']:.2f}" if figures and figures["ratios"] else "-")
        rows.append(cells)
    where = "each process on a core of its own" if run.pinned else "processes not pinned"
    counts = [len(values) for row in run.figures.values() for values in row.values()]
    repetitions = max(counts, default=0)
    notes = [f"{peer.name}: {peer.about}" for peer in peers]
    notes += [f"failed: {failure}" for failure in run.failures]
    return Table(f"{run.kind}; {where}; {repetitions} repetitions", columns, rows, notes)


def _cell(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "-"
    if figures["median"] is None:
        return "failed"
    middle, low, high = (short(figures[name]) for name in ("median", "min", "max"))
    failed = figures["values"].count(None)
    return f"{middle} ({low}-{high}){f', {failed} failed' if failed else ''}"


def short(value: float) -> str:
    """Return a figure for people."""
    return f"{value:,.1f}".removesuffix(".0") if abs(value) < 10 else f"{value:,.0f}"


def pass_as_json(run: Pass, peers: Sequence[Peer]) -> dict[str, Any]:
    """Return everything that was measured in a pass."""
    measures = {
        measure: {
            "unit": EVERY_MEASURE[measure].unit,
            "variants": {
                peer.name: run.described(measure, peer) for peer in peers if peer.name in row
            },
        }
        for measure, row in run.figures.items()
    }
    failures = list(run.failures)
    return {"kind": run.kind, "pinned": run.pinned, "measures": measures, "failures": failures}
