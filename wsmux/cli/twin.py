"""Make a new twin: its keys, a file with its secret, and its entry in a directory.

stdout has the number of the twin. Messages go to stderr.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .terminal import CommandError, emit, talk

if TYPE_CHECKING:
    from ..bus.twins.records import Twin
    from ..bus.wire.keys import Identity

EPILOG = (
    "'wsmux twin new alice --twins twins.json --relay localhost' writes alice.mnemonic, for "
    "'wsmux peer --mnemonic-file'. Whoever has that file is the twin."
)

# Seconds for the registrar to answer.
TIMEOUT = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``wsmux twin``."""
    parser.add_argument("action", choices=["new"], help="make a new twin")
    parser.add_argument("name", metavar="NAME", help="its secret goes to the file NAME.mnemonic")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--registrar", metavar="URL", help="register it there")
    where.add_argument("--twins", type=Path, metavar="FILE", help="add it to this file of twins")
    parser.add_argument(
        "--relay",
        action="append",
        default=[],
        metavar="DOMAIN",
        help="domain of a relay that takes its messages, as relay.test; may be repeated",
    )
    parser.add_argument(
        "-k",
        "--key-type",
        choices=("ed25519", "sr25519"),
        default="ed25519",
        help="type of its key; ed25519 by default; give 'wsmux peer' the same",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="NAME.mnemonic exists: only enter it in the directory, after a failure to do so",
    )
    parser.add_argument("--json", action="store_true", help="print the number and more as JSON")


def run(args: argparse.Namespace) -> int:
    """Make the twin."""
    path = Path(f"{args.name}.mnemonic")
    try:
        from ..bus.twins.records import parse_domain

        relays = [parse_domain(relay) for relay in args.relay]
        identity = _identity(path, args)
    except ImportError as error:
        raise CommandError(str(error)) from error
    except FileExistsError as error:
        text = f"{path} exists and is left alone; --again enters the twin of that secret"
        raise CommandError(text) from error
    except ValueError as error:
        raise CommandError(str(error), status=2) from error
    try:
        twin = _entered(identity, relays, args)
    except BaseException:
        talk(f"the secret is in {path}; --again enters it once the cause is gone")
        raise
    shown = {"twin": twin.id, "account": identity.address, "mnemonic_file": str(path)}
    emit(json.dumps(shown) if args.json else str(twin.id))
    talk(f"twin {twin.id} is {identity.address}, of key type {args.key_type}; keep {path} safe")
    return 0


def _identity(path: Path, args: argparse.Namespace) -> Identity:
    from ..bus.twins.new_twin import keep_secret
    from ..bus.wire.keys import Identity

    if args.again:
        return Identity.from_secret(path.read_text(), args.key_type)
    identity = Identity.generate(args.key_type)
    assert identity.mnemonic is not None  # it is new
    keep_secret(path, identity.mnemonic)
    return identity


def _entered(identity: Identity, relays: list[str], args: argparse.Namespace) -> Twin:
    """Enter the twin in its directory, and return it with its number."""
    if args.twins is not None:
        from ..bus.twins.new_twin import add_to_file

        try:
            return add_to_file(args.twins, identity, relays)
        except FileExistsError as error:
            text = f"{error.filename} exists: another twin is being added, or one was cut off"
            raise CommandError(text) from error
    from ..bus.twins.http import HttpTwins
    from ..runtime.deadline import Deadline

    registrar = HttpTwins(args.registrar)
    try:
        twin = registrar.register(identity, relays, identity.e2e_public, Deadline(TIMEOUT))
    finally:
        registrar.close()
    if twin is None:
        raise CommandError(f"{args.registrar} takes no entries: is it a 'wsmux registrar'?")
    return twin
