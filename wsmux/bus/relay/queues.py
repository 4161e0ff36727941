"""Say what keeps envelopes for sessions that are away, or slower than their senders.

A relay opens a mailbox for each session that is connected to it, and puts what it cannot hand over
at once into the session's queue. What was taken stays until it is acknowledged, so that it is
handed out again to the session's next mailbox when a connection dies: at least once, duplicates
possible, as the known relay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...runtime.deadline import Deadline
from ..errors import FAILED, BusError
from ..wire.address import Address

__all__ = ["LIFE", "MAX_QUEUED", "Mailbox", "QueueUnavailable", "QueuedEnvelope", "SessionQueues"]

# Envelopes kept for one session, oldest dropped, and their longest life in seconds. As the known
# relay.
MAX_QUEUED = 10_000
LIFE = 3600


class QueueUnavailable(BusError):
    """Report that an envelope could not be queued; nothing of it was kept."""

    def __init__(self, message: str) -> None:
        super().__init__(FAILED, message, retry_safe=True)


class QueuedEnvelope(NamedTuple):
    """Hold one queued envelope; ``id`` is what acknowledges it."""

    id: str
    data: bytes


class Mailbox(ABC):
    """Hand out the queue of one session to the connection that it has.

    Any thread may call these methods; none waits for a network.
    """

    @abstractmethod
    def take(self, limit: int) -> list[QueuedEnvelope]:
        """Return the next entries in order, each once; none after ``close`` or a later mailbox.

        The first mailbox of a connection starts with the oldest entry that nobody acknowledged.
        Expired entries may be among them: whoever takes them tells the requesters.
        """

    @abstractmethod
    def waiting(self) -> bool:
        """Return whether there may be entries that ``take`` has not returned.

        What this process put is known to be there from the moment ``put`` returned.
        """

    @abstractmethod
    def ack(self, ids: Iterable[str]) -> None:
        """Forget entries that were delivered."""

    @abstractmethod
    def close(self) -> None:
        """Take no more; what was not acknowledged stays in the queue."""


class SessionQueues(ABC):
    """Keep a queue for each session. Many threads may use one."""

    @abstractmethod
    def open(self, address: Address, wake: Callable[[], None]) -> Mailbox:
        """Return the mailbox of a session that has connected; one from before takes no more.

        Args:
            wake: called, from any thread, when ``take`` may return more. It waits for nothing and
                may be called too often, but never under a lock that a mailbox needs.
        """

    @abstractmethod
    def put(self, address: Address, data: bytes, expires_at: int, deadline: Deadline) -> None:
        """Add an envelope to a queue; beyond ``MAX_QUEUED`` the oldest is dropped.

        Blocks until it is kept. After ``expires_at``, in Unix seconds, or ``LIFE`` seconds, it may
        be forgotten without a word: the request has run out for whoever made it.

        Raises:
            QueueUnavailable: it could not be kept, or not in time.
        """

    @abstractmethod
    def trouble(self) -> str | None:
        """Return what keeps the queues from working now, in one sentence; else ``None``."""

    @abstractmethod
    def close(self, deadline: Deadline) -> None:
        """End what runs in the background; every mailbox takes no more."""
