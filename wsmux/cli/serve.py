"""Serve streams on a port, for experiments and tunnels.

The first line on stdout is the URL. Messages go to stderr, those about streams with ``-v``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.logs import logger
from .addresses import add_listening, server_tls
from .terminal import CommandError, emit, talk
from .tokens import (
    VARIABLE,
    add_token_file,
    check_without_token,
    origins_without_token,
    tokens,
)

if TYPE_CHECKING:
    from ..mux.connection import Connection
    from ..mux.stream import Stream

EPILOG = (
    "Without --open, clients open the streams. Ctrl-C ends the server. PATTERN is "
    "HOST:PORT, *.DOMAIN:PORTS, ADDRESS/BITS:PORTS or unix:/PATH, PORTS a port, FIRST-LAST or *; "
    "a pattern after '!' denies. Loopback, metadata services and other special addresses must be "
    "named: wildcards exclude them. Clients with the token may use everything that is allowed; "
    "without a token, which is for loopback only, every user of this machine may."
)

CHUNK = 64 * 1024

_log = logger("wsmux.cli")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wsmux serve``."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument(
        "--port", type=int, default=0, help="port; 0, the default, picks a free one"
    )
    parser.add_argument(
        "--tcp", action="store_true", help="serve plain sockets, without a WebSocket, in one wire"
    )
    add_listening(parser)
    add_token_file(parser, "tokens of allowed clients, one per line")
    parser.add_argument(
        "--open", action="store_true", help="open one stream to each client instead of waiting"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--echo", action="store_true", help="echo everything")
    what.add_argument("--sink", action="store_true", help="read everything, answer nothing")
    what.add_argument("--send", type=Path, metavar="FILE", help="send a file on each stream")
    what.add_argument(
        "--uploads",
        type=Path,
        metavar="FOLDER",
        help="receive files of wsmux upload there; stdout names each one that is finished",
    )
    parser.add_argument("--live", action="store_true", help="publish the state for wsmux top PID")
    tunnels = parser.add_argument_group("for wsmux forward and wsmux exec; may be repeated")
    for option, metavar, text in (
        ("--allow-forward", "PATTERN", "connect clients to these destinations"),
        ("--allow-listen", "PATTERN", "listen at these addresses for clients"),
        ("--exec", "PROGRAM", "run this program for clients: an absolute path, or a name on PATH"),
    ):
        tunnels.add_argument(option, action="append", default=[], metavar=metavar, help=text)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    import wsmux

    if args.tcp and len(args.protocol or ()) > 1:
        raise CommandError("--tcp serves one --protocol only", status=2)
    options: dict[str, Any] = {**_access(args), **_handlers(args)}
    context = server_tls(args)
    server = wsmux.serve(
        host=args.host,
        port=args.port,
        protocols=args.protocol or ("wsmux",),
        transport="tcp" if args.tcp else "websocket",
        ssl_context=context,
        resume=not args.tcp or context is None,
        **options,
    )
    with server, wsmux.LiveSocket(server) if args.live else nullcontext():
        emit(json.dumps({"url": server.url, "port": server.port}) if args.json else server.url)
        to = " those who send the token" if options.get("token") else ""
        talk(f"serving{to}; Ctrl-C ends it")
        server.serve_forever()
    return 0


def _access(args: argparse.Namespace) -> dict[str, Any]:
    """Return who may connect, as arguments of ``wsmux.serve``.

    Raises:
        CommandError: too many could connect, or tokens cannot be required.
    """
    known = tokens(args.token_file)
    if known and args.tcp:
        given = "--token-file" if args.token_file else VARIABLE
        text = f"a plain socket has no request that could carry a token: --tcp or {given}, not both"
        raise CommandError(text, status=2)
    if known:
        return {"token": known, "origins": args.origin}
    if _offers_tunnels(args) or args.uploads:
        instead = " instead of --tcp, which carries none" if args.tcp else ""
        check_without_token(args.host, args.origin, instead)
    return {"origins": origins_without_token(args.host, args.origin)}


def _offers_tunnels(args: argparse.Namespace) -> bool:
    return bool(args.allow_forward or args.allow_listen or args.exec)


def _handlers(args: argparse.Namespace) -> dict[str, Any]:
    plain = args.echo or args.sink or args.send or args.uploads
    if _offers_tunnels(args):
        if plain or args.open:
            raise CommandError("tunnels and commands are served alone", status=2)
        return _tunnels(args)
    if not plain:
        raise CommandError(
            "nothing to serve: --echo, --sink, --send, --uploads, --allow-forward, --allow-listen "
            "or --exec",
            status=2,
        )
    if args.uploads:
        if args.open:
            raise CommandError("clients open the streams of uploads: not with --open", status=2)
        return {"stream_handler": _uploads(args.uploads)}
    handle = _stream_handler(args)
    return {"handler": partial(_open, handle)} if args.open else {"stream_handler": handle}


def _tunnels(args: argparse.Namespace) -> dict[str, Any]:
    from ..tunnel.listening import MAX_TUNNELS
    from ..tunnel.serving import TunnelServer

    try:
        tunnels = TunnelServer(
            connect=args.allow_forward, listen=args.allow_listen, programs=args.exec
        )
    except ValueError as error:
        raise CommandError(str(error), status=2) from error
    return {"stream_handler": tunnels.serve, "workers": MAX_TUNNELS}


def _uploads(folder: Path) -> Callable[[Stream], None]:
    from ..durable import FileOffsets
    from ..durable.files import MIN_FREE, upload_handler
    from ..durable.receiver import DurableHandler

    offsets = FileOffsets(folder, min_free=MIN_FREE)
    return DurableHandler(upload_handler(offsets, lambda path: emit(str(path))), offsets=offsets)


def _stream_handler(args: argparse.Namespace) -> Callable[[Stream], None]:
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
