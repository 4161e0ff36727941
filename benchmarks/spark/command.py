"""Run ``python -m benchmarks --spark``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

from wsmux.cli.terminal import CommandError, emit, show, tqdm_class

from .report import as_json, judge, table
from .row import DELAYS, Row
from .workers import Workers

__all__ = ["run"]

REPETITIONS, SECONDS = 5, 1.0
QUICK_REPETITIONS, QUICK_SECONDS = 3, 0.25

Taken = dict[str, dict[int, list[float | None]]]


def run(args: argparse.Namespace) -> int:
    """Measure, print, judge."""
    from .. import environment
    from .rows import find_ratios

    rows, notes = _chosen(args.measures)
    described = environment.describe([])
    figures = _measure(args, rows, notes)
    verdicts = judge(figures, find_ratios())
    known = {row.name: row for row in rows}
    if args.json:
        result = {"taken_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "environment": described}
        emit(json.dumps(result | as_json(figures, known, verdicts, notes), indent=2))
    else:
        emit("\n".join(environment.lines(described)) + "\n")
        show(table(figures, known, notes))
        for verdict in verdicts:
            emit(str(verdict))
    return 1 if args.check and not all(verdict.met for verdict in verdicts) else 0


def _chosen(names: Sequence[str] | None) -> tuple[list[Row], list[str]]:
    """Return the named rows, or all, and why others are left out."""
    from .rows import find_rows

    known = find_rows()
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise CommandError(f"no measure {unknown[0]!r}; there are {', '.join(known)}", status=2)
    chosen: list[Row] = []
    left: dict[str, list[str]] = {}  # by the reason
    for row in known.values():
        if names and row.name not in names:
            continue
        if reason := row.lacks(sys.executable):
            if names:
                raise CommandError(f"{row.name} cannot be measured: {reason}")
            left.setdefault(reason, []).append(row.name)
        else:
            chosen.append(row)
    notes = [f"left out, since {reason}: {', '.join(rows)}" for reason, rows in left.items()]
    if not chosen:
        raise CommandError("; ".join(notes))
    return chosen, notes


def _measure(args: argparse.Namespace, rows: Sequence[Row], notes: list[str]) -> Taken:
    repetitions = args.repetitions or (QUICK_REPETITIONS if args.quick else REPETITIONS)
    seconds = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    delays = tuple(delay for delay in DELAYS if any(delay in row.delays for row in rows))
    spark, bulk = any(row.within_spark for row in rows), any(row.bulk for row in rows)
    bar_class = tqdm_class()
    total = repetitions * sum(len(row.delays) for row in rows)
    bar = bar_class(total=total, unit=" figures") if bar_class else None
    try:
        with Workers(delays, spark, bulk) as workers:
            return _taken(
                workers, rows, delays, repetitions, seconds, notes, bar.update if bar else _nothing
            )
    finally:
        if bar:
            bar.close()


def _taken(
    workers: Workers,
    rows: Sequence[Row],
    delays: Sequence[int],
    repetitions: int,
    seconds: float,
    notes: list[str],
    progress: Callable[[int], object],
) -> Taken:
    """Take every figure so many times; rows alternate, so that what else runs meets all alike."""
    figures: Taken = {
        row.name: {delay: [] for delay in delays if delay in row.delays} for row in rows
    }
    for repetition in range(repetitions):
        for delay in delays:
            for row in (row for row in rows if delay in row.delays):
                value = None
                try:
                    value = workers.measure(row.name, row.within_spark, delay, seconds)
                except CommandError as error:
                    notes.append(f"{row.name}, {delay} ms, repetition {repetition + 1}: {error}")
                figures[row.name][delay].append(value)
                progress(1)
    return figures


def _nothing(count: int) -> None:
    """Show no progress."""
