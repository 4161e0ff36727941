"""Add envelopes to the streams of sessions, many in one round trip.

Threads and locks. A thread queues its envelopes with ``begin`` and then waits in ``finish``. Of all
threads that wait, one has the turn: it sends what has been queued by any of them, while the others
queue more. So one round trip serves a whole batch of a connection, and of every other connection
that has come meanwhile. The lock of the queues guards what is pending; the turn is taken without
it.

One script for each session checks, in one step with adding, that nobody else has added to the
stream after the last entry that this process knows. So the new entries need not be read back. It
also keeps all streams within a bound; see ``redis_sizes``. What is for a name is added by another
one, which also takes what the workers at this relay have room for; see ``redis_rounds``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...config import MIB
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import OneShotEvent
from ...storage.redis_client import (
    FAILURES,
    REPLY_TIME,
    cause,
    explain,
    is_wrong_type,
    run_together,
)
from ..wire.address import Address
from ..wire.names import is_reserved
from . import redis_sizes
from .queues import Put, QueueUnavailable
from .redis_io import Report, RetryPause, parse_id, show_id

if TYPE_CHECKING:
    import redis

    from .redis_io import Id
    from .redis_shared import SharedMailboxes

__all__ = ["Added", "Appender"]

# Envelopes, and their bytes, in one round trip; a single one may be larger.
MAX_PUTS, MAX_BYTES = 1000, 4 * MIB

_log = logger("wsmux.bus")


class Added(NamedTuple):
    """Describe entries that were added to the stream of a session.

    Attributes:
        after: the last entry that was known before; ``None`` if no mailbox is open.
        unknown: whether others had added entries after that one.
        entries: the new entries, in order.
    """

    after: Id | None
    unknown: bool
    entries: list[tuple[Id, bytes]]


class Known(Protocol):
    """Describe what an appender uses of the queues."""

    def last_known_locked(self, address: Address) -> Id | None:
        """Return the last entry that the mailbox of a session knows, if one is open."""

    def added_locked(self, address: Address, added: Added) -> Callable[[], None] | None:
        """Record new entries; return what wakes their session, if that is necessary."""


class Adding(Protocol):
    """Describe the puts to one session or name, on their way in one script.

    Attributes:
        puts: in their order.
    """

    puts: list[Put]

    def command(self) -> tuple[Any, ...]:
        """Return what runs the script; see ``run_together``."""

    def added_locked(self, result: Any) -> Callable[[], None] | None:
        """Record what the script has returned; return what is to be called, without the lock."""

    def failed_locked(self) -> None:
        """Record that the script may not have run."""


class _ToSession:
    """Add to the stream of a session; made with the lock held."""

    def __init__(self, known: Known, address: Address, puts: list[Put], max_bytes: int) -> None:
        self.puts = puts
        self._known = known
        self._max_bytes = max_bytes
        self._address = address
        self._after = known.last_known_locked(address)

    def command(self) -> tuple[Any, ...]:
        shown = b"" if self._after is None else show_id(self._after)
        envelopes = [put.data for put in self.puts]
        return redis_sizes.add(self._address.stream_key(), shown, self._max_bytes, envelopes)

    def added_locked(self, result: Any) -> Callable[[], None] | None:
        unknown, *ids = result
        entries = [(parse_id(each), put.data) for each, put in zip(ids, self.puts, strict=True)]
        return self._known.added_locked(self._address, Added(self._after, bool(unknown), entries))

    def failed_locked(self) -> None:
        """Do nothing: the puts stay pending."""


class Appender:
    """Add envelopes; see the module for the threads.

    Args:
        client: made by ``redis_client``.
        lock: the lock of the queues.
        report: told of failures and successes.
        known: the queues.
        shared: adds what is for names.
        closing: set when nothing is added any more.
        max_bytes: bytes of all streams of sessions in the database.
    """

    def __init__(
        self,
        client: redis.Redis,
        lock: threading.Lock,
        report: Report,
        known: Known,
        shared: SharedMailboxes,
        closing: OneShotEvent,
        max_bytes: int,
    ) -> None:
        self._client = client
        self._max_bytes = max_bytes
        self._lock = lock
        self._report = report
        self._known = known
        self._shared = shared
        self._closing = closing
        self._turn = threading.Lock()
        self._pending: deque[Put] = deque()

    def begin(self, put: Put) -> Put:
        """Queue an envelope; it is added by a later ``finish``."""
        with self._lock:
            self._pending.append(put)
        return put

    def finish(self, puts: Sequence[Put], deadline: Deadline) -> None:
        """Wait until puts are done, adding what is pending; retries until the deadline.

        Behind the deadline it waits for one reply more: of the turn that another thread has, or of
        its own. If this process has stood still meanwhile, Redis was not asked for so long.
        """
        pause, why = RetryPause(), "Redis did not answer in time"
        late = False
        while not all(put.done for put in puts):
            seconds = REPLY_TIME if late else deadline.park_seconds()
            if self._closing.is_set():
                self._give_up(puts, "the queues are closed")
            elif not self._turn.acquire(timeout=seconds):
                if late:
                    self._give_up(puts, why)
                late = True
            else:
                failure = self._take_turn(puts)
                if failure is not None:
                    why, seconds, left = explain(failure), pause.next(), deadline.remaining()
                    if left is not None and left <= seconds:
                        self._give_up(puts, why)
                    else:
                        self._closing.wait(seconds)

    def _take_turn(self, puts: Sequence[Put]) -> Exception | None:
        """Add what is pending if these puts are not done, and wake the sessions."""
        wakes: list[Callable[[], None]] = []
        try:
            if all(put.done for put in puts):
                return None
            return self._add(wakes)
        finally:
            self._turn.release()
            for wake in wakes:
                try:
                    wake()
                except Exception:  # of another session, which this thread does not belong to
                    _log.exception("a session could not be woken")

    def _add(self, wakes: list[Callable[[], None]]) -> Exception | None:
        """Add a batch of what is pending; return the failure for which some still are."""
        with self._lock:
            batch = self._next_locked()
        left = batch
        failure: Exception | None = None
        results: list[Any] = []
        try:
            results = run_together(self._client, [each.command() for each in batch])
            left = []
        except FAILURES as error:
            failure = error
        finally:
            for each in left:
                self._not_added(each)
        for each, result in zip(batch, results, strict=bool(results)):
            if not isinstance(result, Exception):
                self._added(each, result, wakes)
            elif is_wrong_type(result):  # affects this session alone
                why = f"cannot queue for {each.puts[0].address.shown()}: {cause(result)}"
                self._give_up(each.puts, why)
                self._not_added(each)
            else:
                failure = result
                self._not_added(each)
        self._report(failure)
        return failure

    def _next_locked(self) -> list[Adding]:
        """Take the next puts, and group them by session."""
        batch: dict[Address, list[Put]] = {}
        count = size = 0
        pending = self._pending
        while pending and count < MAX_PUTS and (not count or size < MAX_BYTES):
            put = pending.popleft()
            batch.setdefault(put.address, []).append(put)
            count += 1
            size += len(put.data)
        return [
            self._shared.adding_locked(address, puts)
            if is_reserved(address.session)
            else _ToSession(self._known, address, puts, self._max_bytes)
            for address, puts in batch.items()
        ]

    def _added(self, adding: Adding, result: list[Any], wakes: list[Callable[[], None]]) -> None:
        with self._lock:
            wake = adding.added_locked(result)
            for put in adding.puts:
                put.done = True
        if wake is not None:
            wakes.append(wake)

    def _not_added(self, adding: Adding) -> None:
        with self._lock:
            adding.failed_locked()
            left = [put for put in adding.puts if not put.done]
            self._pending.extendleft(reversed(left))

    def _give_up(self, puts: Sequence[Put], why: str) -> None:
        with self._lock:
            for put in puts:
                if not put.done:
                    put.done, put.error = True, QueueUnavailable(why)
            self._pending = deque(put for put in self._pending if not put.done)
