"""Serve streams on a port, to try things with.

The first line on stdout is the URL. What happens is told on stderr, streams with ``-v``.
"""

from __future__ import annotations

import argparse
import json
import logging
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .terminal import CommandError, emit, talk

if TYPE_CHECKING:
    from ..connection import Connection
    from ..stream import Stream

EPILOG = "Without --open the streams are those that clients open. Ctrl-C ends the server."

CHUNK = 64 * 1024

_log = logging.getLogger("wsmux.cli")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wsmux serve``."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument(
        "--port", type=int, default=0, help="port; 0, the default, takes a free one"
    )
    parser.add_argument(
        "--protocol",
        action="append",
        choices=("wsmux", "js-ws"),
        help="wire to serve, wsmux by default; may be repeated",
    )
    parser.add_argument(
        "--origin", action="append", help="origin whose pages may connect; '*' for all"
    )
    parser.add_argument("--certfile", type=Path, help="certificate chain (PEM), for wss://")
    parser.add_argument("--keyfile", type=Path, help="its key, when not in the same file")
    parser.add_argument(
        "--open", action="store_true", help="open one stream to each client instead of waiting"
    )
    parser.add_argument("--json", action="store_true", help="print the URL and port as JSON")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--echo", action="store_true", help="send everything back")
    what.add_argument("--sink", action="store_true", help="read everything, answer nothing")
    what.add_argument("--send", type=Path, metavar="FILE", help="send a file down each stream")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    import wsmux

    if args.keyfile and not args.certfile:
        raise CommandError("--keyfile needs --certfile", status=2)
    handle = _behaviour(args)
    handlers = {"handler": partial(_open, handle)} if args.open else {"stream_handler": handle}
    server = wsmux.serve(
        host=args.host,
        port=args.port,
        protocols=args.protocol or ("wsmux",),
        origins=args.origin,
        ssl_context=_tls(args),
        **handlers,
    )
    with server:
        emit(json.dumps({"url": server.url, "port": server.port}) if args.json else server.url)
        talk("serving; Ctrl-C ends it")
        server.serve_forever()
    return 0


def _tls(args: argparse.Namespace) -> ssl.SSLContext | None:
    if args.certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(args.certfile, args.keyfile)
    return context


def _behaviour(args: argparse.Namespace) -> Callable[[Stream], None]:
    if args.echo:
        return _echo
    if args.sink:
        return _sink
    with args.send.open("rb"):  # now, not at the first stream
        return partial(_send, args.send)


def _echo(stream: Stream) -> None:
    count = 0
    while chunk := stream.read(CHUNK):
        count += stream.write(chunk)
    _log.info("stream %d: %d bytes sent back", stream.id, count)


def _sink(stream: Stream) -> None:
    count = 0
    while chunk := stream.read(CHUNK):
        count += len(chunk)
    _log.info("stream %d: %d bytes read", stream.id, count)


def _send(path: Path, stream: Stream) -> None:
    count = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            count += stream.write(chunk)
    _log.info("stream %d: %d bytes sent", stream.id, count)


def _open(handle: Callable[[Stream], None], connection: Connection) -> None:
    with connection.open_stream() as stream:
        handle(stream)
        stream.close_write()
        while stream.read(CHUNK):  # until the client has ended its half too
            pass
    connection.wait_drained()
