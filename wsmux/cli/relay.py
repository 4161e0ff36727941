"""Relay envelopes between the twins of the bus.

The first line on stdout is the URL. Messages go to stderr, those about connections with ``-v``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .addresses import add_host_and_port, add_tls, server_tls
from .redis_urls import PASSWORD_HELP, with_password
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

# The defaults of rmb-relay, where one of the two is given: users are at most their product.
WORKERS, USERS_PER_WORKER = 500, 1000

# Seconds for which a twin is cached; the same as in ``bus.twins.sources``.
CACHE_LIFE = 300.0

# Seconds between two blocks of the chain.
BLOCK_TIME = 6.0


def route(text: str) -> tuple[str, str]:
    """Parse an argument such as ``other.test=http://127.0.0.1:8081/``."""
    domain, equals, url = text.partition("=")
    if not domain or not equals or urlsplit(url).scheme not in ("http", "https"):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form DOMAIN=http(s)://...")
    return domain, url


def owned_name(text: str) -> tuple[str, int]:
    """Parse an argument such as ``billing=12``."""
    name, equals, twin = text.partition("=")
    if not name or not equals or not twin.isdecimal() or not int(twin):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=TWIN")
    return name, int(twin)


def topic(text: str) -> tuple[str, list[int]]:
    """Parse an argument such as ``orders=12,13``."""
    name, _, twins = text.partition("=")
    numbers = twins.split(",")
    if not name or not all(each.isascii() and each.isdecimal() for each in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form TOPIC=TWIN,TWIN...")
    return name, [int(each) for each in numbers]


def publishers(given: Iterable[tuple[str, list[int]]]) -> dict[str, list[int]]:
    """Return who may publish to each topic; one that is given again has the twins of all."""
    made: dict[str, list[int]] = {}
    for name, twins in given:
        made.setdefault(name, []).extend(twins)
    return made


def owners(given: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the owner of each name.

    Raises:
        CommandError: a name has two.
    """
    made: dict[str, int] = {}
    for name, twin in given:
        if made.setdefault(name, twin) != twin:
            text = f"--name keeps {name!r} for twin {made[name]} and for {twin}: give it to one"
            raise CommandError(text, status=2)
    return made


def retention(texts: list[str]) -> tuple[int, int, float]:
    """Parse ``MESSAGES BYTES SECONDS``.

    Raises:
        CommandError: they are no numbers.
    """
    try:
        messages, size, age = texts
        return int(messages), int(size), float(age)
    except ValueError as error:
        given = " ".join(texts)
        text = "--topic-retention takes messages, bytes and seconds, as '10000 16777216 86400'"
        raise CommandError(f"{text}, not {given!r}", status=2) from error


def blocks(text: str) -> int:
    """Parse a number of blocks, from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of blocks")
    return int(text)


def connections(args: argparse.Namespace) -> int | None:
    """Return the maximum of connections, ``None`` if it is not given.

    Raises:
        CommandError: it is given in two ways.
    """
    given: int | None = args.max_connections
    if args.workers is None and args.user_per_worker is None:
        return given
    if given is not None:
        text = "--max-connections is the product of -w and -u: give it or them"
        raise CommandError(text, status=2)
    workers: int = args.workers or WORKERS
    users: int = args.user_per_worker or USERS_PER_WORKER
    return workers * users


def cache_life(threshold: int | None) -> float:
    """Return the seconds for which a twin is cached, so that it is no more blocks behind."""
    return CACHE_LIFE if threshold is None else min(CACHE_LIFE, threshold * BLOCK_TIME)


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
    add_host_and_port(parser, LISTEN)
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
        f"over each other's forwarding, so they need the same --route; {PASSWORD_HELP}",
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="with --redis, send to connected twins without queueing first: faster, but messages "
        "under way are lost if the relay is killed",
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
        "--name",
        action="append",
        default=[],
        type=owned_name,
        metavar="NAME=TWIN",
        help="keep a name for a twin: no other one may answer its calls; may be repeated",
    )
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        type=topic,
        metavar="TOPIC=TWIN,...",
        help="the twins that may publish to a topic, to which any twin may without this; may be "
        "repeated, also for more twins of one topic; relays that share a database need the same",
    )
    parser.add_argument(
        "--topic-retention",
        nargs=3,
        metavar=("MESSAGES", "BYTES", "SECONDS"),
        help="what each topic keeps at most; 10000, 16777216 and 86400 by default",
    )
    parser.add_argument(
        "--max-connections", type=positive_int, metavar="N", help="maximum; 4096 by default"
    )
    parser.add_argument(
        "-w",
        "--workers",
        type=positive_int,
        metavar="N",
        help=f"as for rmb-relay: with -u, the maximum of connections is their product; {WORKERS} "
        "by default if -u is given",
    )
    parser.add_argument(
        "-u",
        "--user-per-worker",
        type=positive_int,
        metavar="N",
        help=f"see -w; {USERS_PER_WORKER} by default if -w is given",
    )
    parser.add_argument(
        "--catchup-threshold",
        type=blocks,
        metavar="BLOCKS",
        help=f"as for rmb-relay, how many blocks of the chain, each {BLOCK_TIME:g} s, a cached "
        f"twin may be behind; {CACHE_LIFE / BLOCK_TIME:g} at most and by default",
    )
    add_tls(parser)
    parser.add_argument("-d", "--debug", action="count", dest="verbose", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Relay until Ctrl-C."""
    texts = sources(args)
    options = {
        "redis": None if args.redis is None else with_password(args.redis),
        "fast": args.fast,
        "limit": None if args.limit is None else limit(args.limit),
        "names": owners(args.name),
        "routes": dict(args.route),
        "topics": publishers(args.topic),
        "topic_retention": args.topic_retention and retention(args.topic_retention),
        "ranker_period": args.ranker_period,
        "max_connections": connections(args),
        "ssl_context": server_tls(args),
    }
    try:
        from ..bus.relay.setup import serve_relay
        from ..bus.twins.sources import twins_from

        twins = twins_from(texts, CACHED_TWINS, cache_life(args.catchup_threshold))
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
