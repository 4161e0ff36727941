"""Relay streams between clients that connect here and a server, each in its own wire.

Each client gets its own connection to the server, with the headers and certificates given here; it
is asked for no token. The first line on stdout is the URL. With --resume, connections of both sides
go on after outages, as far as clients ask for it and the server allows it.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..exceptions import CloseCode
from ..runtime.logs import logger
from .addresses import (
    PROTOCOLS,
    add_connecting,
    add_listening,
    add_subprotocol,
    address,
    client_tls,
    headers,
    resuming,
    server_tls,
    subprotocol,
    url,
)
from .terminal import CommandError, emit, seconds, sentence, talk
from .tokens import origins_without_token

if TYPE_CHECKING:
    from ..mux.connection import Connection

EPILOG = (
    "Example: wsmux bridge --listen ws://127.0.0.1:8765 --protocol wsmux --protocol yamux "
    "--to tcp://127.0.0.1:9000 --to-protocol yamux"
)

_log = logger("wsmux.cli")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wsmux bridge``."""
    parser.add_argument(
        "--listen",
        type=_listen_url,
        default="ws://127.0.0.1:0",
        metavar="URL",
        help="ws://, wss:// or tcp:// address to listen on; port 0 picks a free one",
    )
    parser.add_argument(
        "--to", type=url, required=True, metavar="URL", help="server to relay the streams to"
    )
    parser.add_argument(
        "--to-protocol",
        action="append",
        choices=PROTOCOLS,
        help="wire to offer the server, wsmux by default; may be repeated, in order of preference",
    )
    add_subprotocol(parser, "--to-subprotocol")
    parser.add_argument("--timeout", type=seconds, help="seconds to connect to the server")
    add_listening(parser)
    add_connecting(parser, resumes=False)


def _listen_url(text: str) -> str:
    if urlsplit(address(text, "ws", "wss", "tcp")).port is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no port; 0 picks a free one")
    return text


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    import wsmux

    from ..handshake.access import is_loopback

    parts = urlsplit(args.listen)
    if parts.scheme == "wss" and not args.certfile:
        raise CommandError("listening at a wss:// address needs --certfile", status=2)
    if parts.scheme == "ws" and args.certfile:
        raise CommandError("--certfile needs a wss:// address", status=2)
    if args.subprotocol and len(args.to_protocol or ()) > 1:
        raise CommandError("--to-subprotocol names one wire: give one --to-protocol", status=2)
    if args.resume and parts.scheme == "tcp" and args.certfile:
        raise CommandError(f"--resume with TLS needs wss://, and {args.listen} is not", status=2)
    options = {
        "headers": headers(args, args.to),
        **subprotocol(args, args.to),
        **resuming(args, args.to, client_tls(args, args.to)),
    }
    host = parts.hostname or "127.0.0.1"
    server = wsmux.serve(
        partial(_bridge, args, options),
        host=host,
        port=parts.port or 0,
        protocols=args.protocol or ("wsmux",),
        transport="tcp" if parts.scheme == "tcp" else "websocket",
        origins=origins_without_token(host, args.origin),
        ssl_context=server_tls(args),
        resume=bool(args.resume),
    )
    with server:
        emit(json.dumps({"url": server.url, "port": server.port}) if args.json else server.url)
        if not is_loopback(host):
            text = f"{host} can be reached from other machines, where whoever connects may use "
            talk(f"wsmux bridge: {text}{args.to} with the rights given here")
        talk(f"bridging to {args.to}; Ctrl-C ends it")
        server.serve_forever()
    return 0


def _bridge(args: argparse.Namespace, options: dict[str, Any], client: Connection) -> None:
    import wsmux

    try:
        server = wsmux.connect(
            args.to,
            protocol=args.to_protocol or "wsmux",
            timeout=args.timeout,
            ssl_context=client_tls(args, args.to),
            **options,
        )
    except (wsmux.WsmuxError, OSError) as error:
        talk(f"wsmux bridge: {sentence(error)}")
        client.close(
            code=CloseCode.BAD_GATEWAY, reason="the server behind the bridge cannot be reached"
        )
        return
    _log.info("%s (%s) to %s (%s)", client.name, client.protocol, args.to, server.protocol)
    wsmux.bridge(client, server)
