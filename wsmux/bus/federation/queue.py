"""Keep what waits for other relays until one of them has it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from ...config import MIB
from ..errors import FROM_RELAY, BusError

__all__ = ["FederationQueue", "MemoryFederationQueue", "QueuedMessage"]


# What memory holds for other relays, in messages and in bytes; beyond it new ones are refused.
MAX_MESSAGES = 10_000
MAX_BYTES = 64 * MIB


class QueuedMessage(NamedTuple):
    """Hold one message: what the queue knows it by, its bytes, and relays if they are known."""

    ticket: str
    data: bytes
    domains: tuple[str, ...] = ()


class FederationQueue(ABC):
    """Hold messages from ``put`` until ``done``; one thread takes, any may put."""

    @abstractmethod
    def put(self, data: bytes, domains: Sequence[str]) -> None:
        """Keep an envelope for relays.

        Raises:
            BusError: it was not kept, with a sentence for the requester.
        """

    @abstractmethod
    def take(self, limit: int) -> Sequence[QueuedMessage]:
        """Return at most ``limit`` entries, each once, waiting until there is one.

        It may return none, and does so at once after ``close`` or with a limit of 0: then it only
        does what it has to do from time to time, at least once a second while entries are held.
        """

    @abstractmethod
    def done(self, ticket: str) -> None:
        """Forget an entry: it was delivered, or its requester was told. Never raises."""

    @abstractmethod
    def close(self) -> None:
        """Make ``take`` return, and keep no more; a second time changes nothing."""

    def release(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of connections; nobody uses the queue any more."""


class MemoryFederationQueue(FederationQueue):
    """Hold messages in memory; a full queue refuses new ones. A crash loses them."""

    def __init__(self, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._some = threading.Condition(self._lock)
        self._tickets = count()
        self._new: deque[QueuedMessage] = deque()
        self._sizes: dict[str, int] = {}  # of all that are not done
        self._bytes = 0
        self._closed = False

    @property
    def messages(self) -> int:
        """The messages that are not done."""
        return len(self._sizes)

    def put(self, data: bytes, domains: Sequence[str]) -> None:
        """Keep an envelope; never blocks. Raises ``BusError`` if the queue is full or closed."""
        with self._lock:
            if self._closed:
                raise _refusal("the relay shuts down")
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
        """Return what was put and not taken yet, oldest first."""
        with self._lock:
            while not self._new and limit and not self._closed:
                self._some.wait()
            return [self._new.popleft() for _ in range(min(limit, len(self._new)))]

    def done(self, ticket: str) -> None:
        """Make room for others."""
        with self._lock:
            self._bytes -= self._sizes.pop(ticket)

    def close(self) -> None:
        """Refuse whatever is put from now on."""
        with self._lock:
            self._closed = True
            self._some.notify_all()


def _refusal(text: str) -> BusError:
    return BusError(FROM_RELAY, text, retry_safe=True)
