"""Diagnose what keeps this machine from a server, and suggest remedies.

Prints a line per step on stdout: the result, and after an arrow the remedy. Exit status 1 if a step
failed; a warning does not count.
"""

from __future__ import annotations

import argparse
import json

from ..runtime.logs import printable
from .addresses import PROTOCOLS, add_connecting, add_subprotocol, add_token, connecting, url
from .terminal import MAX_MESSAGE, emit, seconds

EPILOG = "Example: wsmux doctor --idle 90 wss://example.org/files"

MARKS = {"ok": "ok", "warning": "WARN", "failed": "FAIL", "skipped": "-"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux doctor``."""
    parser.add_argument("url", type=url, metavar="URL", help="ws://, wss:// or tcp:// address")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="wsmux")
    add_subprotocol(parser)
    parser.add_argument(
        "--timeout", type=seconds, default=5.0, help="seconds for each answer; 5 by default"
    )
    parser.add_argument(
        "--idle", type=seconds, default=2.0, help="seconds of silence to test; 2 by default"
    )
    parser.add_argument(
        "--echo",
        action="store_true",
        help="the server echoes streams (wsmux serve --echo): test long messages and load",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    add_connecting(parser)
    add_token(parser)


def run(args: argparse.Namespace) -> int:
    """Examine, and print the results."""
    from ..doctor import Plan, examine

    report = examine(
        Plan(
            url=args.url,
            protocol=args.protocol,
            **connecting(args, args.url),
            timeout=args.timeout,
            idle=args.idle,
            echo=args.echo,
        )
    )
    if args.json:
        emit(json.dumps(report.as_json()))
    else:
        for step in report.steps:
            emit(f"{MARKS[step.status]:<5}{step.name:<15}{printable(step.fact, MAX_MESSAGE)}")
            if step.fix:
                emit(f"{'':<20}-> {printable(step.fix, MAX_MESSAGE)}")
    return int(report.failed)
