"""Draw what was reached of each target, with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wsmux.cli.terminal import CommandError, installed, missing

from .results import Result
from .targets import Verdict

# Told apart by people who see colours otherwise, too; the shapes differ as well.
GOAL, MET = ("#0072B2", "D", "goal met"), ("#009E73", "o", "met")
MISSED = ("#D55E00", "X", "missed")

FORMATS = (".svg", ".png", ".pdf")

# Inches of a row, and around them.
ROW, AROUND, WIDTH = 0.27, 1.9, 11.5

# How far apart from what is wanted a figure is drawn where it is.
FARTHEST = 40.0


def check_plot(path: Path) -> None:
    """Raise ``CommandError`` when nothing can be drawn into that file."""
    if path.suffix not in FORMATS:
        raise CommandError(f"{path} must end in {', '.join(FORMATS)}", status=2)
    if not path.parent.is_dir():
        raise CommandError(f"there is no directory {path.parent}", status=2)
    if not installed("matplotlib"):
        raise missing("matplotlib", "bench")


def plot(result: Result, verdicts: Sequence[Verdict], path: Path) -> None:
    """Write the figure: a row for each target, its figure in parts of what it must be.

    To the right is better, also where less is.

    Raises:
        CommandError: no target was measured. OSError: it cannot be written.
    """
    from matplotlib.figure import Figure

    verdicts = [verdict for verdict in verdicts if verdict.figure]
    if not verdicts:
        raise CommandError("no target was measured, so there is nothing to draw")
    figure = Figure(figsize=(WIDTH, AROUND + ROW * len(verdicts)), dpi=110, layout="constrained")
    axes = figure.subplots()
    for row, verdict in enumerate(verdicts):
        _draw(axes, row, verdict)
    axes.axvline(1, color="#222222", linewidth=1, linestyle=":", label="must")
    for colour, shape, label in (GOAL, MET, MISSED, ("#222222", "|", "goal")):
        axes.plot([], [], marker=shape, color=colour, linestyle="none", label=label)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, fontsize=8)
    ticks = (0.25, 0.5, 1, 2, 4, 8)
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(verdicts)), [verdict.name for verdict in verdicts], fontsize=8)
    axes.set_ylim(len(verdicts) - 0.4, -0.6)
    axes.set_xlabel("times what it must be; to the right is better")
    axes.grid(axis="x", color="#e4e4e4")
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle(_title(result, verdicts), fontsize=11, x=0.01, ha="left")
    figure.savefig(path, format=path.suffix[1:])


def _draw(axes: Any, row: int, verdict: Verdict) -> None:
    target = verdict.target

    def parts(value: float) -> float:
        """Return a figure in parts of what it must be, above 1 when it is better."""
        must = target.must or target.goal or value
        return min(FARTHEST, max(1 / FARTHEST, must / value if target.upper else value / must))

    assert verdict.figure is not None
    colour, shape, _ = MET if target.goal is None or not verdict.goal_met else GOAL
    if not verdict.met:
        colour, shape, _ = MISSED
    positive = [parts(value) for value in verdict.figures if value > 0]
    axes.hlines(row, min(positive), max(positive), color=colour, linewidth=3, alpha=0.35)
    axes.plot(parts(verdict.figure), row, marker=shape, color=colour)
    if target.goal is not None:
        axes.vlines(parts(target.goal), row - 0.36, row + 0.36, color="#222222", linewidth=1.6)
    place, style = (1.01, row), {"va": "center", "fontsize": 8, "color": colour}
    axes.annotate(
        verdict.written(verdict.figure), place, xycoords=("axes fraction", "data"), **style
    )


def _title(result: Result, verdicts: Sequence[Verdict]) -> str:
    environment, machine = result.environment, result.environment["machine"]
    how = "a core for each process" if verdicts[0].pinned else "processes not pinned"
    return (
        f"wsmux {environment['wsmux']}: {sum(each.met for each in verdicts)} of {len(verdicts)} "
        f"targets met; {how}\n"
        f"{machine['cpu']}, {machine['cores']} cores; {environment['python']}; {result.taken_at}"
    )
