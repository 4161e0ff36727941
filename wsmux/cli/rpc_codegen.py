"""Generate a typed Python client from the schema of a River server."""

from __future__ import annotations

import argparse
from pathlib import Path

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
        help="server (ws[s] or http[s]) that publishes its schema, or a saved one; '-' for stdin",
    )
    add_output(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing, but fail unless the -o file has the same code, in any layout",
    )
    parser.add_argument(
        "--style",
        choices=STYLES,
        default=STYLES[0],
        help=f"representation of values in Python, {STYLES[0]} by default",
    )
    parser.add_argument(
        "--line-length",
        type=_line_length,
        default=LINE_LENGTH,
        metavar="N",
        help=f"maximum line length, {LINE_LENGTH} by default",
    )
    parser.add_argument(
        "--timeout", type=seconds, help=f"seconds to fetch a schema, {TIMEOUT:.0f} by default"
    )
    add_connecting(parser)


def _line_length(text: str) -> int:
    value = int(text)
    if value < SHORTEST:
        raise argparse.ArgumentTypeError(f"must be at least {SHORTEST}")
    return value


def run(args: argparse.Namespace) -> int:
    """Load a schema, and write a client or compare an existing one."""
    from ..rpc.codegen.formatting import find_ruff
    from ..rpc.codegen.generator import generate

    if args.check and args.output is None:
        raise CommandError("--check compares a file: name it with -o", status=2)
    data = load(args.source, args)
    ruff = None if args.check else find_ruff()
    try:
        text = generate(data, style=args.style, line_length=args.line_length, ruff=ruff)
    except (ValueError, OSError) as error:
        raise CommandError(str(error)) from error
    if args.check:
        _check(text, args.output)
    else:
        deliver(text, args.output)
    return 0


def _check(text: str, path: Path) -> None:
    from ..rpc.codegen.formatting import is_same_code

    try:
        same = is_same_code(path.read_text(encoding="utf-8"), text)
    except (OSError, RecursionError, SyntaxError, ValueError) as error:
        raise CommandError(f"{path}: {error}") from error
    if not same:
        raise CommandError(f"{path} is not what the schema gives: write it again")
