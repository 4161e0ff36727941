"""Relay envelopes between the twins of the bus.

The first line on stdout is the URL. Messages go to stderr, those about connections with ``-v``.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .addresses import add_tls, server_tls
from .terminal import CommandError, emit, positive_int, seconds, talk
from .twins import add_twins, sources

if TYPE_CHECKING:
    from ..bus.relay.relay import Relay

EPILOG = (
    "Other relays reach this one by POST at https://DOMAIN/, so it needs a TLS proxy in front, "
    "or --certfile. GET /metrics is for Prometheus, GET /healthz is a health check. Ctrl-C "
    "ends the relay; queued messages in memory are lost, those in Redis are kept."
)

LISTEN = "127.0.0.1:8080"

# Twins cached from a source that is slower than a file: about 300 bytes each.
CACHED_TWINS = 50_000


def host_and_port(text: str) -> tuple[str, int]:
    """Parse an argument such as ``0.0.0.0:8080`` or ``[::]:8080``."""
    parts = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.netloc != text or "@" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form HOST:PORT")
    return host, port


def route(text: str) -> tuple[str, str]:
    """Parse an argument such as ``other.test=http://127.0.0.1:8081/``."""
    domain, equals, url = text.partition("=")
    if not domain or not equals or urlsplit(url).scheme not in ("http", "https"):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form DOMAIN=http(s)://...")
    return domain, url


def limit(texts: list[str]) -> tuple[int, int]:
    """Parse ``COUNT SIZE`` or ``COUNT,SIZE``.

    Raises:
        CommandError: it has another form.
    """
    parts = [part for text in texts for part in text.split(",") if part]
    if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        given = " ".join(texts)
        text = f"--limit takes a count and a size above 0, as '1000 5000000', not {given!r}"
        raise CommandError(text, status=2)
    return int(parts[0]), int(parts[1])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wsmux relay``; the short ones are those of rmb-relay."""
    parser.add_argument(
        "-l",
        "--listen",
        type=host_and_port,
        default=host_and_port(LISTEN),
        metavar="HOST:PORT",
        help=f"where to listen, {LISTEN} by default; port 0 picks a free one",
    )
    parser.add_argument(
        "-m",
        "--domain",
        action="append",
        default=[],
        metavar="NAME",
        help="name under which twins list this relay; may be repeated; without one, all twins "
        "belong to other relays",
    )
    add_twins(parser)
    parser.add_argument(
        "-r",
        "--redis",
        metavar="URL",
        help="queue messages in Redis, in memory by default; relays that share a database take "
        "over each other's forwarding, so they need the same --route",
    )
    parser.add_argument(
        "--limit",
        nargs="+",
        metavar=("COUNT", "SIZE"),
        help="messages, and bytes, that a twin may send per minute; 'COUNT,SIZE' works too",
    )
    parser.add_argument(
        "-p",
        "--ranker-period",
        "--ranker_period",
        type=seconds,
        metavar="SECONDS",
        help="period in which failures of other relays count, 3600 by default",
    )
    parser.add_argument(
        "--route",
        action="append",
        default=[],
        type=route,
        metavar="DOMAIN=URL",
        help="address of another relay, if not https://DOMAIN/; may be repeated",
    )
    parser.add_argument(
        "--max-connections", type=positive_int, metavar="N", help="maximum; 4096 by default"
    )
    add_tls(parser)
    parser.add_argument("-d", "--debug", action="count", dest="verbose", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Relay until Ctrl-C."""
    texts = sources(args)
    options = {
        "redis": args.redis,
        "limit": None if args.limit is None else limit(args.limit),
        "routes": dict(args.route),
        "ranker_period": args.ranker_period,
        "max_connections": args.max_connections,
        "ssl_context": server_tls(args),
    }
    try:
        from ..bus.relay.setup import serve_relay
        from ..bus.twins.sources import twins_from

        twins = twins_from(texts, CACHED_TWINS)
        server = serve_relay(
            args.domain,
            twins,
            *args.listen,
            **{name: value for name, value in options.items() if value is not None},
        )
    except ImportError as error:
        raise CommandError(str(error)) from error
    except ValueError as error:
        raise CommandError(str(error), status=2) from error
    with server:
        shown = {"url": server.url, "port": server.port}
        emit(json.dumps(shown) if args.json else server.url)
        names = ", ".join(args.domain) or "no domain"
        talk(f"relaying for {names} at {server.url}; Ctrl-C ends it")
        _try(server.relay)
        server.serve_forever()
    return 0


def _try(relay: Relay) -> None:
    """Report now if twins cannot be looked up; they may be later."""
    from ..bus.errors import TwinsUnavailable

    try:
        relay.find(1)
    except TwinsUnavailable as error:
        talk(f"no twin can connect yet: {error.message}")
