"""Add the password to the URL of a Redis, from the environment, which process listings do not show.

So do ``redis-cli`` with REDISCLI_AUTH and ``psql`` with PGPASSWORD.
"""

from __future__ import annotations

import argparse
import os
from urllib.parse import parse_qs, quote, urlsplit

from .terminal import talk

__all__ = ["PASSWORD", "PASSWORD_HELP", "add_redis", "with_password"]

PASSWORD = "WSMUX_REDIS_PASSWORD"

PASSWORD_HELP = f"its password is set in {PASSWORD}, since others see the command line"


LOCAL = "redis://localhost:6379"


def add_redis(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a Redis, by default the one of this machine."""
    parser.add_argument(
        "-r",
        "--redis",
        default=LOCAL,
        metavar="URL",
        help=f"by default {LOCAL}; {PASSWORD_HELP}",
    )


def with_password(url: str) -> str:
    """Return the URL of a Redis, from the command line, with the password of the environment.

    One that is part of the URL counts, and is warned of.
    """
    try:
        parts = urlsplit(url)
        given = parts.password is not None or "password" in parse_qs(parts.query)
    except ValueError:
        return url  # whoever connects tells what is wrong, without the URL
    if given:
        talk(f"everybody on this machine sees the password of that Redis: set {PASSWORD} instead")
        return url
    password = os.environ.get(PASSWORD)
    if not password or not parts.scheme:
        return url
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()
