"""Write and parse the names of services, and the addresses of the queues that their workers share.

A name belongs to one twin, its owner. Requests to it go to a session of the owner that no
connection can have: ``@`` and the name. The workers are other sessions of the owner.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .address import Address

__all__ = [
    "EXPECTED",
    "NAME",
    "Presence",
    "Worker",
    "check_name",
    "is_name",
    "is_nobody",
    "is_reserved",
    "name_of",
    "shared_address",
]

MARK = "@"

# Neither a number nor with a colon, so that it cannot be taken for an address.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
EXPECTED = "a letter and up to 63 letters, digits, dots, dashes or underscores"


@dataclass(frozen=True, slots=True)
class Worker:
    """Describe a session that shares in the calls of a name.

    Attributes:
        session: the name of the session; ``None`` for that of a gateway.
        since: when it joined, in Unix seconds.
    """

    session: str | None
    since: float


@dataclass(frozen=True, slots=True)
class Presence:
    """Describe who answers the calls of a name.

    Attributes:
        name: the name.
        owner: the number of the twin whose name it is.
        since: when the twin claimed it, in Unix seconds.
        workers: its sessions that have joined; none in the grace after the last one has left.
    """

    name: str
    owner: int
    since: float
    workers: tuple[Worker, ...] = ()


def is_name(text: str) -> bool:
    """Return whether a text is the name of a service."""
    return NAME.fullmatch(text) is not None


def check_name(name: object) -> str:
    """Return a name.

    Raises:
        ValueError: it is none.
        TypeError: it is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"expected a name as a string, got {name!r}")
    if not is_name(name):
        raise ValueError(f"expected a name as {EXPECTED}, got {name[:80]!r}")
    return name


def shared_address(owner: int, name: str) -> Address:
    """Return the address of the queue that the workers of a name share."""
    return Address(owner, MARK + name)


def name_of(address: Address) -> str | None:
    """Return the name whose shared queue an address is; ``None`` for that of a session."""
    session = address.session
    if session is None or not session.startswith(MARK) or not is_name(session[1:]):
        return None
    return session[1:]


def is_reserved(session: str | None) -> bool:
    """Return whether no connection may have a session of this name."""
    return session is not None and session.startswith(MARK)


def is_nobody(address: Address) -> bool:
    """Return whether an address is neither that of a name nor that of a session of any connection.

    It begins like the queue of a name, and goes on like none.
    """
    return is_reserved(address.session) and name_of(address) is None
