"""Keep the queues of sessions in Redis streams, which reference relays can share.

Keys, fields and bounds are those of the reference relay: ``stream:TWIN[:SESSION]`` with the
envelope in field ``_``, about 10,000 entries, dropped an hour after the last one was added.
Delivered entries are deleted; the rest is read again by the session's next mailbox, here or at
another relay.

Threads and locks. A thread that adds envelopes does so in its own round trip, together with what
other threads have to add (see ``redis_puts``). What it added goes into the buffer of the session's
mailbox at once, if that is open here, has room, and knows all that was before. Each reader thread
waits for the streams of up to ``EACH`` mailboxes at once and fills their buffers with the rest:
what was there before, what other relays add, and what found no room. A mailbox with a full buffer
is left out until it has room. One writer thread deletes acknowledged entries, in batches. When the
set of streams changes while a reader waits in Redis, the writer wakes it through a stream of its
own, under ``wsmux:bell:``, which expires. One lock guards all state; under it there is no I/O, and
no session is woken.

When Redis fails, readers and the writer retry after growing pauses and continue where they were;
``finish`` retries until its deadline. A key that is not a stream fails any command that names it,
so readers set its session aside, check it again from time to time, and continue with the others.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ...config import MIB
from ...runtime import fork
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import OneShotEvent
from ...storage.redis_client import explain
from ..wire.address import Address
from . import redis_sizes
from .queues import DurableQueues, Mailbox, NameBounds, Put, QueuedEnvelope, SharedMailbox
from .redis_io import Id, Reader, Writer
from .redis_puts import Added, Appender
from .redis_shared import SharedMailboxes

if TYPE_CHECKING:
    import redis

__all__ = ["RedisQueues"]

# Mailboxes of one reader; each wait names all their streams. The reference relay has 1000.
EACH = 256

# Entries, or bytes, at which a mailbox is left out of reads; entries below which it is read again.
FULL, FULL_BYTES, LOW = 256, MIB, 64

_log = logger("wsmux.bus")


class RedisQueues(DurableQueues):
    """Keep the queues in Redis; see the module.

    Args:
        client: made by ``redis_client``; owned by the queues.
        name_bounds: bound the queue of each name; the same at all relays of the database.
        max_bytes: bytes of the queues of all sessions in the database, beyond which the largest one
            loses its older half; the same at all relays.
    """

    def __init__(
        self,
        client: redis.Redis,
        name_bounds: NameBounds | None = None,
        *,
        max_bytes: int = redis_sizes.MAX_BYTES,
    ) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._mailboxes: dict[Address, _RedisMailbox] = {}
        self._readers: list[Reader] = []
        self._failure: str | None = None
        self._is_copy = False  # of a forked child
        self._closing = OneShotEvent()
        self._writer = Writer(client, self._lock, self._report)
        self._shared = SharedMailboxes(
            client, self._lock, self._writer, self._report, name_bounds or NameBounds()
        )
        self._max_bytes = max_bytes
        self._appender = self._new_appender()
        fork.register(self)

    def __repr__(self) -> str:
        return f"<RedisQueues sessions={len(self._mailboxes)} readers={len(self._readers)}>"

    def forked(self) -> None:
        """Disable the copy in a forked child; see ``runtime.fork``."""
        self._is_copy = True
        self._lock = threading.Lock()
        self._mailboxes.clear()
        self._closing = OneShotEvent()
        self._closing.set()
        self._appender = self._new_appender()

    def open(self, address: Address, wake: Callable[[], None]) -> Mailbox:
        """Return the mailbox of a session; its entries are read in the background."""
        with self._lock:
            mailbox = _RedisMailbox(self, address, wake)
            if self._closing.is_set():
                return mailbox
            reader = self._reader_locked()  # first: there may be no thread for another one
            before = self._mailboxes.get(address)
            if before is not None:
                before.end_locked()
            self._mailboxes[address] = mailbox
            mailbox.begin_locked(reader)
        return mailbox

    def open_shared(self, address: Address, wake: Callable[[], None]) -> SharedMailbox:
        """Return the mailbox of a name, whose entries relays share; see ``redis_shared``."""
        return self._shared.open(address, wake)

    def begin(self, address: Address, data: bytes, expires_at: int, source: int = 0) -> Put:
        """Start to add an envelope; Redis keeps it for ``LIFE``, whatever its expiration."""
        return self._appender.begin(Put(address, data, expires_at, source))

    def finish(self, puts: Sequence[Put], deadline: Deadline) -> None:
        """Add envelopes; retries until the deadline while Redis fails."""
        self._appender.finish(puts, deadline)

    def trouble(self) -> str | None:
        """Return why Redis failed, or ``None`` once it has answered again."""
        return self._failure

    def close(self, deadline: Deadline) -> None:
        """Delete acknowledged entries, stop the threads, and disconnect."""
        if self._is_copy:
            return
        self._closing.set()
        with self._lock:
            for mailbox in list(self._mailboxes.values()):
                mailbox.end_locked()
            self._mailboxes.clear()
            readers = list(self._readers)
            for reader in readers:
                reader.close_locked()
        self._shared.close(deadline)
        self._writer.close(deadline)
        for reader in readers:
            reader.join(deadline)
        self._client.close()

    def _new_appender(self) -> Appender:
        return Appender(
            self._client,
            self._lock,
            self._report,
            self,
            self._shared,
            self._closing,
            self._max_bytes,
        )

    def _reader_locked(self) -> Reader:
        """Return a reader with room for one more mailbox."""
        for reader in self._readers:
            if len(reader) < EACH:
                return reader
        number = len(self._readers) + 1
        reader = Reader(self._client, self._lock, self._writer, self._report, number)
        self._readers.append(reader)
        return reader

    def _report(self, error: Exception | None) -> None:
        """Record a failure, or with ``None`` a success; log only changes."""
        before, self._failure = self._failure, None if error is None else explain(error)
        if error is not None and before is None:
            _log.warning("the session queues are waiting for Redis: %s", self._failure)
        elif error is None and before is not None:
            _log.warning("the session queues work again")

    # Called by the appender, with the lock held

    def last_known_locked(self, address: Address) -> Id | None:
        """Return the last entry that the mailbox of a session knows, if one is open."""
        mailbox = self._mailboxes.get(address)
        return None if mailbox is None else mailbox.last_known

    def added_locked(self, address: Address, added: Added) -> Callable[[], None] | None:
        """Pass new entries to a mailbox; return what wakes its session, if that is necessary."""
        mailbox = self._mailboxes.get(address)
        return mailbox.wake if mailbox is not None and mailbox.added_locked(added) else None

    # Called by mailboxes

    def _forget(self, mailbox: _RedisMailbox) -> None:
        with self._lock:
            mailbox.end_locked()
            if self._mailboxes.get(mailbox.address) is mailbox:
                del self._mailboxes[mailbox.address]

    def _delivered(self, mailbox: _RedisMailbox, ids: Iterable[str]) -> None:
        done = {each.encode() for each in ids}
        with self._lock:
            self._writer.delete_locked(mailbox.key, done)
            current = self._mailboxes.get(mailbox.address)
            if current is not None and current is not mailbox:
                current.drop_locked(done)


class _RedisMailbox(Mailbox):
    """Buffer the entries of one stream; uses the lock of the queues.

    Attributes:
        key: the key of the stream.
        last_known: the newest entry that was taken into the buffer, after all before it.
        last_added: when this process last added to the stream, by the monotonic clock.
        full: whether the buffer is full, so that the stream is not read.
    """

    def __init__(self, queues: RedisQueues, address: Address, wake: Callable[[], None]) -> None:
        self.address = address
        self.key = address.stream_key().encode()
        self.wake = wake
        self.last_known: Id = (0, 0)
        self.last_added = -math.inf
        self.full = False
        self._queues = queues
        self._reader: Reader | None = None  # None before begin_locked and after end_locked
        self._buffer: deque[QueuedEnvelope] = deque()

    def take(self, limit: int) -> list[QueuedEnvelope]:
        with self._queues._lock:
            buffer = self._buffer
            taken = [buffer.popleft() for _ in range(min(limit, len(buffer)))]
            if self.full and len(buffer) < LOW and self._reader is not None:
                self.full = False
                self._reader.hurry_locked(self)
        return taken

    def waiting(self) -> bool:
        with self._queues._lock:
            return self._reader is not None and (
                bool(self._buffer) or self.full or self._reader.is_behind_locked(self)
            )

    def ack(self, ids: Iterable[str]) -> None:
        self._queues._delivered(self, ids)

    def close(self) -> None:
        self._queues._forget(self)

    # Called by the queues and the reader, with the lock held

    def begin_locked(self, reader: Reader) -> None:
        """Let a reader fill the buffer."""
        self._reader = reader
        reader.add_locked(self)

    def end_locked(self) -> None:
        """Return no more entries."""
        if self._reader is not None:
            self._reader.remove_locked(self)
            self._reader = None
            self._buffer.clear()

    def fill_locked(self, entries: Iterable[tuple[Id, bytes]]) -> None:
        """Append entries that were read or added, in order."""
        for number, data in entries:
            self._buffer.append(QueuedEnvelope("{}-{}".format(*number), data))
        self.full = len(self._buffer) >= FULL or (
            sum(len(entry.data) for entry in self._buffer) >= FULL_BYTES
        )

    def added_locked(self, added: Added) -> bool:
        """Take entries that this process has added; return whether the buffer has any of them."""
        last = added.entries[-1][0]
        self.last_added = time.monotonic()
        if self._reader is None or (added.after != self.last_known and last <= self.last_known):
            return False  # nobody takes them, or the reader was faster
        if added.after == self.last_known and not (added.unknown or self.full):
            self.last_known = last
            self.fill_locked(added.entries)
            self._reader.caught_up_locked(self)
            return True
        if not self.full:
            self._reader.hurry_locked(self)
        return False

    def drop_locked(self, ids: set[bytes]) -> None:
        """Remove entries that an earlier mailbox has delivered."""
        self._buffer = deque(entry for entry in self._buffer if entry.id.encode() not in ids)
