"""Decide what is measured when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from .peer import Peer
from .processes import MeasurementFailed, Processes
from .results import Figures, Pass
from .rpc_measures import EVERY_MEASURE

__all__ = ["run_pass"]


def run_pass(
    peers: Sequence[Peer],
    measures: Sequence[str],
    *,
    pinned: bool,
    repetitions: int,
    seconds: float,
    progress: Callable[[int], object],
) -> Pass:
    """Measure everything ``repetitions`` times.

    The variants alternate within each measure of each repetition, so that what else the machine
    does meets them alike; who goes first rotates. The others' processes wait meanwhile. What fails
    has no figure, and says why.
    """
    figures: Figures = {
        measure: {peer.name: [] for peer in peers if measure not in peer.leaves_out}
        for measure in measures
    }
    failures: list[str] = []
    with ExitStack() as stack:
        running = [stack.enter_context(Processes(peer, pinned)) for peer in peers]
        for repetition in range(repetitions):
            first = repetition % len(running)
            for measure in measures:
                for processes in (*running[first:], *running[:first]):
                    name, value = processes.peer.name, None
                    if name not in figures[measure]:
                        progress(1)
                        continue
                    try:
                        value = _measured(processes, measure, seconds)
                    except MeasurementFailed as error:
                        failures.append(f"{name}, {measure}, repetition {repetition + 1}: {error}")
                    figures[measure][name].append(value)
                    progress(1)
    return Pass(pinned, figures, tuple(failures))


def _measured(processes: Processes, measure: str, seconds: float) -> float:
    if not EVERY_MEASURE[measure].fresh:
        return processes.measure(measure, seconds)
    with Processes(processes.peer, processes.pinned) as fresh:
        return fresh.measure(measure, seconds)
