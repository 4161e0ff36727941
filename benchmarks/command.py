"""Measure wires, calls, relays, Spark or a cluster, in one run on this machine."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext

from wsmux.cli.main import USAGE, guarded
from wsmux.cli.terminal import emit, positive_int, seconds, show, talk, tqdm_class
from wsmux.runtime import clock

from . import environment
from .peer import Peer
from .peers import find_peers
from .results import Pass, pass_as_json, pass_table
from .schedule import ALL_SECONDS, QUICK, SPARK, USUAL, Order, count_steps, orders, run_pass
from .targets import judge

# Counts the shapes that the JSON has had.
SCHEMA = 1

EPILOG = (
    "MB are 10^6 bytes. Ratios are taken within each repetition; their median is shown. "
    "Targets are what must be, and the goal; of processes that are not pinned, only those that "
    "people notice. What takes long is taken with --all or "
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
    text = f"{QUICK[0]} times {QUICK[1]} s; with --spark what is near, in a minute and a half"
    add("--quick", action="store_true", help=text)
    add("--peers", type=_names, help="variants to measure, comma-separated")
    text = "further wires to measure: js-ws, yamux, bymux, comma-separated"
    add("--protocol", type=_names, action="extend", metavar="PROTOCOLS", help=text)
    for option, text in (
        ("rpc", "remote calls over River instead of streams, and the memory of a session"),
        ("spark", "calls as PySpark makes them, near and far, within Spark if it is installed"),
        ("bus", "relays of the bus, calls over them, an idle twin and what a flood does"),
        ("cluster", "streams between workers of gunicorn, and one with many WebSockets"),
        ("all", "every variant and wire, then calls, then relays, and what takes long"),
    ):
        add(f"--{option}", action="store_true", help=f"measure {text}")
    text = "figures to take, comma-separated; with --spark a row at every distance, or as in "
    add("--measures", type=_names, help=f"{text}sync-5ms at one")
    text = "one run with each process on a core of its own, one without, or both"
    add("--pin", choices=("both", "yes", "no"), default="both", help=text)
    text = "exit 1 when a target is missed, whatever the goal"
    add("--check", action="store_true", help=text)
    add("--json", action="store_true", help="print everything as JSON")
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
    planned = orders(args)
    talk(f"{_total(planned)} figures are to be taken{_limits(planned)}")
    described = environment.describe([peer for order in planned for peer in order.peers])
    passes = _measure(planned)
    verdicts = judge(passes)
    shown = [(each, _peers(each)) for each in passes]
    if args.json:
        told = {
            "schema": SCHEMA,
            "taken_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "environment": described,
            "passes": [pass_as_json(each, peers) for each, peers in shown],
            "targets": [verdict.as_json() for verdict in verdicts],
        }
        emit(json.dumps(told, indent=2))
    else:
        emit("\n".join(environment.lines(described)) + "\n")
        for each, peers in shown:
            show(pass_table(each, peers))
        for verdict in verdicts:
            emit(str(verdict))
    return 1 if args.check and not all(verdict.met for verdict in verdicts) else 0


def _peers(run: Pass) -> list[Peer]:
    """Return the variants of a pass, in order."""
    names = {name for row in run.figures.values() for name in row}
    return [peer for peer in find_peers().values() if peer.name in names]


def _measure(planned: Sequence[Order]) -> list[Pass]:
    bar_class, total = tqdm_class(), _total(planned)
    with bar_class(total=total, unit=" figures") if bar_class else nullcontext() as bar:
        progress = (lambda told: bar.update(1)) if bar else Progress(total).tell
        return [run_pass(order, progress) for order in planned]


def _limits(planned: Sequence[Order]) -> str:
    limits = [order.within for order in planned if order.within < math.inf]
    return f", within {sum(limits):g} s" if limits else ""


def _total(planned: Sequence[Order]) -> int:
    return sum(map(count_steps, planned))


class Progress:
    """Print on stderr what was measured, a line a second at most, where no bar is shown.

    Args:
        total: how many figures there will be.
    """

    def __init__(self, total: int) -> None:
        self._done, self._total = 0, total
        self._next = -math.inf

    def tell(self, what: str) -> None:
        """Report another figure."""
        self._done += 1
        now = clock.monotonic()
        if now >= self._next or self._done == self._total:
            self._next = now + 1.0
            talk(f"{self._done} of {self._total}: {what}")
