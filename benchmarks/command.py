"""Measure wires, calls, relays or Spark against other libraries, in one run on this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from wsmux.cli.main import USAGE, guarded
from wsmux.cli.terminal import emit, positive_int, seconds, show, tqdm_class

from . import environment
from .choosing import ALL_SECONDS, QUICK, SPARK, USUAL, Order, orders
from .comparing import changes, check_machine, lines
from .results import Pass, Result, pass_table, peers_of, read
from .schedule import count_steps, run_pass
from .targets import judge

EPILOG = (
    "MB are 10^6 bytes. Ratios are taken within each repetition; their median is shown. "
    "Targets are judged pinned: what must be, and the goal. What takes long is taken with --all or "
    "when it is named, three times, in one pass. The variants need the extra bench; those that are "
    "not installed are left out. raw opens a new WebSocket for each stream. "
    "Exit status 0 whatever the figures, but with --check. libp2p-yamux, which --protocol yamux "
    "adds, runs in the Python that the variable WSMUX_LIBP2P_PYTHON names: one that has libp2p, "
    "trio, wsproto, websocket-client and simple-websocket installed. replit-river, which --rpc "
    "measures against the server of this one, runs in that of WSMUX_RIVER_PYTHON: one that has "
    "replit-river, websocket-client and simple-websocket installed."
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of ``python -m benchmarks``."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, epilog=EPILOG
    )
    add = parser.add_argument
    add("-v", "--verbose", action="count", default=0, help="log more; twice for everything")
    text = f"by default {USUAL[0]}, or {SPARK[0]} with --spark"
    add("--repetitions", type=positive_int, help=text)
    text = f"a measurement takes, by default {USUAL[1]}, or {ALL_SECONDS} with --all, or "
    add("--seconds", type=seconds, help=f"{text}{SPARK[1]:g} with --spark")
    add("--quick", action="store_true", help=f"{QUICK[0]} times {QUICK[1]} s")
    add("--peers", type=_names, help="variants to measure, comma-separated")
    text = "further wires to measure: js-ws, yamux, bymux, comma-separated"
    add("--protocol", type=_names, action="extend", metavar="PROTOCOLS", help=text)
    for option, text in (
        ("rpc", "remote calls over River instead of streams, and the memory of a session"),
        (
            "spark",
            "calls as PySpark makes them, near the server and far, within Spark if it is installed",
        ),
        ("bus", "relays of the bus, calls over them, an idle twin and what a flood does"),
        (
            "all",
            "streams with every variant and wire, then calls, then relays, and what takes "
            "long: memory, 10,000 idle streams, 200 connections",
        ),
    ):
        add(f"--{option}", action="store_true", help=f"measure {text}")
    text = "figures to take, comma-separated; with --spark a row at every distance, or as in "
    add("--measures", type=_names, help=f"{text}sync-5ms at one")
    text = "one run with each process on a core of its own, one without, or both"
    add("--pin", choices=("both", "yes", "no"), default="both", help=text)
    text = "exit 1 when a target is missed, whatever the goal"
    add("--check", action="store_true", help=text)
    add("--json", action="store_true", help="print everything as JSON")
    text = "measure nothing, and show what --json has printed before"
    add("--from", dest="source", type=Path, metavar="FILE.json", help=text)
    text = "tell what is slower than what --json printed before, on the same machine; with "
    add("--compare", type=Path, metavar="OLD.json", help=f"{text}--check that is a failure, too")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``argv``, by default the process's own arguments; return the exit status."""
    try:
        args = parser().parse_args(argv)
    except SystemExit as error:  # argparse has said what is wrong
        return error.code if isinstance(error.code, int) else USAGE
    return guarded("benchmarks", run, args)


def run(args: argparse.Namespace) -> int:
    """Measure, print, judge."""
    result, before = _results(args)
    verdicts = judge(result.passes)
    found, count = changes(result, before) if before else ([], 0)
    if args.json:
        kept = {**result.as_json(), "targets": [verdict.as_json() for verdict in verdicts]}
        if before:
            told = [asdict(change) for change in found]
            kept["compared"] = {"figures": count, "changes": told}
        emit(json.dumps(kept, indent=2))
    else:
        emit("\n".join(environment.lines(result.environment)) + "\n")
        for each in result.passes:
            show(pass_table(each, peers_of(each)))
        for verdict in verdicts:
            emit(str(verdict))
        if before:
            emit("\n" + "\n".join(lines(found, count, before, str(args.compare))))
    good = all(verdict.met for verdict in verdicts)
    good = good and not any(change.slower for change in found)
    return 1 if args.check and not good else 0


def _results(args: argparse.Namespace) -> tuple[Result, Result | None]:
    """Return what was measured, or kept, and what it is compared with.

    What is wrong with a file is told before anything is measured.
    """
    before = read(args.compare) if args.compare else None
    kept = read(args.source) if args.source else None
    planned = [] if kept else orders(args)
    described = (
        kept.environment
        if kept
        else environment.describe([peer for order in planned for peer in order.peers])
    )
    if before:
        check_machine(described, before, str(args.compare))
    return kept or Result(described, _measure(planned)), before


def _measure(planned: Sequence[Order]) -> list[Pass]:
    bar_class = tqdm_class()
    total = sum(map(count_steps, planned))
    with bar_class(total=total, unit=" figures") if bar_class else nullcontext() as bar:
        return [run_pass(order, bar.update if bar else id) for order in planned]
