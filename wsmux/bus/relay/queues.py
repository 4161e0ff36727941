"""Define the queues for sessions that are away, or slower than their senders.

A relay opens a mailbox for each connected session, and queues what it cannot send at once. A taken
entry stays queued until it is acknowledged; if the connection dies first, the session's next
mailbox returns it again. Delivery is at least once, with possible duplicates, as by the reference
relay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...runtime.deadline import Deadline
from ..errors import FAILED, BusError
from ..wire.address import Address

__all__ = ["LIFE", "MAX_QUEUED", "Mailbox", "QueueUnavailable", "QueuedEnvelope", "SessionQueues"]

# Envelopes kept for one session, beyond which the oldest is dropped, and the maximum seconds that
# they are kept; as the reference relay.
MAX_QUEUED = 10_000
LIFE = 3600


class QueueUnavailable(BusError):
    """Report that an envelope could not be queued."""

    def __init__(self, message: str) -> None:
        super().__init__(FAILED, message, retry_safe=True)


class QueuedEnvelope(NamedTuple):
    """Hold a queued envelope; ``id`` is for ``Mailbox.ack``."""

    id: str
    data: bytes


class Mailbox(ABC):
    """Give a connection access to the queue of its session.

    Any thread may call these methods; none waits for the network.
    """

    @abstractmethod
    def take(self, limit: int) -> list[QueuedEnvelope]:
        """Return the next entries in order, each once; none after ``close`` or a later mailbox.

        A new mailbox starts with the oldest unacknowledged entry. Expired entries may be included:
        the caller answers their requesters with an error.
        """

    @abstractmethod
    def waiting(self) -> bool:
        """Return whether there may be entries that ``take`` has not returned.

        Entries that this process added count from the moment that ``put`` returned.
        """

    @abstractmethod
    def ack(self, ids: Iterable[str]) -> None:
        """Remove entries that were delivered."""

    @abstractmethod
    def close(self) -> None:
        """Return no more entries; unacknowledged ones stay queued."""


class SessionQueues(ABC):
    """Keep a queue for each session. Any thread may use it."""

    @abstractmethod
    def open(self, address: Address, wake: Callable[[], None]) -> Mailbox:
        """Return the mailbox of a connected session; an earlier mailbox returns no more entries.

        Args:
            address: the address of the session.
            wake: called when ``take`` may return more, from any thread and possibly without need;
                never under a lock that a mailbox needs. Must not block.
        """

    @abstractmethod
    def put(self, address: Address, data: bytes, expires_at: int, deadline: Deadline) -> None:
        """Add an envelope to a queue, dropping the oldest entry beyond ``MAX_QUEUED``.

        Blocks until it is queued. After ``expires_at``, in Unix seconds, or ``LIFE`` seconds, it
        may be discarded silently: its requester has timed out.

        Raises:
            QueueUnavailable: it could not be queued before the deadline.
        """

    @abstractmethod
    def trouble(self) -> str | None:
        """Return what keeps the queues from working, in one sentence, or ``None``."""

    @abstractmethod
    def close(self, deadline: Deadline) -> None:
        """Stop background threads; mailboxes return no more entries."""
