"""Measure wires, or calls, against plain WebSocket libraries, in one run on this machine."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..terminal import CommandError, emit, positive_int, seconds, show, talk, tqdm_class

if TYPE_CHECKING:
    from .peer import Peer
    from .results import Pass

EPILOG = (
    "MB are 10^6 bytes. Ratios are taken within each repetition; their median is shown. "
    "Exit status 0 whatever the figures, but with --check. libp2p-yamux, which --protocol yamux "
    "adds, runs in the Python that the variable WSMUX_LIBP2P_PYTHON names: one that has libp2p, "
    "trio, wsproto, websocket-client and simple-websocket installed. replit-river, which --rpc "
    "measures against the server of this one, runs in that of WSMUX_RIVER_PYTHON: one that has "
    "replit-river, websocket-client and simple-websocket installed."
)

REPETITIONS, SECONDS = 7, 0.4
QUICK_REPETITIONS, QUICK_SECONDS = 3, 0.15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wsmux bench``."""
    parser.add_argument("--repetitions", type=positive_int, help=f"by default {REPETITIONS}")
    parser.add_argument(
        "--seconds", type=seconds, help=f"a measurement takes, by default {SECONDS}"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_REPETITIONS} times {QUICK_SECONDS} s"
    )
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
    parser.add_argument("--measures", type=_names, help="figures to take, comma-separated")
    parser.add_argument(
        "--pin",
        choices=("both", "yes", "no"),
        default="both",
        help="one run with each process on a core of its own, one without, or both",
    )
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def run(args: argparse.Namespace) -> int:
    """Measure, print, judge."""
    from . import environment
    from .results import judge, pass_as_json, pass_table

    if args.spark:
        if args.rpc or args.protocol or args.peers:
            raise CommandError("--spark has figures of its own, chosen by --measures", status=2)
        from .spark.command import run as run_spark

        return run_spark(args)
    if args.rpc and args.protocol:
        raise CommandError("--rpc measures calls, which have no wire to choose", status=2)
    measures = _chosen_measures(args)  # first: what is misspelt there is the answer
    peers = _chosen_peers(args.peers, args.protocol, args.rpc)
    described = environment.describe(peers)
    passes = _measure(args, peers, measures)
    verdicts = judge(passes)
    if args.json:
        result = {
            "taken_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "environment": described,
            "passes": [pass_as_json(each, peers) for each in passes],
            "targets": [verdict.as_json() for verdict in verdicts],
        }
        emit(json.dumps(result, indent=2))
    else:
        emit("\n".join(environment.lines(described)) + "\n")
        for each in passes:
            show(pass_table(each, peers))
        for verdict in verdicts:
            emit(str(verdict))
    return 1 if args.check and not all(verdict.met for verdict in verdicts) else 0


def _chosen_peers(
    names: Sequence[str] | None, protocols: Sequence[str] | None, rpc: bool
) -> list[Peer]:
    """Return the named variants, or the usual ones, and those of further wires."""
    from .peers import find_peers

    known = {name: peer for name, peer in find_peers().items() if peer.rpc is rpc}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise CommandError(f"no variant {unknown[0]!r}; there are {', '.join(known)}", status=2)
    wires = {peer.protocol: None for peer in known.values() if peer.protocol}
    unknown = [wire for wire in protocols or () if wire not in wires]
    if unknown:
        raise CommandError(f"no protocol {unknown[0]!r}; there are {', '.join(wires)}", status=2)
    chosen = []
    for name, peer in known.items():
        named = name in (names or ())
        added = peer.protocol in (protocols or ())
        if not (named or added or (not names and peer.protocol is None)):
            continue
        if reason := peer.lacks():
            if named:
                raise CommandError(f"{name} cannot be measured: {reason}")
            talk(f"{name} is left out: {reason}")
        else:
            chosen.append(peer)
    return chosen


def _chosen_measures(args: argparse.Namespace) -> list[str]:
    from .measures import MEASURES
    from .rpc_measures import RPC_MEASURES

    names, known = args.measures, RPC_MEASURES if args.rpc else MEASURES
    unknown = [name for name in names or () if name not in known]
    if unknown:
        text = f"no measure {unknown[0]!r}; there are {', '.join(known)}"
        raise CommandError(text, status=2)
    return [name for name in known if not names or name in names]


def _measure(
    args: argparse.Namespace, peers: Sequence[Peer], measures: Sequence[str]
) -> list[Pass]:
    from .processes import cores
    from .schedule import run_pass

    repetitions = args.repetitions or (QUICK_REPETITIONS if args.quick else REPETITIONS)
    duration = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    wanted = {"both": [True, False], "yes": [True], "no": [False]}[args.pin]
    if True in wanted and len(cores()) < 2:
        talk("the processes cannot be pinned: fewer than two cores, or no such call here")
        wanted = [False]
    bar_class = tqdm_class()
    count = len(wanted) * repetitions * len(measures) * len(peers)
    bar = bar_class(total=count, unit=" figures") if bar_class else None
    try:
        return [
            run_pass(
                peers,
                measures,
                pinned=pinned,
                repetitions=repetitions,
                seconds=duration,
                progress=bar.update if bar else _nothing,
            )
            for pinned in wanted
        ]
    finally:
        if bar:
            bar.close()


def _nothing(count: int) -> None:
    """Show no progress."""
