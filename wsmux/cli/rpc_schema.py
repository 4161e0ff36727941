"""Print the schema that a River server returns to an ordinary HTTP request."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .addresses import add_connecting, address, client_tls, headers
from .files import deliver
from .terminal import CommandError, seconds

EPILOG = "Example: wsmux rpc schema ws://127.0.0.1:8765/ -o schema.json"

MAX_SIZE = 16 * 1024 * 1024  # maximum bytes of a schema; as for messages of River

TIMEOUT = 10.0  # default seconds for a whole request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux rpc schema``."""
    parser.add_argument(
        "url",
        type=_url,
        metavar="URL",
        help="ws[s]:// or http[s]:// address at which River is served",
    )
    add_output(parser)
    parser.add_argument(
        "--timeout", type=seconds, help=f"seconds for the whole answer, {TIMEOUT:.0f} by default"
    )
    add_connecting(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the option for the output of an action."""
    parser.add_argument(
        "-o",
        "--output",
        type=_output,
        metavar="FILE",
        help="replace this file at the end, instead of writing to stdout",
    )


def _output(text: str) -> Path | None:
    return None if text == "-" else Path(text)


def _url(text: str) -> str:
    return address(text, "ws", "wss", "http", "https")


def source(text: str) -> str:
    """Parse the source of a schema: an address, a file, or stdin."""
    return _url(text) if "://" in text else text


def run(args: argparse.Namespace) -> int:
    """Fetch, check, print."""
    from ..rpc.schema.document import read_schema
    from .rpc_json import escaped

    data = load(args.url, args)
    try:
        read_schema(data)
        text = escaped(json.dumps(json.loads(data), indent=2, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{args.url} does not serve a River schema: {error}") from error
    deliver(f"{text}\n", args.output)
    return 0


def load(place: str, args: argparse.Namespace) -> bytes:
    """Return a schema from an address, a file or stdin.

    Raises:
        CommandError: it is too large, or the server publishes none.
        TimeoutError: it did not arrive in time.
        OSError: it cannot be read.
    """
    if "://" in place:
        from .rpc_fetch import fetch

        data = fetch(
            place,
            headers(args, place),
            ssl_context=client_tls(args, place),
            timeout=args.timeout or TIMEOUT,
            max_size=MAX_SIZE + 1,
        )
    elif place == "-":
        data = sys.stdin.buffer.read(MAX_SIZE + 1)
    else:
        with open(place, "rb") as file:
            data = file.read(MAX_SIZE + 1)
    if len(data) > MAX_SIZE:
        raise CommandError(f"{place} holds more than {MAX_SIZE} bytes, the limit for a schema")
    return data
