"""Keep messages for other relays until one of them has accepted each."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from ...config import MIB
from ...runtime.parking import Condition
from ..errors import FROM_RELAY, BusError

__all__ = ["FederationQueue", "MemoryFederationQueue", "QueuedMessage"]


# Bound of the queue in memory, in messages and bytes; beyond it new messages are refused.
MAX_MESSAGES = 10_000
MAX_BYTES = 64 * MIB


class QueuedMessage(NamedTuple):
    """Hold a message, the ticket that identifies it in the queue, and its relays if known."""

    ticket: str
    data: bytes
    domains: tuple[str, ...] = ()


class FederationQueue(ABC):
    """Hold messages from ``put`` until ``done``; one thread takes, any thread may put."""

    @abstractmethod
    def put(self, data: bytes, domains: Sequence[str]) -> None:
        """Add an envelope for one of these relays.

        Raises:
            BusError: it was not queued; the message is a sentence for the requester.
        """

    @abstractmethod
    def take(self, limit: int) -> Sequence[QueuedMessage]:
        """Return at most ``limit`` entries, each once, blocking until there is one.

        May return none, and does so at once after ``close`` or with a limit of 0. It also does
        periodic upkeep, so call it at least once a second while entries are held.
        """

    @abstractmethod
    def done(self, ticket: str) -> None:
        """Remove an entry that was delivered, or whose requester got an error. Never raises."""

    @abstractmethod
    def close(self) -> None:
        """Make ``take`` return, and accept no more messages; may be called twice."""

    def release(self) -> None:  # noqa: B027 - only some have connections
        """Close connections, after the last use of the queue."""


class MemoryFederationQueue(FederationQueue):
    """Hold messages in memory; a full queue refuses new ones. A crash loses them."""

    def __init__(self, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._some = Condition(self._lock)
        self._tickets = count()
        self._new: deque[QueuedMessage] = deque()
        self._sizes: dict[str, int] = {}  # by ticket, of messages not done
        self._bytes = 0
        self._closed = False

    @property
    def messages(self) -> int:
        """The number of messages that are not done."""
        return len(self._sizes)

    def put(self, data: bytes, domains: Sequence[str]) -> None:
        """Add an envelope; never blocks. Raises ``BusError`` if the queue is full or closed."""
        with self._lock:
            if self._closed:
                raise _refusal("the relay is shutting down")
            if len(self._sizes) >= self._max_messages or self._bytes + len(data) > self._max_bytes:
                raise _refusal(
                    f"{len(self._sizes)} messages of {self._bytes} bytes wait for other relays, "
                    "the limit of this relay"
                )
            ticket = str(next(self._tickets))
            self._sizes[ticket] = len(data)
            self._bytes += len(data)
            self._new.append(QueuedMessage(ticket, data, tuple(domains)))
            self._some.notify()

    def take(self, limit: int) -> Sequence[QueuedMessage]:
        """Return messages that were not taken yet, oldest first."""
        with self._lock:
            while not self._new and limit and not self._closed:
                self._some.wait()
            return [self._new.popleft() for _ in range(min(limit, len(self._new)))]

    def done(self, ticket: str) -> None:
        """Free the room of a message."""
        with self._lock:
            self._bytes -= self._sizes.pop(ticket)

    def close(self) -> None:
        """Refuse further messages, and wake ``take``."""
        with self._lock:
            self._closed = True
            self._some.notify_all()


def _refusal(text: str) -> BusError:
    return BusError(FROM_RELAY, text, retry_safe=True)
