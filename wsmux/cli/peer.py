"""Run the gateway of a twin, which local programs use through lists in Redis.

The first line on stdout is the twin's number. Messages go to stderr, more of them with ``-v``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .terminal import CommandError, emit, talk
from .twins import add_twins, sources

if TYPE_CHECKING:
    from ..bus.wire.keys import Identity

EPILOG = (
    "Words on the command line can be read by others on this machine: --mnemonic-file is safer. "
    "Ctrl-C ends the gateway; what it has not sent by then stays in Redis."
)

REDIS = "redis://localhost:6379"

UPLOADS = Path("uploads")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wsmux peer``; the short and old ones are those of rmb-peer."""
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
    parser.add_argument("-r", "--redis", default=REDIS, metavar="URL", help=f"by default {REDIS}")
    parser.add_argument(
        "--no-update", action="store_true", help="do not update the record of the twin"
    )
    parser.add_argument(
        "-u", "--uploads", action="store_true", help="allow file uploads, both ways"
    )
    parser.add_argument(
        "--upload-dir",
        type=Path,
        default=UPLOADS,
        metavar="DIR",
        help=f"directory for received files; {UPLOADS} by default",
    )
    parser.add_argument("--json", action="store_true", help="print the twin and relays as JSON")
    parser.add_argument("-d", "--debug", action="count", dest="verbose", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    texts = sources(args)
    try:
        from ..bus.gateway.gateway import Peer

        identity = _identity(args)
        gateway = Peer(
            identity,
            args.relay,
            texts,
            args.redis,
            twin=args.twin,
            update=not args.no_update,
            uploads=args.upload_dir if args.uploads else None,
        )
    except (ValueError, ImportError) as error:
        raise CommandError(str(error), status=2) from error
    with gateway:
        twin = gateway.address.twin
        emit(json.dumps({"twin": twin, "relays": args.relay}) if args.json else str(twin))
        talk(f"the gateway of twin {twin} is running; Ctrl-C ends it")
        gateway.serve_forever()
    return 0


def _identity(args: argparse.Namespace) -> Identity:
    from ..bus.wire.keys import Identity

    secret = args.mnemonic
    if secret is None:
        secret = args.mnemonic_file.read_text()
    return Identity.from_secret(secret.strip(), args.key_type)
