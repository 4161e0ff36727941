"""Serve and update a signed directory of twins over HTTP.

The first line on stdout is the URL. Messages go to stderr, those about requests with ``-v``.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from pathlib import Path

from .addresses import add_host_and_port, add_tls, server_tls
from .terminal import CommandError, emit, positive_int, talk

EPILOG = (
    "Twins register with 'wsmux twin new --registrar URL'; relays, gateways and clients read it "
    "with --twins URL. Give it TLS, or a proxy with TLS. Ctrl-C ends it."
)

LISTEN = "127.0.0.1:8090"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wsmux registrar``."""
    parser.add_argument("database", type=Path, help="file of the SQLite database; made if missing")
    add_host_and_port(parser, LISTEN)
    parser.add_argument(
        "--max-connections", type=positive_int, default=256, metavar="N", help="256 by default"
    )
    add_tls(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    context = server_tls(args)
    try:
        from ..bus.twins.registrar import serve_registrar

        server = serve_registrar(
            args.database,
            *args.listen,
            ssl_context=context,
            max_connections=args.max_connections,
        )
    except ImportError as error:
        raise CommandError(str(error)) from error
    except sqlite3.Error as error:
        raise CommandError(f"{args.database} cannot be used: {error}") from error
    with server:
        shown = {"url": server.url, "port": server.port}
        emit(json.dumps(shown) if args.json else server.url)
        talk(f"serving the twins of {args.database} at {server.url}; Ctrl-C ends it")
        server.serve_forever()
    return 0
