"""Run the gateway of a twin, which local programs use through lists in Redis.

The first line on stdout is the twin's number. Messages go to stderr, more of them with ``-v``.
``wsmux peer echo`` tries a network instead: it answers echoes as the twin, or asks another one.
``wsmux peer publish`` and ``subscribe`` write and read a topic of the relay.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .redis_urls import add_redis, with_password
from .terminal import CommandError, emit, seconds, talk
from .twins import add_twins, sources

if TYPE_CHECKING:
    from ..bus.wire.keys import Identity

EPILOG = (
    "Words on the command line can be read by others on this machine: --mnemonic-file is safer. "
    "Ctrl-C ends the gateway; what it has not sent by then stays in Redis."
)

UPLOADS = Path("uploads")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wsmux peer``; the short and old ones are those of rmb-peer."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=["echo", "publish", "subscribe"],
        help="in place of a gateway, answer echoes, or with --to ask for some; publish to a topic, "
        "or print its messages; these need no Redis",
    )
    parser.add_argument("topic", nargs="?", help="with publish and subscribe: the topic")
    parser.add_argument(
        "message", nargs="?", help="with publish: a text; each line of stdin without it"
    )
    secret = parser.add_mutually_exclusive_group(required=True)
    secret.add_argument(
        "-m", "--mnemonic", metavar="WORDS", help="the secret: words, or 0x and hex"
    )
    secret.add_argument("--mnemonics", "--seed", dest="mnemonic", help=argparse.SUPPRESS)
    secret.add_argument("--mnemonic-file", type=Path, metavar="FILE", help="a file with the secret")
    parser.add_argument(
        "-k",
        "--key-type",
        choices=("sr25519", "ed25519"),
        default="sr25519",
        help="key type of the twin's account; sr25519 by default",
    )
    add_twins(parser)
    parser.add_argument("--twin", type=int, metavar="N", help="the number, if it cannot be found")
    parser.add_argument(
        "--relay", action="append", required=True, metavar="URL", help="ws:// or wss://; up to 4"
    )
    add_redis(parser)
    parser.add_argument(
        "--no-update", action="store_true", help="do not update the record of the twin"
    )
    parser.add_argument(
        "-u",
        "--uploads",
        nargs="?",
        type=Path,
        const=UPLOADS,
        metavar="DIR",
        help=f"allow file uploads, both ways; received files go to DIR, {UPLOADS} by default",
    )
    parser.add_argument("--upload-dir", type=Path, metavar="DIR", help="directory for --uploads")
    parser.add_argument(
        "--from",
        dest="start",
        default="new",
        metavar="PLACE",
        help="with subscribe: 'oldest', or the position behind which to begin; 'new' by default",
    )
    echo = parser.add_argument_group("with echo")
    echo.add_argument("--to", metavar="TWIN[:SESSION]", help="ask this twin for echoes")
    echo.add_argument("--count", type=int, default=4, metavar="N", help="how many; 4 by default")
    echo.add_argument("--size", type=int, default=64, metavar="BYTES", help="64 by default")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=10.0,
        metavar="S",
        help="for an echo, a publication or the start of a subscription; 10 by default",
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("-d", "--debug", action="count", dest="verbose", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    texts = sources(args)
    if args.to is not None and args.action != "echo":
        raise CommandError("--to is for 'wsmux peer echo'", status=2)
    for name, given, actions in (
        ("a topic", args.topic, ("publish", "subscribe")),
        ("a message", args.message, ("publish",)),
    ):
        if given is not None and args.action not in actions:
            wanted = "' or 'wsmux peer ".join(actions)
            raise CommandError(f"{name} is for 'wsmux peer {wanted}'", status=2)
    if args.action is not None:
        return _as_client(texts, args)
    try:
        from ..bus.gateway.gateway import Peer

        identity = _identity(args)
        gateway = Peer(
            identity,
            args.relay,
            texts,
            with_password(args.redis),
            twin=args.twin,
            update=not args.no_update,
            uploads=(args.upload_dir or args.uploads) if args.uploads else None,
        )
    except (ValueError, ImportError) as error:
        raise CommandError(str(error), status=2) from error
    with gateway:
        twin = gateway.address.twin
        emit(json.dumps({"twin": twin, "relays": args.relay}) if args.json else str(twin))
        talk(f"the gateway of twin {twin} is running; Ctrl-C ends it")
        gateway.serve_forever()
    return 0


def _as_client(texts: list[str], args: argparse.Namespace) -> int:
    """Do what needs no gateway."""
    try:
        from . import peer_echo, peer_topics

        identity = _identity(args)
    except (ValueError, ImportError) as error:
        raise CommandError(str(error), status=2) from error
    actions = {
        "echo": peer_echo.serve if args.to is None else peer_echo.ask,
        "publish": peer_topics.publish,
        "subscribe": peer_topics.subscribe,
    }
    try:
        return actions[args.action](identity, texts, args)
    except ValueError as error:
        raise CommandError(str(error), status=2) from error


def _identity(args: argparse.Namespace) -> Identity:
    from ..bus.wire.keys import Identity

    secret = args.mnemonic
    if secret is None:
        secret = args.mnemonic_file.read_text()
    return Identity.from_secret(secret.strip(), args.key_type)
