"""Replay the peer's side of a recording to a handler, and compare the answers.

The recording must have been made with ``Recording(payload=...)`` from the start of the connection.
Differences are printed on stdout, one per line. Exit status 1 if there are any, 2 if the recording
or the handler is invalid.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

from .inspect import opened
from .terminal import CommandError, emit, seconds

EPILOG = "Example: wsmux replay recording.jsonl --stream-handler app:serve_stream"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux replay``."""
    parser.add_argument("file", metavar="RECORDING", help="result of dump_recording(); - for stdin")
    handler = parser.add_mutually_exclusive_group(required=True)
    handler.add_argument(
        "--handler", type=_place, metavar="MODULE:FUNCTION", help="called with the connection"
    )
    handler.add_argument(
        "--stream-handler",
        type=_place,
        metavar="MODULE:FUNCTION",
        help="called with each stream that the peer opens",
    )
    parser.add_argument(
        "--timeout", type=seconds, default=5.0, help="seconds for each answer; 5 by default"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _place(text: str) -> tuple[str, str]:
    module, _, function = text.partition(":")
    names = (*module.split("."), *function.split("."))
    if not all(name.isidentifier() for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form MODULE:FUNCTION")
    return module, function


def run(args: argparse.Namespace) -> int:
    """Replay, and print the differences."""
    from ..diagnostics.replay import replay
    from ..recording.file_format import BadRecording, read_recording

    handler = _imported(args.handler) if args.handler else None
    stream_handler = _imported(args.stream_handler) if args.stream_handler else None
    try:
        with opened(args.file) as file:
            header, entries = read_recording(file)
            outcome = replay(header, entries, handler, stream_handler, args.timeout)
    except BadRecording as error:
        raise CommandError(f"{args.file}: {error}", status=2) from error
    if args.json:
        emit(json.dumps({"same": not outcome.differences, **outcome.__dict__}))
    else:
        for difference in outcome.differences:
            emit(difference)
        count = len(outcome.differences)
        emit(f"frames fed: {outcome.fed}; streams: {outcome.streams}; differences: {count}")
    return int(bool(outcome.differences))


def _imported(place: tuple[str, str]) -> Callable[[Any], object]:
    """Import a function, finding its module as ``python -m`` does.

    Raises:
        CommandError: there is no such function.
    """
    module, function = place
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise CommandError(f"{module}: {error}", status=2) from error
    for name in function.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        raise CommandError(f"{module} has no {function} to call", status=2)
    handler: Callable[[Any], object] = found
    return handler
