"""Define the queues for sessions that are away, or slower than their senders.

A relay opens a mailbox for each connected session. A taken entry stays queued until it is
acknowledged; if the connection dies first, the session's next mailbox returns it again. Delivery is
at least once, with possible duplicates, as by the reference relay.

What is queued in memory is lost with the process. ``DurableQueues`` outlive it: a relay puts every
envelope there before it sends it, and acknowledges it when its twin has.

The queue of a name is one of many requesters. Each twin that calls it has a line of its own there,
in the order of its requests; lines are served in rounds, one request of each. An entry has the
number of its round from the moment it is added. So a twin that floods a name holds up itself, and
what is given back has the place that it had. Where the queue of a session drops what is oldest,
that of a name refuses what is new: of a twin beyond its share, or of all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...config import MIB
from ...runtime.deadline import Deadline
from ..errors import FAILED, TOO_MANY, BusError
from ..wire.address import Address
from ..wire.names import name_of

__all__ = [
    "LIFE",
    "MAX_QUEUED",
    "DurableQueues",
    "Mailbox",
    "NameBounds",
    "Put",
    "QueueFull",
    "QueueUnavailable",
    "QueuedEnvelope",
    "SessionQueues",
    "SharedMailbox",
]

# Envelopes kept for one session, beyond which the oldest is dropped, and the maximum seconds that
# they are kept; as the reference relay.
MAX_QUEUED = 10_000
LIFE = 3600


class QueueUnavailable(BusError):
    """Report that an envelope could not be queued."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(code, message, retry_safe=True)


class QueueFull(QueueUnavailable):
    """Report that an envelope was not queued for a bound of the queue of a name."""

    def __init__(self, message: str) -> None:
        super().__init__(message, TOO_MANY)


class NameBounds(NamedTuple):
    """Bound the requests in the queue of a name, those that a worker has included.

    Attributes:
        of_twin: requests of one twin.
        twin_bytes: their bytes; a single one may be larger.
        in_all: requests of all twins.
        all_bytes: their bytes.
    """

    of_twin: int = 4000
    twin_bytes: int = 16 * MIB
    in_all: int = 20_000
    all_bytes: int = 64 * MIB

    def twin_full(self, address: Address, source: int) -> QueueFull:
        """Return the error for a twin that has its share."""
        return QueueFull(
            f"twin {source} has as many requests in the queue of {name_of(address)!r} as one twin "
            f"may, {self.of_twin} or {self.twin_bytes} bytes: wait for their answers"
        )

    def all_full(self, address: Address) -> QueueFull:
        """Return the error for a name that has too much of all twins together."""
        return QueueFull(
            f"all twins together have as many requests in the queue of {name_of(address)!r} as "
            f"they may, {self.in_all} or {self.all_bytes} bytes: try later, or start more workers"
        )


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


class SharedMailbox(Mailbox):
    """Give the workers of a name at this relay access to its queue."""

    @abstractmethod
    def give_back(self, ids: Iterable[str]) -> None:
        """Let entries that were taken wait again, where they were, for whoever takes next."""


class SessionQueues(ABC):
    """Keep a queue for each session. Any thread may use it."""

    @abstractmethod
    def open(self, address: Address, wake: Callable[[], None]) -> Mailbox:
        """Return the mailbox of a connected session; an earlier mailbox returns no more entries.

        Args:
            address: the address of the session.
            wake: called when ``take`` may return more, from any thread and possibly without need;
                never under a lock that a mailbox needs. Must not block, nor put anything.
        """

    @abstractmethod
    def open_shared(self, address: Address, wake: Callable[[], None]) -> SharedMailbox:
        """Return the mailbox of a name at this relay; see ``open``.

        Where relays share their queues, an entry that one of them has taken is returned to another
        one only after the first has given it back, or closed its mailbox, or its process has ended.
        """

    @abstractmethod
    def put(
        self, address: Address, data: bytes, expires_at: int, deadline: Deadline, source: int = 0
    ) -> None:
        """Add an envelope to a queue, dropping the oldest entry of a session's beyond its bound.

        Blocks until it is queued. After ``expires_at``, in Unix seconds, or ``LIFE`` seconds, it
        may be discarded silently: its requester has timed out.

        Args:
            address: the address of the session, or of a name.
            data: the envelope.
            expires_at: when it expires.
            deadline: bounds the wait.
            source: the twin that has sent it, in whose line it waits for a name.

        Raises:
            QueueFull: the queue is that of a name, and has a bound reached.
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
        address: the address of the session, or of a name.
        data: the envelope.
        expires_at: when it expires, in Unix seconds.
        source: the twin that has sent it.
        done: it is queued, or never will be.
        error: why it is not queued; ``None`` if it is.
    """

    __slots__ = ("address", "data", "done", "error", "expires_at", "source")

    def __init__(self, address: Address, data: bytes, expires_at: int, source: int) -> None:
        self.address = address
        self.data = data
        self.expires_at = expires_at
        self.source = source
        self.done = False
        self.error: QueueUnavailable | None = None


class DurableQueues(SessionQueues):
    """Keep the queues where they outlive this process."""

    @abstractmethod
    def begin(self, address: Address, data: bytes, expires_at: int, source: int = 0) -> Put:
        """Start to add an envelope; never blocks. ``finish`` adds it, together with others.

        Puts of one thread are queued in the order of their calls. For the arguments, see ``put``.
        """

    @abstractmethod
    def finish(self, puts: Sequence[Put], deadline: Deadline) -> None:
        """Block until puts are queued, or the deadline; see their ``error``."""

    def put(
        self, address: Address, data: bytes, expires_at: int, deadline: Deadline, source: int = 0
    ) -> None:
        """Add one envelope; see ``SessionQueues.put``."""
        put = self.begin(address, data, expires_at, source)
        self.finish([put], deadline)
        if put.error is not None:
            raise put.error
