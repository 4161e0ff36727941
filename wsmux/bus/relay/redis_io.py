"""Read from and write to Redis in background threads, for the queues of sessions.

``redis_queues`` describes the threads and the lock that they share.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from ...config import MIB
from ...runtime.backoff import Backoff
from ...runtime.deadline import Deadline
from ...runtime.logs import logger
from ...runtime.parking import Condition, OneShotEvent
from ...runtime.threads import daemon_thread, start_thread
from ...storage.redis_client import FAILURES, ResponseError, cause, is_wrong_type, run_together
from .redis_rounds import acknowledge, is_rounds
from .redis_sizes import FIELD, delete

if TYPE_CHECKING:
    import redis

__all__ = [
    "BELL",
    "COUNT",
    "Id",
    "Reader",
    "RetryPause",
    "Writer",
    "parse_id",
    "show_id",
]

# Key prefix of the streams that wake readers, and seconds after which Redis drops an unused one.
BELL = "wsmux:bell:"
BELL_LIFE = 60

# Milliseconds that one read waits for entries; less than the reply timeout of a connection.
BLOCK = 1000

# The same while streams are left out to which this process has just added: adding to them tells
# whether others have, too. So what others add may wait as long.
BUSY_BLOCK = 100

# Entries read from one stream at once, the same after a read of more bytes than the third, and
# streams in a read that does not wait.
COUNT, FEW, MANY_BYTES, HURRIED = 64, 4, 4 * MIB, 32

# Entries in a batch of deletions, and seconds until an incomplete batch is sent; as the reference
# relay.
BATCH, BATCH_TIME = 128, 0.01

# Types of key that can be read as a stream, and seconds between checks of a key of another type.
READABLE = (b"stream", b"none")
LOOK_PAUSE = 2.0

# Seconds to pause after a failure, at first and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0

# The two parts of an entry's id, which sort in the order of entries.
Id = tuple[int, int]

Report = Callable[[Exception | None], None]

_log = logger("wsmux.bus")


def parse_id(data: bytes) -> Id:
    """Return the numbers of an id, ``milliseconds-sequence`` or only the first of them.

    Raises:
        ValueError: it is malformed.
    """
    time, dash, sequence = data.partition(b"-")
    if not time.isdigit() or (dash and not sequence.isdigit()):
        raise ValueError(f"expected an id as milliseconds-sequence, got {data[:80]!r}")
    return int(time), int(sequence or b"0")


def show_id(number: Id) -> bytes:
    """Return an id as Redis writes it."""
    return b"%d-%d" % number


class RetryPause(Backoff):
    """Compute the pauses after failures of Redis."""

    def __init__(self) -> None:
        super().__init__(FIRST_PAUSE, LONGEST_PAUSE, least=0.5)


class Fillable(Protocol):
    """Describe what a reader uses of a mailbox."""

    key: bytes
    wake: Callable[[], None]
    last_known: Id
    last_added: float
    full: bool

    def fill_locked(self, entries: Iterable[tuple[Id, bytes]]) -> None:
        """Append entries that were read, in order."""


class Writer:
    """Delete entries and wake readers, in one background thread."""

    def __init__(self, client: redis.Redis, lock: threading.Lock, report: Report) -> None:
        self._client = client
        self._lock = lock
        self._report = report
        self._some = Condition(lock)
        self._deleting: dict[bytes, set[bytes]] = {}  # until Redis has confirmed
        self._bells: set[str] = set()
        self._closed = False
        self._stop = OneShotEvent()
        self._thread = daemon_thread(target=self._run, name="wsmux-redis-writer")
        start_thread(self._thread)

    def delete_locked(self, key: bytes, ids: Collection[bytes]) -> None:
        """Delete entries of a stream soon, in a batch."""
        if ids:
            first = not self._deleting
            self._deleting.setdefault(key, set()).update(ids)
            if first or self._is_batch_locked():
                self._some.notify()

    def deleting_locked(self, key: bytes) -> Collection[bytes]:
        """Return the entries of a stream whose deletion is not confirmed."""
        return self._deleting.get(key, ())

    def ring_locked(self, bell: str) -> None:
        """Wake the reader that waits on this stream."""
        self._bells.add(bell)
        self._some.notify()

    def close(self, deadline: Deadline) -> None:
        """Finish the remaining work unless Redis fails, and stop the thread."""
        with self._lock:
            self._closed = True
            self._some.notify()
        self._stop.set()
        self._thread.join(deadline.remaining())

    def _is_batch_locked(self) -> bool:
        return sum(map(len, self._deleting.values())) >= BATCH

    def _run(self) -> None:
        pause = RetryPause()
        while (work := self._work()) is not None:
            deleted, bells = work
            try:
                self._write(deleted, bells)
            except FAILURES as error:
                self._report(error)
                with self._lock:
                    self._bells |= bells
                if self._stop.is_set():
                    _log.warning("delivered entries stay in Redis: it failed at shutdown")
                    return
                self._stop.wait(pause.next())
                continue
            self._report(None)
            pause.reset()
            self._done(deleted)

    def _work(self) -> tuple[dict[bytes, set[bytes]], set[str]] | None:
        """Wait for entries to delete or readers to wake and return both; ``None`` at the end."""
        with self._lock:
            while not (self._deleting or self._bells or self._closed):
                self._some.wait()
            if not (self._bells or self._closed or self._is_batch_locked()):
                self._some.wait(BATCH_TIME)
            if not (self._deleting or self._bells):
                return None
            bells, self._bells = self._bells, set()  # one added meanwhile is rung again
            return {key: set(ids) for key, ids in self._deleting.items()}, bells

    def _write(self, deleted: dict[bytes, set[bytes]], bells: set[str]) -> None:
        commands: list[tuple[Any, ...]] = []
        for bell in bells:
            commands.append(("XADD", bell, "MAXLEN", 1, "*", FIELD, b""))
            commands.append(("EXPIRE", bell, BELL_LIFE))
        for key, ids in deleted.items():
            commands.append(acknowledge(key, ids) if is_rounds(key) else delete(key, ids))
        for result in run_together(self._client, commands):
            if isinstance(result, Exception):
                if not is_wrong_type(result):
                    raise result
                _log.warning("Redis refused permanently: %s", cause(result))

    def _done(self, deleted: dict[bytes, set[bytes]]) -> None:
        with self._lock:
            for key, ids in deleted.items():
                self._deleting[key] -= ids
                if not self._deleting[key]:
                    del self._deleting[key]


class Reader:
    """Fill mailboxes from their streams, in one background thread."""

    def __init__(
        self,
        client: redis.Redis,
        lock: threading.Lock,
        writer: Writer,
        report: Report,
        number: int,
    ) -> None:
        self._client = client
        self._lock = lock
        self._writer = writer
        self._report = report
        self._mailboxes: dict[bytes, Fillable] = {}
        # Mailboxes to read without waiting, each with a number of its own for each request.
        self._behind: dict[bytes, tuple[Fillable, int]] = {}
        self._requests = itertools.count()
        self._count = COUNT
        self._aside: dict[bytes, Fillable] = {}  # mailboxes whose keys are not streams
        self._look = Deadline(LOOK_PAUSE)
        self._bell = BELL + uuid.uuid4().hex
        self._rung = b"0-0"  # the last entry read from the bell
        self._waits = False
        self._stop = OneShotEvent()
        self._thread = daemon_thread(target=self._run, name=f"wsmux-redis-reader-{number}")
        start_thread(self._thread)

    def __len__(self) -> int:
        return len(self._mailboxes)

    def add_locked(self, mailbox: Fillable) -> None:
        """Start to fill a mailbox."""
        self._mailboxes[mailbox.key] = mailbox
        self.hurry_locked(mailbox)

    def hurry_locked(self, mailbox: Fillable) -> None:
        """Read a mailbox's stream without delay."""
        self._behind[mailbox.key] = (mailbox, next(self._requests))
        self._ring_locked()

    def caught_up_locked(self, mailbox: Fillable) -> None:
        """Record that a mailbox has all entries of its stream without a read."""
        self._behind.pop(mailbox.key, None)

    def is_behind_locked(self, mailbox: Fillable) -> bool:
        """Return whether entries may not have been read since ``add`` or ``hurry``."""
        behind = self._behind.get(mailbox.key)
        return behind is not None and behind[0] is mailbox

    def remove_locked(self, mailbox: Fillable) -> None:
        """Stop filling a mailbox."""
        if self._mailboxes.get(mailbox.key) is mailbox:
            del self._mailboxes[mailbox.key]
            self._behind.pop(mailbox.key, None)
            self._aside.pop(mailbox.key, None)

    def close_locked(self) -> None:
        """Make the thread stop; see ``join``."""
        self._stop.set()
        self._ring_locked()

    def join(self, deadline: Deadline) -> None:
        """Wait until the thread has stopped."""
        self._thread.join(deadline.remaining())

    def _ring_locked(self) -> None:
        if self._waits:
            self._writer.ring_locked(self._bell)

    # Reader thread

    def _run(self) -> None:
        pause = RetryPause()
        while not self._stop.is_set():
            try:
                self._look_again()
                self._read()
            except FAILURES as error:
                self._report(error)
                self._stop.wait(pause.next())
            except Exception:
                _log.exception("a queue reader failed and continues")
                self._stop.wait(pause.next())
            else:
                self._report(None)
                pause.reset()

    def _read(self) -> None:
        """Read once, waiting if no mailbox is behind, and fill the mailboxes."""
        with self._lock:
            asked = dict(itertools.islice(self._behind.items(), HURRIED))
            chosen = {key: mailbox for key, (mailbox, _) in asked.items()}
            self._waits = not chosen and not self._stop.is_set()
            block = BLOCK
            if self._waits:
                chosen, block = self._idle_locked()
            streams: dict[Any, Any] = {
                key: show_id(each.last_known) for key, each in chosen.items()
            }
            if self._waits:
                streams[self._bell] = self._rung
        if not streams:
            return
        try:
            reply: Any = self._client.xread(streams, self._count, block if self._waits else None)
        except ResponseError as error:
            if not (is_wrong_type(error) and self._set_aside(chosen)):
                raise
            return
        found = {bytes(key): entries for key, entries in reply}
        wakes: list[Callable[[], None]] = []
        with self._lock:
            self._waits = False
            rings = found.pop(self._bell.encode(), None)
            if rings:
                self._rung = rings[-1][0]
            for key, mailbox in chosen.items():
                known = self._mailboxes.get(key) is mailbox
                if known and self._fill_locked(mailbox, found.get(key, []), asked.get(key)):
                    wakes.append(mailbox.wake)
        self._bound(found)
        for wake in wakes:
            wake()

    def _idle_locked(self) -> tuple[dict[bytes, Fillable], int]:
        """Return the mailboxes to wait for, and the milliseconds to wait."""
        since = time.monotonic() - BUSY_BLOCK / 1000
        idle = {
            key: each
            for key, each in self._mailboxes.items()
            if not (each.full or key in self._aside)
        }
        chosen = {key: each for key, each in idle.items() if each.last_added < since}
        return chosen, BLOCK if len(chosen) == len(idle) else BUSY_BLOCK

    def _bound(self, found: dict[bytes, list[Any]]) -> None:
        """Read fewer entries at once while they are large."""
        size = sum(len(fields.get(FIELD, b"")) for each in found.values() for _, fields in each)
        self._count = FEW if size > MANY_BYTES else COUNT

    def _set_aside(self, chosen: dict[bytes, Fillable]) -> bool:
        """Stop reading keys that are not streams; return whether there are any."""
        bad = [key for key, kind in self._kinds(chosen).items() if kind not in READABLE]
        with self._lock:
            for key in bad:
                if self._mailboxes.get(key) is chosen[key]:
                    self._behind.pop(key, None)
                    self._aside[key] = chosen[key]
        for key in bad:
            _log.warning(
                "%r is not a stream, so its session receives nothing from it: delete it", key
            )
        return bool(bad)

    def _look_again(self) -> None:
        """Resume reading keys that have become streams or were deleted."""
        if not self._look.expired():
            return
        self._look = Deadline(LOOK_PAUSE)
        with self._lock:
            aside = dict(self._aside)
        good = [key for key, kind in self._kinds(aside).items() if kind in READABLE]
        with self._lock:
            for key in good:
                if self._aside.get(key) is aside[key]:
                    self._behind[key] = (self._aside.pop(key), next(self._requests))

    def _kinds(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        pipeline: Any = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.type(key)
        return dict(zip(keys, pipeline.execute() if keys else (), strict=True))

    def _fill_locked(
        self, mailbox: Fillable, entries: list[Any], asked: tuple[Fillable, int] | None
    ) -> bool:
        """Fill a mailbox with what was read; return whether there is anything new.

        ``asked`` is the request to read it that was known before the read; a later one stays.
        """
        done = self._writer.deleting_locked(mailbox.key)
        good: list[tuple[Id, bytes]] = []
        for entry, fields in entries:
            number, data = parse_id(entry), fields.get(FIELD)
            if number <= mailbox.last_known:
                continue  # this process has added it meanwhile
            if data is None:
                _log.warning("dropped entry %r of %r: it has no envelope", entry, mailbox.key)
                self._writer.delete_locked(mailbox.key, [entry])
            elif entry not in done:
                good.append((number, data))
        mailbox.fill_locked(good)
        if entries:
            mailbox.last_known = max(mailbox.last_known, parse_id(entries[-1][0]))
        if asked is not None and self._behind.get(mailbox.key) == asked:
            del self._behind[mailbox.key]
        if len(entries) >= self._count and not mailbox.full:
            self._behind.setdefault(mailbox.key, (mailbox, next(self._requests)))
        return bool(good)
