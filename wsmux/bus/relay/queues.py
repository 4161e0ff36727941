"""Define the queues for sessions that are away, or slower than their senders.

A relay opens a mailbox for each connected session. A taken entry stays queued until it is
acknowledged; if the connection dies first, the session's next mailbox returns it again. Delivery is
at least once, with possible duplicates, as by the reference relay.

What is queued in memory is lost with the process. ``DurableQueues`` outlive it: a relay puts every
envelope there before it sends it, and acknowledges it when its twin has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...runtime.deadline import Deadline
from ..errors import FAILED, BusError
from ..wire.address import Address

__all__ = [
    "LIFE",
    "MAX_QUEUED",
    "DurableQueues",
    "Mailbox",
    "Put",
    "QueueUnavailable",
    "QueuedEnvelope",
    "SessionQueues",
]

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

    def open_shared(self, address: Address, wake: Callable[[], None]) -> Mailbox:
        """Return the mailbox of a name at this relay; see ``open``.

        Where relays share their queues, an entry that one of them has taken is returned to another
        one only after the mailbox of the first was closed, or its process has ended.
        """
        return self.open(address, wake)

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


class Put:
    """An envelope on its way into a durable queue.

    Attributes:
        address: the address of the session.
        data: the envelope.
        done: it is queued, or never will be.
        error: why it is not queued; ``None`` if it is.
    """

    __slots__ = ("address", "data", "done", "error")

    def __init__(self, address: Address, data: bytes) -> None:
        self.address = address
        self.data = data
        self.done = False
        self.error: QueueUnavailable | None = None


class DurableQueues(SessionQueues):
    """Keep the queues where they outlive this process."""

    @abstractmethod
    def begin(self, address: Address, data: bytes, expires_at: int) -> Put:
        """Start to add an envelope; never blocks. ``finish`` adds it, together with others.

        Puts of one thread are queued in the order of their calls.
        """

    @abstractmethod
    def finish(self, puts: Sequence[Put], deadline: Deadline) -> None:
        """Block until puts are queued, or the deadline; see their ``error``."""

    def put(self, address: Address, data: bytes, expires_at: int, deadline: Deadline) -> None:
        """Add one envelope; see ``SessionQueues.put``."""
        put = self.begin(address, data, expires_at)
        self.finish([put], deadline)
        if put.error is not None:
            raise put.error
