"""Restrict the names of Redis lists that a message may choose.

A command names the list on which a service waits, and ``ret`` the list for answers, so the sender
of a message chooses a key in the database. The reference gateway accepts any name; here names are
short, use plain characters, and exclude the keys of gateways and relays.
"""

from __future__ import annotations

import re

__all__ = ["COMMAND_PREFIX", "MAX_NAME", "command_queue", "reply_queue"]

COMMAND_PREFIX = "msgbus."

MAX_NAME = 128
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME}}}")

# Keys of gateways and relays in the same database: reserved first parts after "msgbus.", and whole
# names.
SYSTEM_PARTS = frozenset({"system", "backlog"})
SYSTEM_NAMES = frozenset({"msgbus", "twin", "relay.federation.stream"})


def _checked(name: str, what: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} must have 1 to {MAX_NAME} characters of A-Z a-z 0-9 . _ -, not {name[:80]!r}"
        )
    return name


def _is_system(queue: str) -> bool:
    if queue.startswith(COMMAND_PREFIX):
        return queue.split(".")[1] in SYSTEM_PARTS
    return queue in SYSTEM_NAMES


def command_queue(command: str) -> str:
    """Return the list for requests to a command.

    Raises:
        ValueError: the name is not allowed.
    """
    queue = COMMAND_PREFIX + _checked(command, "a command")
    if _is_system(queue):
        raise ValueError(f"the command {command!r} would name a system queue")
    return queue


def reply_queue(name: str) -> str:
    """Return the list that a caller named for answers.

    Raises:
        ValueError: the name is not allowed.
    """
    queue = _checked(name, "the name of a queue for answers")
    if _is_system(queue):
        raise ValueError(f"{name!r} is a system queue, not one for answers")
    return queue
