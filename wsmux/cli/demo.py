"""Send the standard library over one WebSocket, and flights through PySpark; verify everything.

First a Flask application runs under a real WSGI server in a separate process, and gets every file
on a stream. Then the same files are sent over one WebSocket per file, by websocket-client and
simple-websocket without wsmux. The second half is ``examples/flights`` of a checkout.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import sysconfig
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .terminal import CommandError, Table, emit, missing, positive_int, show, talk, tqdm_class

if TYPE_CHECKING:
    from .demo_client import Outcome

EPILOG = (
    "Exit status 1 if a hash is wrong, a report is missing, or the results of Spark and pandas "
    "differ. Without pyspark or a checkout the second half is skipped with a message."
)

SERVERS = ("gunicorn", "gunicorn-gevent", "gevent", "werkzeug")

EXCLUDED = {"site-packages", "__pycache__"}

FILES, FLIGHTS = "files", "flights"

# The second half, if this is a checkout.
CHECKOUT, HALF = Path(__file__).parents[2], "examples.flights.demonstration"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wsmux demo``."""
    parser.add_argument("--server", choices=SERVERS, default="gunicorn", help="the WSGI server")
    parser.add_argument(
        "--limit", type=positive_int, help="send and read only so many files and flights"
    )
    parser.add_argument(
        "--threads", type=positive_int, default=32, help="number of sending threads"
    )
    parser.add_argument("--only", choices=(FILES, FLIGHTS), help="run one half only")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="plot the delays of the flights"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Run both halves, print, and return 1 if anything was wrong."""
    if args.plot is not None and args.only == FILES:
        raise CommandError("--plot draws the part that --only files leaves out", status=2)
    lacking = None if args.only == FILES else _lacking(args.plot is not None)
    if lacking is not None and (args.only == FLIGHTS or args.plot is not None):
        raise CommandError(lacking)
    told: dict[str, Any] = {}
    failures: list[str] = []
    if args.only != FLIGHTS:
        outcomes = _send(args)
        told |= _report(args, outcomes)
        failures += [f"{each.name}: {text}" for each in outcomes for text in each.failures[:10]]
        if not args.json:
            show(_table(args, outcomes))
    if lacking is not None:
        talk(f"the second half, flights through PySpark, is left out: {lacking}")
        told["flights"] = None
    elif args.only != FILES:
        half = _second_half()
        flights = half.run(args.limit)
        told["flights"] = half.report(flights)
        failures += flights.failures
        if args.plot is not None:
            half.draw(flights, args.plot)
        for table in () if args.json else half.tables(flights):
            show(table)
    for failure in failures:
        talk(failure)
    if args.json:
        emit(json.dumps(told, indent=2))
    return 1 if failures else 0


def _lacking(plot: bool) -> str | None:
    """Return in a sentence why the second half cannot run; ``None`` if it can."""
    if not (CHECKOUT / HALF.replace(".", "/")).with_suffix(".py").exists():
        return "examples/flights is in a checkout only; run python -m wsmux demo there"
    lacking: str | None = _second_half().lacking(plot)
    return lacking


def _second_half() -> Any:
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    return importlib.import_module(HALF)


def _send(args: argparse.Namespace) -> list[Outcome]:
    """Send all files both ways."""
    from .demo_server import running

    try:
        from . import demo_client as client
    except ModuleNotFoundError as error:
        raise missing(error.name or "a package", "demo") from error

    files = _files(args.limit)
    talk(f"{len(files)} files, {sum(len(f.read_bytes()) for _, f in files) / 1e6:.1f} MB")
    bar_class = tqdm_class()
    outcomes = []
    with running(args.server) as address:
        for send in (client.over_one_connection, client.over_one_websocket_each):
            total = len(files)
            with bar_class(total=total, unit=" files") if bar_class else nullcontext() as bar:
                outcomes.append(send(address, files, args.threads, bar.update if bar else _nothing))
    return outcomes


def _nothing(count: int) -> None:
    """Show no progress."""


def _files(limit: int | None) -> list[tuple[str, Path]]:
    """Return the regular files of the standard library, with their names relative to it."""
    root = Path(sysconfig.get_path("stdlib"))
    files = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if EXCLUDED.isdisjoint(name.parts) and path.is_file() and not path.is_symlink():
            files.append((str(name), path))
    if not files:
        raise CommandError(f"no files under {root}")
    return files[:limit]


def _figures(outcome: Outcome) -> dict[str, Any]:
    seconds, times = outcome.seconds, sorted(outcome.times)
    return {
        "name": outcome.name,
        "connections": outcome.connections,
        "files": len(times),
        "bytes": outcome.bytes,
        "seconds": seconds,
        "megabytes_per_second": outcome.bytes / seconds / 1e6,
        "files_per_second": len(times) / seconds,
        "p50_ms": _percentile(times, 0.5),
        "p99_ms": _percentile(times, 0.99),
        "hashes_right": outcome.hashes_right,
        "reports_right": outcome.reports_right,
        "failures": outcome.failures,
    }


def _percentile(times: Sequence[float], share: float) -> float | None:
    return times[min(len(times) - 1, int(len(times) * share))] * 1000 if times else None


def _conditions(args: argparse.Namespace) -> list[str]:
    from .demo_server import SERVERS as names

    masker = "by C" if _native_masker() else "in Python"
    return [
        f"Same files, same {args.threads} threads, {names[args.server][1]} in its own process.",
        f"wsmux: one WebSocket for all, connecting included; masks {masker}; its time has a",
        "  stream back from the server for each file, with a report that is checked too.",
        "per file: websocket-client and simple-websocket with TCP_NODELAY, a WebSocket for each;",
        "  connecting and closing are part of its time because they are its cost.",
        "Both hash with SHA-256 on both sides while sending, in pieces of 64 KiB.",
    ]


def _native_masker() -> bool:
    from ..protocols.masking import native_masker

    return native_masker


def _report(args: argparse.Namespace, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "server": args.server,
        "threads": args.threads,
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "conditions": [line.strip() for line in _conditions(args)],
        "variants": [_figures(outcome) for outcome in outcomes],
    }


def _table(args: argparse.Namespace, outcomes: Sequence[Outcome]) -> Table:
    columns = ["", "files", "MB", "s", "MB/s", "streams/s", "p50 ms", "p99 ms", "hashes", "reports"]
    rows = [_row(_figures(outcome)) for outcome in outcomes]
    return Table("The standard library over WebSockets", columns, rows, _conditions(args))


def _row(figures: dict[str, Any]) -> list[str]:
    reports = figures["reports_right"]
    return [
        figures["name"],
        f"{figures['files']}",
        f"{figures['bytes'] / 1e6:.1f}",
        f"{figures['seconds']:.2f}",
        f"{figures['megabytes_per_second']:.1f}",
        f"{figures['files_per_second']:.0f}",
        *("-" if figures[p] is None else f"{figures[p]:.1f}" for p in ("p50_ms", "p99_ms")),
        f"{figures['hashes_right']} right",
        "-" if reports is None else f"{reports} right",
    ]
