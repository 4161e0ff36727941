"""Optimize, vacuum and tell the history of datasets of a data server."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from typing import Any

from ..runtime.logs import printable
from .addresses import add_connecting, add_token, client_tls, headers, url
from .serve_data import size
from .terminal import MAX_MESSAGE, CommandError, Table, emit, positive_int, seconds, show, talk

EPILOG = "Example: wsmux tables optimize ws://127.0.0.1:8765/ orders"

ACTIONS = {
    "optimize": "Join the small files of a dataset into larger ones.",
    "vacuum": "Remove files that no version within a time needs; print their names.",
    "history": "Tell the newest versions of a dataset, and what made them.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``wsmux tables``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, summary in ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=summary)
        action.add_argument("url", type=url, metavar="URL", help="of wsmux serve-data")
        action.add_argument("dataset", help="name of the dataset")
        if name == "optimize":
            action.add_argument(
                "--target-size",
                type=size,
                metavar="SIZE",
                help="bytes that a file should have, such as 64M; 128 MiB by default",
            )
        elif name == "vacuum":
            action.add_argument(
                "--retention",
                type=int,
                metavar="HOURS",
                help="keep what versions of so many hours need; 168 by default",
            )
            action.add_argument("--dry-run", action="store_true", help="only tell")
        else:
            action.add_argument(
                "--limit", type=positive_int, metavar="N", help="versions, 100 by default"
            )
        action.add_argument("--json", action="store_true", help="print the answer as JSON")
        action.add_argument("--timeout", type=seconds, help="seconds to wait; none by default")
        add_token(action)
        add_connecting(action)


def run(args: argparse.Namespace) -> int:
    """Ask the server, and print its answer."""
    from .. import rpc

    asked = {"dataset": args.dataset}
    for name in ("target_size", "retention", "limit", "dry_run"):
        if (value := getattr(args, name, None)) is not None:
            asked[name] = value
    try:
        client = rpc.connect(
            args.url, headers=headers(args, args.url), ssl_context=client_tls(args, args.url)
        )
    except ImportError as error:  # of msgpack
        raise CommandError(str(error)) from error
    with client:
        try:
            answer = client.rpc("dataset", args.action, asked, args.timeout)
        except rpc.RiverError as error:
            raise CommandError(str(error)) from error
    if args.json:
        emit(json.dumps(answer))
    else:
        _SHOW[args.action](args, answer)
    return 0


def _show_optimized(args: argparse.Namespace, answer: dict[str, Any]) -> None:
    if not answer["files_removed"]:
        talk(f"{args.dataset} has no small files to join")
        return
    before = f"{answer['files_removed']} files of {answer['bytes_removed']} bytes"
    after = f"{answer['files_added']} of {answer['bytes_added']}"
    text = f"{before} were joined into {after}, in version {answer['version']}"
    emit(printable(text, MAX_MESSAGE))


def _show_vacuumed(args: argparse.Namespace, answer: dict[str, Any]) -> None:
    for path in answer["files"]:
        emit(printable(path, MAX_MESSAGE))
    what = "would be removed" if args.dry_run else "were removed"
    talk(f"{answer['count']} files of {answer['bytes']} bytes {what}")


def _show_history(args: argparse.Namespace, answer: dict[str, Any]) -> None:
    rows = [
        (
            str(each["version"]),
            datetime.fromtimestamp(each["time"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
            each["operation"],
            " ".join(f"{name}={value}" for name, value in each["metrics"].items()),
        )
        for each in answer["versions"]
    ]
    show(Table(args.dataset, ("version", "time", "operation", "metrics"), rows))


_SHOW = {"optimize": _show_optimized, "vacuum": _show_vacuumed, "history": _show_history}
