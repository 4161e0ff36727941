"""Write a typed Python client from the schema of a River server."""

from __future__ import annotations

import argparse

from .addresses import add_connecting
from .files import deliver
from .rpc_schema import TIMEOUT, add_output, load, source
from .terminal import CommandError, seconds

EPILOG = "Example: wsmux rpc codegen ws://127.0.0.1:8765/ -o client.py --style dataclass"

STYLES = ("typeddict", "dataclass")

LINE_LENGTH, SHORTEST = 88, 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux rpc codegen``."""
    parser.add_argument(
        "source",
        type=source,
        metavar="URL_OR_FILE",
        help="server that serves its schema, or a saved one; '-' is stdin",
    )
    add_output(parser)
    parser.add_argument(
        "--style",
        choices=STYLES,
        default=STYLES[0],
        help=f"what values are in Python, by default {STYLES[0]}",
    )
    parser.add_argument(
        "--line-length",
        type=_line_length,
        default=LINE_LENGTH,
        metavar="N",
        help=f"the longest line, by default {LINE_LENGTH}",
    )
    parser.add_argument(
        "--timeout", type=seconds, help=f"seconds to fetch a schema, by default {TIMEOUT:.0f}"
    )
    add_connecting(parser)


def _line_length(text: str) -> int:
    value = int(text)
    if value < SHORTEST:
        raise argparse.ArgumentTypeError(f"must be at least {SHORTEST}")
    return value


def run(args: argparse.Namespace) -> int:
    """Load a schema, write a client."""
    from ..rpc.codegen.generator import generate

    data = load(args.source, args)
    try:
        text = generate(data, style=args.style, line_length=args.line_length)
    except ValueError as error:
        raise CommandError(str(error)) from error
    deliver(text, args.output)
    return 0
