"""Decide what is measured when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from wsmux.cli.terminal import CommandError

from .measures import EVERY_MEASURE
from .peer import Peer
from .processes import Processes
from .results import Figures, Pass

__all__ = ["count_steps", "run_pass"]

# How often a measure that takes long is taken at most.
HEAVY_REPETITIONS = 3


def _repetitions_of(measure: str, repetitions: int) -> int:
    heavy = EVERY_MEASURE[measure].heavy
    return min(HEAVY_REPETITIONS, repetitions) if heavy else repetitions


def _variants(measure: str, peers: Sequence[Peer]) -> list[str]:
    only = EVERY_MEASURE[measure].only
    able = [peer for peer in peers if measure not in peer.leaves_out]
    return [peer.name for peer in able if only is None or peer.name == only]


def count_steps(peers: Sequence[Peer], measures: Sequence[str], repetitions: int) -> int:
    """Return how many figures ``run_pass`` takes."""
    return sum(
        _repetitions_of(measure, repetitions) * len(_variants(measure, peers))
        for measure in measures
    )


def run_pass(
    peers: Sequence[Peer],
    measures: Sequence[str],
    *,
    pinned: bool,
    repetitions: int,
    seconds: float,
    progress: Callable[[int], object],
) -> Pass:
    """Measure everything ``repetitions`` times, or fewer what takes long.

    The variants alternate within each measure of each repetition, so that what else the machine
    does meets them alike; who goes first rotates. The others' processes wait meanwhile. What fails
    has no figure, and says why.
    """
    figures: Figures = {
        measure: {name: [] for name in _variants(measure, peers)} for measure in measures
    }
    figures = {measure: row for measure, row in figures.items() if row}
    failures: list[str] = []
    with ExitStack() as stack:
        running = [stack.enter_context(Processes(peer, pinned)) for peer in peers]
        for repetition in range(repetitions):
            first = repetition % len(running)
            for measure, row in figures.items():
                if repetition >= _repetitions_of(measure, repetitions):
                    continue
                for processes in (*running[first:], *running[:first]):
                    name, value = processes.peer.name, None
                    if name not in row:
                        continue
                    try:
                        value = _measured(processes, measure, seconds)
                    except CommandError as error:
                        failures.append(f"{name}, {measure}, repetition {repetition + 1}: {error}")
                    row[name].append(value)
                    progress(1)
    return Pass(pinned, figures, tuple(failures), peers[0].kind)


def _measured(processes: Processes, measure: str, seconds: float) -> float:
    what = EVERY_MEASURE[measure]
    if not what.fresh:
        return processes.measure(measure, seconds)
    with Processes(processes.peer, processes.pinned) as fresh:
        return fresh.measure(measure, seconds)
