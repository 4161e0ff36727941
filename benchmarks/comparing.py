"""Report what has become slower since another result of the same machine.

Ratios are compared where there are any, since what else the machine does changes the figures
themselves. A change counts when each median is outside of what the other result ranges over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from wsmux.cli.terminal import CommandError

from .measures import EVERY_MEASURE
from .peers import find_peers
from .results import Pass
from .stored import Result

__all__ = ["Change", "changes", "check_machine", "lines"]


@dataclass(frozen=True)
class Change:
    """One figure that is another than before, beyond the spread of both."""

    measure: str
    variant: str
    pinned: bool
    base: str | None
    before: float
    now: float

    @property
    def slower(self) -> bool:
        """Whether it has become worse, be it a rate, a time or a size."""
        return (self.now < self.before) is not EVERY_MEASURE[self.measure].less_is_better

    def __str__(self) -> str:
        what = EVERY_MEASURE[self.measure]
        unit = f"x {self.base}" if self.base else what.unit
        return (
            f"{'slower' if self.slower else 'faster'}  {self.variant}, {what.title}, "
            f"{'pinned' if self.pinned else 'not pinned'}: "
            f"{self.now:,.3g} {unit}, was {self.before:,.3g}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the same for machines."""
        return {**asdict(self), "slower": self.slower}


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
    found, count = [], 0
    earlier = {(each.kind, each.pinned): each for each in before.passes}
    for run in now.passes:
        other = earlier.get((run.kind, run.pinned))
        for measure, variant in _both(run, other) if other else ():
            assert other is not None
            count += 1
            change = _change(run, other, measure, variant)
            if change:
                found.append(change)
    return found, count


def _both(run: Pass, other: Pass) -> Iterator[tuple[str, str]]:
    """Yield what has figures in both passes."""
    for measure, row in run.figures.items():
        for variant in row:
            if run.taken(measure, variant) and other.taken(measure, variant):
                yield measure, variant


def _change(run: Pass, other: Pass, measure: str, variant: str) -> Change | None:
    base: str | None = find_peers()[variant].base
    assert base is not None
    new, old = (each.ratios(measure, variant, base) for each in (run, other))
    if not new or not old:
        base = None
        new, old = (each.taken(measure, variant) for each in (run, other))
    now, before = median(new), median(old)
    if min(old) <= now <= max(old) or min(new) <= before <= max(new):
        return None
    return Change(measure, variant, run.pinned, base, before, now)


def lines(found: list[Change], count: int, before: Result, name: str) -> list[str]:
    """Return what people are told."""
    slower = [change for change in found if change.slower]
    faster = len(found) - len(slower)
    return [
        f"{count} figures are in {name}, of {before.taken_at}, too: {len(slower)} slower, "
        f"{faster} faster, the others the same within the spread",
        *map(str, slower),
        *(str(change) for change in found if not change.slower),
    ]
