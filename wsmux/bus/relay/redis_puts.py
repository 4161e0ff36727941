"""Add envelopes to the streams of sessions, many in one round trip.

Threads and locks. A thread queues its envelopes with ``begin`` and then waits in ``finish``. Of all
threads that wait, one has the turn: it sends what has been queued by any of them, while the others
queue more. So one round trip serves a whole batch of a connection, and of every other connection
that has come meanwhile. The lock of the queues guards what is pending; the turn is taken without
it.

One script for each session checks, in one step with adding, that nobody else has added to the
stream after the last entry that this process knows. So the new entries need not be read back.
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
from ..wire.address import Address
from ..wire.names import is_reserved
from .queues import LIFE, MAX_QUEUED, Put, QueueUnavailable
from .redis_client import FAILURES, cause, explain, is_wrong_type
from .redis_io import (
    FIELD,
    RINGER,
    RUNG,
    SHARED_BELL,
    Report,
    RetryPause,
    parse_id,
    show_id,
)

if TYPE_CHECKING:
    import redis

    from .redis_io import Id

__all__ = ["Added", "Appender"]

# Envelopes, and their bytes, in one round trip; a single one may be larger.
MAX_PUTS, MAX_BYTES = 1000, 4 * MIB

# KEYS: a stream. ARGV: the last entry known, or nothing; the envelopes. Returns the number of
# unknown entries, 1 at most, and the ids of the new ones.
ADD = f"""
local told = {{0}}
if ARGV[1] ~= '' then
  told[1] = #redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', 1)
end
for i = 2, #ARGV do
  local bound = {MAX_QUEUED}
  told[i] = redis.call('XADD', KEYS[1], 'MAXLEN', '~', bound, '*', '{FIELD.decode()}', ARGV[i])
end
redis.call('EXPIRE', KEYS[1], {LIFE})
return told
"""

# The same for the stream of a name. KEYS: also the bell. ARGV: who adds; the envelopes.
ADD_SHARED = f"""
local told = {{0}}
for i = 2, #ARGV do
  local bound = {MAX_QUEUED}
  told[i] = redis.call('XADD', KEYS[1], 'MAXLEN', '~', bound, '*', '{FIELD.decode()}', ARGV[i])
end
redis.call('EXPIRE', KEYS[1], {LIFE})
redis.call('XADD', KEYS[2], 'MAXLEN', '~', {RUNG}, '*', '{FIELD.decode()}', KEYS[1],
  '{RINGER.decode()}', ARGV[1])
redis.call('EXPIRE', KEYS[2], {LIFE})
return told
"""

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


class Appender:
    """Add envelopes; see the module for the threads."""

    def __init__(
        self,
        client: redis.Redis,
        lock: threading.Lock,
        report: Report,
        known: Known,
        closing: OneShotEvent,
        ringer: str,
    ) -> None:
        self._ringer = ringer
        self._client = client
        self._lock = lock
        self._report = report
        self._known = known
        self._closing = closing
        self._turn = threading.Lock()
        self._pending: deque[Put] = deque()

    def begin(self, address: Address, data: bytes) -> Put:
        """Queue an envelope; it is added by a later ``finish``."""
        put = Put(address, data)
        with self._lock:
            self._pending.append(put)
        return put

    def finish(self, puts: Sequence[Put], deadline: Deadline) -> None:
        """Wait until puts are done, adding what is pending; retries until the deadline."""
        pause, why = RetryPause(), "Redis did not answer in time"
        while not all(put.done for put in puts):
            if self._closing.is_set():
                self._give_up(puts, "the queues are closed")
            elif not self._turn.acquire(timeout=deadline.park_seconds()):
                self._give_up(puts, why)
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
            after = {address: self._known.last_known_locked(address) for address in batch}
        left = batch
        failure: Exception | None = None
        results: list[Any] = []
        try:
            results = self._send(batch, after)
            left = {}
        except FAILURES as error:
            failure = error
        finally:
            self._put_back(left)
        for (address, puts), result in zip(batch.items(), results, strict=bool(results)):
            if not isinstance(result, Exception):
                self._added(address, puts, after[address], result, wakes)
            elif is_wrong_type(result):  # affects this session alone
                self._give_up(puts, f"cannot queue for {address.shown()}: {cause(result)}")
            else:
                failure = result
                self._put_back({address: puts})
        self._report(failure)
        return failure

    def _next_locked(self) -> dict[Address, list[Put]]:
        """Take the next puts, and group them by session."""
        batch: dict[Address, list[Put]] = {}
        count = size = 0
        pending = self._pending
        while pending and count < MAX_PUTS and (not count or size < MAX_BYTES):
            put = pending.popleft()
            batch.setdefault(put.address, []).append(put)
            count += 1
            size += len(put.data)
        return batch

    def _send(self, batch: dict[Address, list[Put]], after: dict[Address, Id | None]) -> list[Any]:
        pipeline: Any = self._client.pipeline(transaction=False)
        for address, puts in batch.items():
            known = after[address]
            shown = b"" if known is None else show_id(known)
            envelopes = (put.data for put in puts)
            key = address.stream_key()
            if is_reserved(address.session):
                shared = (2, key, SHARED_BELL, self._ringer)
                pipeline.execute_command("EVAL", ADD_SHARED, *shared, *envelopes)
            else:
                pipeline.execute_command("EVAL", ADD, 1, key, shown, *envelopes)
        results: list[Any] = pipeline.execute(raise_on_error=False)
        return results

    def _added(
        self,
        address: Address,
        puts: list[Put],
        after: Id | None,
        result: list[Any],
        wakes: list[Callable[[], None]],
    ) -> None:
        unknown, *ids = result
        entries = [(parse_id(each), put.data) for each, put in zip(ids, puts, strict=True)]
        with self._lock:
            wake = self._known.added_locked(address, Added(after, bool(unknown), entries))
            for put in puts:
                put.done = True
        if wake is not None:
            wakes.append(wake)

    def _put_back(self, batch: dict[Address, list[Put]]) -> None:
        if batch:
            with self._lock:
                left = [put for puts in batch.values() for put in puts if not put.done]
                self._pending.extendleft(reversed(left))

    def _give_up(self, puts: Sequence[Put], why: str) -> None:
        with self._lock:
            for put in puts:
                if not put.done:
                    put.done, put.error = True, QueueUnavailable(why)
            self._pending = deque(put for put in self._pending if not put.done)
