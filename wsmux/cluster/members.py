"""Remember which connections of this process have joined, and under which names."""

from __future__ import annotations

import itertools
import threading
import time
from typing import NamedTuple

from ..mux.connection import Connection
from .errors import ClusterError
from .records import Presence

__all__ = ["MAX_MEMBERS", "Held", "Members"]

# Connections that one process may have under all names together, and under one name.
MAX_MEMBERS, MAX_OF_NAME = 100_000, 1_000


class Held(NamedTuple):
    """Hold a connection, and what it has joined as."""

    connection: Connection
    presence: Presence


class Members:
    """Hold the members of one node. Any thread may use it; nothing blocks."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._held: dict[str, dict[str, Held]] = {}
        self._count = 0

    def add(self, connection: Connection, name: str) -> Presence:
        """Add a connection under a checked name.

        Raises:
            ClusterError: there are as many as there may be.
        """
        with self._lock:
            of_name = self._held.get(name, {})
            if self._count >= MAX_MEMBERS or len(of_name) >= MAX_OF_NAME:
                raise ClusterError(
                    f"{self._count} connections of this process have joined, {len(of_name)} of "
                    f"them as {name!r}: {MAX_MEMBERS} and {MAX_OF_NAME} are the most"
                )
            presence = Presence(name, self._node, str(next(self._ids)), time.time())
            self._held.setdefault(name, {})[presence.id] = Held(connection, presence)
            self._count += 1
        return presence

    def remove(self, presence: Presence) -> bool:
        """Remove a member; return whether it was there."""
        with self._lock:
            return self._remove_locked(presence)

    def remove_ended(self) -> list[Presence]:
        """Remove the members whose connections have ended, and return them."""
        with self._lock:
            everyone = [each for of_name in self._held.values() for each in of_name.values()]
            ended = [each.presence for each in everyone if each.connection.closed]
            for presence in ended:
                self._remove_locked(presence)
        return ended

    def _remove_locked(self, presence: Presence) -> bool:
        if not self._has_locked(presence):
            return False
        of_name = self._held[presence.name]
        del of_name[presence.id]
        self._count -= 1
        if not of_name:
            del self._held[presence.name]
        return True

    def __contains__(self, presence: Presence) -> bool:
        with self._lock:
            return self._has_locked(presence)

    def _has_locked(self, presence: Presence) -> bool:
        # Ids are counted in each process, so those of another one may be equal.
        held = self._held.get(presence.name, {}).get(presence.id)
        return held is not None and held.presence == presence

    def find(self, name: str, member: str | None = None) -> list[Held]:
        """Return the open connections under a name, the last that has joined first."""
        with self._lock:
            held = list(self._held.get(name, {}).values())
        return [
            each
            for each in reversed(held)
            if not each.connection.closed and member in (None, each.presence.id)
        ]

    def who(self, prefix: str, longer: bool) -> list[Presence]:
        """Return the members under the names that begin with a prefix, or are equal to it."""
        with self._lock:
            names = sorted(
                name
                for name in self._held
                if name == prefix or (longer and name.startswith(prefix))
            )
            found = [each for name in names for each in self._held[name].values()]
        return [each.presence for each in found if not each.connection.closed]

    def names(self, most: int) -> tuple[int, list[str]]:
        """Return how many members there are, and some names in order."""
        with self._lock:
            return self._count, sorted(itertools.islice(self._held, most))

    def connections(self) -> list[Connection]:
        """Return the connections of all members, each once."""
        with self._lock:
            everyone = [each.connection for held in self._held.values() for each in held.values()]
        return list(dict.fromkeys(everyone))
