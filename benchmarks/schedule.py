"""Decide what is measured when."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from wsmux.cli.terminal import CommandError

from .choosing import Order
from .measures import EVERY_MEASURE
from .processes import Processes
from .results import Figures, Pass

# How often a measure that takes long is taken at most.
HEAVY_REPETITIONS = 3


def _repetitions(measure: str, order: Order) -> int:
    heavy = EVERY_MEASURE[measure].heavy
    return min(HEAVY_REPETITIONS, order.repetitions) if heavy else order.repetitions


def _rows(order: Order) -> Figures:
    """Return a row for each measure, with a place for each variant that it is taken of."""
    rows: Figures = {}
    for measure in order.measures:
        only = EVERY_MEASURE[measure].only
        able = [peer.name for peer in order.peers if measure not in peer.leaves_out]
        rows[measure] = {name: [] for name in able if only is None or name == only}
    return {measure: row for measure, row in rows.items() if row}


def count_steps(order: Order) -> int:
    """Return how many figures ``run_pass`` takes."""
    return sum(_repetitions(measure, order) * len(row) for measure, row in _rows(order).items())


def run_pass(order: Order, progress: Callable[[int], object] = id) -> Pass:
    """Measure everything so many times, or fewer what takes long.

    The variants alternate within each measure of each repetition, so that what else the machine
    does meets them alike; who goes first rotates. The others' processes wait meanwhile. What fails
    has no figure, and says why.
    """
    figures, failures = _rows(order), list[str]()
    with ExitStack() as stack:
        running = [stack.enter_context(Processes(peer, order.pinned)) for peer in order.peers]
        for repetition in range(order.repetitions):
            first = repetition % len(running)
            for measure, row in figures.items():
                if repetition >= _repetitions(measure, order):
                    continue
                for processes in (*running[first:], *running[:first]):
                    name, value = processes.peer.name, None
                    if name not in row:
                        continue
                    try:
                        value = _measured(processes, measure, order.seconds)
                    except CommandError as error:
                        failures.append(f"{name}, {measure}, repetition {repetition + 1}: {error}")
                    row[name].append(value)
                    progress(1)
    return Pass(order.pinned, figures, tuple(failures), order.peers[0].kind)


def _measured(processes: Processes, measure: str, seconds: float) -> float:
    if not EVERY_MEASURE[measure].fresh:
        return processes.measure(measure, seconds)
    with Processes(processes.peer, processes.pinned) as fresh:
        return fresh.measure(measure, seconds)
