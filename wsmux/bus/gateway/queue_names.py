"""Say which names of Redis lists a message may choose.

A command names the list in which a service waits, and ``ret`` the list for answers, so whoever
sends a message would choose a key of the database. The known gateway takes any name; here it is
short, of plain characters, and none of those with which the gateway and relays work.
"""

from __future__ import annotations

import re

__all__ = ["COMMAND_PREFIX", "MAX_NAME", "command_queue", "reply_queue"]

COMMAND_PREFIX = "msgbus."

MAX_NAME = 128
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME}}}")

# What gateways and relays keep in the same database. A first part of "msgbus." that is theirs, and
# whole names.
SYSTEM_PARTS = frozenset({"system", "backlog"})
SYSTEM_NAMES = frozenset({"msgbus", "twin", "relay.federation.stream"})


def _checked(name: str, what: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} has 1 to {MAX_NAME} characters of A-Z a-z 0-9 . _ -, unlike {name[:80]!r}"
        )
    return name


def _is_system(queue: str) -> bool:
    if queue.startswith(COMMAND_PREFIX):
        return queue.split(".")[1] in SYSTEM_PARTS
    return queue in SYSTEM_NAMES


def command_queue(command: str) -> str:
    """Return the list in which requests for a command are put.

    Raises:
        ValueError: no list may have that name.
    """
    queue = COMMAND_PREFIX + _checked(command, "a command")
    if _is_system(queue):
        raise ValueError(f"the command {command!r} would name a queue of the system")
    return queue


def reply_queue(name: str) -> str:
    """Return the list that a caller names for answers.

    Raises:
        ValueError: no list may have that name.
    """
    queue = _checked(name, "the name of a queue for answers")
    if _is_system(queue):
        raise ValueError(f"{name!r} is a queue of the system, not one for answers")
    return queue
