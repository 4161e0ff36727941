"""Forward ports and Unix sockets through a server, as ssh does.

The lines on stdout name each listening address once it listens. Lost connections are
re-established; their tunnels are reset, and new ones wait meanwhile.
"""

from __future__ import annotations

import argparse
import json
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from .addresses import PROTOCOLS, add_connecting, add_subprotocol, add_token, connecting, url
from .terminal import CommandError, emit, seconds, talk

if TYPE_CHECKING:
    from ..tunnel.places import Forward, Place

EPILOG = (
    "Example: wsmux forward wss://example.org/tunnel -L 6379:redis.internal:6379 "
    "--socks 1080 --token-file FILE. The server must allow each place: wsmux serve "
    "--allow-forward, --allow-listen. SPEC is [BIND:]PORT:HOST:PORT; either end may be a Unix "
    "socket, /PATH or unix:/PATH."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``wsmux forward``."""
    parser.add_argument("url", type=url, metavar="URL", help="ws://, wss:// or tcp:// address")
    parser.add_argument(
        "-L",
        dest="local",
        action="append",
        default=[],
        type=_forward,
        metavar="SPEC",
        help="listen here, and let the server connect",
    )
    parser.add_argument(
        "-R",
        dest="remote",
        action="append",
        default=[],
        type=_forward,
        metavar="SPEC",
        help="let the server listen, and connect from here",
    )
    parser.add_argument(
        "--socks",
        action="append",
        default=[],
        type=_socks,
        metavar="[BIND:]PORT",
        help="listen here for SOCKS5 clients, and let the server connect to their destinations",
    )
    parser.add_argument("--protocol", choices=PROTOCOLS, default="wsmux")
    add_subprotocol(parser)
    parser.add_argument(
        "--timeout",
        type=seconds,
        help="seconds that a new connection waits for the server to come back; 30 by default",
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead")
    add_connecting(parser, resumes=True)
    add_token(parser)


def _forward(text: str) -> Forward:
    from ..tunnel.places import parse_forward

    try:
        return parse_forward(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _socks(text: str) -> Place:
    from ..tunnel.places import LOOPBACK, parse_place

    try:
        return parse_place(text if ":" in text else f"{LOOPBACK}:{text}", listening=True)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    """Forward until Ctrl-C."""
    import wsmux

    from ..tunnel.forwarding import Forwarder
    from ..tunnel.supervisor import PATIENCE

    if not (args.local or args.remote or args.socks):
        raise CommandError("nothing to forward: -L, -R or --socks", status=2)
    connect = partial(wsmux.connect, args.url, protocol=args.protocol, **connecting(args, args.url))
    with Forwarder(
        connect,
        local=args.local,
        remote=args.remote,
        socks=args.socks,
        patience=args.timeout or PATIENCE,
        tell=lambda text: talk(f"wsmux forward: {text}"),
    ) as forwarder:
        _tell(forwarder, args.json)
        talk("forwarding; Ctrl-C ends it")
        threading.Event().wait()
    return 0


def _tell(forwarder: Any, as_json: bool) -> None:
    if as_json:
        told = {
            "local": [[str(place) for place in each] for each in forwarder.local],
            "remote": [[str(place) for place in each] for each in forwarder.remote],
            "socks": [str(place) for place in forwarder.socks],
        }
        emit(json.dumps(told))
        return
    for kind, places in (
        ("local", forwarder.local),
        ("remote", forwarder.remote),
        ("socks", forwarder.socks),
    ):
        for place in places:
            emit(f"{kind} {place}")
