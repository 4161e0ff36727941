"""Measure wires, calls, relays or Spark against other libraries, in one run on this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from wsmux.cli.main import USAGE, guarded
from wsmux.cli.terminal import emit, positive_int, seconds, show, tqdm_class

from . import environment
from .choosing import ALL_SECONDS, QUICK, SPARK, USUAL, Order, orders
from .comparing import changes, check_machine, lines
from .plotting import check_plot, plot
from .results import Pass, pass_table
from .schedule import run_pass
from .stored import Result, read

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
    parser.add_argument(
        "-v", "--verbose", action="count", default=0, help="log more; twice for everything"
    )
    parser.add_argument(
        "--repetitions",
        type=positive_int,
        help=f"by default {USUAL[0]}, or {SPARK[0]} with --spark",
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        help=f"a measurement takes, by default {USUAL[1]}, or {ALL_SECONDS} with --all, or "
        f"{SPARK[1]:g} with --spark",
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK[0]} times {QUICK[1]} s")
    _add_choices(parser)
    _add_outputs(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``argv``, by default the process's own arguments; return the exit status."""
    try:
        args = parser().parse_args(argv)
    except SystemExit as error:  # argparse has said what is wrong
        return error.code if isinstance(error.code, int) else USAGE
    return guarded("benchmarks", run, args)


def _add_choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", type=_names, help="variants to measure, comma-separated")
    parser.add_argument(
        "--protocol",
        type=_names,
        action="extend",
        metavar="PROTOCOLS",
        help="further wires to measure: js-ws, yamux, bymux, comma-separated",
    )
    parser.add_argument(
        "--rpc",
        action="store_true",
        help="measure remote calls over River instead of streams, and the memory of a session",
    )
    parser.add_argument(
        "--spark",
        action="store_true",
        help="measure calls as PySpark makes them, near the server and far, within Spark if it is "
        "installed",
    )
    parser.add_argument(
        "--bus",
        action="store_true",
        help="measure relays of the bus, calls over them, an idle twin and what a flood does",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="measure streams with every variant and wire, then calls, then relays, and what takes "
        "long: memory, 10,000 idle streams, 200 connections",
    )
    parser.add_argument(
        "--measures",
        type=_names,
        help="figures to take, comma-separated; with --spark a row at every distance, or as in "
        "sync-5ms at one",
    )
    parser.add_argument(
        "--pin",
        choices=("both", "yes", "no"),
        default="both",
        help="one run with each process on a core of its own, one without, or both",
    )


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="exit 1 when a target is missed, whatever the goal"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE.json",
        help="measure nothing, and show what --json has printed before",
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="OLD.json",
        help="tell what is slower than what --json printed before, on the same machine; with "
        "--check that is a failure, too",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.svg",
        help="draw what was reached of each target; needs matplotlib (extra bench)",
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def run(args: argparse.Namespace) -> int:
    """Measure, print, judge."""
    if args.plot:
        check_plot(args.plot)
    result, before = _results(args)
    found, count = changes(result, before) if before else ([], 0)
    if args.json:
        kept = result.as_json()
        if before:
            kept["compared"] = {
                "figures": count,
                "changes": [change.as_json() for change in found],
            }
        emit(json.dumps(kept, indent=2))
    else:
        _print(result)
        if before:
            emit("\n" + "\n".join(lines(found, count, before, str(args.compare))))
    if args.plot:
        plot(result, args.plot)
    good = all(verdict.met for verdict in result.verdicts())
    good = good and not any(change.slower for change in found)
    return 1 if args.check and not good else 0


def _results(args: argparse.Namespace) -> tuple[Result, Result | None]:
    """Return what was measured, or kept, and what it is compared with.

    What is wrong with a file is told before anything is measured.
    """
    before = read(args.compare) if args.compare else None
    if args.source:
        result = read(args.source)
        if before:
            check_machine(result.environment, before, str(args.compare))
        return result, before
    planned, count = orders(args)
    described = environment.describe([peer for order in planned for peer in order.peers])
    if before:
        check_machine(described, before, str(args.compare))
    return Result(described, _measure(planned, count)), before


def _measure(planned: Sequence[Order], count: int) -> list[Pass]:
    bar_class = tqdm_class()
    bar = bar_class(total=count, unit=" figures") if bar_class else None
    try:
        return [
            run_pass(
                order.peers,
                order.measures,
                pinned=order.pinned,
                repetitions=order.repetitions,
                seconds=order.seconds,
                progress=bar.update if bar else _nothing,
            )
            for order in planned
        ]
    finally:
        if bar:
            bar.close()


def _print(result: Result) -> None:
    emit("\n".join(environment.lines(result.environment)) + "\n")
    for each in result.passes:
        show(pass_table(each, result.peers_of(each)))
    for verdict in result.verdicts():
        emit(str(verdict))


def _nothing(count: int) -> None:
    """Show no progress."""
