"""Write rows from stdin, a JSON object a line, to a dataset of a data server.

All are durable when the command ends with 0. With ``--client-id`` the same command can be run again
after it was cut off: it passes over the rows that are durable.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .addresses import add_token, headers, url
from .terminal import CommandError, installed, missing, seconds, talk, tqdm_class

if TYPE_CHECKING:
    from ..spark import IngestClient

EPILOG = "Example: wsmux ingest ws://127.0.0.1:8765/ orders < rows.jsonl"

CHUNK = 256 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux ingest``."""
    parser.add_argument("url", type=url, metavar="URL", help="of wsmux serve-data")
    parser.add_argument("dataset", help="name of a dataset that is there")
    parser.add_argument("--client-id", metavar="ID", help="go on behind the rows of this id")
    parser.add_argument("--cafile", help="certificates (PEM) to trust")
    parser.add_argument("--timeout", type=seconds, help="seconds to wait for room; 60 by default")
    parser.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, help="show how many were sent"
    )
    add_token(parser)
    parser.set_defaults(header=[])


def run(args: argparse.Namespace) -> int:
    """Write all rows, and wait until they are durable."""
    if not installed("pyarrow"):
        raise missing("pyarrow", "spark")
    from ..spark import ingest

    bar_class = tqdm_class(args.progress)
    lines = (line.partition(": ") for line in headers(args, args.url) or ())
    with ingest(
        args.url,
        args.dataset,
        client_id=args.client_id,
        timeout=args.timeout,
        headers={name: value for name, _, value in lines},
        ssl_ca=args.cafile,
    ) as client:
        there = client.offset
        bar = None if bar_class is None else bar_class(unit=" rows", initial=there, delay=0.5)
        try:
            for rows in _rows(sys.stdin.buffer, there):
                _write(client, rows)
                if bar is not None:
                    bar.update(len(rows))
        except CommandError:
            client.flush()  # what was before the odd line
            raise
        if bar is not None:
            bar.close()
    talk(f"{client.offset - there} rows are durable" + f", {there} were there" * bool(there))
    return 0


def _write(client: IngestClient, rows: list[tuple[int, Any]]) -> None:
    from ..spark import SparkError

    try:
        client.write([row for _, row in rows])
    except SparkError:
        for number, row in rows:  # one by one, to tell which
            try:
                client.write(row)
            except SparkError as error:
                raise CommandError(f"line {number}: {error}") from error


def _rows(file: Any, skip: int) -> Iterator[list[tuple[int, Any]]]:
    """Yield rows with the numbers of their lines, as they come, but for the first ones."""
    number = 0
    for lines in _lines(file):
        found = []
        for line in lines:
            number += 1
            if not line.strip():
                continue
            if skip:
                skip -= 1
                continue
            try:
                found.append((number, json.loads(line)))
            except (ValueError, RecursionError) as error:
                yield found
                raise CommandError(f"line {number} is not JSON: {error}") from error
        if found:
            yield found


def _lines(file: Any) -> Iterator[list[bytes]]:
    """Yield the lines that have come, without waiting for more."""
    rest = b""
    while data := file.read1(CHUNK):
        *lines, rest = (rest + data).split(b"\n")
        yield lines
    yield [rest]
