"""Report what has become slower since another result of the same machine.

Ratios are compared where there are any, since what else the machine does changes the figures
themselves. A change counts when each median is outside of what the other result ranges over.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from wsmux.cli.terminal import CommandError

from .measures import EVERY_MEASURE
from .results import Pass, Result, peers_of


@dataclass(frozen=True)
class Change:
    """One figure that is another than before, beyond the spread of both."""

    measure: str
    variant: str
    pinned: bool
    base: str | None
    before: float
    now: float
    slower: bool  # or larger, where less is better

    def __str__(self) -> str:
        what = EVERY_MEASURE[self.measure]
        unit = f"x {self.base}" if self.base else what.unit
        return (
            f"{'slower' if self.slower else 'faster'}  {self.variant}, {what.title}, "
            f"{'pinned' if self.pinned else 'not pinned'}: "
            f"{self.now:,.3g} {unit}, was {self.before:,.3g}"
        )


def check_machine(environment: dict[str, Any], other: Result, name: str) -> None:
    """Raise ``CommandError`` when another machine made ``other``, which is called ``name``."""
    here, there = environment["machine"], other.environment["machine"]
    if here != there:
        text = f"{name} is of another machine: {_listed(there)}, and this one is {_listed(here)}"
        raise CommandError(text, status=2)


def _listed(machine: Any) -> str:
    if not isinstance(machine, dict):
        return repr(machine)
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def changes(now: Result, before: Result) -> tuple[list[Change], int]:
    """Return what is another than before, and how many figures both have."""
    found = []
    earlier = {(each.kind, each.pinned): each for each in before.passes}
    for run in now.passes:
        other = earlier.get((run.kind, run.pinned), Pass(run.pinned, {}))
        found += [
            _change(run, other, measure, peer.name, peer.base)
            for measure in run.figures
            for peer in peers_of(run)
            if run.taken(measure, peer.name) and other.taken(measure, peer.name)
        ]
    return [change for change in found if change], len(found)


def _change(run: Pass, other: Pass, measure: str, variant: str, base: str | None) -> Change | None:
    new, old = (each.ratios(measure, variant, base or "") for each in (run, other))
    if not new or not old:
        base = None
        new, old = (each.taken(measure, variant) for each in (run, other))
    now, before = median(new), median(old)
    if min(old) <= now <= max(old) or min(new) <= before <= max(new):
        return None
    slower = (now < before) is not EVERY_MEASURE[measure].less_is_better
    return Change(measure, variant, run.pinned, base, before, now, slower)


def lines(found: list[Change], count: int, before: Result, name: str) -> list[str]:
    """Return what people are told, first what is slower."""
    ordered = sorted(found, key=lambda change: not change.slower)
    slower = sum(change.slower for change in found)
    return [
        f"{count} figures are in {name}, of {before.taken_at}, too: {slower} slower, "
        f"{len(found) - slower} faster, the others the same within the spread",
        *map(str, ordered),
    ]
