"""Hold what was measured, with its ratios, as a table and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from wsmux.cli.terminal import Table

from .measures import EVERY_MEASURE
from .peer import Peer

__all__ = ["Figures", "Pass", "pass_as_json", "pass_from_json", "pass_table"]

# Measure, variant, one figure a repetition; ``None`` for one that failed.
Figures = dict[str, dict[str, list[float | None]]]


@dataclass(frozen=True)
class Pass:
    """Hold one run over everything of one kind."""

    pinned: bool
    figures: Figures
    failures: tuple[str, ...] = ()
    kind: str = "streams"

    @property
    def title(self) -> str:
        """Say what was measured, and how the processes ran."""
        where = "each process on a core of its own" if self.pinned else "processes not pinned"
        return f"{self.kind}; {where}; {self._repetitions()} repetitions"

    def _repetitions(self) -> int:
        return max(len(values) for row in self.figures.values() for values in row.values())

    def variants(self) -> list[str]:
        """Return every variant that was measured, in order."""
        return list(dict.fromkeys(name for row in self.figures.values() for name in row))

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
    text = f"{_short(median(values))} ({_short(min(values))}-{_short(max(values))})"
    return f"{text}, {failed} failed" if failed else text


def _short(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0") if abs(value) < 10 else f"{value:,.0f}"


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
    return {
        "kind": run.kind,
        "pinned": run.pinned,
        "measures": measures,
        "failures": list(run.failures),
    }


def pass_from_json(stored: dict[str, Any]) -> Pass:
    """Return what ``pass_as_json`` was made of.

    Raises:
        KeyError, TypeError, AttributeError: it was not.
    """
    figures: Figures = {
        measure: {
            name: [None if value is None else float(value) for value in variant["values"]]
            for name, variant in row["variants"].items()
        }
        for measure, row in stored["measures"].items()
    }
    return Pass(bool(stored["pinned"]), figures, tuple(stored["failures"]), str(stored["kind"]))
