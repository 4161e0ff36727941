"""Keep which twin owns which name, and which of its sessions have joined.

The first twin to join claims a name. The claim lasts while sessions are joined, and for ``GRACE``
seconds more, so that workers that all restart find their name, and what was called meanwhile.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ..errors import NAME_TAKEN, TOO_MANY
from ..wire.names import Presence, Worker
from .control import Refusal

__all__ = ["GRACE", "MAX_NAMES", "MAX_NAMES_OF_TWIN", "MAX_WORKERS", "MemoryNames", "NameStore"]

# Seconds for which a name stays claimed after its last worker has left.
GRACE = 30.0

# Names of all twins together, and of one; workers of a name.
MAX_NAMES, MAX_NAMES_OF_TWIN, MAX_WORKERS = 10_000, 64, 256


class NameStore(ABC):
    """Keep the claims of names. Any thread may use it; it blocks for Redis at most.

    Attributes:
        grace: seconds for which a name stays claimed without workers.
    """

    grace: float = GRACE

    @abstractmethod
    def join(self, name: str, owner: int, session: str | None, connection: int = 0) -> Presence:
        """Add a connection to the workers of a name, claiming the name if nobody has.

        Joining again over the same connection changes nothing. Several connections of a session
        are one worker: that which took it over may join before the end of the other is noted.

        Args:
            name: the name.
            owner: the number of the twin.
            session: the name of its session.
            connection: tells the connections of the session at this relay apart.

        Raises:
            Refusal: the name is another twin's, or a bound is reached.
            QueueUnavailable: the claims could not be asked.
        """

    @abstractmethod
    def leave(self, name: str, owner: int, session: str | None, connection: int = 0) -> None:
        """Remove a connection from the workers of a name, and no other of the same session."""

    @abstractmethod
    def look(self, name: str) -> Presence | None:
        """Return who answers a name, ``None`` if nobody has claimed it.

        Raises:
            QueueUnavailable: the claims could not be asked.
        """

    def glance(self, name: str) -> Presence | None:
        """Return what ``look`` does, or did a second ago."""
        return self.look(name)

    @abstractmethod
    def keep(self) -> None:
        """Renew what this relay has claimed; called every second or so.

        Raises:
            QueueUnavailable: the claims could not be renewed.
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnect; may be called twice."""


@dataclass(slots=True)
class _Claim:
    owner: int
    since: float
    workers: dict[tuple[str | None, int], float] = field(default_factory=dict)
    until: float = math.inf


class MemoryNames(NameStore):
    """Keep the claims in memory.

    Args:
        grace: seconds for which a name stays claimed without workers.
        max_names, max_names_of_twin, max_workers: the bounds.
        clock: returns Unix seconds.
    """

    def __init__(
        self,
        *,
        grace: float = GRACE,
        max_names: int = MAX_NAMES,
        max_names_of_twin: int = MAX_NAMES_OF_TWIN,
        max_workers: int = MAX_WORKERS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.grace = grace
        self._max_names, self._max_names_of_twin = max_names, max_names_of_twin
        self._max_workers = max_workers
        self._clock = clock
        self._lock = threading.Lock()
        self._claims: dict[str, _Claim] = {}

    def join(self, name: str, owner: int, session: str | None, connection: int = 0) -> Presence:
        worker = session, connection
        now = self._clock()
        with self._lock:
            claim = self._find_locked(name, now)
            if claim is None:
                self._make_room_locked(owner, now)
                claim = self._claims[name] = _Claim(owner, now)
            elif claim.owner != owner:
                raise Refusal(NAME_TAKEN, taken(name, claim.owner))
            if worker not in claim.workers and len(claim.workers) >= self._max_workers:
                raise Refusal(TOO_MANY, f"{name!r} has {self._max_workers} workers already")
            claim.workers.setdefault(worker, now)
            claim.until = math.inf
            found = _presence(name, claim)
        return found

    def leave(self, name: str, owner: int, session: str | None, connection: int = 0) -> None:
        worker = session, connection
        with self._lock:
            claim = self._claims.get(name)
            if claim is not None and claim.owner == owner and worker in claim.workers:
                del claim.workers[worker]
                if not claim.workers:
                    claim.until = self._clock() + self.grace

    def look(self, name: str) -> Presence | None:
        now = self._clock()
        with self._lock:
            claim = self._find_locked(name, now)
            found = None if claim is None else _presence(name, claim)
        return found

    def keep(self) -> None:
        """Do nothing: claims in memory end with this process."""

    def close(self) -> None:
        """Do nothing."""

    def _find_locked(self, name: str, now: float) -> _Claim | None:
        claim = self._claims.get(name)
        if claim is not None and claim.until <= now:
            del self._claims[name]
            return None
        return claim

    def _make_room_locked(self, owner: int, now: float) -> None:
        """Forget claims that are over, and refuse one that is too many."""
        for name in [name for name, claim in self._claims.items() if claim.until <= now]:
            del self._claims[name]
        if len(self._claims) >= self._max_names:
            raise Refusal(TOO_MANY, f"this relay keeps at most {self._max_names} names")
        if Counter(each.owner for each in self._claims.values())[owner] >= self._max_names_of_twin:
            text = f"twin {owner} has {self._max_names_of_twin} names already"
            raise Refusal(TOO_MANY, text)


def taken(name: str, owner: int) -> str:
    """Return the text of the refusal for a name that another twin owns."""
    return f"the name {name!r} belongs to twin {owner}"


def _presence(name: str, claim: _Claim) -> Presence:
    workers: dict[str | None, float] = {}
    for (session, _), since in claim.workers.items():
        workers.setdefault(session, since)  # the oldest is first
    joined = tuple(Worker(*each) for each in workers.items())
    return Presence(name, claim.owner, claim.since, joined)
