"""Read tokens from a file or the environment, which process listings do not show.

And decide who may connect to a server that asks for none.
"""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from .terminal import CommandError

__all__ = [
    "VARIABLE",
    "add_token_file",
    "check_without_token",
    "origins_without_token",
    "token",
    "tokens",
]

VARIABLE = "WSMUX_TOKEN"

# Maximum size of a file of tokens.
MAX_FILE = 64 * 1024


def add_token_file(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the option for a file of tokens; ``text`` describes them."""
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"{text}; otherwise from {VARIABLE}. Other users must not have access to the file",
    )


def token(path: Path | None) -> str:
    """Return the token to send, from a file or else the environment; empty without both.

    Raises:
        CommandError: as ``tokens``, or there are several.
        OSError: the file cannot be read.
    """
    found = tokens(path)
    if len(found) > 1:
        raise CommandError(f"{path or VARIABLE} holds several tokens: give one", status=2)
    return found[0] if found else ""


def tokens(path: Path | None) -> list[str]:
    """Return the tokens, one per line, from a file or else the environment; none without both.

    Raises:
        CommandError: the file contains none, other users have access to it, or a token cannot be
            sent in a header.
        OSError: the file cannot be read.
    """
    given = os.environb.get(VARIABLE.encode(), b"") if path is None else _read(path)
    lines = given.decode("ascii", "replace").split("\n")
    found = [line.strip() for line in lines if line.strip()]
    if path is not None and not found:
        raise CommandError(f"{path} holds no token", status=2)
    if not all(each.isascii() and each.isprintable() and " " not in each for each in found):
        text = "a token has no spaces and no other characters than visible ASCII"
        raise CommandError(f"{path or VARIABLE}: {text}", status=2)
    return found


def origins_without_token(host: str, given: Sequence[str] | None) -> Sequence[str] | None:
    """Return the origins of pages that may connect to a server that asks for no token.

    A page whose own name was made to resolve to this machine (DNS rebinding) would be same-origin.
    """
    from ..handshake.access import is_loopback

    return given or (("loopback",) if is_loopback(host) else None)


def check_without_token(host: str, origins: Sequence[str] | None, instead: str = "") -> None:
    """Return if a server may do for whoever connects what it is told to do.

    Args:
        host, origins: where it listens, and to which pages, as given.
        instead: what of the command line a token is incompatible with.

    Raises:
        CommandError: other machines reach it, or every page that a browser of this one shows.
    """
    from ..handshake.access import is_loopback

    if not is_loopback(host):
        text = f"{host or 'every address'} can be reached from other machines, where whoever "
        text += f"connects may use what is allowed: give --token-file or {VARIABLE}{instead}"
        raise CommandError(text, status=2)
    if "*" in (origins or ()):
        text = "--origin '*' lets every page that a browser on this machine shows use what is "
        text += f"allowed: name the origins, or give --token-file or {VARIABLE}"
        raise CommandError(text, status=2)


def _read(path: Path) -> bytes:
    """Return the bytes of a file that is private; like ssh, check only files of this user."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and mode & 0o077:
            text = f"other users have access to {path} (mode {mode:03o}): chmod 600 {path}"
            raise CommandError(text, status=2)
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise CommandError(f"{path} is longer than the {MAX_FILE} bytes of tokens", status=2)
    return data
