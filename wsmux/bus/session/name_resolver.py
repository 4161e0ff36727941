"""Find which twin answers a name, by asking relays or from pins.

Threads and locks: any thread may look up a name; it asks without the lock, which guards the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...runtime import clock
from ...runtime.deadline import Deadline
from ..errors import (
    FAILED,
    NOBODY_JOINED,
    UNKNOWN_COMMAND,
    BusError,
    CallTimeout,
    NobodyJoined,
    RelayRefused,
)
from ..wire.address import Address
from ..wire.names import Presence, Worker, check_name, shared_address
from .relay_connection import RelayConnection
from .relay_control import RelayControl
from .relay_pool import RelayPool

__all__ = ["NameResolver", "Resolved", "presence_of"]

# Seconds for which an owner is believed without asking again, and the names remembered.
CACHED = 30.0
MAX_CACHED = 1024


class Resolved(NamedTuple):
    """Describe where the requests to a name go: the address, and over which relay."""

    address: Address
    relay: RelayConnection | None


class NameResolver:
    """Find the owners of names. Any thread may use it.

    Args:
        control: asks the relays.
        relay_pool: the connections to relays.
        pins: the owners of names for which no relay is asked.

    Raises:
        ValueError: a pinned name is none.
    """

    def __init__(
        self, control: RelayControl, relay_pool: RelayPool, pins: Mapping[str, int] | None
    ) -> None:
        self._control = control
        self._relay_pool = relay_pool
        self._pins = {check_name(name): owner for name, owner in (pins or {}).items()}
        self._lock = threading.Lock()
        self._cache: dict[str, tuple[Resolved, float]] = {}

    def resolve(self, name: str, deadline: Deadline) -> Resolved:
        """Return where requests to a name go; blocks for a relay if that is not known.

        Raises:
            NobodyJoined: nobody has joined the name at any relay that is connected.
            RelayRefused: no relay knows names.
            CallTimeout: no relay answered in time.
        """
        pinned = self._pins.get(name)
        if pinned is not None:
            return Resolved(shared_address(pinned, name), None)
        now = clock.monotonic()
        with self._lock:
            known = self._cache.get(name)
        if known is not None and now < known[1]:
            return known[0]
        presence, relay = self._ask(name, deadline)
        found = Resolved(shared_address(presence.owner, name), relay)
        with self._lock:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[name] = found, now + CACHED
        return found

    def forget(self, name: str) -> None:
        """Ask again at the next call of a name."""
        with self._lock:
            self._cache.pop(name, None)

    def who(self, name: str, deadline: Deadline) -> Presence:
        """Ask who answers a name; see ``resolve`` for the errors.

        Raises:
            NobodyJoined: or the name is pinned to another twin than the one that has joined it.
        """
        presence, _ = self._ask(name, deadline)
        pinned = self._pins.get(name)
        if pinned is not None and presence.owner != pinned:
            text = f"{name!r} is pinned to twin {pinned}, and twin {presence.owner} has joined it"
            raise NobodyJoined(NOBODY_JOINED, text)
        return presence

    def _ask(self, name: str, deadline: Deadline) -> tuple[Presence, RelayConnection]:
        """Ask each relay that is connected, until one knows the name.

        A relay that does not answer leaves their share of the time to the others. A failure is safe
        to retry: nothing was called yet.
        """
        first = self._relay_pool.connected(deadline)
        others = [
            each for each in self._relay_pool.connections() if each is not first and each.serial
        ]
        failures: list[BusError] = []
        relays = [first, *others]
        for asked, relay in enumerate(relays):
            left = deadline.remaining()
            share = Deadline(None if left is None else left / (len(relays) - asked))
            try:
                answer = self._control.ask("relay.who", {"name": name}, share, relay)
                return presence_of(name, answer), relay
            except BusError as error:
                failures.append(error)
        failure = min(failures, key=_weight)
        if isinstance(failure, RelayRefused):
            raise failure
        if isinstance(failure, CallTimeout):
            raise CallTimeout(failure.message, retry_safe=True) from failure
        raise BusError(failure.code, failure.message, retry_safe=True) from failure


def _weight(error: BusError) -> int:
    """Order failures by what they say: an answer about the name, then no answer, then the rest."""
    if isinstance(error, NobodyJoined):
        return 0
    return 2 if isinstance(error, RelayRefused) and error.code == UNKNOWN_COMMAND else 1


def presence_of(name: str, answer: Any) -> Presence:
    """Read what a relay answered.

    Raises:
        RelayRefused: it is not what a relay answers.
    """
    try:
        workers = tuple(
            Worker(_session(each["session"]), float(each["since"])) for each in answer["workers"]
        )
        owner = answer["owner"]
        if type(owner) is not int or not 0 < owner < 2**32:
            raise ValueError(f"{owner!r} is no twin")
        return Presence(name, owner, float(answer["since"]), workers)
    except (KeyError, TypeError, ValueError) as error:
        raise RelayRefused(FAILED, f"a relay said about {name!r} what is none: {error}") from error


def _session(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r} is no session")
    return value
