"""Add the options for the sources of twin records."""

from __future__ import annotations

import argparse

from .terminal import CommandError

__all__ = ["add_twins", "sources"]


def add_twins(parser: argparse.ArgumentParser) -> None:
    """Add the options for the sources of twin records."""
    parser.add_argument(
        "--twins",
        action="append",
        default=[],
        metavar="SOURCE",
        help="JSON file of twins, or http(s):// URL of a registrar; may be repeated: if one fails, "
        "the next is used",
    )
    parser.add_argument(
        "-s",
        "--substrate",
        action="append",
        default=[],
        metavar="URL",
        help="the same for nodes of the chain, ws:// or wss://",
    )


def sources(args: argparse.Namespace) -> list[str]:
    """Return the given sources.

    Raises:
        CommandError: there are none.
    """
    given: list[str] = args.twins + args.substrate
    if not given:
        raise CommandError(
            "where to look up twins is missing: give --twins or --substrate", status=2
        )
    return given
