"""Choose what is measured of what was asked for, and when."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from wsmux.cli.terminal import CommandError, talk
from wsmux.runtime.deadline import Deadline

from .environment import cores, missing_module
from .measures import EVERY_MEASURE, MEASURES_OF
from .peer import Peer
from .peers import find_peers
from .processes import Processes
from .results import Figures, Pass, short

# Repetitions, and seconds that a measurement takes, usually and with --quick.
USUAL, QUICK = (7, 0.4), (3, 0.1)
SPARK, SPARK_QUICK = (5, 1.0), (3, 0.25)

# Seconds that all figures of Spark may take with --quick, whatever else the machine does: with the
# end of its processes, less than a minute and a half.
QUICK_WITHIN = 75.0

# With ``--all``, so that it takes half an hour on two idle cores with every library.
ALL_SECONDS = 0.3

# How often a measure that takes long is taken at most.
HEAVY_REPETITIONS = 3

# What is measured by an option of that name, and in words.
NO_WIRES = {"rpc": "calls", "bus": "relays", "spark": "calls", "cluster": "workers"}

# What is not measured with ``--all``, nor by processes on a core of their own: they are many.
APART = ("spark", "cluster")


class Order(NamedTuple):
    """Name what one pass measures, and how long."""

    peers: list[Peer]
    measures: list[str]
    pinned: bool
    repetitions: int
    seconds: float
    within: float = math.inf
    """Seconds for all of it; what is not taken by then is left out."""


def orders(args: argparse.Namespace) -> list[Order]:
    """Return the passes to run.

    What takes long is in one of them only, that which is judged.

    Raises:
        CommandError: there is no such thing, or nothing is left.
    """
    wanted = {"both": [True, False], "yes": [True], "no": [False]}[args.pin]
    if any(getattr(args, kind) for kind in APART):
        wanted = [False]
    if True in wanted and len(cores()) < 2:
        talk("the processes cannot be pinned: fewer than two cores, or no such call here")
        wanted = [False]
    usual, quick = (SPARK, SPARK_QUICK) if args.spark else (USUAL, QUICK)
    repetitions, seconds = quick if args.quick else usual
    seconds = ALL_SECONDS if args.all and not args.quick else seconds
    often, lasting = args.repetitions or repetitions, args.seconds or seconds
    within = QUICK_WITHIN if args.spark and args.quick else math.inf
    return [
        Order(peers, taken, pinned, often, lasting, within)
        for peers, measures in _chosen(args)
        for pinned in wanted
        if (taken := [m for m in measures if pinned is wanted[0] or not EVERY_MEASURE[m].heavy])
    ]


def _chosen(args: argparse.Namespace) -> list[tuple[list[Peer], list[str]]]:
    """Return the variants and figures to take of each kind that was asked for."""
    kinds = _kinds(args)
    peers = [peer for peer in find_peers().values() if peer.kind in kinds]
    # First the measures: what is misspelt there is the answer.
    figures = [item for kind in kinds for item in MEASURES_OF[kind].items()]
    _check("measure", args.measures, (n for name, f in figures for n in (f.group, name) if n))
    _check("variant", args.peers, (peer.name for peer in peers))
    _check("protocol", args.protocol, (peer.protocol for peer in peers if peer.protocol))
    result = []
    for kind in kinds:
        measures = _measures(args, kind)
        present = _peers(args, [peer for peer in peers if peer.kind == kind], measures)
        if present:
            result.append((present, measures))
    if not result:
        raise CommandError("nothing is left to measure")
    return result


def _kinds(args: argparse.Namespace) -> list[str]:
    named = [kind for kind in NO_WIRES if getattr(args, kind)]
    text = ""
    if args.all and named:
        text = "--all measures calls and relays, too, but neither PySpark nor a cluster"
    elif len(named) > 1:
        text = f"{' and '.join(f'--{kind}' for kind in named)} are measured one after the other"
    elif named and args.protocol:
        text = f"--{named[0]} measures {NO_WIRES[named[0]]}, which have no wire to choose"
    if text:
        raise CommandError(text, status=2)
    return [kind for kind in MEASURES_OF if kind not in APART] if args.all else named or ["streams"]


def _check(what: str, names: Sequence[str] | None, known: Iterable[str]) -> None:
    there = dict.fromkeys(known)
    unknown = [name for name in names or () if name not in there]
    if unknown:
        raise CommandError(f"no {what} {unknown[0]!r}; there are {', '.join(there)}", status=2)


def _measures(args: argparse.Namespace, kind: str) -> list[str]:
    """Return the named ones; else all, without those that take long if not asked for all.

    Of those at several distances, one will do where it is to be quick, and what needs much comes
    last.
    """
    wanted, groups = [], set[str]()
    for name, figure in MEASURES_OF[kind].items():
        named = bool({name, figure.group} & set(args.measures or ()))
        if args.quick and not args.measures and figure.group in groups:
            continue
        groups |= {figure.group} - {""}
        if named if args.measures else args.all or not figure.heavy:
            missing = missing_module(sys.executable, figure.needs)
            wanted.append((name, named, missing and f"{missing} is not installed"))
    if args.quick:
        wanted.sort(key=lambda each: len(MEASURES_OF[kind][each[0]].needs))
    return _able(wanted)


def _peers(args: argparse.Namespace, known: Sequence[Peer], measures: Sequence[str]) -> list[Peer]:
    """Return the named ones, or the usual ones, and those of further wires, that can be measured.

    Those that have none of the figures are left out silently.
    """
    wanted = []
    for peer in known:
        named = peer.name in (args.peers or ())
        usual = not args.peers and (args.all or not peer.on_demand)
        asked = named or usual or peer.protocol in (args.protocol or ())
        if asked and not set(measures) <= set(peer.leaves_out):
            wanted.append((peer.name, named, peer.lacks()))
    able = _able(wanted)
    return [peer for peer in known if peer.name in able]


def _able(wanted: Sequence[tuple[str, bool, str | None]]) -> list[str]:
    """Return the names of those that can be measured, and tell why others cannot.

    Raises:
        CommandError: one of those was named.
    """
    able, left = [], dict[str, list[str]]()
    for name, named, reason in wanted:
        if not reason:
            able.append(name)
        elif named:
            raise CommandError(f"{name} cannot be measured: {reason}")
        else:
            left.setdefault(reason, []).append(name)
    for reason, names in left.items():
        talk(f"{', '.join(names)} {'are' if names[1:] else 'is'} left out: {reason}")
    return able


# When


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


def run_pass(order: Order, progress: Callable[[str], object] = id) -> Pass:
    """Measure everything so many times, or fewer what takes long.

    The variants alternate within each measure of each repetition, so that what else the machine
    does meets them alike; who goes first rotates. The others' processes wait meanwhile. What fails
    has no figure, and says why.

    Args:
        order: what to measure.
        progress: told of each figure when it is taken, in words.
    """
    figures, failures = _rows(order), list[str]()
    deadline, left = Deadline(order.within), count_steps(order)
    with ExitStack() as stack:
        running = [stack.enter_context(Processes(peer, order.pinned)) for peer in order.peers]
        for processes, measure, repetition in _turns(order, running):
            if deadline.expired():
                break
            name, value, told = processes.peer.name, None, "failed"
            try:
                value = _measured(processes, measure, order.seconds, deadline)
                told = f"{short(value)} {EVERY_MEASURE[measure].unit}"
            except CommandError as error:
                if deadline.expired():
                    break
                failures.append(f"{name}, {measure}, repetition {repetition + 1}: {error}")
            figures[measure][name].append(value)
            progress(f"{name}, {measure}: {told}")
            left -= 1
    if left:
        none = [each for each, row in figures.items() if not any(row.values())]
        only = f"; there is none of {', '.join(none)}" if none else ""
        failures.append(f"{left} figures are left out: {order.within:g} s were over{only}")
        taken = {each: {n: row[n] for n in row if row[n]} for each, row in figures.items()}
        figures = {each: row for each, row in taken.items() if row}
    return Pass(order.pinned, figures, tuple(failures), order.peers[0].kind)


def _turns(order: Order, running: list[Processes]) -> Iterator[tuple[Processes, str, int]]:
    """Yield what is measured, of whom, and the how-manieth time, in order."""
    rows = _rows(order)
    for repetition in range(order.repetitions):
        first = repetition % len(running)
        for measure, row in rows.items():
            if repetition < _repetitions(measure, order):
                for processes in (*running[first:], *running[:first]):
                    if processes.peer.name in row:
                        yield processes, measure, repetition


def _measured(processes: Processes, measure: str, seconds: float, deadline: Deadline) -> float:
    if not EVERY_MEASURE[measure].fresh:
        return processes.measure(measure, seconds, deadline.remaining())
    with Processes(processes.peer, processes.pinned) as fresh:
        return fresh.measure(measure, seconds, deadline.remaining())
