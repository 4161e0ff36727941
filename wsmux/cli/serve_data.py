"""Serve datasets, which are Delta tables, and topics of a directory to PySpark.

The first line on stdout is the URL. Messages go to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .addresses import add_serving, server_tls
from .processes import supervise
from .redis_urls import PASSWORD_HELP, with_password
from .terminal import CommandError, emit, installed, missing, positive_int, talk
from .tokens import (
    VARIABLE,
    add_token_file,
    check_without_token,
    origins_without_token,
    tokens,
)

if TYPE_CHECKING:
    from ..spark.server.data_server import DataServer
    from ..spark.store.base import TopicStore

Made = TypeVar("Made")

EPILOG = (
    "Clients send 'Authorization: Bearer TOKEN' if there are tokens. SIZE, ROWS and TIME take "
    "suffixes: 10G, 5M, 7d. Ctrl-C ends the server."
)

PORT = 8765

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
# Names of storage options whose values others must not see.
_NOT_SHOWN = re.compile(r"secret|token|password|access_key|customer_key", re.IGNORECASE)

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]?)")


def amount(text: str, units: dict[str, int] | None = None) -> float:
    """Parse a positive number with an optional suffix."""
    found = _NUMBER.fullmatch(text)
    known = _UNITS if units is None else units
    if found is None or found[2] not in known or not float(found[1]):
        shown = ", ".join(unit for unit in known if unit)
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 with one of {shown}")
    return float(found[1]) * known[found[2]]


def duration(text: str) -> float:
    """Parse seconds, or a number with a suffix of time."""
    return amount(text, _SECONDS)


def size(text: str) -> int:
    """Parse bytes, with an optional suffix."""
    return int(amount(text))


def retention(text: str) -> dict[str, float]:
    """Parse limits such as ``rows=5M,age=7d,hard-bytes=100G``."""
    limits = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        field = name.strip().replace("-", "_")
        if field.removeprefix("hard_") not in ("rows", "bytes", "age"):
            raise argparse.ArgumentTypeError(
                f"{name!r} is not one of rows, bytes, age, hard-rows..."
            )
        seconds = field.endswith("age")
        limits[field] = duration(value) if seconds else int(amount(value))
    return limits


def _files(text: str) -> int:
    """Parse a number of files, of which one alone has nothing to be joined with."""
    value = int(text)
    if value < 0 or value == 1:
        raise argparse.ArgumentTypeError("must be 2 or more, or 0 for never")
    return value


def _place(text: str) -> Path | str:
    """Parse a directory, or the address of a store."""
    return text if "://" in text else Path(text)


def _storage_option(text: str) -> tuple[str, str]:
    """Parse an option of S3 that is no secret: everybody on this machine sees the command line."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError("expected KEY=VALUE, such as aws_region=eu-west-1")
    if _NOT_SHOWN.search(name):
        variable = name.upper() if name.lower().startswith("aws_") else f"AWS_{name.upper()}"
        raise argparse.ArgumentTypeError(
            f"{name} would be seen by everybody on this machine: set {variable} in the environment"
        )
    return name, value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wsmux serve-data``."""
    parser.add_argument(
        "directory",
        type=_place,
        help="where they are stored; created if missing. Or s3://BUCKET/PREFIX, for datasets",
    )
    parser.add_argument(
        "--storage-option",
        type=_storage_option,
        action="append",
        metavar="KEY=VALUE",
        help="what reaches S3, as aws_region=eu-west-1; may be repeated. Secrets are set in the "
        "environment, as AWS_SECRET_ACCESS_KEY",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument(
        "--port", type=int, default=PORT, help=f"port, {PORT} by default; 0 picks a free one"
    )
    add_serving(parser)
    add_token_file(parser, "tokens of those who may connect, a line each")
    parser.add_argument(
        "--topics",
        type=_place,
        metavar="PLACE",
        help="where topics are stored: another directory, or redis://..., which servers of several "
        "hosts share; by default with the datasets, and with those in S3 there are none. Of Redis, "
        f"{PASSWORD_HELP}",
    )
    parser.add_argument(
        "--ttl",
        type=duration,
        metavar="TIME",
        help="how long uncommitted and overwritten data is kept; 1d by default",
    )
    parser.add_argument(
        "--retention",
        type=retention,
        metavar="LIMIT=VALUE,...",
        help="what topics keep: rows, bytes, age, as far as their readers have released them, and "
        "hard-rows, hard-bytes, hard-age in any case; everything by default",
    )
    parser.add_argument(
        "--auto-optimize",
        type=_files,
        metavar="FILES",
        help="join the small files of a dataset in the background once there are so many; 250 by "
        "default, 0 never does so",
    )
    parser.add_argument(
        "--linger",
        type=duration,
        metavar="TIME",
        help="how long rows of ingest clients wait for more to be committed with; 0.02s by default",
    )
    parser.add_argument(
        "--processes", type=positive_int, default=1, metavar="N", help="processes on one port"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    objects = isinstance(args.directory, str)
    needed = [("pyarrow", "spark"), ("deltalake", "spark"), ("msgpack", "rpc")]
    for module, extra in [*needed, ("obstore", "s3")] if objects else needed:
        if not installed(module):
            raise missing(module, extra)
    if isinstance(args.topics, str) and not installed("redis"):
        raise missing("redis", "cluster")
    from ..endpoints.acceptor import listen
    from ..spark.store.directory import open_directory
    from ..spark.tables.object_folder import open_objects

    known = tokens(args.token_file)
    if not known:
        check_without_token(args.host, args.origin)
    if args.processes == 1 or args.child:
        return _serve(args, known)
    # So that errors are reported once.
    if objects:
        _checked(open_objects, args.directory, _options(args))
    else:
        open_directory(args.directory)
    with listen(args.host, args.port) as probe:  # fails if it is taken, even if shared
        port = probe.getsockname()[1]
    with _reserved(args.host, port):
        return supervise(
            _child(args, port),
            args.processes,
            environment={**os.environ, VARIABLE: "\n".join(known)},
            ready=lambda url: _tell(args, url),
        )


def _reserved(host: str, port: int) -> socket.socket:
    """Return a socket that reserves a port for the processes that share it; it does not listen."""
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((host, port))
    except BaseException:
        reserved.close()
        raise
    return reserved


def _serve(args: argparse.Namespace, known: list[str]) -> int:
    from ..spark.server.data_server import serve_data
    from ..spark.server.ingest_stream import GroupCommit
    from ..spark.store.base import Retention

    origins = args.origin if known else origins_without_token(args.host, args.origin)
    options: dict[str, Any] = {"origins": origins}
    if args.ttl is not None:
        options["ttl"] = args.ttl
    if args.retention is not None:
        options["retention"] = Retention(**args.retention)
    if args.auto_optimize is not None:
        options["auto_optimize"] = args.auto_optimize or None
    if args.linger is not None:
        options["ingest"] = GroupCommit(linger=args.linger)
    tls = server_tls(args)
    if tls is not None:
        options["ssl_context"] = tls
    if args.storage_option is not None:
        options["storage_options"] = _options(args)
    if args.topics is not None:
        kept = {name: options[name] for name in ("ttl", "retention") if name in options}
        options.pop("retention", None)
        options["topics"] = _checked(_topics, args.topics, **kept)
    server = _checked(
        serve_data,
        args.directory,
        args.host,
        args.port,
        token=known or None,
        shared=args.child,
        **options,
    )
    with server:
        if args.child:
            emit(server.url)
            threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
        else:
            _tell(args, server.url)
        server.serve_forever()
    return 0


def _topics(place: Path | str, **options: Any) -> TopicStore:
    if isinstance(place, str):
        from ..spark.topics.redis_topics import RedisTopics

        return RedisTopics(with_password(place), **options)
    from ..spark.topics.sqlite_topics import SqliteTopics

    return SqliteTopics(place, **options)


def _options(args: argparse.Namespace) -> dict[str, str]:
    return dict(args.storage_option or ())


def _checked(make: Callable[..., Made], *arguments: Any, **options: Any) -> Made:
    """Make something of what is on the command line."""
    try:
        return make(*arguments, **options)
    except ValueError as error:
        raise CommandError(str(error), status=2) from error


def _end_with_parent(server: DataServer) -> None:
    """Shut down when stdin ends, which the parent process keeps open while it lives."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    server.shutdown()


def _tell(args: argparse.Namespace, url: str) -> None:
    emit(json.dumps({"url": url, "port": int(url.rpartition(":")[2])}) if args.json else url)
    talk(f"serving {args.directory} at {url}; Ctrl-C ends it")


def _child(args: argparse.Namespace, port: int) -> list[str]:
    """Return the command of one of several processes."""
    command = [sys.executable, "-m", "wsmux", "serve-data", str(args.directory), "--child"]
    command += ["--host", args.host, "--port", str(port)]
    command += ["-" + "v" * args.verbose] if args.verbose else []
    command += ["--ttl", str(args.ttl)] if args.ttl is not None else []
    command += ["--linger", str(args.linger)] if args.linger is not None else []
    if args.auto_optimize is not None:
        command += ["--auto-optimize", str(args.auto_optimize)]
    command += ["--topics", str(args.topics)] if args.topics is not None else []
    for name, value in args.storage_option or ():
        command += ["--storage-option", f"{name}={value}"]
    for origin in args.origin or ():
        command += ["--origin", origin]
    for name, value in (("--certfile", args.certfile), ("--keyfile", args.keyfile)):
        command += [name, str(value)] if value is not None else []
    if args.retention is not None:
        limits = (f"{name}={value}" for name, value in args.retention.items())
        command += ["--retention", ",".join(limits)]
    return command
